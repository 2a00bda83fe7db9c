"""The checkers of deaths and of windows each see a planted violation, and nothing else."""

import pytest

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.state.kinds import NOTE
from shardfleet.events.delivery import CrashCharged, ShardStopped
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import CallBegun
from tests.simulation.test_checkers_planted import (
    KEY,
    OTHER,
    Somebody,
    has_records,
    planted,
    stores,
)


def noted(checker, by, *, is_open=True, at_ms=0):
    stores(checker, {"is_open": is_open}, kind=NOTE, name=KEY, by=by, at_ms=at_ms)


def charged(checker, at_ms=20_000):
    charge = CrashCharged(lease_key=KEY, call="records", first="1:0", count=1, crashes=1)
    checker.told(at_ms, OTHER, charge)


def begun(checker, by, *, at_ms=0):
    checker.call_begun(CallBegun(at_ms=at_ms, by=by, shard_id=KEY, call=1))


def came_back(checker, by, *, at_ms):
    checker.call_over(by, KEY, call=1)
    checker.batch_done(at_ms, by, KEY, done=(), call=1)


@pytest.mark.parametrize(
    ("faults", "violations"),
    [([(9_000, "killed")], 0), ([(9_000, "process ended")], 1), ([], 0)],
    ids=["by another hand", "by itself, for another shard", "it lives, and nobody knows"],
)
def test_a_charge_for_a_call_that_never_began_is_found_where_its_worker_knew(faults, violations):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    noted(checker, who, at_ms=8_000)
    who.faults = faults
    charged(checker)

    assert len(found) == violations


@pytest.mark.parametrize(("waited_ms", "violations"), [(4_000, 1), (6_000, 0)])
def test_a_charge_for_a_call_that_ended_the_process_is_right_if_it_outlived_its_time(
    waited_ms, violations
):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    begun(checker, who)
    who.faults = [(waited_ms, "process ended")]
    charged(checker)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("is_closed", "died_ms", "violations"),
    [(False, 5_000, 0), (False, 90_000, 1), (True, 5_000, 1)],
)
def test_a_charge_for_a_call_that_is_over_is_found(is_closed, died_ms, violations):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    noted(checker, who)
    begun(checker, who)
    came_back(checker, who, at_ms=1_000)
    if is_closed:
        noted(checker, who, is_open=False, at_ms=1_100)
    who.faults = [(died_ms, "killed")]
    charged(checker, at_ms=died_ms + 1_000)

    assert len(found) == violations


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("kind", ["hook", "flush"])
def test_a_charge_for_a_call_without_records_is_found_if_that_came_back(kind, returns):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    if kind == "hook":
        checker.hook_told(0, who, KEY, hook=Hook.STARTED)
    else:
        checker.bare_call(0, who, KEY, call=kind, begins=True)
    if returns and kind == "hook":
        checker.hook_over(who, KEY, Hook.STARTED, failed=False)
    elif returns:
        checker.bare_call(1, who, KEY, call=kind, begins=False)
    who.faults = [(2, "killed")]
    charged(checker)

    assert bool(found) is returns


@pytest.mark.parametrize(
    ("deaths", "stopped_after", "violations"), [(9, 0, 1), (8, 0, 0), (9, 5, 0)]
)
def test_what_kills_on_and_on_is_found_unless_it_is_stopped(deaths, stopped_after, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)

    for death in range(1, deaths + 1):
        checker.call_killed(death, OTHER, KEY, call="started")
        if death == stopped_after:
            stop = ShardStopped(lease_key=KEY, position="1:0", error="")
            checker.told(death, OTHER, stop)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("held", "violations"),
    [(["1:0", "2:0", "3:0"], 0), (["1:0", "3:0"], 1), (["1:0", "2:0", "2:0", "3:0"], 1)],
)
def test_a_windows_result_with_a_gap_or_with_a_record_twice_is_found(held, violations):
    checker, found = planted(checkers.WindowsHaveAll)
    has_records(checker, 1, 2, 3)

    checker.window_ended(1, OTHER, KEY, held=held)

    assert len(found) == violations


@pytest.mark.parametrize(("places", "violations"), [([(1, 0)], 1), ([(1, 0), (2, 0)], 0)])
def test_a_record_that_is_in_no_windows_result_is_found(places, violations):
    checker, found = planted(checkers.WindowsHaveAll)
    has_records(checker, 1, 2)
    checker.ledger.has_windows = True
    for entry in checker.ledger.shards[KEY].entries:
        entry.times = 1

    checker.ledger.has_result(KEY, places)
    checker.over(1, keys=())

    assert len(found) == violations
