"""A producer by the name of its stream; what docs/producing.md shows, run as it stands."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from shardfleet.engine.producer.blocking import BlockingProducer
from shardfleet.engine.producer.settings import ProducerCounts, ProducerSettings
from shardfleet.errors import ConfigurationError, Throttled
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.runtime.producing import open_producer
from tests.adapters.kinesis_server import REGION, Stream, kinesis_server

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).resolve().parents[2] / "docs/producing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [
    {f"visitor-{key}": [b"%d" % n for n in range(key, 1_000, 50)] for key in range(50)},
    {"ada": [b"looked", b"bought", b"left"]},
    {"shop": [b"3 left in stock"]},
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


def test_the_page_has_each_setting_with_its_default_and_no_count_that_is_not_there():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    settings = ProducerSettings()
    for field in fields(settings):
        number, _, unit = rows[field.name].strip().partition(" ")
        value = getattr(settings, field.name)
        if isinstance(value, int):
            told = int(number.replace(",", "")) * (1 << 20 if unit == "MiB" else 1)
            assert told == value, field.name
    assert set(re.findall(r"counts\.(\w+)", PAGE)) <= {
        field.name for field in fields(ProducerCounts)
    }
