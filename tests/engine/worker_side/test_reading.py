"""Reading a shard: where it begins, where it goes on, how fast, and what was trimmed."""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.reading.pages import StartKind
from shardfleet.domain.stream.sequence import AT_LATEST, ExtendedSequenceNumber
from shardfleet.errors import (
    ConfigurationError,
    IteratorExpired,
    OutcomeUnknown,
    RightMissing,
    Throttled,
    Unsettled,
)
from shardfleet.events.delivery import IteratorRenewed, ReadDelayed
from shardfleet.events.worker import LeaseLost
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_testkit.clock import VirtualClock, run_virtual
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import World, a_config, a_lease, at, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}
HOUR_MS = 3_600_000


def a_world(**world):
    return World(**{**SHORT, **world})


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**{**SHORT, **world}))

    return run_virtual(main())


def put_aggregate(world, first, last, *, shard=0):
    """Put one aggregate of records named by numbers; return its sequence number."""
    records = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(first, last + 1)]
    return world.stream.put(aggregate(records), key=f"k{first}", shard_id=key(shard))


def starts(world):
    return [call.start for call in world.stream.calls if call.operation == "shard_iterator"]


# --- where it begins and goes on: protocol.md §5.1, §8 rows 2, 3, 21, 22; hazard H4


@virtual
async def test_reading_begins_at_the_checkpoint_and_passes_over_the_record_that_is_done():
    world = a_world()
    world.put(1, 5)
    numbers = world.stream.sequence_numbers(key(0))
    world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[2]))
    await world.turn(turn_ms=20_000)
    assert world.numbers == [4, 5]
    assert (starts(world)[0].kind, starts(world)[0].sequence_number) == (
        StartKind.AT_SEQUENCE_NUMBER,
        numbers[2],
    )


@pytest.mark.parametrize("sub", range(6))
@virtual
async def test_an_aggregate_is_resumed_behind_each_of_its_sub_records(sub):
    """§8 row 21: a checkpoint at each sub-sequence number; nothing twice, nothing lost."""
    world = a_world()
    number = put_aggregate(world, 1, 6)
    world.put(7, 8)
    world.leases.leases[key(0)] = a_lease(checkpoint=at(number, sub))
    await world.turn(turn_ms=20_000)
    assert world.numbers == list(range(sub + 2, 9))
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_a_checkpoint_inside_an_aggregate_is_stored_with_its_sub_sequence_number():
    world = a_world(max_attempts=0)

    async def fails_at_four(batch):
        if any(record.data == b"4" for record in batch):
            for record in batch:
                if record.data == b"4":
                    raise ValueError("not this one")
                batch.checkpoint(record)

    world.handler._script = fails_at_four
    number = put_aggregate(world, 1, 6)
    await world.turn(turn_ms=20_000)
    assert world.lease().checkpoint == at(number, 2)
    world.handler._script = None
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3, 4, 5, 6]
    assert world.lease().checkpoint == at(number, 5)


def test_an_iterator_that_expires_at_any_point_neither_repeats_nor_skips():
    """§8 rows 2 and 3: behind the last accepted record, aggregates half consumed included."""

    def reads(expire_at):
        async def scenario(world):
            numbers = [put_aggregate(world, 10 * n, 10 * n + 4) for n in range(6)]
            world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[0], 2))
            count = [0]

            def fault(call):
                if call.operation == "get_records":
                    count[0] += 1
                    if count[0] in expire_at:
                        raise IteratorExpired("too old")

            world.stream.fault = fault
            await world.turn(turn_ms=30_000)
            return world, numbers

        return in_world(scenario, records_per_read=1)

    expected = [3, 4] + [10 * n + i for n in range(1, 6) for i in range(5)]
    for expire_at in [{n} for n in range(1, 9)] + [{1, 2, 3}, {2, 4, 6}, set(range(3, 8))]:
        world, numbers = reads(expire_at)
        assert world.numbers == expected, expire_at
        renewed = starts(world)[1:]
        assert len(renewed) == len(expire_at) == len(world.told(IteratorRenewed))
        for start in renewed:
            is_first = start.sequence_number == numbers[0] and 1 in expire_at
            kinds = (StartKind.AFTER_SEQUENCE_NUMBER, StartKind.AT_SEQUENCE_NUMBER)
            assert start.kind is kinds[is_first and start.kind is kinds[1]]


@virtual
async def test_an_iterator_that_expires_while_a_slow_handler_works_loses_nothing():
    world = a_world(records_per_read=2, handler_timeout_ms=60_000)

    async def slow(batch):
        await world.clock.sleep_ms(50_000)
        world.stream.expire_iterators()

    world.handler._script = slow
    world.put(1, 8)
    await world.turn(turn_ms=800_000)
    assert world.numbers == list(range(1, 9))
    assert len(world.told(IteratorRenewed)) >= 3
    assert not world.told(LeaseLost)


@virtual
async def test_sequence_numbers_of_different_lengths_are_in_order():
    """§8 row 22: 9, 99, 100, 1000 as numbers; as text 1000 would be before 99."""
    world = a_world()
    world.put(1, 95)
    await world.turn(turn_ms=20_000)
    world.put(96, 1_000)
    await world.turn(turn_ms=20_000)
    assert world.numbers == list(range(1, 1_001))
    assert len(world.stream.sequence_numbers(key(0))[-1]) == 4
    assert world.lease().checkpoint == at(world.stream.sequence_numbers(key(0))[-1])


@virtual
async def test_a_kill_between_fetch_and_handler_loses_nothing():
    """§8 row 2: what was only fetched is fetched again; nothing before it is repeated."""
    world = a_world()
    world.put(1, 10)
    await world.turn(turn_ms=20_000)
    world.put(11, 20)
    steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
    await process(world, steps, turn_ms=20_000)
    assert len(world.deaths) == 1
    await world.turn(turn_ms=20_000)
    assert world.numbers == list(range(1, 21))


# --- LATEST: hazard H7, §8 row 8b


@virtual
async def test_a_latest_consumer_killed_before_its_first_checkpoint_skips_nothing():
    world = a_world(leases=[a_lease(checkpoint=AT_LATEST)])
    await world.open_slot()
    steps = Steps(act_at=0, only=lambda name: name == "before leases.apply checkpoint")
    feed = asyncio.create_task(_producing(world, 1, 30))
    await process(world, steps, turn_ms=60_000)
    assert len(world.deaths) == 1
    assert world.lease().checkpoint == AT_LATEST
    await world.clock.sleep_ms(20_000)
    await world.turn(turn_ms=60_000)
    await feed
    assert sorted(set(world.numbers)) == list(range(1, 31))


@virtual
async def test_a_latest_lease_is_pinned_before_its_first_read_and_the_first_pin_holds():
    world = a_world(leases=[a_lease(checkpoint=AT_LATEST)])
    world.put(1, 3)
    await world.clock.sleep_ms(60_000)
    world.put(4, 5)
    pinned_ms = world.clock.now_ms() - 30_000
    created_ms = (await world.stream.incarnation()).created_ms
    body = {"instant_ms": pinned_ms, "created_ms": created_ms}
    await world.state.write("pin", key(0), body, expected_version=None)
    await world.clock.sleep_ms(60_000)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [4, 5]
    assert starts(world)[0].kind is StartKind.AT_TIMESTAMP
    assert starts(world)[0].instant_ms == pinned_ms


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
@virtual
async def test_a_lease_of_somebody_else_s_at_the_tip_is_pinned_by_the_clock_of_the_stream(by_ms):
    """K71: Kinesis refuses an instant ahead of its own clock, and what came until then is lost."""
    world = a_world(leases=[a_lease(checkpoint=AT_LATEST)])
    world.put(1, 3)
    await world.clock.sleep_ms(60_000)
    producing = asyncio.create_task(_producing(world, 4, 13))
    await world.turn(turn_ms=20_000, clock=VirtualClock(world.clock.start_ms + by_ms))
    await producing
    assert world.numbers == list(range(4, 14))
    assert [start.instant_ms for start in starts(world)] == [world.clock.start_ms + 55_000]


@virtual
async def test_an_expired_iterator_before_the_first_record_goes_back_to_the_pin():
    """§5.1: a restart at LATEST would jump to the new tip."""
    world = a_world(leases=[a_lease(checkpoint=AT_LATEST)])

    async def late():
        await world.clock.sleep_ms(5_000)
        world.put(1, 3)
        world.stream.expire_iterators()

    task = asyncio.create_task(late())
    await world.turn(turn_ms=30_000)
    await task
    assert world.numbers == [1, 2, 3]
    assert {start.instant_ms for start in starts(world)} == {starts(world)[0].instant_ms}


@virtual
async def test_an_at_timestamp_lease_begins_at_the_configured_instant():
    world = a_world(leases=[a_lease(checkpoint=ExtendedSequenceNumber("AT_TIMESTAMP"))])
    world.put(1, 3)
    await world.clock.sleep_ms(60_000)
    world.put(4, 5)
    world.config = replace(
        world.config,
        initial_position="AT_TIMESTAMP",
        initial_timestamp_ms=world.clock.now_ms() - 1_000,
    )
    await world.turn(turn_ms=20_000)
    assert world.numbers == [4, 5]


async def _producing(world, first, last):
    for n in range(first, last + 1):
        world.put(n)
        await world.clock.sleep_ms(500)


# --- pace: protocol.md §5.1, §8 row 8a


def _spacings(world):
    calls = [c.at_ms for c in world.stream.calls if c.operation == "get_records"]
    return [later - earlier for earlier, later in pairwise(calls)]


@virtual
async def test_failing_reads_are_spaced_ever_wider_from_the_first_one_on():
    """§8 row 8a: no storm of retries after a failed first request."""
    world = a_world()
    calls = []

    def fault(call):
        if call.operation in ("shard_iterator", "get_records"):
            calls.append(call.at_ms)
            if len(calls) <= 8:
                raise Throttled("slow down")

    world.stream.fault = fault
    world.put(1, 3)
    await world.turn(turn_ms=90_000)
    assert world.numbers == [1, 2, 3]
    spacings = [later - earlier for earlier, later in pairwise(calls[:9])]
    assert min(spacings) >= world.config.busy_read_ms
    assert all(spacing >= 2_500 for spacing in spacings[5:])
    assert all(spacing <= 5_000 for spacing in spacings)
    assert len(world.told(ReadDelayed)) == 8


@virtual
async def test_a_read_that_succeeds_ends_the_growing_of_pauses():
    """§8 row 8a: the pauses after one fault do not count in the next."""
    world = a_world(records_per_read=20)
    answers = [False] * 6 + [True] + [False] * 6 + [True]
    calls = []

    def fault(call):
        if call.operation == "get_records" and answers:
            calls.append(call.at_ms)
            if not answers.pop(0):
                raise Throttled("slow down")

    world.stream.fault = fault
    world.put(1, 40)
    await world.turn(turn_ms=90_000)
    assert world.numbers == list(range(1, 41))
    assert [event.failures for event in world.told(ReadDelayed)] == [1, 2, 3, 4, 5, 6] * 2
    spacings = [later - earlier for earlier, later in pairwise(calls)]
    assert all(spacing <= 500 for spacing in spacings[7:9])
    assert all(spacing >= 2_500 for spacing in (spacings[5], spacings[12]))


@virtual
async def test_a_read_without_an_answer_is_repeated():
    world = a_world()
    left = [3]

    def fault(call):
        if call.operation == "get_records" and left[0]:
            left[0] -= 1
            raise OutcomeUnknown("no answer")

    world.stream.fault = fault
    world.put(1, 3)
    await world.turn(turn_ms=30_000)
    assert world.numbers == [1, 2, 3]


@virtual
async def test_reads_of_a_shard_keep_to_five_calls_a_second():
    world = a_world(records_per_read=1)
    world.put(1, 40)
    await world.turn(turn_ms=30_000)
    assert world.numbers == list(range(1, 41))
    assert min(_spacings(world)) >= 200
    assert world.clock.monotonic_ms() < 40_000


@virtual
async def test_reads_of_a_shard_keep_to_its_bytes_a_second():
    world = a_world(records_per_read=1)
    for n in range(20):
        world.stream.put(str(n).encode().ljust(1_000_000), shard_id=key(0))
    await world.turn(turn_ms=60_000)
    assert world.numbers == list(range(20))
    calls = [c.at_ms for c in world.stream.calls if c.operation == "get_records"]
    # 20 MB at 2 MiB/s, less what may be saved up: the last page is not asked for sooner.
    assert calls[19] - calls[0] >= (19_000_000 - 2 * 2_097_152) * 1_000 // 2_097_152


@virtual
async def test_an_idle_shard_is_asked_ever_less_often_up_to_the_bound():
    world = a_world(idle_read_ms=8_000)
    await world.turn(turn_ms=120_000)
    pauses = _spacings(world)
    assert [round(pause, -2) for pause in pauses[:6]] == [200, 400, 800, 1_600, 3_200, 6_400]
    assert len(pauses) > 8
    assert all(8_000 <= pause < 9_000 for pause in pauses[6:])


@virtual
async def test_a_shard_that_has_something_again_is_read_at_full_rate_at_once():
    world = a_world(idle_read_ms=8_000, records_per_read=1)

    async def wake():
        await world.clock.sleep_ms(60_000)
        world.put(1, 10)

    woken = asyncio.create_task(wake())
    await world.turn(turn_ms=120_000)
    await woken
    assert world.numbers == list(range(1, 11))
    calls = [c.at_ms for c in world.stream.calls if c.operation == "get_records"]
    first = next(at for at in calls if at >= 60_000)
    assert first <= 60_000 + world.config.idle_read_ms, "the bound holds"
    busy = [at for at in calls if first <= at][:11]
    assert all(200 <= b - a < 300 for a, b in pairwise(busy)), "not slowed by the time before"


@pytest.mark.parametrize("window_ms", [5_000, 300_000])
@virtual
async def test_within_a_window_records_gather_for_one_call_and_none_waits_longer(window_ms):
    world = a_world(batch_window_ms=window_ms, max_turn_ms=10**8)
    waits = []

    async def look(batch):
        waits.extend(world.clock.now_ms() - r.approximate_arrival_ms for r in batch)

    async def feed():
        for n in range(100):
            await world.clock.sleep_ms(window_ms // 20)
            world.put(n)

    world.handler._script = look
    feeding = asyncio.create_task(feed())
    await world.turn(turn_ms=7 * window_ms + 20_000)
    await feeding

    assert world.numbers == list(range(100))
    # Twenty came within each window, and none waited for the next one.
    assert 5 <= len(world.handler.calls) <= 7
    assert max(waits) <= window_ms + 1_000


@virtual
async def test_a_shard_that_is_behind_is_read_on_without_waiting_for_the_window():
    world = a_world(batch_window_ms=30_000, records_per_read=5)
    world.put(1, 50)
    await world.turn(turn_ms=60_000)
    assert world.numbers == list(range(1, 51))
    calls = [c.at_ms for c in world.stream.calls if c.operation == "get_records"]
    assert calls[9] - calls[0] < 3_000


def test_a_window_is_shorter_than_the_lag_that_is_aimed_at():
    with pytest.raises(ConfigurationError, match="batch_window_ms: 60000 found, less than lag_obj"):
        a_config(batch_window_ms=60_000, lag_objective_ms=60_000)


@virtual
async def test_an_empty_answer_with_lag_is_followed_at_once():
    """H6: an empty page does not mean that there is nothing."""
    world = a_world()
    lies = [10]

    def alter(shard_id, page):
        if lies[0]:
            lies[0] -= 1
            iterator = call_iterator[0]
            return replace(page, records=[], resume_token=iterator, millis_behind_latest=60_000)
        return page

    call_iterator = []
    real = world.stream.get_records

    async def remembering(iterator, *, shard_id, limit):
        call_iterator[:] = [iterator]
        return await real(iterator, shard_id=shard_id, limit=limit)

    world.stream.get_records = remembering
    world.stream.alter = alter
    world.put(1, 3)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3]
    assert _spacings(world)[:10] == [world.config.busy_read_ms] * 10


@virtual
async def test_a_shard_that_may_not_be_read_is_a_sign_long_before_it_is_believed():
    """A right may be new and not seen yet (I01), so a worker waits a minute; a person need not."""
    world = a_world()
    seen = []

    def refused(call):
        if call.operation == "get_records":
            seen.append((world.clock.now_ms(), world.slot().signs.remarks))
            if world.clock.now_ms() - seen[0][0] < 40_000:
                raise Unsettled(RightMissing("no kinesis:GetRecords"))

    world.put(1, 2)
    world.stream.fault = refused
    await world.turn(turn_ms=90_000)

    first_ms = seen[0][0]
    told = [at_ms - first_ms for at_ms, remarks in seen if remarks]
    assert 0 < told[0] < 20_000
    (remark,) = next(remarks for _, remarks in seen if remarks)
    assert remark.startswith(f"{key(0)} is not read, no kinesis:GetRecords: grant the worker's")
    assert world.slot().signs.remarks == ()
    assert world.numbers == [1, 2]
