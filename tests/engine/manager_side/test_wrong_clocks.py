"""What a manager makes of what another one kept when one of their wall clocks is wrong (E7)."""

import pytest
from msgspec.structs import replace

from shardfleet.config import MANAGER_EVERY_MS
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual

HOUR_MS = 3_600_000


def ports_ahead(fleet, *, by_ms):
    """Return the ports of a manager whose wall clock is so far ahead of the fleet's."""
    clock = VirtualClock(fleet.clock.start_ms + by_ms)
    state = FleetState(fleet.store, clock)
    return replace(fleet.ports(), clock=clock, state=state, entropy=SeededEntropy(8))


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("is_second", [True, False])
@virtual
async def test_nobody_who_renews_is_robbed_by_a_clock_that_is_an_hour_off(by_ms, is_second):
    """The counters stand still between the two readings, as between two renewals they do."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    wrong = LeaseManager(fleet.config, ports_ahead(fleet, by_ms=by_ms))
    right = LeaseManager(fleet.config, fleet.ports())
    one, other = (right, wrong) if is_second else (wrong, right)
    before = fleet.owners()
    await one.turn()
    await fleet.clock.sleep_ms(2_000)
    await other.turn()
    assert fleet.owners() == before
    assert fleet.named("ManagerTurnDone")[-1].expired_leases == 0


@virtual
async def test_nobody_is_robbed_when_the_clock_jumps_between_two_turns_of_one_manager():
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    await fleet.manager.turn()
    before = fleet.owners()
    await fleet.clock.sleep_ms(2_000)
    fleet.clock.start_ms += HOUR_MS
    await fleet.manager.turn()
    assert fleet.owners() == before


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
@virtual
async def test_nobody_is_robbed_when_the_clock_jumps_while_the_table_is_read(by_ms):
    """What was changed since the last reading is first seen after this one, not before it."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    await fleet.manager.turn()
    before = fleet.owners()
    await fleet.clock.sleep_ms(2_000)
    survey, leases = fleet.leases.survey, fleet.leases.leases
    for key, lease in leases.items():
        leases[key] = replace(lease, lease_counter=lease.lease_counter + 1)

    async def jumping():
        fleet.leases.survey = survey
        fleet.clock.start_ms += by_ms
        return await survey()

    fleet.leases.survey = jumping
    for _ in range(2):
        await fleet.manager.turn()
        assert fleet.owners() == before
    assert all(turn.expired_leases == 0 for turn in fleet.named("ManagerTurnDone"))


class JumpingClock(VirtualClock):
    """A wall clock that is set by so much between two of the times that it is read."""

    def __init__(self, *, by_ms, after):
        super().__init__()
        self.by_ms, self.left = by_ms, after

    def now_ms(self):
        self.left -= 1
        if self.left == 0:
            self.start_ms += self.by_ms
        return super().now_ms()


async def expired_after_jump(*, by_ms, after, runs):
    """Return what expires in two invocations, and how often the first one reads its clock."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    fleet.clock = JumpingClock(by_ms=by_ms, after=0)
    fleet.state = FleetState(fleet.store, fleet.clock)
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    await running_fleet(fleet)
    keys, reads = list(fleet.leases.leases), []
    fleet.clock.left = after
    for _ in range(2):
        manager = LeaseManager(fleet.config, fleet.ports())
        for turn in range(runs):
            # Of three leases one is renewed: the others are when the manager does not look.
            fleet.renew(*keys[turn % 3 :: 3])
            await manager.turn()
            await fleet.clock.sleep_ms(1_500)
            await manager.losses.look()
        await manager.losses.remember()
        reads.append(after - fleet.clock.left)
    return sum(turn.expired_leases for turn in fleet.named("ManagerTurnDone")), reads[0]


@pytest.mark.parametrize("by_ms", [-HOUR_MS, -60_000, 20_000, 60_000, 170_000, HOUR_MS])
def test_wherever_in_an_invocation_the_clock_is_set_nobody_who_renews_is_robbed(by_ms):
    """
    Whatever by: a jump is known by which reading of the clock is the first one behind it.

    Each lease is renewed each 4.5 s at the least, of a failover time of 10 s. Between two
    invocations three minutes tell a wrong clock from a manager that was late (E7).
    """

    @virtual
    async def run(after, runs=4):
        return await expired_after_jump(by_ms=by_ms, after=after, runs=runs)

    _, reads = run(0)
    assert reads > 15
    assert [after for after in range(1, reads + 1) if run(after)[0]] == []


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS, 0])
@virtual
async def test_a_lost_owner_is_found_within_two_minutes_whoever_s_clock_is_wrong(by_ms):
    """Nothing kept is believed then: what the first look sees is old at the second one."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    wrong = LeaseManager(fleet.config, ports_ahead(fleet, by_ms=by_ms))
    await wrong.turn()
    began_ms = fleet.clock.monotonic_ms()
    while not any(turn.expired_leases for turn in fleet.named("ManagerTurnDone")):
        next_ms = fleet.clock.monotonic_ms() + MANAGER_EVERY_MS
        await run_manager(fleet.config, fleet.ports(), run_ms=57_000)
        await fleet.clock.sleep_ms(next_ms - fleet.clock.monotonic_ms())
        assert fleet.clock.monotonic_ms() - began_ms <= 2 * MANAGER_EVERY_MS


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
@virtual
async def test_the_tip_is_pinned_by_the_clock_of_the_stream(by_ms):
    """By a manager's own that is ahead, all that came until then would be left out."""
    fleet = Fleet(initial_position="LATEST")
    fleet.stream.service_ms = fleet.clock.now_ms
    await LeaseManager(fleet.config, ports_ahead(fleet, by_ms=by_ms)).turn()
    pins = await fleet.store.list("pin")
    assert len(pins) == 4
    assert {pin.body["instant_ms"] for pin in pins} == {fleet.clock.now_ms() - 5_000}


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("has_leases", [True, False])
@virtual
async def test_of_a_slot_whose_last_word_is_dated_ahead_the_execution_tells_whether_it_runs(
    runs, has_leases
):
    """By that word it would count as alive until the manager's clock is there."""
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    slot = await fleet.state.slot("s0001")
    ahead = replace(slot.slot, heartbeat_ms=fleet.clock.now_ms() + 43 * 60_000)
    await fleet.state.write_slot(ahead, slot.version)
    if not has_leases:
        for key, lease in fleet.leases.leases.items():
            fleet.leases.leases[key] = replace(lease, lease_owner=None)
    if not runs:
        fleet.launcher.close("f-s0001-1-0")
    for _ in range(3):
        await fleet.clock.sleep_ms(1_000)
        await fleet.manager.turn()
    now = await fleet.slot("s0001")
    assert now.start_epoch == (1 if runs else 2)
    assert (now.state is SlotState.RUNNING) == runs
    assert set(fleet.owners().values()) == {"f-s0001"}
