"""
A document of the fleet state that cannot be read is a fault domain of its own, for a worker.

Whatever has become of whichever document that a worker reads: its turn goes on, the other shards
are read, nothing is lost, and an event names the document.
"""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.domain.stream.sequence import AT_LATEST
from shardfleet.engine.ports import Document
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import PAUSE
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.events.worker import DocumentUnreadable, TurnFailed, TurnRefused
from shardfleet_testkit.clock import run_virtual
from tests.engine.state.damages import CELLS, SECRET, TOLD_APART
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

ILL = 1
# Of each kind that a worker reads: what it does while one cannot be read.
WAITS = {"stop"}
KINDS = ["note", "stop", "lanes", "tip", "nap", "gone", "stream", "prompt", "pause"]
OPTIONS = {"shards": 3}


def in_world(scenario, **world):
    """Run a scenario in a fresh world in virtual time."""

    async def main():
        return await scenario(World(**world))

    return run_virtual(main())


def planted(world, document):
    """Put a document beside the ill shard, or where this fleet would look for its like."""
    name = key(ILL) if document.id.startswith("shardId-") else document.id
    world.state.documents[document.kind, name] = replace(document, id=name)
    return f"{document.kind}/{name}"


async def turn_beside(world, document):
    """Run a turn with a document that somebody has damaged."""
    for number in range(3):
        world.put(10 * number + 1, 10 * number + 3, number=number)
    name = planted(world, document)
    outcome = await world.turn(turn_ms=120_000)
    return outcome, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_goes_on_beside_any_damage_of_any_document(kind):
    cells = [(cell, d) for cell, d in TOLD_APART if cell.startswith(f"{kind}: ")]

    for cell, document in cells:
        if kind == "pause" and read_as(PAUSE, document).body:
            continue  # It pauses what it says.

        async def scenario(world, cell=cell, document=document):
            outcome, _ = await turn_beside(world, document)
            assert outcome in (TurnOutcome.CONTINUE, TurnOutcome.IDLE), cell
            assert {1, 2, 3, 21, 22, 23} <= set(world.numbers), cell
            told = world.told(DocumentUnreadable)
            assert SECRET not in str(told), cell
            if kind not in WAITS:
                assert {11, 12, 13} <= set(world.numbers), cell

        in_world(scenario, **OPTIONS, **options_of(kind))


def options_of(kind):
    return {"parallelism": 2} if kind == "lanes" else {}


@virtual
async def test_a_shard_whose_window_cannot_be_read_waits_and_says_what_to_do():
    world = World(tumbling_window_ms=60_000, **OPTIONS)
    nonsense = dict(CELLS)["window: nonsense"]
    await turn_beside(world, nonsense)
    assert not {11, 12, 13} & set(world.numbers)
    stop = await FleetState(world.state, world.clock).stop(key(ILL))
    assert f"window/{key(ILL)} cannot be read" in stop.error
    assert world.state.documents["window", key(ILL)].body == nonsense.body


@virtual
async def test_a_shard_whose_stop_cannot_be_read_stays_stopped_and_goes_on_when_it_is_resumed():
    world = World(**OPTIONS)
    await turn_beside(world, dict(CELLS)["stop: nonsense"])
    assert not {11, 12, 13} & set(world.numbers)
    told = [event.document for event in world.told(DocumentUnreadable)]
    assert told == [f"stop/{key(ILL)}"]
    assert await FleetState(world.state, world.clock).resume(key(ILL))
    await world.turn(turn_ms=120_000)
    assert {11, 12, 13} <= set(world.numbers)


@virtual
async def test_a_shard_whose_pin_cannot_be_read_waits_and_passes_no_record_over():
    world = World(**OPTIONS)
    lease = world.leases.leases[key(ILL)]
    world.leases.leases[key(ILL)] = replace(lease, checkpoint=AT_LATEST)
    await turn_beside(world, dict(CELLS)["pin: nonsense"])
    assert not {11, 12, 13} & set(world.numbers)
    assert {1, 2, 3, 21, 22, 23} <= set(world.numbers)
    assert isinstance(await FleetState(world.state, world.clock).stop(key(ILL)), StopNote)


@virtual
async def test_a_slot_that_becomes_unreadable_lets_its_turn_end_and_no_other_begin():
    world = World()
    world.put(1, 3)
    await world.open_slot()
    turn = world.turn_that_may_die(turn_ms=120_000)
    running = asyncio.ensure_future(turn)
    await world.run_until(lambda: len(world.numbers) == 3)
    document = world.state.documents["slot", "s0001"]
    broken = Document("slot", "s0001", document.version + 1, {"state": SECRET})
    world.state.documents["slot", "s0001"] = broken
    await world.clock.sleep_ms(30_000)
    world.put(4, 6)
    assert await running is TurnOutcome.CONTINUE
    assert world.numbers == [1, 2, 3, 4, 5, 6]
    assert world.state.documents["slot", "s0001"] == broken
    assert await world.turn() is TurnOutcome.DRAINED
    (refused,) = world.told(TurnRefused)
    assert "slot/s0001 cannot be read" in refused.reason
    assert SECRET not in refused.reason


@virtual
async def test_a_turn_that_is_to_hand_over_does_so_though_its_slot_cannot_be_read():
    world = World(**OPTIONS)
    world.put(1, 3)
    given = await world.open_slot()
    deadline_ms = world.clock.monotonic_ms() + 120_000
    turn = WorkerTurn(given, config=world.config, ports=world.ports(), deadline_ms=deadline_ms)
    running = asyncio.create_task(turn.run())
    await world.run_until(lambda: len(world.numbers) == 3)
    slot = world.state.documents["slot", given.slot_id]
    ill = replace(slot, body={**slot.body, "start_epoch": "secret"}, version=slot.version + 1)
    world.state.documents["slot", given.slot_id] = ill
    turn.hand_over()

    assert await running is TurnOutcome.DRAINED
    assert {lease.lease_owner for lease in world.leases.leases.values()} == {None}
    assert world.told(TurnFailed) == []
