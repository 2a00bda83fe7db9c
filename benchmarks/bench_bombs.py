"""
What does a stream record cost that was made to cost as much as possible?

An aggregate of 1 MiB whose one partition key is 512 KiB long and is used by as many records as the
rest has room for, against a sound aggregate of the same size with records of 100 B. Both take the
way of a worker (user records, and the event that a Lambda-style handler gets), and that of Spark
(Arrow batches). A ratio is the sound record's time over the other's; the gate is a twentieth: 20
times as dear, and no more.

    python benchmarks/bench_bombs.py [--only bomb_in_worker] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import side_by_side
from side_by_side import Contest

from shardfleet.kpl.content import at_once
from shardfleet.kpl.deaggregate import ExpansionLimits, Origin, records_in_steps
from shardfleet.kpl.hash_keys import MAX_HASH_KEY
from shardfleet.kpl.packing import OutgoingRecord, varint
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import Batch, StreamRecord
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from shardfleet_spark.read.arrow import Rows, batches_of

MOST_BYTES = 1024 * 1024  # Kinesis: of a record, if nobody asked for more
KEY_BYTES = MOST_BYTES // 2
MAGIC = b"\xf3\x89\x9a\xc2"
GATE = 1 / 20
ALL_HASHES = (0, MAX_HASH_KEY)
ORIGIN = Origin("7", "shardId-000000000000", 1_000, None)
SOURCE = EventSource.of(
    "arn:aws:kinesis:us-east-1:000000000000:stream/bench",
    function_arn="arn:aws:lambda:us-east-1:000000000000:function:bench",
)


def bomb() -> bytes:
    """Return an aggregate with one long key, used by as many empty records as there is room for."""
    key = "ä".encode() * (KEY_BYTES // 2)
    table = b"\x0a" + varint(len(key)) + key
    record = b"\x08\x00\x1a\x00"
    one = b"\x1a" + varint(len(record)) + record
    room = MOST_BYTES - len(MAGIC) - len(table) - hashlib.md5(usedforsecurity=False).digest_size
    body = table + one * (room // len(one))
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def sound() -> bytes:
    """Return an aggregate of records of 100 B of many users, nearly as large."""
    chance = random.Random(1)
    users = [
        OutgoingRecord(f"user-{chance.randrange(10**5):05d}", chance.randbytes(100))
        for _ in range(8_700)
    ]
    data = aggregate(users)
    assert MOST_BYTES * 0.9 < len(data) <= MOST_BYTES
    return data


def in_worker(data: bytes) -> int:
    found = at_once(
        records_in_steps(
            data,
            partition_key="outer",
            origin=ORIGIN,
            limits=ExpansionLimits(),
            hash_range=ALL_HASHES,
            policy="deliver",
        )
    )
    return told(found.records)


def told(records: Sequence[Any]) -> int:
    """Return how many records the event of a Lambda-style handler has."""
    batch = Batch(
        records,
        shard_id=ORIGIN.shard_id,
        stream_arn=SOURCE.stream_arn,
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=0,
    )
    return len(kinesis_event(batch, SOURCE)["Records"])


def in_spark(data: bytes) -> int:
    record = StreamRecord(data, "outer", "7", 1_000)
    rows = Rows(shard_id=ORIGIN.shard_id, stream="bench")
    batches: Sequence[pa.RecordBatch] = list(batches_of([([record], rows)]))
    return sum(batch.num_rows for batch in batches)


def kept_whole(ours: int, peer: int) -> None:
    """A record that would become too large is delivered as it is; the sound one in parts."""
    assert (ours, peer) == (1, 8_700)


def contests() -> Iterator[Contest]:
    ways: dict[str, Callable[[bytes], int]] = {
        "bomb_in_worker": in_worker,
        "bomb_in_spark": in_spark,
    }
    dear, plain = bomb(), sound()
    for name, way in ways.items():
        yield Contest(
            name=name,
            compares="an aggregate of 1 MiB with a key of 512 KiB -> records",
            ours=partial(way, dear),
            peer=partial(way, plain),
            peer_name="8,700 records of 100 B",
            check=kept_whole,
            gate=GATE,
            unit_bytes=MOST_BYTES,
        )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
