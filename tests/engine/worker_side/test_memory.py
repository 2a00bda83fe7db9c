"""
The memory of a worker turn is bounded: one page per shard, and the batches that handlers have.

No page is read ahead, so a shard has at most one in memory: the data of one GetRecords answer
(10 MiB, Kinesis quota). Objects are made for a batch at a time, when the handler is about to get
it. Here the handler is stuck until every shard has its page, which is the worst that can be, and
what it makes of its batch counts, too: the event of Lambda with the data in base64, or a copy.
"""

import base64
import gc
import json
import tracemalloc

import pytest

from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, key

SHARDS = 16
MIB = 1024 * 1024
# Beside the pages and batches: the body that is being decoded, the lists, the test itself.
BESIDE = 12 * MIB
# Bytes of memory per byte of a page's data.
PAGE = 1.05
BATCH_RECORDS, BATCH_BYTES = 1_000, MIB
# Bytes beside the data for each record of a batch: as an object, and in an event of Lambda.
OBJECT, EVENT = 250, 1_100
# Bytes per byte of a batch's data: a copy; base64 in an event.
COPY, BASE64 = 1.05, 1.4
SOURCE = EventSource.of("arn:aws:kinesis:eu-west-1:1:stream/s", function_arn="-")


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
    answer = {"Records": records, "NextShardIterator": page.resume_token}
    return json.dumps(answer | {"MillisBehindLatest": 1}, separators=(",", ":")).encode()


def peak_of_a_turn(data, per_page, *, made_of, overlaps):
    """Read pages of these records on all shards while the handler waits; return bytes, pages."""
    seen = {"pages": 0, "calls": 0}

    async def scenario():
        async def stuck(batch):
            seen["calls"] += 1
            kept = made_of(batch)
            await world.clock.sleep_ms(30_000)
            del kept

        world = World(
            shards=SHARDS,
            script=stuck,
            overlaps=overlaps,
            records_per_read=per_page,
            leases_per_worker=SHARDS,
            max_batch_records=BATCH_RECORDS,
            max_batch_bytes=BATCH_BYTES,
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

    return run_virtual(scenario()), seen["pages"], seen["calls"]


LARGE = [b"x" * 10_000] * 400
SMALL = [
    aggregate([OutgoingRecord(f"user-{n}-{m}", b"x" * 100) for n in range(270)]) for m in range(40)
]
HANDLERS = {
    "copies, one at a time": (lambda batch: [bytearray(r.data) for r in batch], COPY, OBJECT),
    "events, one at a time": (lambda batch: kinesis_event(batch, SOURCE), BASE64, OBJECT + EVENT),
    "copies of all shards": (lambda batch: [bytearray(r.data) for r in batch], COPY, OBJECT),
    "events of all shards": (lambda batch: kinesis_event(batch, SOURCE), BASE64, OBJECT + EVENT),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])
def test_a_turn_on_16_full_shards_holds_one_page_of_each_and_the_batches(data, handler):
    made_of, per_byte, per_record = HANDLERS[handler]
    overlaps = handler.endswith("of all shards")
    peak, pages, calls = peak_of_a_turn(data, len(data), made_of=made_of, overlaps=overlaps)
    assert pages >= SHARDS, "each shard had a page"
    assert calls >= (SHARDS if overlaps else 1)

    users = len(data) if data is LARGE else 270 * len(data)
    batch_records = min(BATCH_RECORDS, users)
    batch_bytes = min(BATCH_BYTES, batch_records * 10_000 if data is LARGE else batch_records * 100)
    # Every shard has the objects of its next batch waiting; handlers make something of some.
    waiting = SHARDS * (batch_records * OBJECT + (0 if data is LARGE else batch_bytes))
    at_once = SHARDS if overlaps else 1
    handled = at_once * (batch_bytes * per_byte + batch_records * per_record)
    most = SHARDS * sum(map(len, data)) * PAGE + waiting + handled + BESIDE
    assert peak <= most, f"{peak / MIB:.0f} MiB, {most / MIB:.0f} MiB are allowed"
    # And the bound says something: most of it is used.
    assert peak >= most * 0.6, f"{peak / MIB:.0f} MiB, {most / MIB:.0f} MiB are allowed"


def test_decoding_an_answer_takes_its_data_once_more_and_little_else():
    records = [
        {
            "SequenceNumber": str(10**55 + n),
            "Data": base64.b64encode(b"x" * 10_000).decode(),
            "PartitionKey": "k",
        }
        for n in range(400)
    ]
    body = json.dumps({"Records": records, "NextShardIterator": "-"}, separators=(",", ":"))
    encoded = body.encode()
    del body, records
    gc.collect()
    tracemalloc.start()
    try:
        page = decode_page(encoded)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(page.records) == 400
    assert peak <= 400 * 10_000 * PAGE + MIB, f"{peak / MIB:.1f} MiB"
