"""Objective and budget: which regime, why, and that consuming stops only where that was asked."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.cost.estimate import DAY_MS, Consumption, LedgerPage, days_of, rate_per_day
from shardfleet.domain.cost.spending import RELIEF, Chosen, Regime, Spending, choose
from shardfleet.domain.reasons import NoBudget

NOW = 5_000_000
WELL = Spending(
    lag_ms=2_000,
    objective_ms=60_000,
    budget=2.0,
    spent=0.5,
    rate=1.0,
    day_left=0.5,
    may_pause=False,
)


def chosen(now, before=None):
    return choose(now, before, now_ms=NOW)


def since(name):
    return Chosen(name=name, reason=NoBudget(), since_ms=7)


def test_within_objective_and_budget_the_fleet_is_eager():
    found = chosen(WELL)
    assert (found.name, found.since_ms) == (Regime.EAGER, NOW)
    assert str(found.reason) == "the day comes to $1.00 at this rate, the budget is $2.00"


def test_without_a_budget_nothing_makes_it_thrifty():
    found = chosen(replace(WELL, budget=0.0, spent=99.0, may_pause=True))
    assert (found.name, found.reason) == (Regime.EAGER, NoBudget())


def test_where_the_day_would_come_to_more_than_the_budget_it_is_thrifty():
    found = chosen(replace(WELL, rate=4.0))
    assert found.name is Regime.THRIFTY
    assert str(found.reason) == "the day comes to $2.50 at this rate, the budget is $2.00"


def test_where_both_cannot_hold_the_objective_does_and_the_reason_says_what_was_given_up():
    found = chosen(replace(WELL, rate=4.0, lag_ms=75_000), since(Regime.THRIFTY))
    assert found.name is Regime.EAGER
    assert str(found.reason) == (
        "a shard is 75 s behind, the objective is 60 s; the budget is given up for it: the day "
        "comes to $2.50 at this rate, the budget is $2.00"
    )
    late = chosen(replace(WELL, lag_ms=75_000), since(Regime.THRIFTY))
    assert "given up" not in str(late.reason)


def test_a_budget_without_an_objective_knows_no_lag():
    assert chosen(replace(WELL, objective_ms=0, lag_ms=10**9, rate=4.0)).name is Regime.THRIFTY


@pytest.mark.parametrize(
    ("may_pause", "spent", "name"),
    [
        (True, 2.0, Regime.PAUSED),
        (True, 1.99, Regime.THRIFTY),
        (False, 2.0, Regime.THRIFTY),
        (False, 99.0, Regime.THRIFTY),
    ],
)
def test_a_spent_budget_stops_the_fleet_only_where_that_was_asked_for(may_pause, spent, name):
    found = chosen(replace(WELL, spent=spent, may_pause=may_pause, rate=1.0, lag_ms=59_000))
    assert found.name is name


def test_a_spent_budget_that_may_pause_pauses_however_late_the_shards_are():
    late = replace(WELL, spent=2.5, may_pause=True, lag_ms=10**9)
    assert str(chosen(late).reason) == (
        "$2.50 of $2.00 are spent today, and reading on was not wanted then"
    )


def test_it_does_not_go_to_and_fro_at_the_edge():
    edge = replace(WELL, spent=0.0, day_left=1.0, rate=2.0 * RELIEF + 0.01)
    assert chosen(edge, since(Regime.EAGER)).name is Regime.EAGER
    assert chosen(edge, since(Regime.THRIFTY)).name is Regime.THRIFTY
    assert chosen(replace(edge, rate=1.5), since(Regime.THRIFTY)).name is Regime.EAGER


def test_a_regime_that_stays_keeps_its_beginning_and_its_reason():
    assert chosen(WELL, since(Regime.EAGER)) == since(Regime.EAGER)


def test_an_unknown_rate_is_no_alarm():
    assert chosen(replace(WELL, rate=None)).name is Regime.EAGER


def page(day="2026-11-21", writer="manager", **more):
    used = Consumption(mb_ms=1_024_000 * 3_600)
    return LedgerPage(
        **{"day": day, "writer": writer, "used": used, "metrics": frozenset({"a", "b"})} | more
    )


def test_a_days_bill_is_of_all_writers_and_each_metric_is_billed_once():
    pages = [
        page(began_ms=0, until_ms=DAY_MS // 2),
        page(writer="s1", metrics=frozenset({"b", "c"}), began_ms=1, until_ms=2),
        page(day="2026-11-22", began_ms=DAY_MS, until_ms=DAY_MS),
    ]
    first, second = days_of(pages)
    assert (first.day, len(first.metrics), first.covered_ms) == ("2026-11-21", 3, DAY_MS // 2)
    assert first.costs().by_item["lambda"] == pytest.approx(2 * 3_600 * 0.0000133334)
    assert first.costs().by_item["metrics"] == pytest.approx(3 * 0.30 / 30.416667 / 2)
    assert rate_per_day([first, second]) == pytest.approx(2 * first.costs().total)
    assert rate_per_day([second]) is None
    assert rate_per_day([]) is None
