"""What the simulation has found, one test each."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.engine.manager.loop import run_manager
from shardfleet.errors import OutcomeUnknown, StaleEpoch, Throttled
from shardfleet.events.worker import BackwardCheckpoint, LeaseAdopted, LeaseLost, OwnWriteRecognised
from tests.engine.manager_side.fleet_kit import Fleet
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    Bench,
    World,
    a_lease,
    key,
    lose_answers,
)
from tests.virtual import virtual


@virtual
async def test_an_outdated_invocation_that_tries_again_to_adopt_takes_no_counter_away():
    """Seed 9, OneEffectiveOwner: its renewal made the later invocation lose the lease."""
    bench = Bench()
    counter = bench.lease().lease_counter
    bench.epoch_is_current = False

    with pytest.raises(StaleEpoch):
        await bench.checkpointer.adopt([key(0)])
    assert bench.lease().lease_counter == counter


@virtual
async def test_a_shard_end_of_our_own_that_had_landed_is_no_step_back():
    """Seed 16, CheckpointForward: lost answer, refused look, recognised by the next renewal."""
    bench = Bench()
    held = await bench.hold()
    bench.store.after = lose_answers(1, operation="checkpoint")
    refusals = [Throttled("later")]

    def reading(lease_key):
        if refusals:
            raise refusals.pop()

    bench.store.reading = reading
    with pytest.raises((Throttled, OutcomeUnknown)):
        await bench.checkpointer.finish(held)
    await bench.checkpointer.renew(held)
    assert bench.told(OwnWriteRecognised)
    assert await bench.checkpointer.finish(held)
    assert bench.lease().is_finished
    assert not bench.told(BackwardCheckpoint)


@virtual
async def test_nothing_is_delivered_when_the_lease_is_lost_while_the_crash_note_is_written():
    """Seed 312, OneEffectiveOwner: the note took its time, and nobody looked at the lease again."""
    world = World()
    world.put(1, 3)
    await world.open_slot()
    await world.change_slot(lambda slot: replace(slot, turn_open=True))

    write = world.state.write

    async def slow_and_stolen_meanwhile(kind, name, body, *, expected_version):
        if kind == "note":
            counter = world.lease().lease_counter + 1
            stolen = replace(world.lease(), lease_owner=OTHER, lease_counter=counter)
            world.leases.leases[key(0)] = stolen
            await world.clock.sleep_ms(world.config.failover_ms)
        return await write(kind, name, body, expected_version=expected_version)

    world.state.write = slow_and_stolen_meanwhile
    await world.turn()
    assert world.told(LeaseLost)
    assert not world.handler.calls


@virtual
async def test_a_lease_that_is_taken_and_adopted_at_once_does_not_lose_itself():
    """Seed 1005, OneEffectiveOwner: the index showed a child that was just being taken."""
    bench = Bench(a_lease(lease_owner=None))
    apply = bench.store.apply

    async def slow_to_answer(change):
        result = await apply(change)
        await bench.clock.sleep_ms(50)
        return result

    bench.store.apply = slow_to_answer
    taking = asyncio.create_task(bench.checkpointer.take(bench.lease()))
    await bench.clock.sleep_ms(10)
    assert bench.lease().lease_owner == ME
    await bench.checkpointer.adopt([key(0)])
    held = await taking
    assert held is not None
    assert await bench.checkpointer.renew(held)
    assert len(bench.told(LeaseAdopted)) == 1
    assert not bench.told(LeaseLost)


@pytest.mark.parametrize("document", ["prompt", "lock"])
@virtual
async def test_a_table_that_refuses_a_moment_does_not_end_the_managers_invocation(document):
    """Seed 1013: one throttled read of the prompts left the fleet alone until the next minute."""
    fleet = Fleet()
    read, refusals = fleet.store.read, [Throttled("later"), Throttled("later")]

    async def throttled(kind, name):
        at_begin_or_end = fleet.clock.monotonic_ms() in (0, 5_000)
        if kind == document and refusals and at_begin_or_end:
            raise refusals.pop()
        return await read(kind, name)

    fleet.store.read = throttled
    assert await run_manager(fleet.config, fleet.ports(), run_ms=5_000) == 1
    assert len(fleet.leases.leases) == 4
