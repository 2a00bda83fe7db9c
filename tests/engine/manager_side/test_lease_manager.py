"""The manager's turn over memory ports in virtual time."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import SlotEnds
from shardfleet.domain.slots.slot import SlotState, ask_to_drain, end
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.ports import ListingFilter
from shardfleet.errors import OutcomeUnknown, StreamReplaced
from shardfleet_testkit.clock import run_virtual
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet, shard
from tests.virtual import virtual


@virtual
async def test_a_first_turn_creates_every_lease_and_starts_the_slots_they_need():
    fleet = Fleet(leases_per_worker=2)
    await fleet.manager.turn()
    assert fleet.owners() == {0: None, 1: None, 2: None, 3: None}
    assert sorted(fleet.launcher.executions) == ["f-s0001-1-0", "f-s0002-1-0"]
    assert fleet.stream.asked == [
        (ListingFilter.NONE, None),
        (ListingFilter.AT_TRIM_HORIZON, None),
    ]


@virtual
async def test_leases_go_only_to_slots_that_have_sent_a_heartbeat():
    fleet = Fleet(leases_per_worker=2)
    await fleet.manager.turn()
    await fleet.manager.turn()
    assert set(fleet.owners().values()) == {None}
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert list(fleet.owners().values()).count("f-s0001") == 2
    assert list(fleet.owners().values()).count(None) == 2
    await fleet.beat("s0001", "s0002")
    await fleet.manager.turn()
    assert sorted(fleet.owners().values()) == ["f-s0001"] * 2 + ["f-s0002"] * 2


@virtual
async def test_the_slot_learns_of_an_assignment_before_the_lease_says_so():
    fleet = Fleet(leases_per_worker=4)
    await fleet.manager.turn()
    await fleet.beat("s0001")
    seen = []
    apply = fleet.leases.apply

    async def watched(change):
        slot = await fleet.slot("s0001")
        if change.operation == "assign":
            seen.append(change.lease_key in slot.assigned)
        return await apply(change)

    fleet.leases.apply = watched
    await fleet.manager.turn()
    assert seen == [True] * 4


@virtual
async def test_what_was_assigned_to_a_slot_that_ended_meanwhile_is_released_at_once():
    fleet = Fleet(leases_per_worker=4)
    await fleet.manager.turn()
    await fleet.beat("s0001")
    apply = fleet.leases.apply

    async def slot_ends_first(change):
        result = await apply(change)
        if change.operation == "assign":
            await fleet.state.update_slot(
                "s0001", lambda s: end(s, served_seq=s.assign_seq, now_ms=1)
            )
        return result

    fleet.leases.apply = slot_ends_first
    await fleet.manager.turn()
    assert set(fleet.owners().values()) == {None}


@virtual
async def test_leases_of_an_ended_slot_are_taken_without_waiting_for_the_failover_time():
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    assert sorted(fleet.owners().values()) == ["f-s0001"] * 2 + ["f-s0002"] * 2
    found = await fleet.state.slot("s0002")
    await fleet.state.write_slot(
        replace(found.slot, state=SlotState.ENDED, assigned=()), found.version
    )
    await fleet.manager.turn()
    assert set(fleet.owners().values()) == {"f-s0001"}
    assert fleet.clock.monotonic_ms() == 0


@virtual
async def test_a_slot_that_began_to_drain_after_it_was_read_gets_nothing():
    fleet = Fleet(leases_per_worker=4)
    await fleet.manager.turn()
    await fleet.beat("s0001")
    as_read, read = await fleet.store.list("slot"), fleet.store.list
    await fleet.state.update_slot("s0001", ask_to_drain)

    async def stale(kind):
        return as_read if kind == "slot" else await read(kind)

    fleet.store.list = stale
    await fleet.manager.turn()
    assert set(fleet.owners().values()) == {None}
    assert {e.reason for e in fleet.named("AssignmentLost")} == {SlotEnds()}


@virtual
async def test_a_lost_worker_s_leases_move_after_the_failover_time_and_not_before():
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    lost = [k for k, le in fleet.leases.leases.items() if le.lease_owner == "f-s0002"]
    kept = [k for k, le in fleet.leases.leases.items() if le.lease_owner == "f-s0001"]
    moved_at = None
    for _ in range(60):
        await fleet.clock.sleep_ms(1_000)
        fleet.renew(*kept)
        await fleet.beat("s0001")
        await fleet.manager.turn()
        if all(fleet.leases.leases[k].lease_owner == "f-s0001" for k in lost):
            moved_at = fleet.clock.monotonic_ms()
            break
    assert moved_at is not None
    assert 10_000 < moved_at <= 15_000


@virtual
async def test_sightings_outlive_the_manager_s_invocation():
    fleet = Fleet(leases_per_worker=4, min_workers=1)
    await running_fleet(fleet)
    await fleet.manager.turn()
    await fleet.clock.sleep_ms(13_000)
    another = LeaseManager(fleet.config, fleet.ports())
    await another.turn()
    assert fleet.named("ManagerTurnDone")[-1].expired_leases == 4


@virtual
async def test_a_recovered_worker_is_not_robbed_on_a_stale_scan():
    fleet = Fleet(leases_per_worker=4, min_workers=1)
    await running_fleet(fleet)
    await fleet.manager.turn()
    stale = await fleet.leases.survey()
    await fleet.clock.sleep_ms(13_000)
    await fleet.beat("s0001")
    fleet.renew()

    async def stale_survey():
        return stale

    fleet.leases.survey = stale_survey
    counters = {k: le.lease_counter for k, le in fleet.leases.leases.items()}
    await fleet.manager.turn()
    assert {k: le.lease_counter for k, le in fleet.leases.leases.items()} == counters
    assert len(fleet.named("AssignmentLost")) == 4


@virtual
async def test_a_latest_lease_is_pinned_before_it_exists_and_the_first_pin_holds():
    fleet = Fleet(initial_position="LATEST")
    pinned_first = []
    apply = fleet.leases.apply

    async def watched(change):
        if change.operation == "create":
            pinned_first.append(await fleet.store.read("pin", change.lease_key) is not None)
        return await apply(change)

    fleet.leases.apply = watched
    await fleet.manager.turn()
    assert pinned_first == [True] * 4
    assert {le.checkpoint for le in fleet.leases.leases.values()} == {AT_LATEST}
    key = "shardId-000000000000"
    held = (await fleet.store.read("pin", key)).body["instant_ms"]
    assert held == fleet.clock.now_ms() - 5_000
    later = await fleet.state.pin(key, instant_ms=held + 99, created_ms=fleet.stream.created_ms)
    assert later == held


@virtual
async def test_a_re_created_stream_stops_the_manager_and_drains_the_slots():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    fleet.stream.created_ms += 1
    with pytest.raises(StreamReplaced, match="is not the one this fleet began with"):
        await fleet.manager.turn()
    assert (await fleet.slot("s0001")).drain


@virtual
async def test_children_of_a_finished_parent_that_were_never_created_are_healed():
    shards = [
        shard(0, 0, 16, closed=True),
        shard(1, 0, 8, parents=(0,)),
        shard(2, 8, 16, parents=(0,)),
    ]
    fleet = Fleet(shards, initial_position="LATEST")
    parent = Lease(
        lease_key=shards[0].shard_id, checkpoint=AT_SHARD_END, lease_counter=9, lease_owner="w"
    )
    fleet.leases.leases[parent.lease_key] = parent
    await fleet.manager.turn()
    created = {k[-1]: le.checkpoint for k, le in fleet.leases.leases.items() if k[-1] != "0"}
    assert created == {"1": AT_TRIM_HORIZON, "2": AT_TRIM_HORIZON}


@virtual
async def test_a_finished_lease_goes_only_when_every_child_has_started():
    shards = [
        shard(0, 0, 16, closed=True),
        shard(1, 0, 8, parents=(0,)),
        shard(2, 8, 16, parents=(0,)),
    ]
    fleet = Fleet(shards)
    parent = Lease(lease_key=shards[0].shard_id, checkpoint=AT_SHARD_END, lease_counter=9)
    fleet.leases.leases[parent.lease_key] = parent
    await fleet.manager.turn()
    await fleet.manager.turn()
    assert parent.lease_key in fleet.leases.leases
    for key in (shards[1].shard_id, shards[2].shard_id):
        lease = fleet.leases.leases[key]
        fleet.leases.leases[key] = replace(lease, checkpoint=ExtendedSequenceNumber("205"))
    await fleet.manager.turn()
    assert parent.lease_key not in fleet.leases.leases


@virtual
async def test_every_turn_reports_on_all_unfinished_leases_and_keeps_its_reasons():
    fleet = Fleet(leases_per_worker=2)
    await fleet.manager.turn()
    done = fleet.named("ManagerTurnDone")[-1]
    assert (done.total_leases, done.total_shards, done.unclaimed_leases) == (4, 4, 4)
    assert done.leases_of_unknown_lag == 4
    assert (done.millis_behind_latest_max, done.millis_behind_latest_min) == (-1, -1)
    assert (done.slots_wanted, done.slots_running) == (2, 0)
    plan = await fleet.state.plan()
    assert len(plan["created"]) == 4
    assert all(reason for _, reason in plan["created"] + plan["left"])


def test_a_turn_cut_off_at_any_write_is_completed_by_the_next():
    async def main(cut_at):
        fleet = Fleet(leases_per_worker=2)
        writes = 0
        apply, write = fleet.leases.apply, fleet.store.write

        def count():
            nonlocal writes
            writes += 1
            if writes == cut_at:
                raise OutcomeUnknown

        async def cut_apply(change):
            count()
            return await apply(change)

        async def cut_write(*args, **kwargs):
            count()
            return await write(*args, **kwargs)

        fleet.leases.apply, fleet.store.write = cut_apply, cut_write
        for _ in range(6):
            try:
                await fleet.manager.turn()
            except OutcomeUnknown:
                continue
            finally:
                slots = [d.id for d in await fleet.store.list("slot")]
                await fleet.beat(*slots)
        assert sorted(fleet.owners().values()) == ["f-s0001"] * 2 + ["f-s0002"] * 2
        return writes

    total = run_virtual(main(10**6))
    for cut_at in range(1, total + 1):
        run_virtual(main(cut_at))


@virtual
async def test_greedy_acquisition_gives_every_lease_an_owner_within_its_limits():
    fleet = Fleet(assignment="greedy", leases_per_worker=2, leases_to_acquire=1)
    await fleet.manager.turn()
    await fleet.beat("s0001", "s0002")
    await fleet.manager.turn()
    assert sorted(o for o in fleet.owners().values() if o) == ["f-s0001", "f-s0002"]
    fleet.renew()
    await fleet.beat("s0001", "s0002")
    await fleet.manager.turn()
    assert sorted(fleet.owners().values()) == ["f-s0001"] * 2 + ["f-s0002"] * 2


@virtual
async def test_a_lease_that_only_waits_for_the_other_parent_of_its_merge_takes_no_place():
    """All places held by shards that wait, and the one they wait for left out: for ever."""
    shards = [
        shard(0, 0, 8, closed=True),
        shard(1, 8, 16, closed=True),
        shard(2, 8, 12, parents=(1,), closed=True),
        shard(3, 12, 16, parents=(1,)),
        shard(4, 0, 12, parents=(0, 2)),
    ]
    fleet = Fleet(shards, leases_per_worker=1, max_workers=1, initial_position="TRIM_HORIZON")
    slots = await running_fleet(fleet)
    assert fleet.owners() == {0: "f-s0001", 1: None}
    await fleet.manager.turn()
    assert fleet.owners() == {0: "f-s0001", 1: "f-s0001"}
    assert len(slots) == 1


def test_a_slot_that_tells_more_for_a_moment_loses_no_lease_and_one_that_tells_it_again_does():
    async def main():
        shards = [shard(n, 2 * n, 2 * n + 2) for n in range(8)]
        fleet = Fleet(shards, leases_per_worker=8, min_workers=2, rebalance_turns=1)
        slots = await running_fleet(fleet)

        async def turn(**busy):
            for key, lease in fleet.leases.leases.items():
                fleet.leases.leases[key] = replace(lease, throughput_kbps=100.0)
            fleet.renew()
            await fleet.beat(*slots)
            for slot_id, value in busy.items():
                await fleet.state.update_slot(slot_id, lambda s, v=value: replace(s, busy=v))
            await fleet.manager.turn()
            return sum(le.checkpoint_owner is not None for le in fleet.leases.leases.values())

        assert await turn(s0001=300, s0002=300) == 0
        assert await turn(s0001=300, s0002=500) == 0
        assert await turn(s0001=300, s0002=300) == 0
        assert any([await turn(s0001=300, s0002=500) for _ in range(10)])

    run_virtual(main())
