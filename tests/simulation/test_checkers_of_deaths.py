"""The checkers of deaths and of windows each see a planted violation, and nothing else."""

import pytest

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.state.kinds import NOTE
from shardfleet.events.delivery import CrashCharged, RecordSkipped, ShardStopped
from shardfleet.events.worker import LeaseAdopted, TurnBegun
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import CallBegun
from shardfleet_testkit.checkers.deaths import RECORD
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
    checker.call_over(at_ms, by, KEY, call=1)


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


@pytest.mark.parametrize(
    ("frozen_ms", "noted_ms", "thawed_ms", "died", "violations"),
    [
        (8_100, 8_000, 39_000, (39_010, "process ended"), 0),
        (8_000, 39_001, 39_000, (39_010, "process ended"), 0),
        (8_100, 8_000, 39_000, (44_000, "process ended"), 1),
        (8_100, 8_000, 39_000, (41_000, "killed"), 0),
        (8_100, 8_200, 39_000, (39_000, "killed"), 0),
        (100, 8_000, 200, (39_000, "killed"), 1),
    ],
    ids=[
        "behind the note, and its time is over as it thaws",
        "before the note, and its time is over as it thaws",
        "it has time to close the note",
        "it has hardly time to close the note",
        "a note on its way lands while it is frozen",
        "long before the note, which it leaves open",
    ],
)
def test_a_worker_that_freezes_as_it_notes_a_call_cannot_close_the_note(
    frozen_ms, noted_ms, thawed_ms, died, violations
):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    who.faults = [(frozen_ms, "frozen")]
    who.thawed_ms = thawed_ms if noted_ms > thawed_ms else None
    noted(checker, who, at_ms=noted_ms)
    who.faults.append(died)
    who.thawed_ms = thawed_ms
    charged(checker, at_ms=60_000)

    assert len(found) == violations


@pytest.mark.parametrize("dies", ["killed", "process ended"])
@pytest.mark.parametrize(("every_ms", "violations"), [(5_000, 0), (8_000, 1)])
def test_a_note_stays_open_as_long_as_the_table_refuses_to_close_it(every_ms, violations, dies):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    noted(checker, who, at_ms=1_000)
    who.faults = [(at_ms, "throttled") for at_ms in range(1_000 + every_ms, 30_000, every_ms)]
    who.faults.append((31_000, dies))
    charged(checker, at_ms=40_000)

    assert len(found) == violations


@pytest.mark.parametrize("dies", ["killed", "process ended"])
@pytest.mark.parametrize(
    ("refused_again_ms", "violations"),
    [(42_000, 0), (None, 1)],
    ids=["and refused again behind that", "and then it could close it"],
)
def test_a_note_stays_open_whose_worker_is_frozen_between_two_refusals(
    refused_again_ms, violations, dies
):
    checker, found = planted(checkers.InnocentsAreNotCharged)
    who = Somebody()

    noted(checker, who, at_ms=1_000)
    who.faults = [(3_000, "throttled"), (6_000, "frozen")]
    who.thawed_ms = 41_000
    if refused_again_ms is not None:
        who.faults += [(at_ms, "throttled") for at_ms in range(refused_again_ms, 90_000, 5_000)]
    who.faults.append((91_000, dies))
    charged(checker, at_ms=95_000)

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


def lives_and_dies(checker, number, *, of, slot="s0001", found_at="1:0", suspicious=True, start=1):
    """Let an invocation adopt the shard at a checkpoint, and die of a call; None: it lives."""
    by = Somebody(f"{slot}#{number}", f"fleet-{slot}", (start, 0))
    begun = TurnBegun(slot_id=slot, worker_id=by.worker_id, epoch=number, suspicious=suspicious)
    checker.told(number, by, begun)
    adopted = LeaseAdopted(
        lease_key=KEY, worker_id=by.worker_id, counter=number, checkpoint=found_at
    )
    checker.told(number, by, adopted)
    if of is not None:
        checker.call_killed(number, by, KEY, call=of)


@pytest.mark.parametrize("of", ["started", f"{RECORD} one at 5:0"])
@pytest.mark.parametrize(
    ("lives", "violations"),
    [
        ([{}] * 4, 0),
        ([{}] * 5, 1),
        ([{}] * 3 + [{"of": None}] + [{}] * 3, 0),
        ([{}] * 3 + [{"of": f"{RECORD} another at 4:0"}] + [{}] * 3, 0),
        ([{}] * 2 + [{"slot": "s0002", "suspicious": False}] + [{}] * 2, 0),
        ([{"slot": "s0002"}] * 5, 1),
    ],
    ids=[
        "as many as may be",
        "one more",
        "survived in between",
        "what killed in between is another record",
        "one that was not on the watch in between",
        "all with another worker",
    ],
)
def test_what_kills_life_after_life_is_found(of, lives, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)

    for number, life in enumerate(lives):
        lives_and_dies(checker, number, **{"of": of, **life})

    assert len(found) == violations


@pytest.mark.parametrize(("suspicious", "moves", "violations"), [(0, 1, 0), (0, 0, 1), (1, 1, 2)])
def test_what_one_that_does_not_watch_has_stored_acquits_a_call_without_records(
    suspicious, moves, violations
):
    """The note of the deaths before is of a checkpoint that is no more (seed 110)."""
    checker, found = planted(checkers.WhatKillsIsStopped)

    lives_and_dies(checker, 1, of="flush")
    lives_and_dies(checker, 2, of="flush")
    lives_and_dies(checker, 3, of="flush", suspicious=bool(suspicious), start=2)
    for number in (4, 5, 6):
        lives_and_dies(checker, number, of="flush", start=2, found_at=f"{1 + moves}:0")

    assert len(found) == violations


@pytest.mark.parametrize(("of", "violations"), [("flush", 0), (f"{RECORD} one at 9:0", 1)])
def test_deaths_of_a_record_count_whoever_has_the_shard(of, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)

    for number in range(5):
        lives_and_dies(checker, number, of=of, slot=f"s000{number % 2}")

    assert len(found) == violations


@pytest.mark.parametrize(("of", "violations"), [("flush", 1), (f"{RECORD} one at 9:0", 0)])
def test_progress_in_between_acquits_a_record_and_no_call_without_records(of, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)

    for number in range(5):
        lives_and_dies(checker, number, of=of, found_at=f"{number}:0")

    assert len(found) == violations


@pytest.mark.parametrize(
    "event",
    [
        ShardStopped(lease_key=KEY, position="1:0", error=""),
        RecordSkipped(lease_key=KEY, position="5:0", attempts=3, kept_at=""),
    ],
    ids=lambda event: type(event).__name__,
)
def test_deaths_count_anew_when_the_shard_is_stopped_or_the_record_given_up(event):
    checker, found = planted(checkers.WhatKillsIsStopped)

    for number in range(7):
        lives_and_dies(checker, number, of="started")
        if number == 3:
            checker.told(number, OTHER, event)

    assert not found


@pytest.mark.parametrize(
    ("suspicious", "start", "violations"), [(False, 1, 1), (True, 1, 0), (False, 2, 0)]
)
def test_who_follows_a_death_and_is_not_on_the_watch_is_found(suspicious, start, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)

    lives_and_dies(checker, 1, of="started", suspicious=False)
    lives_and_dies(checker, 2, of=None, suspicious=suspicious, start=start)
    lives_and_dies(checker, 3, of=None, suspicious=False)
    lives_and_dies(checker, 1, of=None, suspicious=False, slot="s0002")

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
