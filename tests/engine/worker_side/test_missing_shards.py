"""
A shard that the service does not know ends by evidence alone.

Expected values: AWS keeps records for the stream's RetentionPeriodHours and lists a closed shard
until they have expired (ListShards, DescribeStreamSummary); ListShards is not atomic with a reshard
(awslabs/amazon-kinesis-client issue 164), so one listing proves nothing.
"""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.reasons import (
    ListedStill,
    MayHaveRecords,
    MissedForRetention,
    NeverListed,
    OlderThanRetention,
    PersonDecided,
)
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.kinds import GONE, TIP
from shardfleet.errors import ShardGone
from shardfleet.events.worker import ShardExpired, ShardMissing
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.worker_side.worker_kit import ME, World, a_lease, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "parent_poll_ms": 500}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def a_world(**world):
    return World(**{**SHORT, **world})


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**{**SHORT, **world}))

    return run_virtual(main())


def miss(world, number=0, *, times=None):
    """Let the service say that it does not know a shard, so many times or until further notice."""
    left = [times]

    def fault(call):
        if call.shard_id == key(number) and left[0] != 0:
            left[0] = None if left[0] is None else left[0] - 1
            raise ShardGone("not found")

    world.stream.fault = fault
    return left


def list_instead(world, shards):
    """Let listings say something else; return a way back."""
    truly = world.stream.list_shards

    async def list_shards(*args, **more):
        listed = await truly(*args, **more)
        return [shard for shard in listed if shard.shard_id in shards]

    world.stream.list_shards = list_shards
    return lambda: setattr(world.stream, "list_shards", truly)


def gone_for_good(world, *, records=3):
    """Split a shard, and let it leave the stream with records that nobody has read."""
    if records:
        world.put(1, records)
    world.stream.split(key(0))
    world.put(11, 12, number=1)
    world.stream.forget_shard(key(0))


def later(duration_ms):
    """Let time go by while nothing runs; what the stream holds stays."""
    asyncio.get_running_loop().stall(duration_ms / 1000)


@virtual
async def test_one_not_found_and_one_empty_listing_end_no_shard_with_unread_records():
    world = a_world()
    miss(world, times=1)
    world.put(1, 3)
    truly = list_instead(world, ())
    await world.turn(turn_ms=30_000)
    truly()
    assert not world.lease().is_finished
    assert world.numbers == [1, 2, 3]
    assert not world.told(ShardExpired)


@virtual
async def test_nor_do_one_not_found_and_one_listing_from_before_the_shard_was_made():
    world = a_world()
    await world.turn(turn_ms=20_000)
    before = await world.stream.list_shards()
    world.stream.split(key(0))
    world.put(1, 3, number=1)
    miss(world, 1, times=2)
    truly, asked = world.stream.list_shards, []

    async def list_shards(*args, **more):
        asked.append(args)
        return before if len(asked) < 3 else await truly(*args, **more)

    world.stream.list_shards = list_shards
    await world.turn(turn_ms=40_000)
    assert world.numbers == [1, 2, 3]
    assert not world.lease(1).is_finished
    assert not world.told(ShardExpired)
    assert world.told(ShardMissing)
    # The shard has answered since: a "not found" next year begins anew.
    assert not await GoneRecord(world.state).missed()


@virtual
async def test_until_it_is_old_enough_a_missing_shard_keeps_its_lease_and_waits():
    world = a_world()
    gone_for_good(world)
    await world.turn(turn_ms=60_000)
    assert not world.lease(0).is_finished
    assert world.lease(0).lease_owner == ME
    (note,) = await GoneRecord(world.state).missed()
    assert note.lease_key == key(0)
    assert note.reason == MayHaveRecords()
    assert {event.lease_key for event in world.told(ShardMissing)} == {key(0)}


@virtual
async def test_a_neighbour_is_read_while_a_shard_is_missed():
    world = a_world(shards=2)
    miss(world, 0)
    list_instead(world, ())
    world.put(1, 3, number=0)
    world.put(4, 9, number=1)
    await world.turn(turn_ms=60_000)
    assert world.numbers == [4, 5, 6, 7, 8, 9]
    assert not world.lease(0).is_finished


def test_after_one_retention_it_ends_as_a_loss_its_children_first_though_workers_come_and_go():
    async def scenario(world):
        gone_for_good(world)
        await world.turn(turn_ms=60_000)
        later(DAY_MS - 5 * 60_000)
        await world.turn(turn_ms=60_000)
        assert not world.lease(0).is_finished
        later(5 * 60_000)
        await world.turn(turn_ms=90_000)
        assert world.lease(0).is_finished
        assert world.lease(0).child_shard_ids == (key(1), key(2))
        (lost,) = world.told(ShardExpired)
        assert lost.reason == MissedForRetention()
        assert not await GoneRecord(world.state).missed()

    in_world(scenario)


@pytest.mark.parametrize("hours", [(3, 0), (0, -3), (0, 25), (-25, 0)])
@virtual
async def test_nor_does_that_depend_on_the_wall_clocks_of_those_who_miss_it(hours):
    world = a_world()
    first, second = (VirtualClock(world.clock.start_ms + by_hours * HOUR_MS) for by_hours in hours)
    gone_for_good(world)
    await world.turn(turn_ms=60_000, clock=first)
    later(DAY_MS - 5 * 60_000)
    await world.turn(turn_ms=60_000, clock=second)
    assert not world.lease(0).is_finished
    later(5 * 60_000)
    await world.turn(turn_ms=90_000, clock=second)
    assert world.lease(0).is_finished


@virtual
async def test_the_retention_is_the_stream_s_as_it_is_now():
    world = a_world()
    gone_for_good(world)
    await world.turn(turn_ms=60_000)
    world.stream.describe(retention_ms=7 * DAY_MS)
    later(2 * DAY_MS)
    await world.turn(turn_ms=60_000)
    assert not world.lease(0).is_finished
    world.stream.describe(retention_ms=DAY_MS)
    await world.turn(turn_ms=60_000)
    assert world.lease(0).is_finished


@virtual
async def test_a_shard_whose_last_known_record_has_expired_ends_after_two_listings():
    """Its fleet was at its tip, and then off for longer than the stream keeps records."""
    world = a_world()
    world.put(1, 3)
    await world.turn(turn_ms=20_000)
    assert world.state.documents[TIP, key(0)]
    later(DAY_MS + 2 * HOUR_MS)
    gone_for_good(world, records=0)
    began_ms = world.clock.monotonic_ms()
    await world.turn(turn_ms=60_000)
    assert world.lease(0).is_finished
    (expired,) = world.told(ShardExpired)
    assert expired.reason == OlderThanRetention()
    asked = [
        call.at_ms - began_ms
        for call in world.stream.calls
        if call.operation == "list_shards" and call.at_ms >= began_ms
    ]
    assert asked[-1] >= world.config.failover_ms
    assert world.numbers[3:] == [11, 12]


@virtual
async def test_so_does_one_that_was_read_behind_its_tip_which_is_noted_once_an_hour():
    """It was never at its tip; its children's records must not grow old in vain."""
    fails = [True]

    async def script(batch):
        if fails[0]:
            raise ValueError

    world = a_world(records_per_read=3, max_attempts=0, script=script)
    world.put(1, 9)
    await world.turn(turn_ms=20_000)
    assert (TIP, key(0)) not in world.state.documents
    await world.turn(turn_ms=20_000)
    assert world.state.documents[GONE, key(0)].version == 1
    assert not await GoneRecord(world.state).missed()
    later(DAY_MS + 2 * HOUR_MS)
    fails[0] = False
    gone_for_good(world, records=0)
    await world.turn(turn_ms=60_000)
    assert world.lease(0).is_finished
    assert world.told(ShardExpired)[0].reason == OlderThanRetention()


@virtual
async def test_a_shard_that_is_not_found_though_it_is_listed_is_told_and_never_ends():
    world = a_world()
    miss(world, 0)
    world.put(1, 3)
    await world.turn(turn_ms=60_000)
    later(2 * DAY_MS)
    await world.turn(turn_ms=60_000)
    assert not world.lease(0).is_finished
    assert world.told(ShardMissing)[-1].reason == ListedStill()


@virtual
async def test_a_shard_is_not_asked_for_more_often_the_longer_it_is_missed():
    world = a_world()
    gone_for_good(world)
    await world.turn(turn_ms=180_000)
    asked = [c.at_ms for c in world.stream.calls if c.shard_id == key(0)]
    gaps = [after - before for before, after in pairwise(asked)]
    assert max(gaps) <= world.config.failover_ms + 1_000
    assert min(gaps[5:]) >= world.config.failover_ms // 2
    writes = world.state.documents[GONE, key(0)].version
    assert writes <= 3


def test_a_shard_that_has_answered_in_between_is_asked_as_soon_as_one_missed_for_the_first_time():
    async def scenario(world):
        async def missed(times):
            miss(world, 0, times=times)
            since = len(world.stream.calls)
            await world.turn(turn_ms=60_000)
            called = [c for c in world.stream.calls[since:] if c.shard_id == key(0)]
            asked = [c.at_ms for c in called if c.operation != "shard_iterator"]
            return [after - before for before, after in pairwise(asked[: times + 1])]

        world.put(1, 3)
        long, short = await missed(6), await missed(2)
        assert max(long) > 2 * max(short)
        assert short[0] <= world.config.parent_poll_ms + 1_000
        assert (GONE, key(0)) not in world.state.documents or not (
            await GoneRecord(world.state).missed()
        )

    in_world(scenario)


@virtual
async def test_a_shard_that_has_answered_is_missed_anew_the_next_time_in_the_same_turn_too():
    """Asked as soon, told with its own beginning, and the table is asked nothing in between."""
    world = a_world()
    world.put(1, 3)
    miss(world, 0, times=8)
    turn = asyncio.create_task(world.turn(turn_ms=240_000))
    await world.clock.sleep_ms(80_000)
    assert world.numbers == [1, 2, 3]
    read = []
    world.state.before = lambda call, kind, name: read.append(kind) if call == "read" else None
    await world.clock.sleep_ms(20_000)
    assert GONE not in read
    again_ms = world.clock.now_ms()
    since = len(world.stream.calls)
    miss(world, 0, times=8)
    await turn
    first, second = world.told(ShardMissing)
    assert first.since_ms < again_ms <= second.since_ms < again_ms + 2_000
    called = [c for c in world.stream.calls[since:] if c.shard_id == key(0)]
    missed = [c.at_ms for c in called if c.operation != "shard_iterator"]
    assert missed[1] - missed[0] <= world.config.parent_poll_ms


@pytest.mark.parametrize(
    ("jitter", "pauses_ms"), [(0, [250, 500, 1_000]), (1, [500, 1_000, 2_000])]
)
@virtual
async def test_a_pause_is_half_fixed_and_half_drawn(jitter, pauses_ms):
    """So that workers that miss a shard together do not ask together."""

    class Drawn(SeededEntropy):
        def uniform(self, low, high):
            return (low, high)[jitter]

    world = a_world()
    miss(world)
    await world.turn(turn_ms=20_000, entropy=Drawn(1))
    asked = [c.at_ms for c in world.stream.calls if c.operation == "shard_iterator"]
    assert [after - before for before, after in pairwise(asked)][:3] == pauses_ms


@virtual
async def test_a_person_s_decision_ends_it_its_children_first():
    world = a_world()
    gone_for_good(world)
    await world.turn(turn_ms=40_000)
    record = GoneRecord(world.state)
    assert await record.decide(key(0), person="ada")
    assert not await record.decide(key(1), person="ada")
    await world.turn(turn_ms=40_000)
    assert world.lease(0).is_finished
    assert world.lease(0).child_shard_ids == (key(1), key(2))
    assert world.told(ShardExpired)[0].reason == PersonDecided("ada")
    assert world.numbers == [11, 12]


@virtual
async def test_not_even_a_person_s_decision_ends_a_shard_by_a_listing_that_shows_no_whole_stream():
    world = a_world()
    gone_for_good(world)
    await world.turn(turn_ms=40_000)
    await GoneRecord(world.state).decide(key(0), person="ada")
    truly = list_instead(world, (key(1),))
    await world.turn(turn_ms=40_000)
    assert not world.lease(0).is_finished
    truly()
    await world.turn(turn_ms=40_000)
    assert world.lease(0).child_shard_ids == (key(1), key(2))


@virtual
async def test_a_lease_of_a_shard_that_the_stream_never_had_is_given_back_and_noted():
    """Numbers of shards only rise: 9 is newer than every listed one, and none is its parent."""
    world = a_world()
    stranger = a_lease(9)
    world.leases.leases[key(9)] = stranger
    world.put(1, 3)
    await world.open_slot()
    await world.change_slot(lambda slot: replace(slot, assigned=(key(9),), assign_seq=1))
    await world.turn(turn_ms=60_000)
    assert world.numbers == [1, 2, 3]
    assert world.lease(0).lease_owner == ME
    (note,) = await GoneRecord(world.state).missed()
    assert (note.lease_key, note.reason) == (key(9), NeverListed())
    (told,) = [event for event in world.told(ShardMissing) if event.reason == NeverListed()]
    assert told.lease_key == key(9)
    # Nothing but what a renewal writes has moved, and nobody renews it any more.
    given_back = world.leases.leases[key(9)]
    renewed = {"lease_counter": given_back.lease_counter, "throughput_kbps": 0.0}
    assert given_back == replace(stranger, lease_owner=None, **renewed)
    assert world.leases.operations(key(9))[-1] == "evict"
    await world.turn(turn_ms=60_000)
    assert world.leases.leases[key(9)] == given_back
