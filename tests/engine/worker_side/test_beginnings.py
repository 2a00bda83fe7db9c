"""Records that were trimmed before anything of their shard was done: told, where they may be."""

import pytest

from shardfleet.domain.stream.sequence import AT_LATEST, AT_TRIM_HORIZON, StreamIncarnation
from shardfleet.engine.shard.start import TipMarks, start_position
from shardfleet.engine.state.beside import LeaseNotes
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.delivery import PositionLost, PositionOutlived, ShardStopped
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, a_lease, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "on_trimmed": "jump"}
HOUR_MS = 3_600_000


async def refuse(batch):
    raise RuntimeError("not yet")


async def work(batch):
    return None


async def untouched(hours, *, put=True, retention_ms=None, **config):
    """Begin at the tip of a shard, handle nothing, and be away for hours; then go on."""
    world = World(**{**SHORT, "max_attempts": 0, **config}, leases=[a_lease(checkpoint=AT_LATEST)])
    if retention_ms:
        world.stream._retention_ms = retention_ms
        world.stream.describe(retention_ms=retention_ms)
    await world.turn(turn_ms=20_000)
    if put:
        world.put(1, 2)
        world.handler._script = refuse
        await world.turn(turn_ms=20_000)
        assert world.numbers == []
    await world.clock.sleep_ms(hours * HOUR_MS)
    if put:
        world.put(3, 4)
        world.handler._script = work
    await world.turn(turn_ms=20_000)
    return world


async def with_a_child(hours, *, quiet_hours=0):
    """End a parent, be away for hours before a child's first record is handled; then go on."""
    world = World(**SHORT, max_attempts=0)
    world.put(1, 2)
    await world.turn(turn_ms=20_000)
    for _ in range(quiet_hours):
        await world.clock.sleep_ms(HOUR_MS)
        await world.turn(turn_ms=20_000)
    world.stream.split(key(0))
    world.put(3, 4, number=1)
    world.handler._script = refuse
    await world.turn(turn_ms=20_000)
    assert world.lease().checkpoint.is_shard_end
    assert world.numbers == [1, 2]
    await world.clock.sleep_ms(hours * HOUR_MS)
    world.put(5, 6, number=1)
    world.handler._script = work
    for number in (1, 2):
        world.leases.leases[key(number)] = a_lease(
            number, checkpoint=world.lease(number).checkpoint, parent_shard_ids=(key(0),)
        )
    await world.turn(turn_ms=20_000)
    return world


def test_what_came_behind_the_pin_and_was_trimmed_before_it_was_handled_is_told_once():
    world = run_virtual(untouched(25))
    assert world.numbers == [3, 4]
    (event,) = world.told(PositionLost)
    assert (event.lease_key, event.done) == (key(0), "LATEST")


@virtual
async def test_it_stops_the_shard_by_policy_which_goes_on_once_resumed():
    world = await untouched(25, on_trimmed="stop")
    assert world.numbers == []
    assert len(world.told(ShardStopped)) == 1
    del world.state.documents["stop", key(0)]
    await world.turn(turn_ms=20_000)
    assert world.numbers == [3, 4]
    assert len(world.told(PositionLost)) == 1


@pytest.mark.parametrize(("hours", "days"), [(23, 1), (25, 7)])
def test_what_is_retained_is_delivered_and_nothing_told(hours, days):
    world = run_virtual(untouched(hours, retention_ms=days * 24 * HOUR_MS))
    assert world.numbers == [1, 2, 3, 4]
    assert not world.told(PositionLost)


def test_a_shard_that_was_left_empty_at_its_tip_and_is_empty_has_lost_nothing_known():
    """K16, justtrackio/gosoline#1124, of a shard that never had a record."""
    world = run_virtual(untouched(72, put=False))
    assert not world.told(PositionLost)
    assert len(world.told(PositionOutlived)) == 1


def test_what_a_child_lost_before_its_first_read_is_told():
    world = run_virtual(with_a_child(25))
    assert world.numbers == [1, 2, 5, 6]
    assert key(1) in [event.lease_key for event in world.told(PositionLost)]


@pytest.mark.parametrize("quiet_hours", [0, 30])
def test_a_child_that_is_read_in_time_lost_nothing(quiet_hours):
    """However long its parent was quiet: it was seen open at its tip."""
    world = run_virtual(with_a_child(2, quiet_hours=quiet_hours))
    assert world.numbers == [1, 2, 3, 4, 5, 6]
    assert not world.told(PositionLost)


def test_a_parent_that_ends_a_second_time_does_not_hide_what_its_child_lost_since():
    """Its lease was made again, or set back: what the child has noted of itself holds."""

    async def main():
        world = World(**SHORT, shards=1)
        world.put(1, 2)
        await world.turn(turn_ms=20_000)
        world.stream.split(key(0))
        world.put(3, 4, number=1)
        before_end = world.lease()
        await world.turn(turn_ms=20_000)
        world.put(5, 6, number=1)
        await world.clock.sleep_ms(25 * HOUR_MS)
        world.put(7, 8, number=1)
        assert not world.lease(1).checkpoint.is_sentinel
        world.leases.leases[key(0)] = before_end
        # An empty page of a closed shard, before the one that says so, is its tip once more.
        done = str(before_end.checkpoint)
        notes = LeaseNotes(FleetState(world.state, world.clock))
        await TipMarks(notes, world.clock).mark(key(0), done=done, is_left=True)
        await world.turn(turn_ms=40_000)
        assert world.lease().is_finished
        return world

    world = run_virtual(main())
    assert [event.lease_key for event in world.told(PositionLost)] == [key(1)]


@virtual
async def test_a_shard_at_its_beginning_is_read_in_the_life_of_the_stream_that_there_is():
    stream = StreamIncarnation("arn", 7)
    world = World()
    found = await start_position(
        a_lease(checkpoint=AT_TRIM_HORIZON),
        AT_TRIM_HORIZON,
        incarnation=stream,
        config=world.config,
        state=FleetState(world.state, world.clock),
        clock=world.clock,
    )
    assert (found.incarnation, found.shard_id) == (stream, key(0))


@virtual
async def test_a_mark_of_a_moment_ago_is_not_looked_up_again():
    world, reads = World(), []
    world.state.before = lambda call, kind, name: reads.append((call, kind))
    marks = TipMarks(LeaseNotes(FleetState(world.state, world.clock)), world.clock)
    for _ in range(3):
        await marks.mark(key(0), done="1:0")
        await world.clock.sleep_ms(1_000)
    assert reads.count(("read", "tip")) == 1
    assert reads.count(("write", "tip")) == 1
