"""`shardfleet status`, `leases` and `top`: the tables' contents, as words and as JSON."""

import json
import os
import pty
import sys

import pytest

from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet_ops.cli import app as application
from tests.domain.builders import a_failure, a_lease

NUMBER = "49590338271490256608559692538361571095921575989136588898"


@pytest.fixture
def running(fleet):
    """One slot that reads a shard, a stopped shard, and a finished one."""
    fleet.put_lease(a_lease(f"shardId-000000000001 at {NUMBER} by clicks-s1 counter 7"))
    fleet.put_lease(a_lease("shardId-000000000002 at 5:1 by clicks-s1"))
    fleet.put_lease(a_lease("shardId-000000000000 at SHARD_END"))
    slot = Slot(
        slot_id="s1",
        worker_id="clicks-s1",
        state=SlotState.RUNNING,
        name="n",
        start_epoch=1,
        heartbeat_ms=2**47,
        lags_ms={"shardId-000000000001": 90_000},
    )
    fleet.put_document("slot", "s1", slot_body(slot))
    stop = {"position": "5:2", "error": "ValueError: x", "attempts": 5, "worker_id": "w"}
    fleet.put_document("stop", "shardId-000000000002", stop | {"at_ms": 2**47})
    return fleet


def output(capsys, *arguments):
    assert application.run(list(arguments)) == 0
    return capsys.readouterr().out


def test_status_is_the_fleet_in_a_few_lines(running, capsys):
    out = output(capsys, "status")

    assert "1 finished, 1 reading, 1 stopped" in out
    assert "at most 1.5 min" in out
    assert "planned  never" in out
    assert "clicks-s1" in out


def test_leases_shows_owner_end_of_checkpoint_lag_and_why(running, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    lines = output(capsys, "leases").splitlines()

    assert [line.split()[:3] for line in lines[1:3]] == [
        ["shardId-000000000001", "reading", "clicks-s1"],
        ["shardId-000000000002", "stopped", "clicks-s1"],
    ]
    assert f"…{NUMBER[-18:]}" in lines[1]
    assert "at 5:2: ValueError: x" in lines[3]
    assert len(lines) == 4


def test_finished_leases_are_shown_when_asked_for(running, capsys):
    assert "shardId-000000000000" not in output(capsys, "leases")
    assert "shardId-000000000000" in output(capsys, "leases", "--finished")


def test_json_of_leases_has_every_field_in_full(running, capsys):
    first, second = json.loads(output(capsys, "leases", "--json"))

    assert first == {
        "lease_key": "shardId-000000000001",
        "state": "READING",
        "owner": "clicks-s1",
        "checkpoint": NUMBER,
        "counter": 7,
        "lag_ms": 90_000,
        "seen_ms": None,
        "why": "",
        "way": None,
    }
    assert second["state"] == "STOPPED"


def test_json_of_status_has_the_sums_and_the_slots(running, capsys):
    found = json.loads(output(capsys, "status", "--json"))

    assert found["leases"] == {"FINISHED": 1, "READING": 1, "STOPPED": 1}
    assert found["lag_ms"] == 90_000
    assert [row["slot_id"] for row in found["slot_rows"]] == ["s1"]


def test_top_reads_again_until_it_has_been_asked_enough(running, capsys):
    out = output(capsys, "top", "--rounds", "2", "--every", "1")

    assert "shardId-000000000001" in out
    assert "stopped" in out


def test_keys_say_what_top_shows_and_end_it(running, capsys, monkeypatch):
    person, terminal = pty.openpty()
    os.write(person, b"f/stopped\nq")
    with open(terminal, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        out = output(capsys, "top")
    os.close(terminal)
    os.close(person)

    assert "f finished: shown   j k scroll   / filter: stopped" in out
    assert "shardId-000000000002" in out
    assert "shardId-000000000001" not in out


def test_a_fleet_without_leases_has_an_answer(fleet, capsys):
    out = output(capsys, "status")

    assert "leases   none" in out
    assert "nothing is left to read" in out
    assert json.loads(output(capsys, "leases", "--json")) == []


def test_an_application_without_a_stack_is_shown_by_its_lease_table(running, capsys, monkeypatch):
    running.put_lease(a_lease("shardId-000000000003 at 9 by spark:a1b2 counter 4"))
    monkeypatch.setattr("shardfleet_ops.cli.fleet_access.fleet_config", None)

    rows = json.loads(output(capsys, "leases", "--application", "leases", "--json"))
    status = json.loads(output(capsys, "status", "--application", "leases", "--json"))

    found = {row["lease_key"]: (row["state"], row["owner"]) for row in rows}
    assert found["shardId-000000000003"] == ("READING", "spark:a1b2")
    assert "spark:a1b2" in status["workers"]
    assert status["leases"] == {"FINISHED": 1, "READING": 3}
    assert "spark:a1b2" in output(capsys, "top", "--application", "leases", "--rounds", "1")


def test_an_application_that_is_not_there_is_named(fleet, capsys):
    assert application.run(["leases", "--application", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


def test_a_lease_that_nobody_can_read_is_shown_with_what_is_wrong(running, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    item = {
        "leaseKey": {"S": "shardId-000000000008"},
        "checkpoint": {"N": "5"},
        "leaseCounter": {"N": "1"},
    }
    running.client.put_item(TableName="leases", Item=item)

    line, reason = [
        each for each in output(capsys, "leases").splitlines() if "shardId-000000000008" in each
    ]
    assert line.split()[:2] == ["shardId-000000000008", "unreadable"]
    assert reason.startswith("  ")


def test_what_a_record_says_is_shown_as_it_is(running, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stop = {"position": "5:2", "error": "ValueError: [/item] [red]x :bee:", "attempts": 5}
    running.put_document("stop", "shardId-000000000001", stop | {"worker_id": "w", "at_ms": 2**47})

    assert "at 5:2: ValueError: [/item] [red]x :bee:" in output(capsys, "leases")


def test_status_and_leases_name_what_a_worker_fails_of(running, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    slot = Slot(
        slot_id="s1",
        worker_id="clicks-s1",
        state=SlotState.RUNNING,
        name="n",
        start_epoch=1,
        failure=a_failure(),
    )
    running.put_document("slot", "s1", slot_body(slot))

    assert "failing  s1 fails: its handler cannot be imported: no settings" in output(
        capsys, "status"
    )
    _, first, reason, *_ = output(capsys, "leases").splitlines()
    assert "failing" in first
    assert "no settings (/o.py, line 3)" in reason
    document = json.loads(output(capsys, "status", "--json"))
    assert document["failures"][0]["kind"] == "IMPORT"
    assert document["slot_rows"][0]["failure"]["times"] == 3
