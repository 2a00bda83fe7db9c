"""A paused lease is given up: after the batch, checkpointed, and nothing twice."""

import asyncio

import pytest
from msgspec import to_builtins

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import TurnOutcome, announce_assignment
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import Throttled
from shardfleet.events.worker import LeaseReleased
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, a_lease, key
from tests.virtual import virtual

ANN = Pause("ann", 5)


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**world))

    return run_virtual(main())


async def pause(world, *numbers):
    keys = [key(number) for number in numbers]
    await PauseRecord(world.state).change(lambda pauses: pauses.with_leases(keys, ANN))


@virtual
async def test_a_paused_lease_is_given_up_within_a_failover_time_and_the_others_are_kept():
    world = World(shards=2)
    world.put(1, 3)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.numbers == [1, 2, 3])
    await pause(world, 0)
    await world.run_until(
        lambda: world.lease(0).lease_owner is None, within_ms=world.config.failover_ms + 100
    )
    world.put(4)
    world.put(5, number=1)
    assert await turn is TurnOutcome.CONTINUE

    assert world.numbers == [1, 2, 3, 5]
    (released,) = world.told(LeaseReleased)
    assert released.checkpoint == str(world.lease(0).checkpoint)
    assert world.lease(1).lease_owner == "fleet-s0001"
    assert world.slot().lags_ms.keys() == {key(1)}


def test_the_running_batch_is_finished_and_checkpointed_first():
    async def scenario(world):
        world.put(1, 3)
        turn = asyncio.create_task(world.turn())
        await world.run_until(lambda: world.handler.calls)
        await pause(world, 0)
        await world.run_until(lambda: world.lease(0).lease_owner is None)
        assert world.clock.monotonic_ms() >= 15_000
        assert world.numbers == [1, 2, 3]
        # Another worker would go on exactly here.
        last = world.handler.calls[0].batch[-1]
        assert world.lease(0).checkpoint.sequence_number == last.sequence_number
        await turn

    async def slowly(batch):
        await asyncio.sleep(15)

    in_world(scenario, script=slowly)


@virtual
async def test_progress_that_the_table_does_not_have_yet_is_stored_first():
    async def slowly(batch):
        await asyncio.sleep(0 if batch[0].data == b"1" else 9)

    world = World(script=slowly, checkpoint_ms=60_000, max_batch_records=1)
    world.put(1)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: len(world.handler.calls) == 1)
    # In the handler's hands when the worker looks, after ten seconds.
    await world.clock.sleep_ms(5_000)
    world.put(2)
    await pause(world, 0)
    await world.run_until(lambda: world.lease(0).lease_owner is None)
    assert world.numbers == [1, 2]
    last = world.handler.calls[-1].batch[-1]
    assert world.lease(0).checkpoint.sequence_number == last.sequence_number
    await turn


@virtual
async def test_a_lease_paused_before_the_turn_is_given_up_unread():
    world = World()
    world.put(1)
    await pause(world, 0)
    assert await world.turn() is TurnOutcome.IDLE
    assert world.numbers == []
    assert world.lease(0).lease_owner is None


def test_a_lease_that_waits_for_its_parent_is_given_up_too():
    async def scenario(world):
        await pause(world, 1)
        await world.turn()
        assert world.lease(1).lease_owner is None

    waiting = a_lease(1, parent_shard_ids=(key(0),))
    in_world(scenario, shards=2, leases=[a_lease(0, lease_owner="other"), waiting])


@virtual
async def test_a_stopped_shard_is_given_up_too():
    world = World()
    body = {"position": "1:0", "error": "x", "attempts": 1, "worker_id": "w", "at_ms": 1}
    await world.state.write("stop", key(0), body, expected_version=None)
    await pause(world, 0)
    await world.turn()
    assert world.lease(0).lease_owner is None


@virtual
async def test_a_lease_given_back_by_the_manager_after_a_pause_is_read_again_in_the_same_turn():
    world = World(idle_end_ms=60_000)
    world.put(1)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.numbers == [1])
    await pause(world, 0)
    await world.run_until(lambda: world.lease(0).lease_owner is None)
    world.put(2)
    await PauseRecord(world.state).change(lambda _: Pauses())
    await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))
    await world.leases.apply(lease_changes.assign(world.lease(0), "fleet-s0001"))
    await world.run_until(lambda: world.numbers == [1, 2])
    await turn
    assert len(world.told(LeaseReleased)) == 1


@virtual
async def test_a_refused_look_is_made_again_later():
    world = World()
    refused = []

    def before(call, kind, name):
        if (call, kind) == ("read", "pause") and len(refused) < 2:
            refused.append(name)
            raise Throttled("refused")

    await pause(world, 0)
    world.state.before = before
    await world.turn()
    assert len(refused) == 2
    assert world.lease(0).lease_owner is None


@pytest.mark.parametrize("conflicts", [1, 3])
@virtual
async def test_two_people_who_pause_at_once_both_do(conflicts):
    world = World()
    write = world.state.write
    left = [conflicts]

    async def contended(kind, name, body, *, expected_version):
        if left[0]:
            left[0] -= 1
            other = Pauses().with_leases([f"other-{left[0]}"], ANN)
            current = await PauseRecord(world.state).read()
            merged = current.with_leases(other.leases.keys(), ANN)
            known = await world.state.read(kind, name)
            await write(
                kind,
                name,
                to_builtins(merged),
                expected_version=known.version if known else None,
            )
        return await write(kind, name, body, expected_version=expected_version)

    world.state.write = contended
    await pause(world, 0)
    assert len((await PauseRecord(world.state).read()).leases) == conflicts + 1
