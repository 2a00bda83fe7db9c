"""Runs tests/scenarios/lease_acquisition.json: who gets which lease, and why."""

import pytest

from shardfleet.domain.balance.by_count import plan_balanced, plan_greedy
from tests.domain.builders import a_lease, a_worker, load_scenarios

_, CASES = load_scenarios("lease_acquisition.json")


def planned(case, turn=list):
    """Plan a case; `turn` reorders the inputs."""
    leases = turn([a_lease(text) for text in case["leases"]])
    expired = frozenset(case["expired"])
    if case["strategy"] == "balanced":
        workers = turn([a_worker(text) for text in case["workers"]])
        return plan_balanced(leases, expired=expired, workers=workers)
    return plan_greedy(
        leases,
        expired=expired,
        worker=a_worker(case["worker"]),
        leases_to_acquire=case["acquire"],
        order=(lambda found: found[::-1]) if case.get("order") == "reversed" else list,
    )


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_leases_are_assigned(case):
    plan = planned(case)

    assert [
        f"{a.lease.lease_key} to {a.worker_id} as {a.kind}: {a.reason}" for a in plan.assignments
    ] == case["assign"]
    assert {key: str(why) for key, why in plan.left} == case["left"]


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_the_order_of_table_and_workers_does_not_matter(case):
    assert planned(case, turn=lambda items: items[::-1]) == planned(case)


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_every_lease_is_finished_or_held_or_assigned_or_left_with_a_reason(case):
    plan = planned(case)
    free = {
        lease.lease_key
        for lease in map(a_lease, case["leases"])
        if not lease.is_finished
        and (lease.lease_owner is None or lease.lease_key in case["expired"])
    }
    taken = {a.lease.lease_key for a in plan.assignments if a.kind != "STEAL"}

    assert taken | dict(plan.left).keys() == free
    assert not taken & dict(plan.left).keys()
    assert all(reason for _, reason in plan.left)


def test_there_are_enough_cases_of_both_strategies():
    assert len(CASES) >= 25
    assert len({case["comment"] for case in CASES}) == len(CASES)
    assert sum(case["strategy"] == "greedy" for case in CASES) >= 10
