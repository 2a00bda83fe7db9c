"""Aggregates delivered whole, and positions older than the retention period."""

import asyncio

import pytest

from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.errors import PositionTrimmed
from shardfleet.events.delivery import (
    AggregatesNotExpanded,
    PositionLost,
    PositionOutlived,
    ShardStopped,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import ME, World, a_lease, at, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}
HOUR_MS = 3_600_000


def a_world(**world):
    return World(**{**SHORT, **world})


def put_aggregate(world, first, last, *, shard=0):
    """Put one aggregate of records named by numbers; return its sequence number."""
    records = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(first, last + 1)]
    return world.stream.put(aggregate(records), key=f"k{first}", shard_id=key(shard))


# --- aggregates: §8 row 20


@virtual
async def test_every_sub_record_of_every_aggregate_is_delivered_with_its_place():
    world = a_world(max_batch_records=7)
    numbers = [put_aggregate(world, 100 * n, 100 * n + 49) for n in range(4)]
    await world.turn(turn_ms=20_000)
    assert world.numbers == [100 * n + i for n in range(4) for i in range(50)]
    places = [(r.sequence_number, r.sub_sequence_number) for r in world.handler.handled]
    assert places == [(number, i) for number in numbers for i in range(50)]
    assert world.lease().checkpoint == at(numbers[-1], 49)


@virtual
async def test_a_broken_aggregate_is_delivered_raw_and_told():
    world = a_world()
    records = [OutgoingRecord("k", b"1"), OutgoingRecord("k", b"2")]
    broken = aggregate(records)[:-1] + b"\x00"
    world.stream.put(broken, shard_id=key(0))
    await world.turn(turn_ms=20_000)
    assert world.handler.payloads == [broken]
    (event,) = world.told(AggregatesNotExpanded)
    assert (event.verdict, event.count, event.records_dropped) == ("bad_digest", 1, 0)


@pytest.mark.parametrize("policy", ["deliver", "in-range", "kpl"])
@virtual
async def test_misrouted_aggregates_are_delivered_or_dropped_and_counted_by_policy(policy):
    async def scenario(world):
        for n in range(30):
            put_aggregate(world, 10 * n, 10 * n + 1)
        await world.turn(turn_ms=20_000)
        if policy == "deliver":
            assert len(world.numbers) == 60
            assert not world.told(AggregatesNotExpanded)
        else:
            told = world.told(AggregatesNotExpanded)
            assert {event.verdict for event in told} == {"misrouted"}
            assert sum(event.records_dropped for event in told) + len(world.numbers) == 60
            halves = sum(n % 10 == 0 and n + 1 not in world.numbers for n in world.numbers)
            assert (halves > 0) == (policy == "in-range")
            assert sum(event.count for event in told) > 5
        # The checkpoint passes what was dropped, too.
        last = world.stream.sequence_numbers(key(0))[-1]
        assert world.lease().checkpoint.sequence_number == last

    world = World(**SHORT, shards=2, misrouted=policy)
    shard = world.stream.shard(key(0))
    world.leases.leases[key(0)] = a_lease(0, hash_key_range=shard.hash_key_range)
    await scenario(world)


# --- positions older than the retention period


def _world_with_a_trimmed_position(**config):
    world = World(**SHORT, **config)
    world.put(1, 10)
    numbers = world.stream.sequence_numbers(key(0))
    world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[2]))
    world.stream.trim(key(0), keep=4)
    return world


def test_a_position_older_than_the_retention_stops_the_shard_and_says_so():
    async def main():
        world = _world_with_a_trimmed_position()
        await world.turn(turn_ms=20_000)
        assert world.numbers == []
        assert world.lease().lease_owner == ME
        assert [event.policy for event in world.told(PositionLost)] == ["stop"]
        assert len(world.told(ShardStopped)) == 1
        stop = world.state.documents["stop", key(0)].body
        assert "older than what the stream retains" in stop["error"]
        return world

    run_virtual(main())


@virtual
async def test_a_shard_stopped_by_a_lost_position_goes_on_at_the_oldest_record_when_resumed():
    world = _world_with_a_trimmed_position()

    async def person():
        await world.clock.sleep_ms(30_000)
        del world.state.documents["stop", key(0)]

    task = asyncio.create_task(person())
    await world.turn(turn_ms=90_000)
    await task
    assert world.numbers == [7, 8, 9, 10]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_a_position_older_than_the_retention_jumps_by_policy_and_states_the_loss():
    world = _world_with_a_trimmed_position(on_trimmed="jump")
    await world.turn(turn_ms=20_000)
    assert world.numbers == [7, 8, 9, 10]
    assert [event.policy for event in world.told(PositionLost)] == ["jump"]


@virtual
async def test_a_loss_that_was_jumped_is_told_once_although_nothing_was_done_since():
    world = _world_with_a_trimmed_position(on_trimmed="jump", max_attempts=0)

    async def fail(batch):
        raise ValueError("not yet")

    world.handler._script = fail
    await world.turn(turn_ms=20_000)
    await world.turn(turn_ms=20_000)
    assert world.numbers == []
    assert [event.policy for event in world.told(PositionLost)] == ["jump"]


@virtual
async def test_a_sequence_number_of_another_shard_stops_the_shard_by_that_name_and_is_no_loss():
    """Whatever is done about losses: the checkpoint is wrong, and nobody knows the right one."""
    world = World(**SHORT, on_trimmed="jump")
    world.stream.split(key(0))
    world.put(1, 3, number=1)
    world.leases.leases = {key(1): a_lease(1, checkpoint=at(1))}
    await world.turn(turn_ms=20_000)
    assert world.numbers == []
    assert not world.told(PositionLost)
    stop = world.state.documents["stop", key(1)].body
    assert "another shard's" in stop["error"]
    assert "shardfleet rewind" in stop["error"]


@virtual
async def test_a_sequence_number_that_the_service_refuses_for_its_age_counts_as_trimmed():
    """K14, harlow/kinesis-consumer#175."""
    world = World(**SHORT, on_trimmed="jump")
    world.put(1, 3)
    world.leases.leases = {key(0): a_lease(checkpoint=at(2))}

    def fault(call):
        if call.start and call.start.sequence_number:
            raise PositionTrimmed("expired")

    world.stream.fault = fault
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_a_shard_s_own_first_number_is_a_position_though_no_record_has_it():
    """K13, etspaceman/kinesis-mock#95."""
    world = World(**SHORT)
    world.stream.split(key(0))
    world.put(1, 3, number=1)
    start = int(world.stream.shard(key(1)).starting_sequence_number)
    world.leases.leases = {key(1): a_lease(1, checkpoint=at(start))}
    assert str(start) not in world.stream.sequence_numbers(key(1))
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3]
    assert not world.told(PositionLost)


@virtual
async def test_an_idle_fleet_that_was_drained_for_three_days_goes_on_and_tells_of_no_loss():
    """K16, justtrackio/gosoline#1124: the stored number is no longer there."""
    world = World(**SHORT)
    world.put(1, 3)
    await world.turn(turn_ms=60_000)
    world.put(4)
    await world.turn(turn_ms=60_000)
    await world.clock.sleep_ms(72 * HOUR_MS)

    async def later():
        await world.clock.sleep_ms(20_000)
        world.put(5, 6)

    task = asyncio.create_task(later())
    await world.turn(turn_ms=60_000)
    await task
    assert world.numbers == [1, 2, 3, 4, 5, 6]
    assert not world.told(PositionLost)
    assert not world.told(ShardStopped)
    assert len(world.told(PositionOutlived)) == 1


@virtual
async def test_a_fleet_that_was_drained_behind_its_tip_for_three_days_tells_of_the_loss():
    world = World(**SHORT, records_per_read=2, max_attempts=0)
    world.put(1, 2)
    await world.turn(turn_ms=60_000)
    world.put(3, 6)

    async def stuck(batch):
        if any(record.data == b"5" for record in batch):
            raise RuntimeError("not yet")

    world.handler._script = stuck
    await world.turn(turn_ms=60_000)
    await world.clock.sleep_ms(72 * HOUR_MS)
    await world.turn(turn_ms=60_000)
    assert 5 not in world.numbers
    assert len(world.told(PositionLost)) == 1
    assert not world.told(PositionOutlived)


@virtual
async def test_a_shard_that_was_idle_for_longer_than_the_retention_is_not_taken_for_a_loss():
    """It was at its tip within the day, so whatever came since is still there."""
    world = World(**SHORT)
    world.put(1, 3)
    for _ in range(15):
        await world.turn(turn_ms=60_000)
        await world.clock.sleep_ms(2 * HOUR_MS)
    assert world.stream.sequence_numbers(key(0)) == []
    world.put(4, 5)
    await world.turn(turn_ms=60_000)
    assert world.numbers == [1, 2, 3, 4, 5]
    assert not world.told(PositionLost)


@virtual
async def test_a_fleet_that_was_away_for_longer_than_the_retention_says_that_it_cannot_know():
    world = World(**SHORT, on_trimmed="jump")
    world.put(1, 3)
    await world.turn(turn_ms=60_000)
    await world.clock.sleep_ms(2 * HOUR_MS)
    world.put(4, 5)
    await world.clock.sleep_ms(25 * HOUR_MS)
    world.put(6, 7)
    await world.turn(turn_ms=60_000)
    assert world.numbers == [1, 2, 3, 6, 7]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_the_first_record_of_a_new_shard_is_never_taken_for_a_gap():
    world = a_world(leases=[a_lease(checkpoint=AT_TRIM_HORIZON)])
    world.put(1, 3)
    world.stream.trim(key(0), keep=1)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [3]
    assert not world.told(PositionLost)
