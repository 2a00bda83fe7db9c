"""`shardfleet logs`: the lines of a worker's log group, each once, however they come."""

import json
import time
from types import SimpleNamespace

import boto3
import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import logs
from shardfleet_ops.cli.fleets import DeployedFleet
from tests.cli.conftest import CONFIG
from tests.domain.builders import a_lease
from tests.domain.test_log_lines import TWO, engine

GROUP = "/aws/lambda/worker"
SHARD = "shardId-000000000001"


@pytest.fixture
def written(fleet, monkeypatch):
    """Return what writes lines into the worker's log group, whose slot is s1."""
    config = replace(CONFIG, worker_function="worker")
    found = DeployedFleet(config=config, manager="manager", resources=())
    monkeypatch.setattr(logs, "find_functions", lambda name: found)
    monkeypatch.setattr(logs, "log_group_of", lambda function: f"/aws/lambda/{function}")
    client = boto3.client("logs")
    for group in (GROUP, "/aws/lambda/manager"):
        client.create_log_group(logGroupName=group)
        client.create_log_stream(logGroupName=group, logStreamName="a")
    fleet.put_lease(a_lease(f"{SHARD} at 5 by clicks-s1"))
    slot = Slot(
        slot_id="s1", worker_id="clicks-s1", state=SlotState.RUNNING, name="n", start_epoch=1
    )
    fleet.put_document("slot", "s1", slot_body(slot))

    def write(*messages, group=GROUP):
        now_ms = int(time.time() * 1000)
        events = [{"timestamp": now_ms, "message": each} for each in messages]
        client.put_log_events(logGroupName=group, logStreamName="a", logEvents=events)

    return write


def output(capsys, *arguments):
    assert application.run(["logs", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["s1", "clicks-s1"])
def test_a_worker_is_named_by_its_slot_or_by_itself(written, capsys, name):
    written(*TWO)
    lines = output(capsys, name).splitlines()

    assert [line.split(" ", 2)[1] for line in lines] == ["s1"] * 5
    assert lines[3].endswith("s1 a print")


def test_a_shard_has_its_own_lines(written, capsys):
    written(*(each.replace("shard-1", SHARD) for each in TWO))

    assert [line.split(" ", 1)[1] for line in output(capsys, SHARD).splitlines()] == [
        f"s1 INFO LeaseAdopted lease_key={SHARD}",
        "s1 a print",
    ]


def test_the_managers_lines_are_its_own(written, capsys):
    written(*TWO)
    written("ManagerTurnEnded", group="/aws/lambda/manager")

    assert output(capsys, "manager").endswith("- ManagerTurnEnded\n")


def test_what_nobody_is_called_is_refused_with_who_there_is(written, capsys):
    assert application.run(["logs", "nobody"]) == application.EXIT_WRONG_INPUT
    found = capsys.readouterr().err
    assert f"workers: s1; shards with a lease: {SHARD}; or manager" in found


def test_lines_of_programs_are_json(written, capsys):
    written(*TWO)
    first = json.loads(output(capsys, "--json").splitlines()[0])

    assert list(first) == ["at_ms", "slot_id", "text"]


def test_a_handlers_print_moves_nothing_on_the_terminal(written, capsys):
    written("\x1b[2J gone")

    assert "\\x1b[2J gone" in output(capsys)


def test_what_comes_while_it_follows_is_printed_once_until_ctrl_c(written, capsys, monkeypatch):
    written("one", "one")
    rounds = []

    def sleep(seconds):
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        written(f"round {len(rounds)}")

    # Not the sleep of all threads: one that Spark had left took the round that ends this.
    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=sleep, time=time.time))
    found = [line.split(" ", 2)[2] for line in output(capsys, "--follow").splitlines()]

    assert found == ["one", "one", "round 1", "round 2"]


def test_pages_that_are_short_or_empty_end_nothing(monkeypatch):
    """Fact G06."""
    event = {"timestamp": 5, "logStreamName": "a", "message": engine("TurnBegun")}
    pages = [
        {"events": []},
        {"events": [event]},
        {"events": []},
        {"events": [event | {"timestamp": 6}]},
    ]

    class Logs:
        def filter_log_events(self, **asked):
            at = int(asked.get("nextToken", 0))
            return pages[at] | ({"nextToken": str(at + 1)} if at + 1 < len(pages) else {})

        def get_paginator(self, operation):
            real = boto3.client("logs", region_name="eu-central-1")
            paginator = real.get_paginator(operation)
            paginator._method = self.filter_log_events
            return paginator

    monkeypatch.setattr(logs, "_client", lambda service: Logs())
    reader = logs._Reader("group", since_ms=0)

    assert [event.at_ms for event in reader.read()] == [5, 6]
    assert list(reader.read()) == []
