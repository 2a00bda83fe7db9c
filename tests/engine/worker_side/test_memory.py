"""
The memory of a worker turn is bounded: one page per shard, whatever the stream has.

No page is read ahead, so a shard has at most one in memory: the data of one GetRecords answer
(10 MiB, Kinesis quota) and an object per user record. The handler is stuck until every shard has
its page, which is the worst that can be.
"""

import base64
import gc
import json
import tracemalloc

import pytest

from shardfleet.adapters.kinesis_decode import decode_page
from shardfleet.kpl.aggregate import OutgoingRecord, aggregate
from shardfleet.testing.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, key

SHARDS = 16
MIB = 1024 * 1024
# Beside the pages: the bodies that are being decoded, the lists, the test itself.
BESIDE = 16 * MIB
# Bytes of memory per byte of data: records of 10 KiB; user records of 100 bytes in aggregates.
LARGE, SMALL = 1.05, 3.2


def body_of(page):
    records = [
        {
            "SequenceNumber": record.sequence_number,
            "ApproximateArrivalTimestamp": record.approximate_arrival_ms / 1000,
            "Data": base64.b64encode(record.data).decode(),
            "PartitionKey": record.partition_key,
        }
        for record in page.records
    ]
    answer = {"Records": records, "NextShardIterator": page.next_iterator}
    return json.dumps(answer | {"MillisBehindLatest": 1}, separators=(",", ":")).encode()


def peak_of_a_turn(data, per_page):
    """Read pages of these records on all shards while the handler waits; return bytes, pages."""
    seen = {"pages": 0}

    async def scenario():
        world = World(
            shards=SHARDS,
            script=lambda batch: world.clock.sleep_ms(30_000),
            records_per_read=per_page,
            leases_per_worker=SHARDS,
            batch_bytes_most=MIB,
            handler_timeout_ms=40_000,
        )
        for number in range(SHARDS):
            for each in data * 3:
                world.stream.put(each, shard_id=key(number))

        def as_sent(shard_id, page):
            if page.records:
                seen["pages"] += 1
                return decode_page(body_of(page))
            return page

        world.stream.alter = as_sent
        gc.collect()
        tracemalloc.start()
        try:
            await world.turn(turn_ms=120_000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return run_virtual(scenario()), seen["pages"]


@pytest.mark.parametrize(
    ("data", "factor"),
    [
        ([b"x" * 10_000] * 400, LARGE),
        (
            [
                aggregate([OutgoingRecord(f"user-{n}-{m}", b"x" * 100) for n in range(270)])
                for m in range(40)
            ],
            SMALL,
        ),
    ],
    ids=["large", "small"],
)
def test_a_turn_on_16_full_shards_holds_one_page_of_each(data, factor):
    page_bytes = sum(map(len, data))
    peak, pages = peak_of_a_turn(data, len(data))
    assert pages >= SHARDS, "each shard had a page"
    most = SHARDS * page_bytes * factor + BESIDE
    assert peak <= most, f"{peak / MIB:.0f} MiB for pages of {SHARDS * page_bytes / MIB:.0f} MiB"
