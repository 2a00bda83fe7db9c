"""Who is given what by a whole fleet's plan, whichever strategy: where workers stood still."""

import pytest

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.balance.strategy import AssignmentFacts, plan_assignments
from shardfleet.domain.reasons import ChildOfEnded, NoWorkerRuns, TookWhatWasFree
from shardfleet.domain.slots.slot import Slot, SlotState
from tests.domain.builders import a_lease

NOW_MS = 100_000
STRATEGIES = ("balanced", "count", "greedy")
# By load a worker with 4, 7, 5 and 8 KB/s would exchange with one with 3, 9, 6 and 2.
KBPS = (3.0, 4.0, 9.0, 7.0, 6.0, 5.0, 2.0, 8.0)


def a_config(assignment):
    return FleetConfig(
        fleet="f",
        stream_arn="arn:aws:kinesis:us-east-1:111122223333:stream/clicks",
        lease_table="leases",
        state_table="state",
        leases_per_worker=4,
        assignment=assignment,
    )


def a_slot(number):
    return Slot(
        slot_id=f"s{number}",
        worker_id=f"w{number}",
        state=SlotState.RUNNING,
        name=f"n{number}",
        start_epoch=1,
        heartbeat_ms=NOW_MS,
    )


LEASES = [a_lease(f"{i} at 5 by w{1 + i % 2}", throughput_kbps=KBPS[i]) for i in range(8)]


def planned(assignment, expired, *, slots=2, leases=LEASES, **more):
    facts = AssignmentFacts(
        now_ms=NOW_MS, expired=frozenset(expired), rebalance=True, **{"paused": {}, **more}
    )
    made = [a_slot(number) for number in range(1, slots + 1)]
    plan = plan_assignments(a_config(assignment), leases, made, facts=facts)
    return plan, {a.lease.lease_key: (a.worker_id, a.kind) for a in plan.assignments}


@pytest.mark.parametrize("assignment", STRATEGIES)
@pytest.mark.parametrize("expired", ["01", "14", "0123", "01234567", "0135"])
def test_where_all_workers_stood_still_each_keeps_its_own(assignment, expired):
    _, moves = planned(assignment, expired)

    assert moves == {key: (LEASES[int(key)].lease_owner, AssignmentKind.EXPIRED) for key in expired}


@pytest.mark.parametrize("assignment", STRATEGIES)
def test_what_a_worker_lost_goes_to_who_did_not_stand_still_and_nothing_else_moves(assignment):
    few = LEASES[:4]
    _, moves = planned(assignment, "0", leases=few)

    assert moves == {"0": ("w2", AssignmentKind.EXPIRED)}


def test_a_greedy_fleet_goes_on_with_a_child_of_what_it_ended_before_it_takes_anything_else():
    family = [a_lease("b"), a_lease("parent at SHARD_END by w1"), a_lease("child from parent")]
    plan, _ = planned("greedy", "", slots=1, leases=family)

    found = [(each.lease.lease_key, each.reason) for each in plan.assignments]
    assert found == [("child", ChildOfEnded()), ("b", TookWhatWasFree())]


def test_what_is_paused_or_led_by_a_kcl_3_is_not_given_back():
    led, given = planned("balanced", "01", led=frozenset("0"))
    paused, others = planned("balanced", "01", paused={"0": NoWorkerRuns()})

    assert given.keys() == others.keys() == {"1"}
    assert [key for key, _ in (*led.left, *paused.left)] == ["0", "0"]
