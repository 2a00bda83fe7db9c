"""What the simulation has found, one test each; docs/proof.md names seed and checker."""

from dataclasses import replace

import pytest

from shardfleet.errors import OutcomeUnknown, StaleEpoch, Throttled
from shardfleet.events import BackwardCheckpoint, LeaseLost, OwnWriteRecognised
from shardfleet.testing.clock import run_virtual
from tests.engine.worker_side.worker_kit import OTHER, Bench, World, key, lose_answers


def test_an_outdated_invocation_that_tries_again_to_adopt_takes_no_counter_away():
    """Seed 9, OneEffectiveOwner: its renewal made the later invocation lose the lease."""

    async def scenario():
        bench = Bench()
        counter = bench.lease().lease_counter
        bench.epoch_is_current = False

        with pytest.raises(StaleEpoch):
            await bench.checkpointer.adopt([key(0)])
        assert bench.lease().lease_counter == counter

    run_virtual(scenario())


def test_a_shard_end_of_our_own_that_had_landed_is_no_step_back():
    """Seed 16, CheckpointForward: lost answer, refused look, recognised by the next renewal."""

    async def scenario():
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

    run_virtual(scenario())


def test_nothing_is_delivered_when_the_lease_is_lost_while_the_crash_note_is_written():
    """Seed 312, OneEffectiveOwner: the note took its time, and nobody looked at the lease again."""

    async def scenario():
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

    run_virtual(scenario())
