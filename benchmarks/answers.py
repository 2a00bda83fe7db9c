"""
Four GetRecords answers, each near the 10 MiB that one may hold, for the benchmarks of reading.

a: 1,000 records of 10 KiB; b: 10,000 of 1 KiB; c: 310 KPL aggregates of 270 user records of about
100 B, most keys new; d: 200 aggregates of 48 user records of about 1 KiB.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Sequence

from bench_aggregate import large_records, ours, small_records
from botocore.parsers import create_parser
from botocore.session import get_session

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.engine.shard.deaggregation import Deaggregator, UserRecords
from shardfleet.engine.shard.dispatch import cut_batch
from shardfleet.events.base import Event
from shardfleet.records import Record

SHARD = "shardId-000000000000"
CONFIG = FleetConfig(fleet="bench", stream_arn="-", lease_table="-", state_table="-")
LOADS = ("a", "b", "c", "d")
_FIRST_MS = 1_750_000_000_000


class NoEvents:
    """An event sink that drops everything."""

    def emit(self, event: Event) -> None:
        """Drop the event."""


def payloads(load: str) -> Sequence[bytes]:
    """Return the data of the stream records of a load."""
    chance = random.Random(load)
    match load:
        case "a":
            return [chance.randbytes(10 * 1024) for _ in range(1_000)]
        case "b":
            return [chance.randbytes(1024) for _ in range(10_000)]
        case "c":
            return ours(small_records())
        case _:
            return ours(large_records())


def body_of(data: Sequence[bytes]) -> bytes:
    """Return the body as Kinesis writes it: compact JSON."""
    records = [
        {
            "ApproximateArrivalTimestamp": (_FIRST_MS + 3 * index) / 1000,
            "Data": base64.b64encode(each).decode(),
            "EncryptionType": "KMS",
            "PartitionKey": f"key-{index % 997}",
            "SequenceNumber": str(49_590_338_271_490_256_608_559_692_538_361_571_095 + index),
        }
        for index, each in enumerate(data)
    ]
    answer = {"MillisBehindLatest": 0, "NextShardIterator": "A" * 200, "Records": records}
    return json.dumps(answer, separators=(",", ":")).encode()


_LOOP = asyncio.new_event_loop()
_DEAGGREGATOR = Deaggregator(
    ShardRef(CONFIG.stream_arn, SHARD), None, config=CONFIG, sink=NoEvents()
)


def user_records(page: RecordsPage) -> Sequence[Record]:
    """Return the user records of a page."""
    return _LOOP.run_until_complete(UserRecords(page.records, None, _DEAGGREGATOR).waiting(1 << 30))


def count_delivered(page: RecordsPage) -> int:
    """Make the user records of a page as the worker does, batch by batch, and count them."""
    return _LOOP.run_until_complete(_delivered(UserRecords(page.records, None, _DEAGGREGATOR)))


async def _delivered(records: UserRecords) -> int:
    count = 0
    while waiting := await records.waiting(CONFIG.max_batch_records):
        batch = cut_batch(
            waiting,
            records_most=CONFIG.max_batch_records,
            bytes_most=CONFIG.max_batch_bytes,
        )
        count += len(batch)
        records.drop(len(batch))
    return count


class BotocoreParser:
    """What boto3 does with the body of an answer."""

    def __init__(self) -> None:
        """Load the model of Kinesis."""
        model = get_session().get_service_model("kinesis").operation_model("GetRecords")
        assert model.output_shape is not None
        self._shape, self._parser = model.output_shape, create_parser("json")

    def __call__(self, body: bytes) -> dict[str, object]:
        """Return the answer as a caller of `get_records` gets it."""
        response = {"body": body, "headers": {}, "status_code": 200}
        found: dict[str, object] = self._parser.parse(response, self._shape)
        return found
