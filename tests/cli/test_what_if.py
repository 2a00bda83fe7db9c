"""`shardfleet what-if` and `explain` against tables: what they say, and that they only read."""

import json
import time

import boto3
import botocore.client
import pytest

from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet_ops.cli import app as application
from tests.cli.conftest import CONFIG
from tests.domain.builders import a_lease

READS = {"Scan", "Query", "GetItem", "ListShards", "DescribeStreamSummary"}


@pytest.fixture
def running(fleet):
    """Two slots with one shard each."""
    stream = boto3.client("kinesis", region_name="eu-central-1")
    stream.create_stream(StreamName=CONFIG.stream_arn.rpartition("/")[2], ShardCount=2)
    for number in (0, 1):
        fleet.put_lease(a_lease(f"shardId-{number:012d} at 5 by clicks-s{number}"))
        slot = Slot(
            slot_id=f"s{number}",
            worker_id=f"clicks-s{number}",
            state=SlotState.RUNNING,
            name="n",
            start_epoch=1,
            heartbeat_ms=int(time.time() * 1_000),
        )
        fleet.put_document("slot", slot.slot_id, slot_body(slot))
    return fleet


def output(capsys, *arguments):
    assert application.run(list(arguments)) == 0
    return capsys.readouterr().out


def test_who_would_have_what_is_told_with_every_step_and_its_reason(running, capsys):
    out = output(capsys, "what-if", "--lose", "clicks-s1")

    assert "turn 1   shardId-000000000001: clicks-s1 was lost" in out
    assert "so clicks-s0 was given it: that worker had the fewest shards (1)." in out
    assert "clicks-s0: 1 shard, then 2" in out
    assert "+ shardId-000000000001" in out
    assert "nothing was changed" in out


def test_json_has_steps_and_both_states(running, capsys):
    found = json.loads(output(capsys, "what-if", "--lose", "s1", "--json"))

    assert found["question"] == {"workers": None, "lose": "s1", "split": None}
    assert found["before"]["clicks-s1"] == ["shardId-000000000001"]
    assert sorted(found["after"]["clicks-s0"]) == ["shardId-000000000000", "shardId-000000000001"]
    assert found["within_ms"] == found["turns"] * CONFIG.cycle_ms
    assert all(step["text"].endswith(".") for step in found["steps"])


def test_a_worker_that_is_not_there_is_refused(running, capsys):
    assert application.run(["what-if", "--lose", "s9"]) == application.EXIT_WRONG_INPUT
    assert "the fleet's are: clicks-s0, clicks-s1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("what-if",),
        ("what-if", "--workers", "5"),
        ("what-if", "--lose", "s1"),
        ("what-if", "--split", "shardId-000000000000"),
        ("explain",),
        ("explain", "shardId-000000000000"),
        ("explain", "s1"),
    ],
)
def test_nothing_but_reads_is_asked_of_aws(running, capsys, monkeypatch, arguments):
    asked = set()
    call = botocore.client.BaseClient._make_api_call

    def watched(client, operation, parameters):
        asked.add(operation)
        return call(client, operation, parameters)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", watched)
    output(capsys, *arguments)
    assert asked
    assert asked <= READS
