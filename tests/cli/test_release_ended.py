"""`shardfleet release --ended`: a person says that a missing shard is over."""

import json
from types import SimpleNamespace

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.kinesis.models import kinesis_backends

from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_WRONG_INPUT
from shardfleet_ops.cli.operating import preview_of_end
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.memory_stream import MemoryStream
from tests.domain.builders import a_lease
from tests.virtual import virtual

MISSING, OTHER = "shardId-000000000001", "shardId-000000000002"
NOTE = {
    "first_ms": 1_000,
    "unlisted_ms": 2_000,
    "known_ms": 0,
    "checkpoint": "77",
    "reason": {"is": "SecondListingAwaited"},
    "ended_by": "",
}


@pytest.fixture
def missing(fleet):
    """A fleet that misses one shard of two; the stream lists later ones, not these or theirs."""
    kinesis = boto3.client("kinesis")
    kinesis.create_stream(StreamName="clicks", ShardCount=1)
    for count in (2, 1, 2):
        kinesis.update_shard_count(
            StreamName="clicks", TargetShardCount=count, ScalingType="UNIFORM_SCALING"
        )
    _forget_closed_shards("clicks", region=kinesis.meta.region_name)
    fleet.put_lease(a_lease(f"{MISSING} at 77 by clicks-s1"))
    fleet.put_lease(a_lease(f"{OTHER} at 88 by clicks-s1"))
    fleet.put_document("gone", MISSING, NOTE)
    return fleet


def _forget_closed_shards(stream_name, *, region):
    shards = kinesis_backends[DEFAULT_ACCOUNT_ID][region].streams[stream_name].shards
    for shard_id in [each.shard_id for each in shards.values() if not each.is_open]:
        del shards[shard_id]
    assert len(shards) == 2
    assert min(shards) > OTHER


def decided(fleet):
    return fleet.state.get_item(Key={"kind": "gone", "id": MISSING})["Item"]["body"]["ended_by"]


def test_what_is_known_is_shown_and_nothing_is_changed_without_a_yes(missing, capsys):
    assert application.run(["release", MISSING, "--ended"]) == 1

    out = capsys.readouterr().out
    assert "The stream keeps records for 24 h." in out
    assert f"{MISSING}: not found and not listed" in out
    assert "not found since: 1970-01-01T00:00:01Z" in out
    assert "last known to have had records, or to be open: unknown" in out
    assert "children: none are listed" in out
    assert "records after 77 that it may have had are lost" in out
    assert "Nothing was changed; --yes does it." in out
    assert decided(missing) == ""


def test_with_a_yes_the_decision_is_on_record_with_a_name_and_its_worker_is_waited_for(
    missing, capsys, monkeypatch
):
    monkeypatch.setattr("getpass.getuser", lambda: "ada")

    assert application.run(["release", MISSING, "--ended", "--yes", "--wait", "0"]) == 1
    assert f"Not given up in time: {MISSING}" in capsys.readouterr().out
    assert decided(missing) == "ada"
    missing.put_lease(a_lease(f"{MISSING} at SHARD_END"))
    assert application.run(["release", MISSING, "--ended", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == []


@pytest.mark.parametrize("given", [[OTHER], [MISSING, OTHER], [MISSING, "--force"]])
def test_a_shard_that_nobody_misses_is_not_ended(missing, given, capsys):
    assert application.run(["release", *given, "--ended", "--yes"]) == EXIT_WRONG_INPUT

    err = capsys.readouterr().err
    assert f"such shards are: {MISSING}" in err or "--force and --ended" in err
    assert decided(missing) == ""


def test_leases_and_doctor_tell_of_it(missing, capsys):
    application.run(["leases", "--json"])

    rows = {row["lease_key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[MISSING]["state"] == "STOPPED"
    assert (
        rows[MISSING]["why"]
        == "at 77: not found and not listed for once; a second listing is awaited"
    )
    assert rows[OTHER]["state"] != "STOPPED"


@virtual
async def test_the_children_that_it_would_get_are_named_and_a_torn_listing_is_told():
    clock = VirtualClock()
    stream = MemoryStream(clock)
    (parent,) = stream.open_shard_ids
    children = stream.split(parent)
    stream.forget_shard(parent)
    store = MemoryStateStore()
    await store.write("gone", parent, NOTE, expected_version=None)
    fleet = SimpleNamespace(
        state=FleetState(store, clock),
        stream=stream,
        clock=clock,
        config=SimpleNamespace(failover_ms=10_000, stream_arn="arn"),
    )
    assert ", ".join(children) in "\n".join(await preview_of_end(fleet, [parent], person="ada"))
    stream.forget_shard(children[0])
    told = "\n".join(await preview_of_end(fleet, [parent], person="ada"))
    assert "it would not end now: not found, and the listing shows no whole stream" in told
    (note,) = await GoneRecord(store).missed()
    assert note.ended_by == ""
