"""`shardfleet documents`, and every other command beside documents that cannot be read."""

import json
from decimal import Decimal

import boto3
import pytest
from boto3.dynamodb.types import TypeSerializer

from shardfleet.adapters.dynamodb.state import _document
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.kinds import KINDS, SLOT
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_WRONG_INPUT
from shardfleet_ops.cli.approval import EXIT_NOT_DONE
from tests.domain.builders import a_lease
from tests.engine.state.damages import DOCUMENTS, SECRET
from tests.engine.state.documents_kit import KEY

# What DynamoDB can hold beside what is written; each is put in the place of an item's attribute.
ITEMS = {
    "no version": {"version": None},
    "a version that is text": {"version": {"S": "7"}},
    "a version that is a fraction": {"version": {"N": "1.5"}},
    "a version below 1": {"version": {"N": "-3"}},
    "a version that is too great": {"version": {"N": "9E+37"}},
    "no body": {"body": None},
    "a body that is text": {"body": {"S": SECRET}},
    "a body that is a list": {"body": {"L": [{"S": SECRET}]}},
    "a body that is nothing": {"body": {"NULL": True}},
    "bytes in the body": {"body": {"M": {"at_ms": {"B": b"\x00"}, "state": {"B": b"\x01"}}}},
    "sets in the body": {"body": {"M": {"leases": {"SS": [SECRET]}, "owner": {"NS": ["1", "2"]}}}},
    "fractions in the body": {"body": {"M": {"at_ms": {"N": "1.5"}, "epoch": {"N": "1E-30"}}}},
    "great numbers": {"body": {"M": {"at_ms": {"N": "9" * 38}, "since_ms": {"N": "1E100"}}}},
}
SERIALIZER = TypeSerializer()
COMMANDS = [
    ["status"],
    ["leases"],
    ["explain"],
    ["explain", "fleet"],
    ["resume"],
    ["pause", "--all", "--dry-run"],
    ["drain", "--dry-run"],
    ["release", "--dry-run", KEY],
    ["documents"],
]


@pytest.fixture
def fleet(fleet):
    """A fleet with a stream of one shard, and its lease."""
    boto3.client("kinesis").create_stream(StreamName="clicks", ShardCount=1)
    fleet.put_lease(a_lease(f"{KEY} at 77 by clicks-s0001"))
    return fleet


def put(fleet, kind, damage):
    """Put an item of a kind as somebody has damaged it; return its name."""
    (name,) = put_each(fleet, [kind], damage)
    return name


def put_each(fleet, kinds, damage):
    """Put an item of each kind as somebody has damaged it; return their names."""
    items = [damaged(str(kind), damage) for kind in kinds]
    requests = [{"PutRequest": {"Item": item}} for item in items]
    for some in range(0, len(requests), 25):  # As many as DynamoDB takes at once.
        fleet.client.batch_write_item(RequestItems={"state": requests[some : some + 25]})
    return {f"{item['kind']['S']}/{item['id']['S']}" for item in items}


def damaged(kind, damage):
    whole = DOCUMENTS[kind]
    body = json.loads(json.dumps(whole.body))
    item = {"kind": whole.kind, "id": whole.id, "version": 1, "body": body}
    item = {name: SERIALIZER.serialize(value) for name, value in item.items()} | damage
    return {name: value for name, value in item.items() if value is not None}


def told_apart():
    """Return the first of the damages that a store's answer tells apart: all that commands see."""
    first = {}
    for damage, attributes in ITEMS.items():
        document = _document(damaged("slot", attributes))
        first.setdefault((repr(document.body), document.damage), damage)
    return [*first.values()]


@pytest.mark.parametrize("damage", told_apart())
def test_every_command_goes_on_beside_whatever_an_item_holds(fleet, capsys, damage):
    names = put_each(fleet, KINDS, ITEMS[damage])

    for command in COMMANDS:
        code = application.run(command)
        out, err = capsys.readouterr()
        assert code in (0, EXIT_NOT_DONE), (command, err)
        assert "Traceback" not in out + err, command
        assert SECRET not in out + err, command
    assert application.run(["documents", "--json"]) == 0
    found = {each["name"] for each in json.loads(capsys.readouterr().out)["documents"]}
    assert found <= names
    if "body" not in ITEMS[damage] or "M" not in (ITEMS[damage]["body"] or {}):
        assert found == names


@pytest.mark.parametrize("damage", ITEMS)
def test_one_command_mends_or_drops_whatever_an_item_holds(fleet, capsys, damage):
    put_each(fleet, KINDS, ITEMS[damage])

    assert application.run(["documents", "--mend", "--yes"]) == 0
    capsys.readouterr()
    assert application.run(["documents", "--json"]) == 0
    left = [each["name"] for each in json.loads(capsys.readouterr().out)["documents"]]
    assert left in ([], [f"window/{KEY}"])
    if left:
        assert application.run(["documents", *left, "--drop", "--yes"]) == 0
    capsys.readouterr()
    assert application.run(["documents"]) == 0
    assert "Every document of the fleet state can be read." in capsys.readouterr().out


def test_a_window_is_not_mended_by_name_either_as_that_would_lose_it(fleet, capsys):
    name = put(fleet, "window", {"body": {"S": SECRET}})

    assert application.run(["documents", name, "--mend", "--yes"]) == EXIT_NOT_DONE

    assert f"{name}: cannot be mended; --drop" in capsys.readouterr().err
    assert fleet.documents() == [("window", KEY)]


def test_a_mended_slot_keeps_what_is_readable_and_ends_if_nobody_knows_what_runs(fleet):
    body = DOCUMENTS["slot"].body | {"lags_ms": 7, "epoch": "x"}
    fleet.put_document("slot", "s0001", json.loads(json.dumps(body)))

    assert application.run(["documents", "slot/s0001", "--mend", "--yes"]) == 0

    item = fleet.state.get_item(Key={"kind": "slot", "id": "s0001"})["Item"]
    slot = SLOT.read(plain(item["body"]), "s0001")
    assert slot.state is SlotState.ENDED
    assert slot.start_epoch == 3
    assert slot.epoch > 1_000_000_000
    assert slot.worker_id == "clicks-s0001"
    assert item["version"] == 2


def test_what_is_damaged_in_its_lags_alone_runs_on(fleet):
    body = DOCUMENTS["slot"].body | {"lags_ms": 7}
    fleet.put_document("slot", "s0001", json.loads(json.dumps(body)))

    assert application.run(["documents", "--mend", "--yes"]) == 0

    item = fleet.state.get_item(Key={"kind": "slot", "id": "s0001"})["Item"]
    slot = SLOT.read(plain(item["body"]), "s0001")
    assert (slot.state, slot.epoch, slot.lags_ms) == (SlotState.RUNNING, 7, {})


def plain(value):
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return int(value) if isinstance(value, Decimal) else value


def test_a_stop_stays_a_stop_and_a_pause_pauses_everything(fleet, capsys):
    for kind in ("stop", "pause"):
        put(fleet, kind, {"body": {"M": {"x": {"S": SECRET}, "leases": {"S": SECRET}}}})

    assert application.run(["documents", "--mend", "--yes"]) == 0
    assert application.run(["resume"]) == 0

    out = capsys.readouterr().out
    assert f"{KEY} is stopped" in out
    assert "The whole fleet is paused by" in out


def test_nothing_is_changed_without_a_yes(fleet, capsys):
    name = put(fleet, "stop", {"body": {"S": SECRET}})

    assert application.run(["documents", "--mend"]) == EXIT_NOT_DONE
    assert application.run(["documents", name, "--drop", "--dry-run"]) == 0

    assert fleet.documents() == [("stop", KEY)]
    out = capsys.readouterr().out
    assert f"{name} cannot be read: its body is no map" in out
    assert "Meanwhile: the shard stays stopped." in out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--mend", "--drop", "x/y"], "--mend and --drop: both found, one allowed"),
        (["--drop"], "--drop: no document named; name each one, as KIND/ID"),
        (["stop/other", "--mend"], "documents: stop/other found; those that cannot be read are: "),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(fleet, capsys, given, told):
    put(fleet, "stop", {"body": {"S": SECRET}})

    assert application.run(["documents", *given]) == EXIT_WRONG_INPUT
    assert told in capsys.readouterr().err
    assert fleet.documents() == [("stop", KEY)]


def test_status_names_it_and_the_command(fleet, capsys):
    name = put(fleet, "tip", {"body": {"S": SECRET}})

    assert application.run(["status"]) == 0

    out = capsys.readouterr().out
    assert f"{name}: its body is no map" in out
    assert f"shardfleet documents {name}" in out


@pytest.mark.parametrize("command", ["resume", "drain"])
def test_what_concerns_the_whole_fleet_is_done_over_a_pause_that_cannot_be_read(fleet, command):
    put(fleet, "pause", {"body": {"S": SECRET}})
    arguments = {"resume": ["--all", "--yes"], "drain": ["--yes", "--wait", "0"]}[command]

    assert application.run([command, *arguments]) == 0

    item = fleet.state.get_item(Key={"kind": "pause", "id": "fleet"})["Item"]
    assert bool(item["body"]["fleet"]) == (command == "drain")


@pytest.mark.parametrize("damage", ITEMS)
def test_the_manager_is_prompted_whatever_the_prompt_holds(fleet, damage):
    put(fleet, "stop", {})
    put(fleet, "prompt", ITEMS[damage])

    assert application.run(["resume", KEY, "--yes"]) == 0

    item = fleet.state.get_item(Key={"kind": "prompt", "id": "manager"})["Item"]
    assert item["version"] >= 1
    stop = fleet.state.get_item(Key={"kind": "stop", "id": KEY})["Item"]
    assert stop["body"]["attempts"] == 0
