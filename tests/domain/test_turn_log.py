"""Entries of a turn: from events and plans, told only when something is different."""

import pytest

from shardfleet.domain.reasons import (
    ChildNotStarted,
    ExecutionOver,
    HoldsFewest,
    LeastSlots,
    NothingListed,
    NotLetGo,
    NoWorkerHasRoom,
    OwnerHasIt,
    Quoted,
    SlotAlive,
    SlotSilent,
    SlotsWanted,
    UpkeepFailed,
    WaitsForParents,
    reason_json,
)
from shardfleet.domain.turn_log import (
    FLEET,
    Entry,
    Happening,
    about,
    entry_of_event,
    entry_of_row,
    news,
    sentence,
)
from shardfleet.events.manager import (
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

WHY = HoldsFewest(2)
WANTED = SlotsWanted(2, LeastSlots(2))


def told(event, *, owners=None):
    return entry_of_event(event, owners=owners or {})


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
    event = LeaseAssigned(lease_key="1", worker_id="b", kind=kind, reason=WHY)
    assert told(event, owners={"1": "a"}) == Entry(
        what=what, subject="1", worker_id="b", before="a", reason=WHY
    )


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (LeaseCreated(lease_key="1", reason=WHY), Happening.CREATED),
        (LeaseDeleted(lease_key="1", reason=WHY), Happening.DELETED),
        (LeaseWoken(lease_key="1", reason=WHY, slept_ms=5), Happening.WOKEN),
        (AssignmentLost(lease_key="1", worker_id="b", reason=WHY), Happening.REFUSED),
        (SlotStarted(slot_id="1", worker_id="b", start_epoch=1, reason=WHY), "SLOT_STARTED"),
    ],
)
def test_every_decision_keeps_its_reason(event, what):
    entry = told(event)
    assert (entry.what, entry.subject, entry.reason) == (what, "1", WHY)


def test_a_handover_that_took_too_long_says_how_long():
    event = HandoverForced(lease_key="1", worker_id="b", old_owner="a", waited_ms=30_400)
    entry = told(event)
    assert (entry.what, entry.worker_id, entry.before) == (Happening.FORCED, "b", "a")
    assert entry.reason == NotLetGo("a", 30_400)


def test_a_started_slot_says_what_it_was_started_for_and_a_restart_is_told_once():
    facts = {"slot_id": "s1", "worker_id": "f-s1"}
    assert told(SlotStarted(**facts, start_epoch=1, reason=WANTED)).reason == WANTED
    again = told(SlotStarted(**facts, start_epoch=2, reason=ExecutionOver()))
    assert (again.what, again.reason) == (Happening.SLOT_RESTARTED, ExecutionOver())
    assert told(SlotRestarted(**facts, reason=ExecutionOver())) is None


def test_a_slot_that_could_not_be_started_says_what_was_tried():
    event = SlotUpkeepFailed(slot_id="s1", task="START", error="Throttled")
    assert told(event).reason == UpkeepFailed("START", "Throttled")


def test_a_nap_that_is_taken_away_because_somebody_has_the_lease_is_no_waking():
    event = LeaseWoken(lease_key="1", reason=OwnerHasIt("a"), slept_ms=5)
    assert told(event, owners={"1": "a"}) is None


def test_what_is_no_decision_is_no_entry():
    assert told(LeaseBehind(lease_key="1", lag_ms=7)) is None


def test_what_stands_as_before_is_no_news():
    plan = {
        "left": [["2", reason_json(WaitsForParents(("1",)))]],
        "kept": [["1", reason_json(ChildNotStarted("2"))]],
        "problems": [reason_json(NothingListed())],
        "slots_why": reason_json(WANTED),
        "slots": [
            ["s1", "EXAMINE", reason_json(SlotSilent(30_000))],
            ["s2", "NOTHING", reason_json(SlotAlive(1))],
        ],
    }
    assert [entry.what for entry in news({}, plan)] == [
        Happening.WAITS,
        Happening.STAYS,
        Happening.LISTING,
        Happening.SIZED,
        Happening.SLOT_SILENT,
    ]
    later = plan | {"slots": [["s1", "EXAMINE", reason_json(SlotSilent(50_000))]]}
    assert news(plan, later) == []
    (entry,) = news(plan, plan | {"left": [["2", reason_json(NoWorkerHasRoom())]]})
    assert entry == Entry(what=Happening.WAITS, subject="2", reason=NoWorkerHasRoom())


def test_an_entry_is_read_back_as_written_and_a_long_reason_is_cut():
    entry = Entry(
        what=Happening.MOVED, subject="1", worker_id="a", before="b", reason=Quoted("x" * 9_999)
    )
    row = entry.row()
    assert entry_of_row([*row, "of a later version"]) == Entry(
        what=Happening.MOVED, subject="1", worker_id="a", before="b", reason=Quoted("x" * 300)
    )
    assert entry_of_row(["TELEPORTED", *row[1:]]) is None
    assert entry_of_row(row[:3]) is None
    bare = Entry(what=Happening.VANISHED, subject="1")
    assert entry_of_row(bare.row()) == bare


@pytest.mark.parametrize("what", list(Happening))
def test_everything_that_can_happen_is_a_sentence_with_and_without_a_reason(what):
    bare = sentence(Entry(what=what, subject="shard-1"))
    why = Quoted("because")
    full = sentence(Entry(what=what, subject="shard-1", worker_id="W", before="V", reason=why))
    for text in (bare, full):
        assert text[0].isupper()
        assert text.endswith(".")
        assert "{" not in text
        assert ".." not in text
    assert full.endswith("because.")


def test_a_worker_is_named_once_in_a_sentence():
    entry = Entry(what=Happening.ASSIGNED, subject="2", worker_id="f-s1", reason=WHY)
    assert sentence(entry) == (
        "Nobody had it, so f-s1 was given it: that worker had the fewest shards (2)."
    )


def test_a_lease_that_came_with_an_owner_names_it():
    entry = Entry(what=Happening.APPEARED, subject="2", worker_id="a", reason=Quoted("because"))
    assert sentence(entry) == "a has it, with a new lease: because."
    assert sentence(Entry(what=Happening.APPEARED, subject="2")) == "A lease for it was found."


def test_in_a_story_of_several_each_sentence_names_its_shard():
    moved = Entry(what=Happening.MOVED, subject="shard-1", worker_id="b", before="a")
    assert about(moved) == "shard-1: It was taken from a and given to b."
    started = Entry(
        what=Happening.SLOT_STARTED, subject="s1", worker_id="f-s1", reason=LeastSlots(2)
    )
    assert about(started) == "f-s1 was started: at least 2 (min_workers)."
    sized = Entry(what=Happening.SIZED, subject=FLEET, reason=LeastSlots(3))
    assert about(sized) == "The fleet was sized: at least 3 (min_workers)."
