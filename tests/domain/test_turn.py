"""A turn's plan: pure, in the order in which one decision needs another."""

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.domain.leases.expiry import Reading, Sighting
from shardfleet.domain.leases.holes import Evidence
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.reasons import Pause, RecordsCame
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotTask
from shardfleet.domain.turn import TurnSnapshot, plan_turn
from tests.domain.builders import a_lease, a_shard

NOW = 10_000_000
LEFT, RIGHT = "shardId-000000000000", "shardId-000000000001"
SHARDS = [a_shard(f"{LEFT} 0-50 open"), a_shard(f"{RIGHT} 50-100 open")]
RUNNING = Slot(
    slot_id="s0001",
    worker_id="f-s0001",
    state=SlotState.RUNNING,
    name="f-s0001-1",
    start_epoch=1,
    heartbeat_ms=NOW - 1_000,
)


def a_config(**options):
    values = {"fleet": "f", "stream_arn": "arn", "lease_table": "l", "state_table": "s"}
    return FleetConfig(**values | {"leases_per_worker": 4} | options)


def a_snapshot(*leases, **options):
    reading = Reading(began_ms=NOW, ended_ms=NOW)
    survey = Survey(leases=tuple(a_lease(text) for text in leases))
    values = {"reading": reading, "began_ms": NOW, "survey": survey, "shards": SHARDS}
    return TurnSnapshot(at_ms=NOW, **values | {"slots": [RUNNING]} | options)


def given(plan):
    return {each.lease.lease_key: each.kind for each in plan.assignment.assignments}


def test_what_is_created_is_given_to_somebody_in_the_same_turn():
    plan = plan_turn(a_config(), a_snapshot(f"{LEFT} at 5 by f-s0001"))
    assert [wanted.lease.lease_key for wanted in plan.sync.create] == [RIGHT]
    assert given(plan) == {RIGHT: AssignmentKind.UNOWNED}


def test_what_has_expired_wakes_no_suspicion_of_another_application_and_is_given_away():
    snapshot = a_snapshot(
        f"{LEFT} at 5 by java",
        f"{RIGHT} at 5 by f-s0001",
        sightings={LEFT: Sighting(0, "java", NOW - 60_000)},
    )
    counter = snapshot.survey.leases[0].lease_counter
    snapshot = replace(snapshot, sightings={LEFT: Sighting(counter, "java", NOW - 60_000)})
    plan = plan_turn(a_config(sleep=True), snapshot)
    assert plan.losses.expired == {LEFT}
    assert plan.sleepers.foreign is None
    assert given(plan) == {LEFT: AssignmentKind.EXPIRED}


def test_what_a_look_finds_wakes_in_the_plan_that_gives_it_to_somebody():
    nap = Nap(
        lease_key=LEFT, worker_id="w", since_ms=NOW - 9_000, done=a_lease(f"{LEFT} at 5").checkpoint
    )
    snapshot = a_snapshot(f"{LEFT} at 5", f"{RIGHT} at 5 by f-s0001", naps=[nap])
    asleep = plan_turn(a_config(sleep=True), snapshot)
    assert (set(asleep.sleepers.asleep), given(asleep)) == ({LEFT}, {})
    woken = plan_turn(a_config(sleep=True), replace(snapshot, woken={LEFT: RecordsCame()}))
    assert (set(woken.sleepers.asleep), given(woken)) == (set(), {LEFT: AssignmentKind.UNOWNED})
    paused = replace(snapshot, pauses=Pauses(fleet=Pause("ann", NOW)), woken={LEFT: RecordsCame()})
    assert plan_turn(a_config(sleep=True), paused).sleepers.woken == {}


def test_what_waits_for_a_sleeping_parent_keeps_no_manager_awake():
    """Nothing but a look at the parent brings it on, nor what waits for it in turn."""
    child, grandchild = "shardId-000000000002", "shardId-000000000003"
    shards = [
        a_shard(f"{LEFT} 0-50 closed"),
        a_shard(f"{RIGHT} 50-100 closed"),
        a_shard(f"{child} 0-100 closed from {LEFT}+{RIGHT}"),
        a_shard(f"{grandchild} 0-100 open from {child}"),
    ]
    tip = a_lease(f"{LEFT} at 5").checkpoint
    naps = [Nap(lease_key=LEFT, worker_id="w", since_ms=NOW - 9_000, done=tip)]

    def is_awake(*leases, **options):
        snapshot = a_snapshot(*leases, shards=shards, naps=naps, **options)
        plan = plan_turn(a_config(sleep=True), snapshot)
        assert set(plan.sleepers.asleep) == {LEFT} - set(options.get("woken", ()))
        return plan.is_awake

    parent, other = f"{LEFT} at 5", f"{RIGHT} at SHARD_END"
    merged, last = f"{child} from {LEFT}+{RIGHT}", f"{grandchild} from {child}"
    assert not is_awake(parent, other, merged, last)
    assert is_awake(parent, other, merged, last, woken={LEFT: RecordsCame()})
    assert is_awake(parent, f"{RIGHT} at 5", merged, last)
    assert is_awake(parent, other, f"{merged} by f-s0001", last)


def test_a_slot_that_is_to_leave_gives_its_leases_to_the_others_in_the_same_turn():
    second = replace(RUNNING, slot_id="s0002", worker_id="f-s0002")
    plan = plan_turn(
        a_config(max_workers=1),
        a_snapshot(f"{LEFT} at 5 by f-s0001", f"{RIGHT} at 5 by f-s0002", slots=[RUNNING, second]),
    )
    tasks = {each.slot_id: each.task for each in plan.slots.decisions}
    assert tasks == {"s0001": SlotTask.NOTHING, "s0002": SlotTask.LEAVE}
    assert given(plan) == {RIGHT: AssignmentKind.STEAL}
    assert plan.graceful == {"f-s0001", "f-s0002"}


@pytest.mark.parametrize(("busy", "leaves"), [(-1, False), (100, True)])
def test_a_slot_that_lambda_runs_beside_a_process_leaves_by_its_handler_s_time(busy, leaves):
    """Its CPU, a share of one, is all in use; unless nothing else is known, that says little."""
    process, bought = (
        replace(RUNNING, slot_id=f"s000{n}", worker_id=f"f-s000{n}", busy=200, cpu=200)
        for n in (1, 2)
    )
    plan = plan_turn(
        a_config(spill=True),
        a_snapshot(
            f"{LEFT} at 5 by f-s0001",
            f"{RIGHT} at 5 by f-s0002",
            slots=[process, replace(bought, busy=busy, cpu=1_000)],
            rooms=Rooms(hosts=frozenset({"pod"}), carried=frozenset({"f-s0001"})),
            pace=Pace(surplus_ms=NOW - 180_000),
        ),
    )
    tasks = {each.slot_id: each.task for each in plan.slots.decisions}
    assert tasks["s0002"] == (SlotTask.LEAVE if leaves else SlotTask.NOTHING)


def test_only_a_turn_that_may_have_lost_a_lease_asks_for_evidence_and_only_once():
    config = a_config(initial_position="LATEST")
    assert not plan_turn(config, a_snapshot(f"{LEFT} at 5", f"{RIGHT} at 5")).wants_evidence
    snapshot = a_snapshot(f"{LEFT} at 5")
    plan = plan_turn(config, snapshot)
    assert plan.wants_evidence
    evidence = Evidence(began_ms=NOW - 60_000, suspicions={})
    again = plan_turn(config, replace(snapshot, evidence=evidence))
    assert not again.wants_evidence
    assert set(again.suspicions) == {RIGHT}


@pytest.mark.parametrize(("since_ms", "is_given"), [(180_000, False), (180_001, True)])
def test_what_a_kcl_3_s_leader_leaves_with_a_lost_owner_for_three_minutes_is_given_out(
    since_ms, is_given
):
    """Protocol §1.7: 120 s until another one leads, and its run each 20 s."""
    snapshot = a_snapshot(
        f"{LEFT} at 5 by gone counter 3",
        f"{RIGHT} at 5 by java",
        kcl3=Kcl3(rows=[WorkerRow("java", NOW // 1_000)]),
        sightings={LEFT: Sighting(3, "gone", NOW - since_ms)},
    )
    assert (LEFT in given(plan_turn(a_config(), snapshot))) == is_given


@pytest.mark.parametrize("assignment", ["balanced", "count", "greedy"])
def test_the_same_snapshot_gives_the_same_plan(assignment):
    config = a_config(assignment=assignment, leases_to_acquire=1)
    snapshot = a_snapshot(f"{LEFT} at 5", f"{RIGHT} at 5", draw="a")
    # A graph is what it was made of, which both have.
    plans = [replace(plan_turn(config, snapshot), graph=None) for _ in range(2)]
    assert plans[0] == plans[1]


def test_another_draw_shuffles_otherwise():
    config = a_config(assignment="greedy", leases_to_acquire=1)
    snapshot = a_snapshot(f"{LEFT} at 5", f"{RIGHT} at 5")
    found = {tuple(given(plan_turn(config, replace(snapshot, draw=str(n))))) for n in range(9)}
    assert found == {(LEFT,), (RIGHT,)}


def test_what_waits_for_another_parent_of_its_merge_leaves_its_place_to_who_brings_that_one_about():
    """Protocol A10: else the only place would be held by who waits for the one without a place."""
    merge = [
        a_shard("0 0-50 closed start 1"),
        a_shard("1 50-100 closed start 1"),
        a_shard("2 50-75 closed from 1 start 10"),
        a_shard("3 75-100 open from 1 start 10"),
        a_shard("4 0-75 open from 0+2 start 20"),
    ]
    snapshot = a_snapshot("0 at 5 by f-s0001", "1 at 5", shards=merge)
    plan = plan_turn(a_config(leases_per_worker=1, max_workers=1), snapshot)
    assert (plan.sync.create, plan.slots.wanted) == ((), 1)
    assert given(plan) == {"1": AssignmentKind.UNOWNED}
