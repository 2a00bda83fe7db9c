"""The manager is calm while nothing moves, a turn an invocation, and awake while anything does."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.manager.loop import run_manager
from shardfleet_testkit.clock import run_virtual
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual


async def turns(fleet, *, moves=None):
    """Run one invocation just after the workers renew and beat, and something moves, if given."""
    fleet.renew()
    await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
    if moves:
        await moves(fleet)
    return await run_manager(fleet.config, fleet.ports(), run_ms=60_000)


def a_fleet(**options):
    # One worker at most: nobody beats while a manager of the kit runs, so it gets a stand-in.
    return Fleet(leases_per_worker=4, max_workers=1, manager_run_ms=50_000, **options)


async def unowned(fleet):
    """Take the owner of a lease away."""
    key, lease = next(iter(fleet.leases.leases.items()))
    fleet.leases.leases[key] = replace(lease, lease_owner=None)


async def handed_over(fleet):
    """Let a lease be on its way to somebody else."""
    key, lease = next(iter(fleet.leases.leases.items()))
    fleet.leases.leases[key] = replace(lease, checkpoint_owner=lease.lease_owner)


async def silent(fleet):
    """Let the worker's last word be older than twice the failover time."""
    (found,) = await fleet.state.slots()
    await fleet.clock.sleep_ms(2 * fleet.config.failover_ms + 1_000)
    fleet.renew()
    assert found.slot.state is SlotState.RUNNING


async def not_taken_up(fleet):
    """Let the worker not have heard yet of what it was given."""
    (found,) = await fleet.state.slots()
    slot = replace(found.slot, assign_seq=found.slot.served_seq + 1)
    await fleet.state.write_slot(slot, found.version)


async def ended(fleet):
    """Let the only worker have ended."""
    (found,) = await fleet.state.slots()
    await fleet.state.write_slot(replace(found.slot, state=SlotState.ENDED), found.version)


@virtual
async def test_a_manager_has_one_turn_an_invocation_while_nothing_moves():
    fleet = a_fleet()
    await running_fleet(fleet)
    for _ in range(3):
        assert await turns(fleet) == 1
        await fleet.clock.sleep_ms(60_000)


@pytest.mark.parametrize("moves", [unowned, handed_over, not_taken_up, ended])
def test_a_manager_is_awake_while_anything_moves(moves):
    async def main():
        fleet = a_fleet()
        await running_fleet(fleet)
        assert await turns(fleet) == 1
        return await turns(fleet, moves=moves)

    assert run_virtual(main()) > 1


@virtual
async def test_a_worker_that_was_not_heard_of_for_twice_the_failover_time_keeps_it_awake():
    fleet = a_fleet()
    await running_fleet(fleet)
    assert await turns(fleet) == 1
    await silent(fleet)
    assert await run_manager(fleet.config, fleet.ports(), run_ms=60_000) > 1


@virtual
async def test_a_prompt_that_comes_while_it_plans_has_a_turn_of_its_own():
    fleet = a_fleet()
    await running_fleet(fleet)
    assert await turns(fleet) == 1
    ports, survey, prompted = fleet.ports(), fleet.leases.survey, []

    async def survey_and_prompt():
        if not prompted:
            prompted.append(await fleet.state.prompt_manager())
        return await survey()

    fleet.leases.survey = survey_and_prompt
    fleet.renew()
    await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
    assert await run_manager(fleet.config, ports, run_ms=60_000) == 2


@pytest.mark.parametrize(("lag_ms", "is_awake"), [(900, False), (1_100, True)])
def test_a_lag_objective_that_is_missed_keeps_it_awake(lag_ms, is_awake):
    async def main():
        fleet = a_fleet(lag_objective_ms=1_000)
        await running_fleet(fleet)
        fleet.renew()
        await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
        (found,) = await fleet.state.slots()
        behind = dict.fromkeys(fleet.leases.leases, lag_ms)
        await fleet.state.write_slot(replace(found.slot, lags_ms=behind), found.version)
        return await run_manager(fleet.config, fleet.ports(), run_ms=60_000)

    assert (run_virtual(main()) > 1) == is_awake
