"""A producer by the name of its stream; what docs/producing.md shows, run as it stands."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import asdict

from shardfleet.errors import ConfigurationError, Throttled
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.blocking import BlockingProducer
from shardfleet.producer.open import open_producer
from shardfleet.producer.settings import ProducerCounts, ProducerSettings
from tests.adapters.kinesis_server import REGION, Stream, kinesis_server

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).resolve().parents[2] / "docs/producing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [
    {f"visitor-{key}": [b"%d" % n for n in range(key, 1_000, 50)] for key in range(50)},
    {"ada": [b"looked", b"bought", b"left"]},
    {"shop": [b"3 left in stock"]},
]
# `Names` in aws/metrics/metrics_constants.h of awslabs/amazon-kinesis-producer, but for `Test`; all
# of those told here have the unit Count there (metrics_constants.cc).
KPL_NAMES = [
    "UserRecordsReceived",
    "UserRecordsPending",
    "UserRecordsPut",
    "UserRecordsDataPut",
    "KinesisRecordsPut",
    "KinesisRecordsDataPut",
    "ErrorsByCode",
    "AllErrors",
    "RetriesPerRecord",
    "UserRecordExpired",
    "BufferingTime",
    "RequestTime",
    "UserRecordsPerKinesisRecord",
    "KinesisRecordsPerPutRecordsRequest",
    "UserRecordsPerPutRecordsRequest",
]


@pytest.fixture
def stream(monkeypatch):
    with kinesis_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_REGION", REGION)
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        yield Stream(endpoint, "clicks").create(2)


def threads():
    return [each.name for each in threading.enumerate() if "producer" in each.name]


@pytest.mark.parametrize(
    ("block", "there"), [*zip(BLOCKS, SHOWN, strict=True)], ids=["puts", "future", "logger"]
)
def test_what_the_page_shows_is_in_the_stream_when_the_program_has_ended(stream, block, there):
    told = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, check=True, timeout=120
    )

    assert stream.users() == there
    assert told.stderr == ""
    if "receipt.shard_id" in block:
        shard_id, number = told.stdout.split()
        assert (shard_id, number.isdecimal()) == ("shardId-000000000001", True)


def test_a_block_that_ends_with_an_error_is_not_flushed_and_leaves_no_thread(stream):
    def fail():
        settings = ProducerSettings(linger_ms=60_000)
        with BlockingProducer(lambda: open_producer("clicks", settings=settings)) as producer:
            producer.put(OutgoingRecord("ada", b"x"))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert stream.users() == {}
    assert threads() == []


@pytest.mark.usefixtures("stream")
def test_a_stream_that_is_not_there_is_named():
    async def main():
        async with open_producer("nowhere"):
            pass

    with pytest.raises(ConfigurationError, match="'nowhere': there is no such stream"):
        asyncio.run(main())
    with pytest.raises(ConfigurationError, match="'nowhere': there is no such stream"):
        BlockingProducer(lambda: open_producer("nowhere"))
    assert threads() == []


def test_a_service_that_does_not_answer_is_named_when_its_time_is_over():
    async def main():
        arn = f"arn:aws:kinesis:{REGION}:111122223333:stream/clicks"
        with socket.create_server(("127.0.0.1", 0)) as server:  # Closed when it is asked.
            endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = ProducerSettings(give_up_ms=0)
        async with open_producer(arn, endpoint=endpoint, settings=settings) as producer:
            await producer.send([OutgoingRecord("ada", b"x")])

    with pytest.raises(Throttled, match=r"1 records are still refused after 0 ms.*onnect"):
        asyncio.run(main())


def put_with_metrics(namespace, records, capsys):
    """Return the lines that a producer writes, each as JSON."""
    settings = ProducerSettings(metrics_namespace=namespace)
    capsys.readouterr()
    with BlockingProducer(lambda: open_producer("clicks", settings=settings)) as producer:
        for start in range(0, len(records), 100):
            producer.send(records[start : start + 100], aggregate=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("tell_ms", [0, 60_000])
def test_metrics_have_the_names_of_the_kpl_and_add_up(stream, capsys, monkeypatch, tell_ms):
    monkeypatch.setattr("shardfleet.producer.open.TELL_MS", tell_ms)
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "shop")
    records = [OutgoingRecord(f"k{number % 7}", b"%d" % number) for number in range(300)]

    lines = put_with_metrics("KinesisProducerLibrary", records, capsys)

    assert len(lines) == 1 if tell_ms else len(lines) > 3
    for line in lines:
        (told,) = line["_aws"]["CloudWatchMetrics"]
        assert (told["Namespace"], told["Dimensions"]) == (
            "KinesisProducerLibrary",
            [["StreamName"]],
        )
        assert line["StreamName"] == "clicks"
        assert {each["Unit"] for each in told["Metrics"]} == {"Count"}
        assert {each["Name"] for each in told["Metrics"]} <= {*KPL_NAMES}
    total = {name: sum(sum(line[name]) for line in lines) for name in KPL_NAMES if name in line}
    assert total["UserRecordsReceived"] == total["UserRecordsPut"] == 300
    pages = [page for shard in stream.shards() for page in stream.read(shard.shard_id)]
    assert total["KinesisRecordsPut"] == sum(len(page.records) for page in pages) > 0
    assert total["AllErrors"] == 0
    assert lines[-1]["UserRecordsPending"] == [0]
    assert set(re.findall(r"^\| `(\w+)` \| yes", PAGE, re.MULTILINE)) == total.keys()


@pytest.mark.usefixtures("stream")
def test_what_is_put_is_received_at_once_and_pending_until_the_stream_has_it():
    async def main():
        settings = ProducerSettings(linger_ms=60_000)
        async with open_producer("clicks", settings=settings) as producer:
            await producer.put(*[OutgoingRecord("ada", b"x")] * 3)
            sent = producer.submit([OutgoingRecord("bob", b"y")])
            found = [(producer.received, producer.pending)]
            await sent
            await producer.flush()
            return [*found, (producer.received, producer.pending)]

    assert asyncio.run(main()) == [(4, 4), (4, 0)]


@pytest.mark.usefixtures("stream")
def test_no_metric_is_written_unless_a_namespace_is_set(capsys):
    assert put_with_metrics("", [OutgoingRecord("ada", b"x")], capsys) == []


@pytest.mark.parametrize(
    ("namespace", "allowed"),
    [
        ("shop/clicks #1", True),
        ("n" * 255, True),
        ("n" * 256, False),
        ("AWS/Kinesis", False),
        (":shop", False),
        ("töpfe", False),
    ],
)
def test_a_namespace_of_metrics_is_one_that_cloudwatch_takes(namespace, allowed):
    if allowed:
        assert ProducerSettings(metrics_namespace=namespace).metrics_namespace == namespace
    else:
        with pytest.raises(ConfigurationError, match="metrics_namespace = "):
            ProducerSettings(metrics_namespace=namespace)


def test_the_page_names_each_metric_of_the_kpl():
    assert [name for name in KPL_NAMES if f"`{name}`" not in PAGE] == []


def test_the_page_has_each_setting_with_its_default_and_no_count_that_is_not_there():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    settings = ProducerSettings()
    for name, value in asdict(settings).items():
        number, _, unit = rows[name].strip().partition(" ")
        if isinstance(value, int):
            told = int(number.replace(",", "")) * (1 << 20 if unit == "MiB" else 1)
            assert told == value, name
    assert set(re.findall(r"counts\.(\w+)", PAGE)) <= set(ProducerCounts.__struct_fields__)
