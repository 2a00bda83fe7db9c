"""Slots are started once, repaired when silent, and drained slowly (hazards H2, H3)."""

import pytest
from msgspec.structs import force_setattr, replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import HoldsFewest, OwnerEnds, StandsIn
from shardfleet.domain.slots.slot import ClaimRefused, SlotState, claim
from shardfleet.domain.slots.usage import HandlerSigns, Usage
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.worker.slot import SlotRecord
from shardfleet.errors import ConfigurationError, StaleEpoch, Throttled
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import ProcessEndedError
from tests.engine.manager_side.fleet_kit import Fleet, invocation, running_fleet
from tests.virtual import virtual


@virtual
async def test_the_intent_is_written_before_the_execution_is_started():
    fleet = Fleet(leases_per_worker=4)
    seen = []
    start = fleet.launcher.start

    async def watched(name, text):
        slot = await fleet.slot("s0001")
        seen.append((slot.state, slot.slot_input().execution_name() == name))
        assert text == slot.slot_input().execution_text()
        return await start(name, text)

    fleet.launcher.start = watched
    await fleet.manager.turn()
    assert seen == [(SlotState.STARTING, True)]


@virtual
async def test_a_manager_that_died_between_intent_and_start_is_made_good_by_the_next():
    fleet = Fleet(leases_per_worker=4)
    start = fleet.launcher.start

    async def dies(name, text):
        raise ProcessEndedError

    fleet.launcher.start = dies
    try:
        await fleet.manager.turn()
    except ProcessEndedError:
        fleet.launcher.start = start
    assert not fleet.launcher.executions
    await fleet.manager.turn()
    assert list(fleet.launcher.executions) == ["f-s0001-1-0"]
    assert (await fleet.slot("s0001")).start_epoch == 1


@virtual
async def test_an_execution_closed_before_its_first_heartbeat_raises_the_epoch():
    fleet = Fleet(leases_per_worker=4)
    await fleet.manager.turn()
    fleet.launcher.close("f-s0001-1-0")
    await fleet.manager.turn()
    assert (await fleet.slot("s0001")).start_epoch == 2
    assert "f-s0001-2-0" in fleet.launcher.executions


@virtual
async def test_a_silent_slot_whose_execution_runs_is_left_alone():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    slot = await fleet.slot("s0001")
    assert (slot.state, slot.start_epoch) == (SlotState.RUNNING, 1)


def test_where_the_others_are_full_a_slot_that_stands_still_is_replaced_while_its_execution_runs():
    """Its leases would wait for the function's time-out, 15 minutes as a rule, for a place."""

    async def main():
        fleet = Fleet(leases_per_worker=2)
        await running_fleet(fleet)
        theirs = [key for key, le in fleet.leases.leases.items() if le.lease_owner == "f-s0002"]
        began_ms = fleet.clock.monotonic_ms()
        while "f-s0001" in fleet.owners().values():
            # Two failover times of silence and a turn to see it, a turn in which the other starts.
            assert fleet.clock.monotonic_ms() - began_ms <= 30_000
            await fleet.clock.sleep_ms(3_000)
            await fleet.beat("s0002")
            fleet.renew(*theirs)
            if await fleet.slot("s0003"):
                await fleet.beat("s0003")
            await fleet.manager.turn()
        assert sorted(fleet.owners().values()) == ["f-s0002", "f-s0002", "f-s0003", "f-s0003"]
        (started,) = [each for each in fleet.named("SlotStarted") if each.slot_id == "s0003"]
        assert started.reason == StandsIn("s0001")
        assert (await fleet.slot("s0001")).start_epoch == 1
        await fleet.clock.sleep_ms(3_000)
        await fleet.beat("s0002", "s0003")
        await fleet.manager.turn()
        assert not await fleet.slot("s0004")

    run_virtual(main())


@virtual
async def test_a_silent_slot_that_continued_as_new_is_left_alone():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    fleet.launcher.close("f-s0001-1-0")
    await fleet.launcher.start("f-s0001-1-1", "next generation")
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    assert (await fleet.slot("s0001")).start_epoch == 1


@virtual
async def test_the_leases_of_a_lost_slot_are_given_away_before_it_starts_again():
    """Else its new execution, which knows its worker id, and the next owner race for them."""
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    lost = [key for key, le in fleet.leases.leases.items() if le.lease_owner == "f-s0001"]
    fleet.launcher.close("f-s0001-1-0")
    for _ in range(3):
        await fleet.clock.sleep_ms(9_000)
        await fleet.beat("s0002")
        others = (k for k in fleet.leases.leases if k not in lost)
        fleet.renew(*others)
        await fleet.manager.turn()
    told = [
        getattr(each, "lease_key", type(each).__name__)
        for each in fleet.events.events
        if type(each).__name__ == "SlotRestarted" or getattr(each, "kind", "") == "EXPIRED"
    ]
    assert sorted(told[:2]) == lost
    assert told[2:] == ["SlotRestarted"]


def test_the_only_slot_starts_again_as_soon_as_its_leases_expire_and_is_given_nothing_before():
    """What is announced to it would take the version from under its start, and put that off."""

    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)
        fleet.launcher.close("f-s0001-1-0")
        while not fleet.named("SlotRestarted"):
            await fleet.clock.sleep_ms(3_000)
            await fleet.manager.turn()
        assert "f-s0001-2-0" in fleet.launcher.executions
        assert len(fleet.named("SlotRestarted")) == 1
        assert not [each for each in fleet.named("LeaseAssigned") if each.kind == "EXPIRED"]

    run_virtual(main())


@virtual
async def test_a_slot_whose_execution_is_over_starts_again_under_the_same_worker_id():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    fleet.launcher.close("f-s0001-1-0")
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    slot = await fleet.slot("s0001")
    assert (slot.state, slot.start_epoch, slot.worker_id) == (
        SlotState.STARTING,
        2,
        "f-s0001",
    )
    assert "f-s0001-2-0" in fleet.launcher.executions


@virtual
async def test_an_invocation_whose_slot_was_ended_on_its_behalf_finds_itself_outdated():
    """Its execution is over for Step Functions, but it may still run somewhere (H1, H2)."""
    fleet = Fleet(leases_per_worker=4)
    slots = await running_fleet(fleet)
    given = invocation(await fleet.slot("s0001"))
    record = SlotRecord(given, state=fleet.state, clock=fleet.clock, token="mine")
    await record.claim()
    for key, lease in fleet.leases.leases.items():
        fleet.leases.leases[key] = replace(lease, lease_owner="java", lease_counter=50)
    fleet.launcher.close("f-s0001-1-0")
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    ended = await fleet.slot("s0001")
    assert (slots, ended.state) == (["s0001"], SlotState.ENDED)

    with pytest.raises(StaleEpoch):
        await record.look()
    with pytest.raises(StaleEpoch):
        await record.beat(0, dict, Usage(), signs=HandlerSigns())
    assert not await record.is_mine()
    assert await fleet.slot("s0001") == ended


@virtual
async def test_an_invocation_of_an_older_execution_is_refused():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    old = invocation(await fleet.slot("s0001"))
    fleet.launcher.close("f-s0001-1-0")
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    slot = await fleet.slot("s0001")
    assert isinstance(claim(slot, old, now_ms=0), ClaimRefused)
    assert not isinstance(claim(slot, invocation(slot), now_ms=0), ClaimRefused)


def complete_handovers(fleet):
    """End the handovers as their old owners do."""
    for key, lease in fleet.leases.leases.items():
        if lease.checkpoint_owner is not None:
            made = lease_changes.assign(lease, lease.lease_owner)
            fleet.leases.leases[key] = lease_changes.apply_change(made, lease).lease


async def live(fleet, slots, *, turns):
    """Run turns, 20 s apart, of workers that renew, serve and hand over."""
    for _ in range(turns):
        await fleet.clock.sleep_ms(20_000)
        complete_handovers(fleet)
        fleet.renew()
        await fleet.beat(*slots)
        await fleet.manager.turn()


async def shrinking_fleet(**options):
    """Return a fleet of two slots with two leases each, of which one slot would do."""
    fleet = Fleet(leases_per_worker=2, assignment="count", scale_down_ms=60_000, **options)
    slots = await running_fleet(fleet)
    force_setattr(fleet.config, "leases_per_worker", 4)
    return fleet, slots


@virtual
async def test_a_slot_leaves_only_when_a_surplus_has_lasted_and_hands_its_leases_over_first():
    fleet, slots = await shrinking_fleet()
    await live(fleet, slots, turns=3)
    assert [(await fleet.slot(s)).leaving_ms for s in slots] == [0, 0]
    assert sorted(fleet.owners().values()) == ["f-s0001"] * 2 + ["f-s0002"] * 2

    await live(fleet, slots, turns=1)
    moving = [le for le in fleet.leases.leases.values() if le.checkpoint_owner is not None]
    assert {(le.checkpoint_owner, le.lease_owner) for le in moving} == {("f-s0002", "f-s0001")}
    assert len(moving) == 2
    assert (await fleet.slot("s0002")).leaving_ms
    assert not (await fleet.slot("s0002")).drain

    await live(fleet, slots, turns=1)
    assert set(fleet.owners().values()) == {"f-s0001"}
    assert (await fleet.slot("s0002")).drain
    reasons = {e.reason for e in fleet.named("LeaseAssigned") if e.kind == "HANDOVER"}
    assert reasons == {
        OwnerEnds("f-s0002", HoldsFewest(2)),
        OwnerEnds("f-s0002", HoldsFewest(3)),
    }


@virtual
async def test_a_slot_that_cannot_hand_over_is_drained_after_its_time():
    fleet, slots = await shrinking_fleet(handler_timeout_ms=10_000)
    force_setattr(fleet.config, "leases_per_worker", 8)
    await live(fleet, slots, turns=4)
    leave_most_ms = fleet.config.handover_limit_ms + fleet.config.cycle_ms
    parent_id = "shardId-000000000099"
    for key, lease in fleet.leases.leases.items():
        fleet.leases.leases[key] = replace(lease, checkpoint_owner=None)
        if lease.checkpoint_owner is not None:
            stuck = replace(lease, lease_owner="f-s0002", checkpoint_owner=None)
            fleet.leases.leases[key] = replace(stuck, parent_shard_ids=(parent_id,))
    parent = replace(lease, lease_key=parent_id, lease_owner="java", parent_shard_ids=(key,))
    fleet.leases.leases[parent_id] = parent
    await live(fleet, slots, turns=leave_most_ms // 20_000)
    assert not (await fleet.slot("s0002")).drain
    await live(fleet, slots, turns=1)
    assert (await fleet.slot("s0002")).drain


@virtual
async def test_a_slot_that_leaves_stays_when_it_is_needed_again():
    fleet, slots = await shrinking_fleet()
    await live(fleet, slots, turns=4)
    assert (await fleet.slot("s0002")).leaving_ms
    force_setattr(fleet.config, "leases_per_worker", 2)
    await live(fleet, slots, turns=1)
    assert not (await fleet.slot("s0002")).leaving_ms
    assert not (await fleet.slot("s0002")).drain
    assert await fleet.slot("s0003") is None


@virtual
async def test_a_slot_that_stays_is_given_leases_in_the_same_turn():
    """Found by forecasts: it was asked to stay behind that, and refused what it was planned."""
    fleet, slots = await shrinking_fleet()
    await live(fleet, slots, turns=4)
    assert (await fleet.slot("s0002")).leaving_ms
    force_setattr(fleet.config, "leases_per_worker", 2)
    free = replace(next(iter(fleet.leases.leases.values())), lease_owner=None)
    fleet.leases.leases[free.lease_key] = replace(free, checkpoint_owner=None)
    await live(fleet, slots, turns=1)
    assert fleet.owners()[0] == "f-s0002"
    assert not fleet.named("AssignmentLost")


@virtual
async def test_how_long_a_surplus_has_lasted_outlives_the_manager_s_invocation():
    fleet, slots = await shrinking_fleet()
    for _ in range(4):
        fleet.manager = LeaseManager(fleet.config, fleet.ports())
        await live(fleet, slots, turns=1)
    assert (await fleet.slot("s0002")).leaving_ms


@virtual
async def test_lag_starts_a_slot_at_once_and_it_is_given_leases_at_once():
    fleet = Fleet(leases_per_worker=4, rebalance_turns=100)
    await running_fleet(fleet)
    await fleet.manager.turn()
    keys = sorted(fleet.leases.leases)

    def behind(slot):
        return replace(slot, lags_ms=dict.fromkeys(keys, 90_000))

    await fleet.state.update_slot("s0001", behind)
    await fleet.manager.turn()
    assert (await fleet.slot("s0002")).state is SlotState.STARTING
    assert fleet.clock.monotonic_ms() == 0
    told = fleet.named("SlotStarted")[-1]
    assert told.slot_id == "s0002"

    await fleet.beat("s0001", "s0002")
    await fleet.manager.turn()
    moving = [le for le in fleet.leases.leases.values() if le.checkpoint_owner is not None]
    assert {le.lease_owner for le in moving} == {"f-s0002"}


@virtual
async def test_a_stopped_shard_is_behind_and_asks_for_nothing():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    key = min(fleet.leases.leases)
    stop = StopNote(
        lease_key=key, position="5", error="e", attempts=5, worker_id="f-s0001", at_ms=1
    )
    await fleet.state.write_stop(stop)
    await fleet.state.update_slot("s0001", lambda s: replace(s, lags_ms={key: 900_000}))
    await fleet.manager.turn()
    assert await fleet.slot("s0002") is None


@virtual
async def test_no_slot_is_started_for_a_stream_that_is_done():
    fleet = Fleet(shards=[])
    report = await fleet.manager.turn()
    assert not fleet.launcher.executions
    assert not report.plan.is_awake


@virtual
async def test_a_slot_that_is_silent_and_cannot_be_examined_counts_as_missing():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)

    async def refused(_name):
        raise ConfigurationError("DescribeExecution: AccessDenied")

    fleet.launcher.status = refused
    await fleet.manager.turn()
    assert fleet.named("ManagerTurnDone")[-1].slots_missing == 0
    await fleet.clock.sleep_ms(2 * fleet.config.failover_ms + 1)
    await fleet.manager.turn()
    told = fleet.named("ManagerTurnDone")[-1]
    assert (told.slots_running, told.slots_missing) == (0, 1)


@virtual
async def test_a_slot_that_cannot_be_started_is_told_and_keeps_no_other_from_its_start():
    fleet = Fleet(leases_per_worker=2)
    start = fleet.launcher.start

    async def refused(name, text):
        if "s0001" in name:
            raise Throttled("too many executions")
        return await start(name, text)

    fleet.launcher.start = refused
    await fleet.manager.turn()
    (told,) = fleet.named("SlotUpkeepFailed")
    assert (told.slot_id, told.task) == ("s0001", "START")
    assert "too many executions" in told.error
    assert [name.split("-1-")[0] for name in fleet.launcher.executions] == ["f-s0002"]
