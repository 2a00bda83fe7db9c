"""Why a shard is where it is, from what is known of a fleet."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.reasons import (
    FollowedBy,
    HoldsFewest,
    HoldsMore,
    LeastSlots,
    NoWorkerHasRoom,
    NoWorkerRuns,
    SlotsWanted,
    ThereAlready,
)
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import HandlerSigns, ShardWay
from shardfleet.domain.turn_log import Entry, Happening, Place
from shardfleet_ops.explain.answer import (
    Known,
    explain_fleet,
    explain_shard,
    explain_worker,
)
from shardfleet_ops.explain.fleet_view import FleetReading, lease_rows
from tests.domain.builders import a_failure, a_lease, a_shard

NOW = 10_000_000


def a_slot(name="s1", **changes):
    values = {"state": SlotState.RUNNING, "heartbeat_ms": NOW - 3_000, "started_ms": NOW - 60_000}
    values |= {"slot_id": name, "worker_id": f"f-{name}", "name": "n", "start_epoch": 1}
    return Slot(**values | changes)


def known(*leases, slots=(), stops=None, places=None, turns=(), waits=None, shards=()):
    reading = FleetReading(
        at_ms=NOW,
        leases=[a_lease(line) for line in leases],
        slots=slots or [a_slot()],
        sightings={},
        stops=stops or {},
        planned_ms=NOW,
        failover_ms=10_000,
    )
    return Known(
        reading=reading,
        places=places or {},
        turns=turns,
        waits=waits or {},
        shards=[a_shard(line) for line in shards],
    )


def place(owner, what, *, before="", reason=None, since_ms=NOW - 1_000):
    entry = Entry(what=what, subject="1", worker_id=owner, before=before, reason=reason)
    return Place(since_ms, entry)


def test_a_shard_that_is_read_says_by_whom_since_when_and_why():
    given = place("f-s1", Happening.ASSIGNED, reason=HoldsFewest(0))
    slot = a_slot(lags_ms={"1": 500})
    found = explain_shard(known("1 by f-s1 at 5", slots=[slot], places={"1": given}), "1")
    assert (found.state, found.owner, found.since_ms) == ("READING", "f-s1", NOW - 1_000)
    assert found.now == "f-s1 reads it. It is up to date."
    assert (
        found.why == "Nobody had it, so f-s1 was given it: that worker had the fewest shards (0)."
    )
    signs = HandlerSigns(ways={"1": ShardWay(gap_ms=900)})
    slot = a_slot(lags_ms={"1": 500}, signs=signs)
    found = explain_shard(known("1 by f-s1 at 5", slots=[slot]), "1")
    way = "pushed, at most 0.9 s without an event"
    assert found.now == f"f-s1 reads it ({way}). It is up to date."


@pytest.mark.parametrize(
    ("lag_ms", "words"), [({}, "has not been told yet"), ({"1": 45_000}, "It is 45 s behind.")]
)
def test_how_far_behind_a_shard_is_is_said(lag_ms, words):
    slot = a_slot(lags_ms=lag_ms)
    assert words in explain_shard(known("1 by f-s1 at 5", slots=[slot]), "1").now


def test_a_shard_that_was_taken_from_a_lost_worker_names_it():
    taken = place("f-s1", Happening.TAKEN_OVER, before="f-s2", reason=HoldsFewest(0))
    why = explain_shard(known("1 by f-s1 at 5", places={"1": taken}), "1").why
    assert why == (
        "f-s2 was lost (it had stopped renewing), so f-s1 was given it: that worker had the fewest "
        "shards (0)."
    )


def test_a_note_about_another_owner_explains_nothing():
    noted = place("f-s2", Happening.ASSIGNED)
    found = explain_shard(known("1 by f-s1 at 5", places={"1": noted}), "1")
    assert found.since_ms is None
    assert "has not noted yet" in found.why


def test_a_lease_older_than_the_notes_says_so():
    first = place("f-s1", Happening.APPEARED, reason=ThereAlready())
    why = explain_shard(known("1 by f-s1 at 5", places={"1": first}), "1").why
    assert why == "It was so already when the manager began to keep notes."


def test_a_handover_names_both_workers_and_its_reason():
    asked = place("f-s2", Happening.HANDOVER, before="f-s1", reason=HoldsMore("f-s1", 5, "f-s2", 3))
    slots = [a_slot("s1"), a_slot("s2")]
    lease = "1 by f-s2 renewed-by f-s1 at 5"
    found = explain_shard(known(lease, slots=slots, places={"1": asked}), "1")
    assert (found.state, found.owner) == ("HANDOVER", "f-s1")
    assert found.now.startswith("f-s1 finishes its batch; then f-s2 reads it.")
    assert "f-s1 had 5 shards, f-s2 only 3" in found.why


def test_a_free_shard_says_what_it_waits_for():
    found = explain_shard(known("1 at 5", waits={"1": NoWorkerHasRoom()}), "1")
    assert found.state == "UNOWNED"
    assert found.now == "Nobody reads it: every worker has as many shards as it may have."
    assert "at its next look" in explain_shard(known("1 at 5"), "1").now


def test_a_child_says_that_it_waits_for_its_parent():
    found = explain_shard(known("0 by f-s1 at 5", "1 from 0 by f-s1"), "1")
    assert found.state == "WAITING"
    assert "(parents: 0)" in found.now


def test_a_stopped_shard_says_at_what_and_how_it_goes_on():
    stop = StopNote(
        lease_key="1",
        attempts=3,
        worker_id="w",
        at_ms=NOW - 5_000,
        position="5:2",
        error="ValueError: x",
    )
    found = explain_shard(known("1 by f-s1 at 5", stops={"1": stop}), "1")
    assert "at 5:2: ValueError: x" in found.now
    assert "shardfleet resume" in found.now


def test_a_shard_that_rests_after_an_error_says_that_it_is_tried_again():
    stop = StopNote(
        lease_key="1",
        attempts=3,
        worker_id="w",
        at_ms=NOW - 5_000,
        position="5:2",
        error="KeyError: x",
        retry_ms=NOW + 1,
    )
    found = explain_shard(known("1 by f-s1 at 5", stops={"1": stop}), "1")
    assert "at 5:2: KeyError: x. It is tried again by itself" in found.now


def test_a_shard_whose_lease_cannot_be_read_says_why_and_its_child_what_it_waits_for():
    fleet = known("2 at TRIM_HORIZON from 1")
    fleet = replace(fleet, reading=replace(fleet.reading, unreadable={"1": "checkpoint: {} found"}))
    found = explain_shard(fleet, "1")
    assert (found.state, found.owner) == ("UNREADABLE", None)
    assert "checkpoint: {} found" in found.now
    assert "parents: 1" in [row.why for row in lease_rows(fleet.reading)]


def test_a_finished_shard_says_who_read_it_to_its_end():
    done = place("f-s1", Happening.FINISHED, reason=FollowedBy(("2", "3")))
    found = explain_shard(known("1 by f-s1 at SHARD_END", places={"1": done}), "1")
    assert found.state == "FINISHED"
    assert found.why == "f-s1 read it to its end: followed by 2, 3."


@pytest.mark.parametrize(
    ("leases", "words"),
    [
        (
            ["2 from 1 by f-s1 at 5"],
            "The shard is done with and has no lease any more: its descendant 2 has one.",
        ),
        (["0 by f-s1 at 5"], "The shard begins after 0, and gets its lease then."),
        ([], "No lease leads to the shard; the manager makes one."),
    ],
)
def test_a_shard_without_a_lease_says_why_it_has_none(leases, words):
    shards = ["0 0-100 closed", "1 0-100 closed from 0", "2 0-100 open from 1"]
    found = explain_shard(known(*leases, shards=shards), "1")
    assert (found.state, found.owner) == ("NO_LEASE", None)
    assert words in found.why


def test_what_nobody_knows_is_not_explained():
    assert explain_shard(known("1 at 5"), "7") is None
    assert explain_worker(known("1 at 5"), "7") is None


def test_the_story_of_a_shard_is_its_own_in_order():
    turns = [
        (
            1,
            [
                Entry(what=Happening.CREATED, subject="1"),
                Entry(what=Happening.CREATED, subject="2"),
            ],
        ),
        (2, [Entry(what=Happening.ASSIGNED, subject="1", worker_id="f-s1")]),
    ]
    story = explain_shard(known("1 by f-s1 at 5", turns=turns), "1").story
    assert [(each.at_ms, each.what, each.worker_id) for each in story] == [
        (1, "CREATED", None),
        (2, "ASSIGNED", "f-s1"),
    ]
    assert story[1].text == "Nobody had it, so f-s1 was given it."


def test_a_worker_says_what_it_has_why_and_what_it_had():
    given = place("f-s1", Happening.ASSIGNED, reason=HoldsFewest(0))
    turns = [
        (1, [Entry(what=Happening.SLOT_STARTED, subject="s1", worker_id="f-s1")]),
        (2, [Entry(what=Happening.MOVED, subject="2", worker_id="f-s2", before="f-s1")]),
        (3, [Entry(what=Happening.MOVED, subject="3", worker_id="f-s2", before="f-s3")]),
    ]
    facts = known("1 by f-s1 at 5", "2 by f-s2 at 5", places={"1": given}, turns=turns)
    for name in ("s1", "f-s1"):
        found = explain_worker(facts, name)
        assert (found.subject, found.kind, found.leases) == ("f-s1", "worker", ("1",))
        assert found.now == "f-s1 (slot s1) is running, last sign of life 3 s ago. It has 1 shard."
        assert found.why.startswith("1: Nobody had it, so f-s1 was given it")
        assert [(each.lease_key, each.text) for each in found.story] == [
            (None, "f-s1 was started."),
            ("2", "2: It was taken from f-s1 and given to f-s2."),
        ]


def test_a_worker_of_another_application_is_named_as_such():
    found = explain_worker(known("1 by java at 5"), "java")
    assert found.state == "FOREIGN"
    assert "another application shares the lease table" in found.now


def test_the_fleet_tells_its_size_and_its_workers():
    turns = [
        (1, [Entry(what=Happening.SIZED, subject="fleet", reason=SlotsWanted(2, LeastSlots(2)))]),
        (2, [Entry(what=Happening.SLOT_STARTED, subject="s2", worker_id="f-s2")]),
        (4, [Entry(what=Happening.CREATED, subject="1")]),
    ]
    waits = {"2": NoWorkerHasRoom()}
    found = explain_fleet(known("1 by f-s1 at 5", "2 at 5", "3 by java", turns=turns, waits=waits))
    assert found.now == (
        "Leases: 2 reading, 1 unowned. Workers: 1 running. Others that share the lease table: java."
    )
    assert found.why == "What waits: every worker has as many shards as it may have."
    assert [event.text for event in found.story] == [
        "The fleet was sized: the fleet needs 2 workers: at least 2 (min_workers).",
        "f-s2 was started.",
    ]


@pytest.mark.parametrize("state", list(SlotState))
def test_a_slot_in_any_state_is_explained(state):
    slot = a_slot(state=state, failure=a_failure(first_ms=NOW - 90_000))
    found = explain_worker(known(slots=[slot]), "s1")
    assert "It fails: its handler cannot be imported: no settings" in found.now
    assert "3 times in a row since 90 s ago. To do: mend that line" in found.now
    assert replace(found, story=()).leases == ()


def test_a_shard_whose_worker_fails_is_not_said_to_be_read():
    slot = a_slot(failure=a_failure(first_ms=NOW - 90_000))
    fleet = known("1 by f-s1 at 5", slots=[slot])
    found = explain_shard(fleet, "1")

    assert found.state == "FAILING"
    assert found.now.startswith("f-s1 has it but does not read it: its handler cannot be imported")
    assert "s1 fails: its handler cannot be imported" in explain_fleet(fleet).now


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ({"1": NoWorkerRuns()}, "Nobody reads it: no worker is running yet. s1 fails: "),
        ({}, "Nobody reads it. s1 fails: "),
    ],
)
def test_a_free_shard_says_what_the_workers_fail_of_and_what_to_do(waits, words):
    slot = a_slot(state=SlotState.STARTING, failure=a_failure(times=1, last_ms=NOW - 1_000))

    now = explain_shard(known("1 at 5", slots=[slot], waits=waits), "1").now
    assert now.startswith(f"{words}its handler cannot be imported: no settings (/o.py, line 3)")
    assert "To do: mend that line" in now
