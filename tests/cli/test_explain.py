"""`shardfleet explain`: in words for a person, in JSON for a program, of one or of all."""

import json

import boto3
import pytest

from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.instants import spoken_instant
from shardfleet_ops.explain.spoken import spoken_duration
from tests.cli.conftest import CONFIG
from tests.domain.builders import a_failure, a_lease

PLACE = [
    1_700_000_000_000,
    "TAKEN_OVER",
    "shardId-000000000001",
    "clicks-s1",
    "clicks-s2",
    {"is": "HoldsFewest", "held": 0},
]
TURN = {
    "at_ms": 1_700_000_000_000,
    "entries": [
        [
            "CREATED",
            "shardId-000000000001",
            "",
            "",
            {"is": "EmptyTable"},
        ],
        [
            "TAKEN_OVER",
            "shardId-000000000001",
            "clicks-s1",
            "clicks-s2",
            {"is": "HoldsFewest", "held": 0},
        ],
        ["CREATED", "shardId-000000000002", "", "", None],
    ],
}


@pytest.fixture
def running(fleet):
    """One slot that took a shard over from another, and a shard that nobody has."""
    stream = boto3.client("kinesis", region_name="eu-central-1")
    stream.create_stream(StreamName=CONFIG.stream_arn.rpartition("/")[2], ShardCount=3)
    fleet.put_lease(a_lease("shardId-000000000001 at 5 by clicks-s1"))
    fleet.put_lease(a_lease("shardId-000000000002 at 5"))
    slot = Slot(
        slot_id="s1", worker_id="clicks-s1", state=SlotState.RUNNING, name="n", start_epoch=1
    )
    fleet.put_document("slot", "s1", slot_body(slot))
    fleet.put_document("places", "00", {"leases": [PLACE]})
    fleet.put_document("turn", "001700000000000-00", TURN)
    fleet.put_document(
        "plan", "last", {"at_ms": 1, "left": [["shardId-000000000002", {"is": "NoWorkerHasRoom"}]]}
    )
    return fleet


def output(capsys, *arguments):
    assert application.run(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_a_shard_is_explained_in_words_with_its_story(running, capsys):
    out = output(capsys, "shardId-000000000001", "--since", "2023-01-01T00:00:00Z")

    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("shardId-000000000001: reading, since 2023-11-14T22:13:20Z (")
    assert lines[0].endswith(" d ago)")
    assert lines[1].startswith("Now: clicks-s1 reads it.")
    assert lines[2] == (
        "Why: clicks-s2 was lost (it had stopped renewing), so clicks-s1 was given it: that worker "
        "had the fewest shards (0)."
    )
    assert lines[4].endswith(
        "The manager made a lease for it: the fleet was new and the stream has this shard."
    )
    assert lines[5].endswith(lines[2].removeprefix("Why: "))
    assert "A stream is divided into shards" in out


def test_what_lies_before_the_given_time_is_not_told(running, capsys):
    assert "Nothing happened to it lately." in output(
        capsys, "shardId-000000000001", "--since", "1h"
    )


def test_a_worker_is_explained_by_its_own_id_and_by_its_slots(running, capsys):
    by_slot, by_worker = (output(capsys, name) for name in ("s1", "clicks-s1"))

    assert by_slot == by_worker
    assert "clicks-s1 (slot s1) is running" in by_slot


def test_without_a_name_every_shard_is_explained_without_its_story(running, capsys):
    out = output(capsys, "--since", "2023-01-01T00:00:00Z")

    assert "shardId-000000000001: reading" in out
    assert "Now: Nobody reads it: every worker has as many shards as it may have." in out
    assert "What happened" not in out
    assert [found["subject"] for found in json.loads(output(capsys, "--json"))] == [
        "shardId-000000000001",
        "shardId-000000000002",
    ]


def test_json_has_the_story_with_ages(running, capsys):
    found = json.loads(
        output(capsys, "shardId-000000000001", "--since", "2023-01-01T00:00:00Z", "--json")
    )

    assert found["state"] == "READING"
    assert found["since_age_ms"] > 0
    assert [event["what"] for event in found["story"]] == ["CREATED", "TAKEN_OVER"]
    assert all(event["age_ms"] == found["since_age_ms"] for event in found["story"])


def test_the_fleet_itself_is_explained_by_its_name(running, capsys):
    found = json.loads(output(capsys, "fleet", "--json"))

    assert found["kind"] == "fleet"
    assert found["now"].startswith("Leases: 1 reading, 1 unowned.")


def test_what_every_worker_fails_of_is_told_of_a_shard_that_nobody_owns_as_by_status(
    running, capsys
):
    failure = a_failure(kind=FailureKind.SIGNATURE, message="it takes three", times=1)
    starting = Slot(
        slot_id="s1",
        worker_id="clicks-s1",
        state=SlotState.STARTING,
        name="n",
        start_epoch=1,
        failure=failure,
    )
    running.put_document("slot", "s1", slot_body(starting))
    why = {"is": "NoWorkerRuns"}
    running.put_document("plan", "last", {"at_ms": 1, "left": [["shardId-000000000002", why]]})

    found = json.loads(output(capsys, "shardId-000000000002", "--json"))
    assert application.run(["status"]) == 0
    for said in (found["now"], capsys.readouterr().out):
        assert "s1 fails: its handler cannot be called: it takes three (/o.py, line 3)" in said
        assert "To do: let the function take one argument (batch)" in said


def test_a_name_that_is_unknown_is_answered_with_those_that_are(running, capsys):
    assert application.run(["explain", "shardId-000000000009"]) == application.EXIT_WRONG_INPUT

    said = capsys.readouterr().err
    assert "'shardId-000000000009' is no shard and no worker of this fleet" in said
    assert "clicks-s1" in said
    assert "shardId-000000000001, shardId-000000000002" in said


def test_nothing_is_written(running, capsys):
    before = running.documents()
    output(capsys)
    assert running.documents() == before


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [(-5, "0 ms"), (999, "999 ms"), (61_000, "1 min"), (7_300_000, "2 h"), (90_000_000, "1 d")],
)
def test_a_duration_is_said_in_its_largest_unit(duration_ms, words):
    assert spoken_duration(duration_ms) == words


def test_an_instant_of_today_needs_no_date():
    noon = 1_795_262_400_000  # 2026-11-21 12:00 UTC
    assert spoken_instant(noon - 1_000, now_ms=noon) == "11:59:59Z"
    assert spoken_instant(noon - 86_400_000, now_ms=noon) == "2026-11-20T12:00:00Z"
