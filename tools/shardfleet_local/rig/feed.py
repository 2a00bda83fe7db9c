"""A steady feed: records in, a third of them aggregated, and a note of where each one went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardfleet.adapters.clients.aws_clients import client_config
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import Clock
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import MAX_RECORD_BYTES, STREAM_RECORD_BYTES
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import (
    ProducerCounts,
    ProducerSettings,
    Receipt,
)
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.rig.probe.ledger_probe import digest

TICK_MS = 200
"""How often the feed sends what has become due."""

AGGREGATED_ONE_IN = 3
"""The first third of each tick is sent aggregated, the rest plain: so a key has both kinds."""

_SEND_TIMEOUT_S = 20.0


class InputRecord(NamedTuple):
    """
    One record to feed.

    Attributes:
        number: its line in the input, from 1; its identity.
        key: partition key.
        data: payload.

    """

    number: int
    key: str
    data: bytes


class SentRecord(NamedTuple):
    """
    One record that the stream has accepted.

    Attributes:
        number: its identity.
        key: partition key.
        digest: of key and payload, to compare with the ledger's.
        receipt: where it went.
        sent_ms: when it was accepted, epoch milliseconds.

    """

    number: int
    key: str
    digest: str
    receipt: Receipt
    sent_ms: int


@dataclass(frozen=True, slots=True)
class FeedPace:
    """
    How fast to feed.

    Attributes:
        duration_ms: all records are spread evenly over this time; 0 feeds without a pause.
        tick_records: without a pause, so many records are sent at once.

    """

    duration_ms: int
    tick_records: int = 1_000


async def feed(
    records: Sequence[InputRecord],
    producer: Producer,
    *,
    pace: FeedPace,
    clock: Clock,
    on_sent: Callable[[Sequence[SentRecord]], None] = lambda _: None,
) -> list[SentRecord]:
    """
    Feed records in their order at a steady pace.

    Falls behind the pace while the stream refuses, and then catches up.

    Args:
        records: what to feed.
        producer: the way into the stream.
        pace: how fast.
        clock: for the pace.
        on_sent: called after each tick with what the stream has accepted in it.

    Raises:
        Throttled, StreamGone, InvalidRecord: as `Producer.send`.

    """
    began_ms = clock.monotonic_ms()
    sent: list[SentRecord] = []
    tick = 0
    while len(sent) < len(records):
        due = _due(len(records), clock.monotonic_ms() - began_ms, pace=pace, sent=len(sent))
        chunk = records[len(sent) : due]
        if chunk:
            outgoing = [OutgoingRecord(each.key, each.data) for each in chunk]
            cut = len(chunk) // AGGREGATED_ONE_IN
            receipts = await producer.send(outgoing[:cut], aggregate=True)
            receipts += await producer.send(outgoing[cut:])
            now_ms = clock.now_ms()
            accepted = [
                SentRecord(each.number, each.key, digest(each.key, each.data), receipt, now_ms)
                for each, receipt in zip(chunk, receipts, strict=True)
            ]
            sent += accepted
            on_sent(accepted)
        tick += 1
        if pace.duration_ms:
            await clock.sleep_ms(max(0, began_ms + tick * TICK_MS - clock.monotonic_ms()))
    return sent


def _due(total: int, elapsed_ms: int, *, pace: FeedPace, sent: int) -> int:
    if not pace.duration_ms:
        return min(total, sent + pace.tick_records)
    return min(total, total * (elapsed_ms + TICK_MS) // pace.duration_ms)


async def feed_stream(
    records: Sequence[InputRecord],
    aws: EmbeddedAws,
    *,
    stream_arn: str,
    pace: FeedPace,
    on_sent: Callable[[Sequence[SentRecord]], None] = lambda _: None,
) -> tuple[list[SentRecord], ProducerCounts]:
    """
    Feed a stream of the embedded AWS, which is told first to take the largest record; see `feed`.

    Returns:
        What was sent, and what the producer went through.

    """
    pool = ThreadPool("feed", threads=2)
    once = client_config(2, attempts=1, read_timeout_s=_SEND_TIMEOUT_S)
    writer = KinesisWriter(
        stream_arn,
        records=aws.client("kinesis", once),
        control=aws.client("kinesis"),
        pool=pool,
    )
    most = await asyncio.to_thread(_let_in, records, aws, stream_arn)
    producer = Producer(
        writer,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        settings=ProducerSettings(record_bytes=most),
    )
    try:
        sent = await feed(records, producer, pace=pace, clock=SystemClock(), on_sent=on_sent)
    finally:
        await pool.close(within_ms=1000 * _SEND_TIMEOUT_S)
    return sent, producer.counts


def _let_in(records: Sequence[InputRecord], aws: EmbeddedAws, stream_arn: str) -> int:
    """Let the stream take the largest record; return the bytes of one that it takes then."""
    if all(len(each.data) + len(each.key.encode()) <= STREAM_RECORD_BYTES for each in records):
        return STREAM_RECORD_BYTES
    kinesis = aws.client("kinesis")
    kinesis.update_max_record_size(
        StreamARN=stream_arn, MaxRecordSizeInKiB=MAX_RECORD_BYTES // 1024
    )
    kinesis.get_waiter("stream_exists").wait(
        StreamARN=stream_arn, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
    )
    return MAX_RECORD_BYTES
