"""Entries of a turn: from events and plans, told only when something is different."""

import pytest

from shardfleet.domain.explain.turn_log import (
    REASON_MOST,
    Entry,
    Happening,
    entry_of_event,
    entry_of_row,
    news,
)
from shardfleet.events import (
    AssignmentLost,
    HandoverForced,
    LeaseAssigned,
    LeaseBehind,
    LeaseCreated,
    LeaseDeleted,
    LeaseWoken,
    SlotRestarted,
    SlotStarted,
    SlotUpkeepFailed,
)


def told(event, *, owners=None, starts=None):
    return entry_of_event(event, owners=owners or {}, starts=starts or {})


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("UNOWNED", Happening.ASSIGNED),
        ("EXPIRED", Happening.TAKEN_OVER),
        ("STEAL", Happening.MOVED),
        ("HANDOVER", Happening.HANDOVER),
    ],
)
def test_an_assignment_says_how_it_came_about_and_who_had_the_lease(kind, what):
    event = LeaseAssigned(lease_key="1", worker_id="b", kind=kind, reason="why")
    assert told(event, owners={"1": "a"}) == Entry(
        what=what, subject="1", worker_id="b", before="a", reason="why"
    )


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (LeaseCreated(lease_key="1", reason="why"), Happening.CREATED),
        (LeaseDeleted(lease_key="1", reason="why"), Happening.DELETED),
        (LeaseWoken(lease_key="1", reason="why", slept_ms=5), Happening.WOKEN),
        (AssignmentLost(lease_key="1", worker_id="b", reason="why"), Happening.REFUSED),
        (SlotRestarted(slot_id="1", worker_id="b", reason="why"), Happening.SLOT_RESTARTED),
    ],
)
def test_every_decision_keeps_its_reason(event, what):
    entry = told(event)
    assert (entry.what, entry.subject, entry.reason) == (what, "1", "why")


def test_a_handover_that_took_too_long_says_how_long():
    event = HandoverForced(lease_key="1", worker_id="b", old_owner="a", waited_ms=30_400)
    entry = told(event)
    assert (entry.what, entry.worker_id, entry.before) == (Happening.FORCED, "b", "a")
    assert entry.reason == "a had not let go after 30 s"


def test_a_started_slot_says_what_it_was_started_for_and_a_restart_is_told_once():
    event = SlotStarted(slot_id="s1", worker_id="f-s1", start_epoch=1)
    assert told(event, starts={"s1": "2 slots wanted"}).reason == "2 slots wanted"
    assert told(event) is None


def test_a_slot_that_could_not_be_started_says_what_was_tried():
    event = SlotUpkeepFailed(slot_id="s1", task="START", error="Throttled")
    assert told(event).reason == "START: Throttled"


def test_a_nap_that_is_taken_away_because_somebody_has_the_lease_is_no_waking():
    event = LeaseWoken(lease_key="1", reason="a has it", slept_ms=5)
    assert told(event, owners={"1": "a"}) is None


def test_what_is_no_decision_is_no_entry():
    assert told(LeaseBehind(lease_key="1", lag_ms=7)) is None


def test_what_stands_as_before_is_no_news():
    plan = {
        "left": [["2", "waits for parent 1"]],
        "kept": [["1", "its child 2 has not started"]],
        "problems": ["the listing is empty"],
        "slots_wanted": 2,
        "slots": [["s1", "EXAMINE", "silent for 30000 ms"], ["s2", "NOTHING", "heartbeat 1 ms"]],
    }
    assert [entry.what for entry in news({}, plan)] == [
        Happening.WAITS,
        Happening.STAYS,
        Happening.LISTING,
        Happening.SIZED,
        Happening.SLOT_SILENT,
    ]
    later = plan | {"slots": [["s1", "EXAMINE", "silent for 50000 ms"]]}
    assert news(plan, later) == []
    (entry,) = news(plan, plan | {"left": [["2", "no worker has room"]]})
    assert entry == Entry(what=Happening.WAITS, subject="2", reason="no worker has room")


def test_an_entry_is_read_back_as_written_and_a_long_reason_is_cut():
    entry = Entry(what=Happening.MOVED, subject="1", worker_id="a", before="b", reason="x" * 999)
    row = entry.row()
    assert entry_of_row([*row, "of a later version"]) == Entry(
        what=Happening.MOVED, subject="1", worker_id="a", before="b", reason="x" * REASON_MOST
    )
    assert entry_of_row(["TELEPORTED", *row[1:]]) is None
    assert entry_of_row(row[:3]) is None
