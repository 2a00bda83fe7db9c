"""What is found to have changed, and the place that every lease has afterwards."""

import pytest

from shardfleet.domain.reasons import (
    AskedToEnd,
    EmptyTable,
    EndedInOrder,
    FollowedBy,
    FollowsParents,
    GaveBack,
    HoldsFewest,
    NoWorkerOfOurs,
    NoWorkerRuns,
    OfAnotherApplication,
    PutBack,
    SlotEnds,
    ThereAlready,
    WentOnWithChild,
)
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.turn_log import (
    STALE_MS,
    Entry,
    Happening,
    Place,
    observed,
    place_of_row,
    places_after,
)
from tests.domain.builders import a_lease

LATER = 1_000_000


def at(owner, *, what=Happening.ASSIGNED, before="", since_ms=0):
    why = HoldsFewest(2)
    return Place(
        since_ms, Entry(what=what, subject="1", worker_id=owner, before=before, reason=why)
    )


def a_slot(worker_id, state=SlotState.RUNNING, *, drain=False):
    return Slot(
        slot_id="s1", worker_id=worker_id, state=state, name="n", start_epoch=1, drain=drain
    )


def look(places, *leases, slots=("a", "b")):
    slots = [a_slot(each) if isinstance(each, str) else each for each in slots]
    return observed(places, [a_lease(line) for line in leases], slots, at_ms=LATER)


def test_where_nothing_has_changed_there_is_no_news():
    assert look({"1": at("a"), "2": at("")}, "1 by a at 7", "2") == []


def test_a_handover_that_is_under_way_is_no_news_once_the_next_owner_is_known():
    assert look({"1": at("b", what=Happening.HANDOVER)}, "1 by b renewed-by a at 7") == []


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        ((a_slot("a"),), GaveBack("a")),
        ((a_slot("a", drain=True),), AskedToEnd("a")),
        ((a_slot("a", SlotState.ENDED),), EndedInOrder("a")),
        ((), NoWorkerOfOurs("a")),
    ],
)
def test_a_lease_that_nobody_has_any_more_was_released_by_its_owner(slots, reason):
    (entry,) = look({"1": at("a")}, "1 at 7", slots=slots)
    assert entry == Entry(what=Happening.RELEASED, subject="1", before="a", reason=reason)


def test_a_child_taken_by_the_worker_that_ended_its_parent_says_so():
    places = {"1": at("a", what=Happening.FINISHED), "2": at("")}
    (entry,) = look(places, "1 at SHARD_END by a", "2 from 1 by a")
    assert (entry.what, entry.worker_id) == (Happening.TAKEN, "a")
    assert entry.reason == WentOnWithChild(("1",))


def test_an_owner_outside_the_fleet_is_named_as_another_application():
    (entry,) = look({"1": at("a")}, "1 by java at 7")
    assert (entry.what, entry.before, entry.worker_id) == (Happening.TAKEN, "a", "java")
    assert entry.reason == OfAnotherApplication()


def test_a_child_that_its_parents_worker_made_is_told_with_its_parent():
    (entry,) = look({"1": at("a", what=Happening.FINISHED)}, "1 at SHARD_END by a", "2 from 1")
    assert (entry.what, entry.subject) == (Happening.APPEARED, "2")
    assert entry.reason == FollowsParents(("1",))


def test_a_child_that_its_parents_worker_made_and_took_says_so():
    (entry,) = look({"1": at("a", what=Happening.FINISHED)}, "1 at SHARD_END by a", "2 from 1 by a")
    assert (entry.what, entry.worker_id) == (Happening.APPEARED, "a")
    assert entry.reason == WentOnWithChild(("1",))


def test_a_child_made_and_read_to_its_end_between_two_turns_is_first_seen_finished():
    lines = ("1 at SHARD_END by a", "2 from 1 at SHARD_END by a")
    places = {"1": at("a", what=Happening.FINISHED)}
    (entry,) = look(places, *lines)
    assert (entry.what, entry.subject, entry.worker_id) == (Happening.FINISHED, "2", "a")
    assert entry.reason == WentOnWithChild(("1",))
    assert look(places_after(places, [entry], at_ms=LATER), *lines) == []


def test_a_shard_read_to_its_end_is_finished_once():
    line = "1 at SHARD_END by a children 2+3"
    (entry,) = look({"1": at("a")}, line)
    assert (entry.what, entry.worker_id) == (Happening.FINISHED, "a")
    assert entry.reason == FollowedBy(("2", "3"))
    assert entry.before == ""
    assert look(places_after({"1": at("a")}, [entry], at_ms=LATER), line) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [("1 at SHARD_END by b", ("b", "a")), ("1 at SHARD_END", ("a", "a"))],
)
def test_who_had_a_shard_before_the_one_that_read_it_to_its_end_is_named(line, told):
    (entry,) = look({"1": at("a")}, line)
    assert (entry.worker_id, entry.before) == told
    assert entry.reason is None


def test_a_finished_lease_that_is_to_be_read_again_was_rewound():
    (entry,) = look({"1": at("a", what=Happening.FINISHED)}, "1 at 7")
    assert entry.what is Happening.RELEASED
    assert entry.reason == PutBack()


def test_a_lease_that_somebody_else_deleted_has_vanished():
    (entry,) = look({"1": at("a")})
    assert (entry.what, entry.subject, entry.before) == (Happening.VANISHED, "1", "a")


def test_at_the_first_look_every_lease_is_simply_there():
    entries = look({}, "1 by a at 7", "2")
    assert [(e.subject, e.worker_id, e.reason) for e in entries] == [
        ("1", "a", ThereAlready()),
        ("2", "", ThereAlready()),
    ]


@pytest.mark.parametrize(("age_ms", "news"), [(STALE_MS - 1, 0), (STALE_MS, 1)])
def test_a_scan_that_shows_a_lease_as_it_was_a_moment_ago_is_no_news(age_ms, news):
    since_ms = LATER - age_ms
    places = {"1": at("b", before="a", since_ms=since_ms), "2": at("", since_ms=since_ms)}
    assert len(look({"1": places["1"]}, "1 by a at 7")) == news
    assert len(look({"2": places["2"]})) == news  # made a moment ago, not in the scan yet


def test_places_follow_what_happened():
    entries = [
        Entry(what=Happening.CREATED, subject="1", reason=EmptyTable()),
        Entry(what=Happening.WAITS, subject="1", reason=NoWorkerRuns()),
        Entry(what=Happening.ASSIGNED, subject="1", worker_id="a", reason=HoldsFewest(0)),
        Entry(what=Happening.REFUSED, subject="1", worker_id="b", reason=SlotEnds()),
        Entry(what=Happening.DELETED, subject="0", before="a"),
    ]
    assert places_after({"0": at("a")}, entries, at_ms=5) == {"1": Place(5, entries[2])}


def test_a_place_is_read_back_as_written_and_an_unknown_word_is_no_error():
    place = at("a", before="b", since_ms=7)
    assert place_of_row(place.row()) == place
    assert place_of_row([7, "TELEPORTED", "1", "a", "b", None, "more"]) is None
