"""Runs tests/scenarios/lease_cleanup.json: which leases may be deleted, and why not the others."""

import pytest

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from tests.domain.builders import a_lease, a_shard, load_scenarios

STREAMS, CASES = load_scenarios("lease_cleanup.json")


def planned(case, turn=list):
    """Plan a case; `turn` reorders the inputs."""
    listing = case["shards"] if "shards" in case else STREAMS[case["stream"]]
    return plan_lease_cleanup(
        turn([a_shard(text) for text in listing]),
        turn([a_lease(text) for text in case["leases"]]),
        finished=case.get("finished", ()),
    )


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_cleanup_deletes(case):
    plan = planned(case)

    assert {gone.lease.lease_key: str(gone.reason) for gone in plan.delete} == case["delete"]
    assert {key: str(why) for key, why in plan.kept} == case["kept"]
    assert {lease.lease_key: list(ids) for lease, ids in plan.learn_children} == case["learn"]


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_the_order_of_the_listing_and_of_the_table_does_not_matter(case):
    assert planned(case, turn=lambda items: items[::-1]) == planned(case)


def test_there_are_enough_cases_and_each_says_what_it_shows():
    assert len(CASES) >= 8
    assert len({case["comment"] for case in CASES}) == len(CASES)
