"""
What does it cost to bring user records to a stream through `Producer`, call by call?

10 MB of records of about 100 B, and of about 1 KiB, of 200 and of 100,000 keys, go to a stream of
four shards on a TLS server on this machine; only the client's CPU time counts. Ours is the whole
production path: `Producer.put` with 500 records a call, order per key, routing, flow control,
aggregates, `KinesisWriter` with its own wire, and `flush`. The producer lives on from round to
round, as it does in production, and knows shards and keys as far as it remembers them; `_new` is a
contest whose producer is made anew in each round and has met no key before. The peer is
aws-kinesis-agg's aggregator of 51,200 B, with boto3's `put_records` for each 10 MB or 500 entries.
It neither knows shards nor keeps order when entries are refused.

`_one` are contests at one record a call, as the first examples of docs/producing.md put them: by
`open_producer` in an event loop that goes on from round to round, and by `BlockingProducer`. The
peer takes its records one by one anyway.

Before it is timed, aws-kinesis-agg takes apart what was sent: each record once, each key in its
order.

    python benchmarks/bench_producer.py [--only producer_100b_many] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import side_by_side
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from mypy_boto3_kinesis.client import KinesisClient
from side_by_side import Contest
from tls_server import boto3_and_wire, serving

from shardfleet.adapters.kinesis.wire import KinesisWire
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.blocking import BlockingProducer
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.open import open_producer
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
CALL = 500
AGGREGATE_BYTES = 51_200
REQUEST_BYTES = 10_000_000
ENTRIES = 500
LOADS = (
    ("producer_100b_few", 100, 200, 2.2, 3.0),
    ("producer_100b_many", 100, 100_000, 1.9, 3.0),
    ("producer_1k_few", 1_024, 200, 1.5, 2.0),
    ("producer_1k_many", 1_024, 100_000, 1.9, 2.0),
)
SMALL = 100
# Size of a record, and the least ratio at one record a call.
SINGLES = ((SMALL, 1.0), (1_024, 1.3))
PLENTY = 1 << 40
SETTINGS = ProducerSettings(shard_records_per_s=PLENTY, shard_bytes_per_s=PLENTY)
"""The pace of a shard would make both wait; neither has one here."""

Sent = list[tuple[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Both ways to the server: boto3's client, and our wire with it for ListShards."""

    client: KinesisClient
    wire: KinesisWire

    def writer(self, pool: ThreadPool) -> KinesisWriter:
        """Return the production writer."""
        return KinesisWriter(
            ARN, records=self.client, control=self.client, pool=pool, wire=lambda: self.wire
        )


def records_of(*, size: int, keys: int, total_bytes: int = 10_000_000) -> list[OutgoingRecord]:
    """Return records of about a size, a fifth more or less, of so many keys drawn by chance."""
    chance = random.Random(size + keys)
    return [
        OutgoingRecord(
            f"user-{chance.randrange(keys):06d}",
            chance.randbytes(chance.randint(size * 4 // 5, size * 6 // 5)),
        )
        for _ in range(total_bytes // size)
    ]


class Recording(KinesisWriter):
    """The production writer, which also keeps what it sent."""

    sent: Sent

    async def put_records(self, entries: Sequence[OutgoingRecord]) -> Sequence[PutOutcome]:
        """Send, and keep the entries."""
        self.sent += [(entry.partition_key, entry.data) for entry in entries]
        return await super().put_records(entries)


async def produce_one_by_one(producer: Producer, records: Sequence[OutgoingRecord]) -> int:
    """Put everything, a record a call; return how many more the stream has accepted."""
    before = producer.counts.accepted
    for record in records:
        await producer.put(record, aggregate=True)
    await producer.flush()
    return producer.counts.accepted - before


def block_one_by_one(producer: BlockingProducer, records: Sequence[OutgoingRecord]) -> int:
    """Do the same without an event loop."""
    before = producer.counts.accepted
    for record in records:
        producer.put(record, aggregate=True)
    producer.flush()
    return producer.counts.accepted - before


async def produce(producer: Producer, records: Sequence[OutgoingRecord]) -> int:
    """Put everything; return how many more the stream has accepted."""
    before = producer.counts.accepted
    for start in range(0, len(records), CALL):
        await producer.put(*records[start : start + CALL], aggregate=True)
    await producer.flush()
    return producer.counts.accepted - before


def producer_of(writer: KinesisWriter) -> Producer:
    """Return a producer without a pace."""
    return Producer(writer, clock=SystemClock(), entropy=SystemEntropy(), settings=SETTINGS)


def ours(records: Sequence[OutgoingRecord], producer: Producer) -> int:
    """Send all in an event loop of their own."""
    return asyncio.run(produce(producer, records))


def theirs(records: Sequence[OutgoingRecord], client: KinesisClient) -> int:
    """Pack with aws-kinesis-agg, send by boto3."""
    return sum(count for _, count in _theirs(records, client))


def _theirs(records: Sequence[OutgoingRecord], client: KinesisClient) -> Iterator[tuple[Sent, int]]:
    aggregator = RecordAggregator(AGGREGATE_BYTES)
    entries: Sent = []
    waiting = count = 0

    def send() -> tuple[Sent, int]:
        answer = client.put_records(
            StreamARN=ARN,
            Records=[{"Data": data, "PartitionKey": key} for key, data in entries],
        )
        assert answer["FailedRecordCount"] == 0
        return entries, count

    def full() -> bool:
        return len(entries) == ENTRIES or waiting + AGGREGATE_BYTES > REQUEST_BYTES

    for record in records:
        finished = aggregator.add_user_record(record.partition_key, record.data)
        if finished:
            entries.append(_contents(finished))
            count += finished.get_num_user_records()
            waiting += len(entries[-1][1])
            if full():
                yield send()
                entries, waiting, count = [], 0, 0
    last = aggregator.clear_and_get()
    if last:
        entries.append(_contents(last))
        count += last.get_num_user_records()
    if entries:
        yield send()


def _contents(finished: Any) -> tuple[str, bytes]:
    key, _, data = finished.get_contents()
    return key, data


def judged(records: Sequence[OutgoingRecord], endpoint: Endpoint) -> None:
    """Let the peer say whether each record was sent once, in the order of its key."""

    async def main() -> Sent:
        pool = ThreadPool("streams", threads=4)
        writer = Recording(
            ARN,
            records=endpoint.client,
            control=endpoint.client,
            pool=pool,
            wire=lambda: endpoint.wire,
        )
        writer.sent = []
        await produce(producer_of(writer), records)
        await pool.close(within_ms=10_000)
        return writer.sent

    expected = _by_key((each.partition_key, each.data) for each in records)
    assert _by_key(_user_records(asyncio.run(main()))) == expected, "records differ"
    peer = [entry for sent, _ in _theirs(records, endpoint.client) for entry in sent]
    assert _by_key(_user_records(peer)) == expected, "the peer's records differ"


def _user_records(sent: Sent) -> Iterator[tuple[str, bytes]]:
    for number, (key, data) in enumerate(sent):
        record = {
            "kinesisSchemaVersion": "1.0",
            "sequenceNumber": str(number),
            "approximateArrivalTimestamp": 0,
            "partitionKey": key,
            "data": base64.b64encode(data),
        }
        for found in iter_deaggregate_records([{"kinesis": record}]):
            yield found["kinesis"]["partitionKey"], base64.b64decode(found["kinesis"]["data"])


def _by_key(records: Iterator[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for key, data in records:
        found[key].append(data)
    return found


def equal(mine: int, other: int) -> None:
    """Compare how many records were accepted."""
    assert mine == other, f"{mine} records accepted, the peer had {other}"


def contest(
    name: str,
    records: Sequence[OutgoingRecord],
    client: KinesisClient,
    ours_by: Producer | KinesisWriter,
    *,
    gate: float | None = None,
    goal: float | None = None,
) -> Contest:
    """Return the contest of one load; a new producer each round, given a writer."""

    def made() -> Producer:
        return ours_by if isinstance(ours_by, Producer) else producer_of(ours_by)

    bytes_of_all = sum(len(record.data) for record in records)
    keys = len({record.partition_key for record in records})
    return Contest(
        name=name,
        compares=f"`Producer.put`, {bytes_of_all // len(records):,} B, {keys:,} keys, 4 shards",
        ours=lambda: ours(records, made()),
        peer=partial(theirs, records, client),
        peer_name="aws-kinesis-agg + boto3",
        check=equal,
        gate=gate,
        goal=goal,
        time_goes_to="packing, MD5 of aggregates, SHA-256 of bodies, TLS; then checks and routing.",
        unit_bytes=bytes_of_all,
    )


@contextmanager
def one_by_one(address: str) -> Iterator[dict[str, Callable[[Sequence[OutgoingRecord]], int]]]:
    """Open both producers, and yield how each puts records one by one, by a contest's name."""
    opened = partial(open_producer, ARN, endpoint=address, settings=SETTINGS)
    with asyncio.Runner() as runner, BlockingProducer(opened) as blocking:
        context = opened()
        producer = runner.run(context.__aenter__())
        yield {
            "one": lambda records: runner.run(produce_one_by_one(producer, records)),
            "blocking_one": lambda records: block_one_by_one(blocking, records),
        }
        runner.run(context.__aexit__(None, None, None))


def contests_one_by_one(client: KinesisClient, address: str) -> Iterator[Contest]:
    """Yield each load of singles."""
    with one_by_one(address) as ways:
        for kind, put in ways.items():
            for size, gate in SINGLES:
                records = records_of(size=size, keys=200)
                named = "Producer" if kind == "one" else "BlockingProducer"
                yield Contest(
                    name=f"producer_{'100b' if size == SMALL else '1k'}_{kind}",
                    compares=f"`{named}.put`, a record of {size:,} B a call, 200 keys, 4 shards",
                    ours=partial(put, records),
                    peer=partial(theirs, records, client),
                    peer_name="aws-kinesis-agg + boto3",
                    check=equal,
                    gate=gate,
                    goal=1.5,
                    time_goes_to="the call itself: a coroutine or a lock, and its check.",
                    unit_bytes=size * len(records),
                )


def contests() -> Iterator[Contest]:
    """Yield each load."""
    with serving() as (address, certificate):
        client, wire = boto3_and_wire(address, certificate, ARN)
        endpoint = Endpoint(client=client, wire=wire)
        pool = ThreadPool("streams", threads=4)
        writer = endpoint.writer(pool)
        for name, size, keys, gate, goal in LOADS:
            records = records_of(size=size, keys=keys)
            judged(records, endpoint)
            yield contest(name, records, client, producer_of(writer), gate=gate, goal=goal)
            if keys > CALL:
                yield contest(f"{name}_new", records, client, writer)
        asyncio.run(pool.close(within_ms=10_000))
        yield from contests_one_by_one(client, address)
        wire.close()


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
