"""
A fault has a domain: what one shard raises, or one lease item, stops nobody else.

Hazards H9, H10.
"""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.domain.stream.sequence import AT_LATEST, AT_SHARD_END
from shardfleet.engine.ownership.lease import HeldLease, Instant
from shardfleet.engine.retry import Halted, Patience
from shardfleet.engine.shard.faults import ShardFaults
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.delivery import ConsumerFailed
from shardfleet.events.worker import LeaseLost, LeaseUnreadable, ShardEnded
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import SeededEntropy
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import World, a_lease, key
from tests.virtual import virtual

ILL = 1
WELL = (0, 2, 3)


def in_world(scenario, **world):
    """Run a scenario in a fresh world in virtual time."""

    async def main():
        return await scenario(World(**world))

    return run_virtual(main())


class Illness:
    """What one shard's reads raise, as long as it is ill, and when they did."""

    def __init__(self, world, operation="get_records"):
        self.raised_ms = []
        self.is_over = False
        self._clock = world.clock
        self._operation = operation
        world.stream.fault = self

    def __call__(self, call):
        if call.operation == self._operation and call.shard_id == key(ILL) and not self.is_over:
            self.raised_ms.append(self._clock.monotonic_ms())
            raise RuntimeError("nobody foresaw this")


class RaisingHandler(MemoryHandler):
    """A handler port that raises for one shard, as no handler's failure makes it do."""

    async def run(self, batch):
        if batch.shard_id == key(ILL):
            raise RuntimeError("nobody foresaw this")
        return await super().run(batch)


def put_each(world, first):
    """Put one record into each shard: number ``first`` plus the shard's."""
    for number in range(4):
        world.put(first + number, number=number)


def stop_of(world, number=ILL):
    """Return the stop on record, as everybody sees it."""
    return FleetState(world.state, world.clock).stop(key(number))


async def two_turns(world):
    """Run two turns with new records; whoever is well gets all of them in the turn they come."""
    for first in (10, 20):
        put_each(world, first)
        before = asyncio.all_tasks()
        assert await world.turn() is TurnOutcome.CONTINUE
        assert asyncio.all_tasks() == before  # H10
        assert {n for n in world.numbers if n >= first} == {first + n for n in WELL}


@pytest.mark.parametrize("operation", ["get_records", "shard_iterator"])
@virtual
async def test_a_shard_whose_reads_raise_stops_none_of_its_neighbours(operation):
    world = World(shards=4)
    Illness(world, operation)
    await two_turns(world)
    stop = await stop_of(world)
    assert stop.error.startswith("RuntimeError (test_fault_domains.py:")
    assert stop.position == "TRIM_HORIZON"
    told = world.told(ConsumerFailed)
    assert [event.attempts for event in told] == list(range(1, stop.attempts + 1))
    # It stays where it is: whoever tried will try again, and no expiry follows.
    assert world.lease(ILL).lease_owner == world.slot().worker_id
    assert not world.told(LeaseLost)


class IllState:
    """Fleet state of which nobody foresaw what it raises."""

    async def stop(self, lease_key):
        await asyncio.sleep(0)
        raise RuntimeError(f"nobody foresaw this of {lease_key} either")


@virtual
async def test_a_fault_that_cannot_even_be_put_on_record_rests_until_it_is_asked_to_stop():
    world = World()
    options = {"clock": world.clock, "entropy": SeededEntropy(1)}
    patience = Patience(**options, first_ms=200, most_ms=5_000)
    faults = ShardFaults(
        IllState(), worker_id="w", poll_ms=1_000, patience=patience, events=world.events
    )
    held = HeldLease(a_lease(), Instant(0, 0), stream_arn="arn")
    began_ms = world.clock.monotonic_ms()
    await faults.withstand(held, ValueError("x"))
    assert world.clock.monotonic_ms() - began_ms >= 1_000
    held.halt.set()
    with pytest.raises(Halted):
        await faults.withstand(held, ValueError("x"))


@pytest.mark.parametrize("overlaps", [False, True])
@virtual
async def test_a_handler_port_that_raises_for_one_shard_stops_none_of_its_neighbours(overlaps):
    world = World(shards=4)
    world.handler = RaisingHandler(world.clock, overlaps=overlaps)
    await two_turns(world)
    assert {event.lease_key for event in world.told(ConsumerFailed)} == {key(ILL)}


@virtual
async def test_a_fault_is_over_with_the_first_page_that_brings_something_however_far_behind():
    world = World(shards=4, records_per_read=10)
    illness = Illness(world)
    world.put(1, 60, number=ILL)
    await world.turn()
    assert (await stop_of(world)).attempts > 1
    illness.is_over = True
    told = {}

    async def look(batch):
        told[int(batch[0].data)] = await stop_of(world)

    world.handler._script = look
    await world.turn()
    assert told[1] is not None
    assert set(told.values()) - {told[1]} == {None}


@virtual
async def test_a_shard_whose_first_good_page_is_its_last_leaves_no_fault_behind():
    world = World(shards=4)
    illness = Illness(world)
    world.put(1, 3, number=ILL)
    world.stream.split(key(ILL))
    await world.turn()
    assert await stop_of(world) is not None
    illness.is_over = True
    await world.turn()
    assert world.lease(ILL).is_finished
    assert await stop_of(world) is None


@virtual
async def test_what_a_handler_port_raises_in_a_suspicious_turn_is_no_death_of_the_shard():
    """H9: an open note would have the next death of the process charged to the wrong shard."""
    world = World(shards=2)
    world.handler = RaisingHandler(world.clock)
    world.put(1, number=ILL)
    await world.open_slot()
    await world.change_slot(lambda slot: replace(slot, turn_open=True))
    await world.turn()
    assert not world.state.documents["note", key(ILL)].body["is_open"]


def test_fleet_state_that_raises_for_one_shard_stops_none_of_its_neighbours():
    """A pin that cannot be understood."""

    async def scenario(world):
        def before(call, kind, name):
            if (call, kind, name) == ("write", "pin", key(ILL)):
                raise KeyError("instant_ms")

        world.state.before = before
        await two_turns(world)

    leases = [a_lease(n) for n in range(4)]
    leases[ILL] = a_lease(ILL, checkpoint=AT_LATEST)
    in_world(scenario, shards=4, leases=leases)


@virtual
async def test_it_rests_for_a_second_then_twice_as_long_up_to_five_minutes_across_turns():
    """As the state machine waits after invocations that fail (hazard H9: 1 s up to 5 min)."""
    world = World(shards=2)
    illness = Illness(world)
    while len(illness.raised_ms) < 13:
        await world.turn()
    rests = [b - a for a, b in zip(illness.raised_ms, illness.raised_ms[1:], strict=False)]
    for number, rest_ms in enumerate(rests):
        most_ms = min(300_000, 1_000 << number)
        # Half of it is jitter; a new turn may have begun meanwhile.
        assert most_ms / 2 <= rest_ms <= most_ms + 20_000
    assert len({event.attempts for event in world.told(ConsumerFailed)}) >= 13


@virtual
async def test_a_shard_that_is_well_again_goes_on_from_where_it_was_and_is_no_longer_stopped():
    world = World(shards=4)
    illness = Illness(world)
    put_each(world, 10)
    await world.turn()
    illness.is_over = True
    put_each(world, 20)
    await world.turn()
    assert [n for n in world.numbers if n % 10 == ILL] == [11, 21]
    assert sorted(world.numbers) == [*range(10, 14), *range(20, 24)]
    assert await stop_of(world) is None
    assert await FleetState(world.state, world.clock).stops() == []
    # Written at each failure and when it was well again, not with each page after that.
    stop = await world.state.read("stop", key(ILL))
    assert stop.version == len(world.told(ConsumerFailed)) + 1

    illness.is_over = False
    await world.turn()
    stop = await stop_of(world)
    assert world.told(ConsumerFailed)[-stop.attempts].attempts == 1


@virtual
async def test_one_fault_between_two_records_neither_skips_nor_repeats_one():
    world = World(shards=2, checkpoint_ms=60_000)
    illness = Illness(world)
    illness.is_over = True

    async def falls_ill():
        await world.run_until(lambda: 5 in world.numbers)
        illness.is_over = False
        await world.run_until(lambda: illness.raised_ms)
        illness.is_over = True
        world.put(6, 9, number=ILL)

    world.put(1, 5, number=ILL)
    task = asyncio.create_task(falls_ill())
    await world.turn()
    await task
    assert world.numbers == list(range(1, 10))


@virtual
async def test_resume_has_it_tried_again_at_once():
    world = World(shards=2)
    illness = Illness(world)
    world.put(1, number=ILL)
    for _ in range(3):
        await world.turn()
    rest_ms = world.told(ConsumerFailed)[-1].back_off_ms
    assert rest_ms > 30_000
    illness.is_over = True

    async def person():
        await world.clock.sleep_ms(1_000)
        assert await FleetState(world.state, world.clock).resume(key(ILL))

    task = asyncio.create_task(person())
    began_ms = world.clock.monotonic_ms()
    await world.turn()
    await task
    (call,) = world.handler.calls
    assert call.began_ms - began_ms <= 1_000 + world.config.failover_ms + 100


@virtual
async def test_a_clock_that_was_hours_ahead_lets_nobody_rest_for_longer_than_five_minutes():
    world = World(max_turn_ms=500_000)
    ahead_ms = world.clock.now_ms() + 5 * 3_600_000
    note = StopNote(
        lease_key=key(0),
        position="TRIM_HORIZON",
        error="x",
        attempts=1,
        worker_id="another",
        at_ms=ahead_ms,
        retry_ms=ahead_ms,
    )
    await FleetState(world.state, world.clock).write_stop(note)
    world.put(1)
    await world.turn(turn_ms=600_000)
    assert world.numbers == [1]


@virtual
async def test_a_shard_at_rest_is_handed_over_like_any_other():
    world = World(shards=2)
    Illness(world)
    await world.turn()
    asked = asyncio.create_task(world.turn())
    await world.run_until(lambda: len(world.told(ConsumerFailed)) > 5)
    ill = world.lease(ILL)
    world.leases.leases[key(ILL)] = replace(
        ill, checkpoint_owner=ill.lease_owner, lease_owner="next"
    )
    await world.run_until(lambda: world.lease(ILL).checkpoint_owner is None)
    assert world.lease(ILL).lease_owner == "next"
    await asked


@virtual
async def test_what_raises_after_a_shard_has_ended_neither_stops_it_nor_begins_it_again():
    world = World(shards=4)

    def failing(call, _kind, _name):
        if call == "increment" and world.told(ShardEnded):
            raise RuntimeError("nobody foresaw this")

    world.state.before = failing
    put_each(world, 10)
    world.stream.split(key(ILL))
    assert await world.turn() is TurnOutcome.CONTINUE
    assert sorted(world.numbers) == [10, 11, 12, 13]
    assert world.lease(ILL).is_finished
    assert len(world.told(ConsumerFailed)) == 1
    assert await stop_of(world) is None


# --- lease items that cannot be read


@virtual
async def test_a_lease_that_becomes_unreadable_is_let_go_and_taken_up_when_it_is_mended():
    world = World(shards=4)
    put_each(world, 10)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: len(world.numbers) == 4)
    world.leases.unreadable[key(ILL)] = "checkpoint: 'x' found"
    await world.run_until(lambda: world.told(LeaseLost))
    counter = world.lease(ILL).lease_counter
    put_each(world, 20)
    await world.run_until(lambda: len(world.numbers) == 7)
    await world.run_until(lambda: world.told(LeaseUnreadable))
    assert world.lease(ILL).lease_counter == counter
    del world.leases.unreadable[key(ILL)]
    await world.run_until(lambda: 20 + ILL in world.numbers)
    assert await turn is TurnOutcome.CONTINUE
    assert len(world.told(LeaseUnreadable)) == 1


def test_a_child_waits_for_a_parent_that_cannot_be_read():
    async def scenario(world):
        world.leases.unreadable[key(0)] = "no counter"
        world.put(1, number=1)
        world.put(2, number=2)
        assert await world.turn() is TurnOutcome.CONTINUE
        assert world.numbers == [2]
        del world.leases.unreadable[key(0)]
        world.leases.leases[key(0)] = replace(world.lease(0), checkpoint=AT_SHARD_END)
        await world.turn()
        assert world.numbers == [2, 1]

    child = a_lease(1, parent_shard_ids=(key(0),))
    in_world(scenario, shards=3, leases=[a_lease(0), child, a_lease(2)])


@virtual
async def test_a_parent_ends_beside_a_child_that_cannot_be_read_and_the_other_child_is_read():
    world = World()
    world.put(1)
    first, second = world.stream.split(key(0))
    world.leases.unreadable[first] = "shard_end found"
    world.stream.put(b"2", shard_id=first)
    world.stream.put(b"3", shard_id=second)
    await world.turn()
    assert [event.lease_key for event in world.told(ShardEnded)] == [key(0)]
    assert world.numbers == [1, 3]
    assert first not in world.leases.leases
    assert {event.lease_key for event in world.told(LeaseUnreadable)} == {first}
