"""A manager that dies while it wakes a shard: the next one finds the same and wakes it."""

import asyncio

from msgspec.structs import replace

from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import GLANCES
from shardfleet.engine.state.rows import read_rows
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import KeyDenied
from tests.engine.manager_side.test_prober import SleepingFleet, key
from tests.engine.worker_side.steps_kit import Stepped, Steps
from tests.virtual import virtual


@virtual
async def test_a_manager_that_dies_at_any_step_of_a_waking_is_made_up_for_by_the_next_one():
    async def died_at(act_at):
        fleet = SleepingFleet()
        await fleet.put_to_sleep(0, 1)
        await fleet.manager.turn()
        await fleet.clock.sleep_ms(60_000)
        fleet.stream.put(b"1", shard_id=key(1))
        steps = Steps(act_at=act_at)
        ports = replace(
            fleet.ports(),
            leases=Stepped(fleet.leases, steps, "leases"),
            state=FleetState(Stepped(fleet.store, steps, "state"), fleet.clock),
            stream=Stepped(fleet.stream, steps, "stream"),
            launcher=Stepped(fleet.launcher, steps, "launcher"),
        )
        turn = asyncio.create_task(LeaseManager(fleet.config, ports).turn())
        death = asyncio.create_task(steps.died.wait())
        await asyncio.wait([turn, death], return_when=asyncio.FIRST_COMPLETED)
        is_over = turn.done()
        for task in (turn, death):
            task.cancel()
        await asyncio.gather(turn, death, return_exceptions=True)

        await fleet.clock.sleep_ms(60_000)
        fleet.again()
        await fleet.manager.turn()
        assert [nap.lease_key for nap, _ in await NapRecord(fleet.store).naps()] == [key(0)]
        await fleet.beat("s0001")
        await fleet.manager.turn()
        assert fleet.owners() == {0: None, 1: "f-s0001"}
        return is_over

    act_at = 0
    while not await died_at(act_at):
        act_at += 1
    assert act_at > 40


@virtual
async def test_a_woken_shard_is_told_with_how_long_it_slept():
    fleet = SleepingFleet()
    await fleet.put_to_sleep(0, 1)
    await fleet.clock.sleep_ms(60_000)
    fleet.stream.put(b"1", shard_id=key(1))
    await fleet.manager.turn()
    assert [(e.lease_key, e.slept_ms) for e in fleet.named("LeaseWoken")] == [(key(1), 60_000)]


@virtual
async def test_a_look_between_two_turns_that_fails_is_told():
    fleet = SleepingFleet(max_wake_ms=10_000)
    await fleet.put_to_sleep(0, 1)

    def fault(call):
        if call.operation == "get_records" and call.at_ms == 5_000:
            raise KeyDenied("check the key's policy")

    fleet.stream.fault = fault
    most_ms = fleet.config.max_manager_ms
    assert await run_manager(fleet.config, fleet.ports(), run_ms=most_ms) == 1
    (failed,) = fleet.named("ManagerTurnFailed")
    assert failed.error == "KeyDenied: check the key's policy"
    assert fleet.woken() == {}


@virtual
async def test_looks_at_what_no_longer_sleeps_are_not_kept():
    fleet = SleepingFleet()
    await fleet.put_to_sleep(0, 1)
    await fleet.manager.turn()
    naps = {nap.lease_key: version for nap, version in await NapRecord(fleet.store).naps()}
    assert await NapRecord(fleet.store).end(key(0), naps[key(0)])
    for _ in range(5):
        await fleet.clock.sleep_ms(60_000)
        fleet.again()
        await fleet.manager.turn()
    assert (await read_rows(fleet.store, GLANCES)).keys() == {key(1)}
