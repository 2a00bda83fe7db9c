"""The handlers in `functions/`: the one that is deployed, and the examples."""

import base64
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardfleet import Batch, Record

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"


@pytest.fixture
def load():
    def load(name):
        file = FUNCTIONS / name / "handler.py"
        spec = importlib.util.spec_from_file_location(name.replace("/", "_"), file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def a_batch(*payloads):
    records = [
        Record(
            data=payload,
            partition_key=f"key-{number}",
            sequence_number=str(number),
            shard_id="shardId-000000000001",
            approximate_arrival_ms=0,
        )
        for number, payload in enumerate(payloads)
    ]
    return Batch(
        records,
        shard_id="shardId-000000000001",
        stream_arn="arn:aws:kinesis:eu-central-1:111122223333:stream/clicks",
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=60_000,
    )


def an_event(*orders):
    """The event source mapping's event, all thirteen fields of each record."""
    return {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": order["id"],
                    "sequenceNumber": str(100 + number),
                    "data": base64.b64encode(json.dumps(order).encode()).decode(),
                    "approximateArrivalTimestamp": 1545084650.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"shardId-000000000006:{100 + number}",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": "arn:aws:iam::111122223333:role/worker",
                "awsRegion": "eu-central-1",
                "eventSourceARN": "arn:aws:kinesis:eu-central-1:111122223333:stream/orders",
            }
            for number, order in enumerate(orders)
        ]
    }


@pytest.fixture
def context():
    return SimpleNamespace(
        function_name="orders",
        memory_limit_in_mb=512,
        invoked_function_arn="arn:aws:lambda:eu-central-1:111122223333:function:orders:live",
        aws_request_id="request",
        get_remaining_time_in_millis=lambda: 60_000,
    )


def test_the_deployed_handler_counts_clicks_per_page(load, capsys):
    clicks = [json.dumps({"page": page}).encode() for page in ("/a", "/b", "/a")]

    load("handler").handle(a_batch(*clicks))

    assert json.loads(capsys.readouterr().out) == {
        "shard": "shardId-000000000001",
        "clicks": 3,
        "pages": {"/a": 2, "/b": 1},
    }


@pytest.mark.parametrize("payload", [b"\xff\x00", b"[1]", b'{"page": 3}', b"{}", b"12"])
def test_the_deployed_handler_counts_anything_else_by_its_key(load, capsys, payload):
    load("handler").handle(a_batch(payload))

    assert json.loads(capsys.readouterr().out)["pages"] == {"key-0": 1}


def test_the_powertools_example_names_the_records_that_failed(load, context):
    orders = [{"id": "a", "amount": 5}, {"id": "b", "amount": -1}, {"id": "c", "amount": 2}]

    reply = load("examples/powertools_batch").handler(an_event(*orders), context)

    assert reply == {"batchItemFailures": [{"itemIdentifier": "101"}]}


def test_the_powertools_example_names_nothing_when_all_is_well(load, context):
    reply = load("examples/powertools_batch").handler(an_event({"id": "a", "amount": 5}), context)

    assert reply == {"batchItemFailures": []}


def test_the_powertools_example_loads_nothing_of_shardfleet():
    program = (
        "import sys, handler; print([name for name in sys.modules if 'shardfleet' in name"
        " and not name.startswith('__editable__')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=FUNCTIONS / "examples/powertools_batch",
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.strip() == "[]"
