"""Runs tests/scenarios/lease_creation.json: which leases lease sync creates, and why."""

import pytest

from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.domain.builders import a_lease, a_shard, load_scenarios

STREAMS, CASES = load_scenarios("lease_creation.json")


def planned(case, turn=list):
    """Plan a case; `turn` reorders the inputs."""
    listing = case["shards"] if "shards" in case else STREAMS[case["stream"]]
    listed = case.get("listed_at_initial")
    return plan_lease_sync(
        turn([a_shard(text) for text in listing]),
        turn([a_lease(text) for text in case["leases"]]),
        initial=ExtendedSequenceNumber(case["initial"]),
        listed_at_initial=None if listed is None else turn([a_shard(text) for text in listed]),
        finished=case.get("finished"),
        lost=case.get("lost", ()),
    )


def described(plan):
    return [
        f"{each.lease.lease_key} at {each.lease.checkpoint} because {type(each.reason).__name__}"
        for each in plan.create
    ]


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_sync_creates(case):
    plan = planned(case)

    assert described(plan) == case["create"]
    assert list(plan.suspects) == case.get("suspects", [])
    if "repairs" in case:
        assert sorted(plan.repairs) == case["repairs"]
    assert len(plan.problems) == len(case.get("problems", []))
    for problem, part in zip(plan.problems, case.get("problems", []), strict=True):
        assert part in str(problem)


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_the_order_of_the_listing_and_of_the_table_does_not_matter(case):
    assert planned(case, turn=lambda items: items[::-1]) == planned(case)


def test_there_are_enough_cases_and_each_says_what_it_shows():
    assert len(CASES) >= 25
    assert len({case["comment"] for case in CASES}) == len(CASES)


def test_a_new_lease_carries_parents_and_hash_range_and_no_owner():
    case = next(
        case for case in CASES if "in no listing" in case["comment"] and case["leases"] == []
    )
    lease = planned(case).create[-1].lease

    assert lease.lease_key == "8"
    assert lease.parent_shard_ids == ("6", "7")
    assert lease.hash_key_range == a_shard("8 0-40 open").hash_key_range
    assert (lease.lease_owner, lease.lease_counter) == (None, 0)
