"""The manager's invocation: several turns, prompts, one manager at a time (hazard H13)."""

import asyncio

import pytest

from shardfleet.config import MANAGER_EVERY_MS
from shardfleet.engine.manager.loop import run_manager
from shardfleet.errors import Throttled
from tests.engine.manager_side.fleet_kit import Fleet, four_shards, running_fleet
from tests.virtual import virtual


@virtual
async def test_an_invocation_runs_a_turn_each_cycle_until_its_time_is_over():
    fleet = Fleet()
    turns = await run_manager(fleet.config, fleet.ports(), run_ms=50_000)
    assert turns == 3
    assert fleet.clock.monotonic_ms() == 50_000


@virtual
async def test_with_nothing_awake_an_invocation_does_one_turn_and_returns():
    fleet = Fleet(shards=[])
    assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
    assert fleet.clock.monotonic_ms() == 0


@virtual
async def test_a_listing_that_makes_no_sense_is_looked_at_again_in_the_same_invocation():
    fleet = Fleet(shards=four_shards()[:3])
    assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) > 1
    assert await fleet.leases.scan() == []


@virtual
async def test_a_prompt_brings_the_next_turn_within_a_second():
    fleet = Fleet()
    loop = asyncio.create_task(run_manager(fleet.config, fleet.ports(), run_ms=50_000))
    await fleet.clock.sleep_ms(5_000)
    assert len(fleet.named("ManagerTurnDone")) == 1
    await fleet.state.prompt_manager()
    await fleet.clock.sleep_ms(1_500)
    assert len(fleet.named("ManagerTurnDone")) == 2
    await loop


async def invocations(fleet):
    """Run a manager each minute, a new one each time."""
    while True:
        began_ms = fleet.clock.monotonic_ms()
        await run_manager(fleet.config, fleet.ports(), run_ms=58_000)
        await fleet.clock.sleep_ms(began_ms + MANAGER_EVERY_MS - fleet.clock.monotonic_ms())


async def lost_at(fleet, *, slot_id, after_ms, until):
    """Lose a worker between two turns; return how long and how many turns until something holds."""
    slots = await running_fleet(fleet)
    lost = {key for key, le in fleet.leases.leases.items() if le.lease_owner == f"f-{slot_id}"}
    loop = asyncio.create_task(invocations(fleet))
    for ms in range(0, 120_000, 100):
        if ms % 3_300 == 0:
            gone = lost if ms > after_ms else set()
            fleet.renew(*(fleet.leases.leases.keys() - gone))
            await fleet.beat(*(s for s in slots if s != slot_id or ms <= after_ms))
        if ms > after_ms and until(lost):
            break
        await fleet.clock.sleep_ms(100)
    took_ms, turns = fleet.clock.monotonic_ms() - after_ms, len(fleet.named("ManagerTurnDone"))
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    return took_ms, turns


async def replaced_after(after_ms):
    """Lose one of two workers; return the fleet, and how long until the other has its leases."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)

    def replaced(lost):
        return all(fleet.leases.leases[key].lease_owner == "f-s0001" for key in lost)

    return fleet, *await lost_at(fleet, slot_id="s0002", after_ms=after_ms, until=replaced)


@pytest.mark.parametrize("after_ms", [1_000, 9_000, 12_000, 19_000])
@virtual
async def test_a_lost_owner_is_replaced_within_90_s(after_ms):
    """A calm manager's next look is a minute away, or two, if it looked just before the loss."""
    _, took_ms, _ = await replaced_after(after_ms)

    assert took_ms <= 90_000


@pytest.mark.parametrize("after_ms", [42_000, 44_000, 47_000, 50_000, 54_000, 58_000])
@virtual
async def test_a_lost_owner_is_replaced_as_soon_across_two_invocations(after_ms):
    """What the first one saw last is not seen for the first time by the second one."""
    _, took_ms, _ = await replaced_after(after_ms)

    assert took_ms <= 90_000


@pytest.mark.parametrize(("late_ms", "keeps"), [(16_000, True), (24_000, False)])
@virtual
async def test_looks_between_turns_leave_a_fresh_assignment_its_start_allowance(late_ms, keeps):
    """E5: failover_ms and start_allowance_ms, 10 s and 5 s, from the first look at it (H16)."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await fleet.manager.turn()
    await fleet.beat("s0001", "s0002")
    run = asyncio.create_task(run_manager(fleet.config, fleet.ports(), run_ms=50_000))
    await fleet.clock.sleep_ms(100)
    late = {key for key, le in fleet.leases.leases.items() if le.lease_owner == "f-s0002"}
    assert len(late) == 2
    for _ in range(0, late_ms, 1_000):
        fleet.renew(*(fleet.leases.leases.keys() - late))
        await fleet.beat("s0001")
        await fleet.clock.sleep_ms(1_000)
    owners = {fleet.leases.leases[key].lease_owner for key in late}
    assert owners == ({"f-s0002"} if keeps else {"f-s0001"})
    assert len(fleet.named("ManagerTurnDone")) > 1
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


@virtual
async def test_a_lost_owner_that_nobody_can_replace_does_not_keep_the_manager_busy():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    fleet.events.events.clear()
    await run_manager(fleet.config, fleet.ports(), run_ms=50_000)

    assert len(fleet.named("ManagerTurnDone")) <= 6


@virtual
async def test_two_managers_never_run_turns_at_the_same_time():
    fleet = Fleet()
    first = asyncio.create_task(run_manager(fleet.config, fleet.ports(), run_ms=50_000))
    await fleet.clock.sleep_ms(100)
    ports = fleet.ports()
    object.__setattr__(ports.entropy, "token", lambda: "other")
    assert await run_manager(fleet.config, ports, run_ms=30_000) == 0
    assert await first == 3
    assert await run_manager(fleet.config, ports, run_ms=1_000) == 1


@virtual
async def test_a_killed_manager_s_lock_runs_out():
    fleet = Fleet()
    assert await fleet.state.take_lock("killed", duration_ms=30_000, longest_ms=30_000) is not None
    assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
    assert fleet.clock.monotonic_ms() >= 30_000


@virtual
async def test_the_fencing_token_rises_with_each_hold():
    fleet = Fleet()
    first = await fleet.state.take_lock("a", duration_ms=10, longest_ms=10)
    await fleet.clock.sleep_ms(20)
    second = await fleet.state.take_lock("b", duration_ms=10, longest_ms=10)
    assert first < second


@virtual
async def test_a_failed_turn_is_told_and_the_next_cycle_tries_again():
    fleet = Fleet()
    survey = fleet.leases.survey

    async def throttled():
        if fleet.clock.monotonic_ms() < 30_000:
            raise Throttled("table")
        return await survey()

    fleet.leases.survey = throttled
    assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
    assert len(fleet.named("ManagerTurnFailed")) == 2
    assert len(fleet.leases.leases) == 4
