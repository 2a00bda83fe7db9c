"""What a person paused: as a value, as a document, and for whoever plans."""

import pytest

from shardfleet.domain.balance.by_count import plan_balanced, plan_greedy
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.reasons import Pause, WaitsForParents
from shardfleet.domain.sleep.pauses import LEASES_MOST, Pauses
from shardfleet.errors import ConfigurationError
from tests.domain.builders import a_lease, a_worker

ANN = Pause("ann", 1_795_240_000_000, "a new index")
BEN = Pause("ben", 1_795_240_009_000)
WORKERS = [a_worker("a most 9"), a_worker("b most 0")]
LEASES = [a_lease("0 at 5"), a_lease("1 at 5"), a_lease("2 at 5 by b")]


def test_a_pause_says_who_since_when_and_why():
    assert str(ANN) == "paused by ann since 2026-11-21T05:46:40Z: a new index"
    assert str(BEN) == "paused by ben since 2026-11-21T05:46:49Z"


def test_the_one_who_paused_a_lease_first_stays_its_pause():
    pauses = Pauses().with_leases(["0"], ANN).with_leases(["0", "1"], BEN)

    assert pauses.among(["0", "1", "2"]) == {"0": ANN, "1": BEN}
    assert pauses.without_leases(["0"]).among("012") == {"1": BEN}


def test_a_paused_fleet_has_every_lease_paused_also_those_to_come():
    assert Pauses(fleet=ANN, leases={"1": BEN}).among(["1", "new"]) == {"1": BEN, "new": ANN}


def test_more_leases_than_a_document_holds_are_refused_with_what_to_do():
    keys = [str(n) for n in range(LEASES_MOST + 1)]
    with pytest.raises(ConfigurationError, match="--all"):
        Pauses().with_leases(keys, ANN)


def balanced(leases, paused):
    return plan_balanced(leases, expired=frozenset(), workers=WORKERS, paused=paused)


def by_load(leases, paused):
    return plan_by_load(
        leases,
        expired=frozenset(),
        workers=WORKERS[:1],
        limits=BalanceLimits(),
        rebalance=True,
        paused=paused,
    )


def greedy(leases, paused):
    return plan_greedy(
        leases,
        expired=frozenset(),
        worker=a_worker("a most 9"),
        leases_to_acquire=1,
        order=lambda found: found,
        paused=paused,
    )


@pytest.mark.parametrize("plan", [balanced, by_load, greedy])
def test_a_paused_lease_is_left_with_its_reason_and_the_others_are_not(plan):
    found = plan(LEASES, {"0": ANN})

    assert [a.lease.lease_key for a in found.assignments] == ["1"]
    assert found.left == (("0", ANN),)


@pytest.mark.parametrize("plan", [balanced, greedy])
def test_a_paused_lease_is_not_stolen(plan):
    leases = [a_lease(f"{n} at 5 by b") for n in range(3)]

    assert {a.lease.lease_key for a in plan(leases, {}).assignments} == {"0"}
    assert {a.lease.lease_key for a in plan(leases, {"0": ANN}).assignments} <= {"1"}


def test_the_child_of_a_paused_parent_waits_for_it():
    found = balanced([a_lease("0 at 5"), a_lease("1 at TRIM_HORIZON from 0")], {"0": ANN})

    assert found.left == (("0", ANN), ("1", WaitsForParents(("0",))))
