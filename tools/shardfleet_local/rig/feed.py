"""Records in, steadily, a third of them aggregated, and a note of where each one went."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from shardfleet.adapters.clients.aws_clients import client_config
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import Clock
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import MAX_RECORD_BYTES, STREAM_RECORD_BYTES
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerCounts, ProducerSettings, Receipt
from shardfleet_local.aws.deploy import DeployTarget
from shardfleet_local.rig.probe.ledger_probe import digest

TICK_MS = 200
"""How often the feed sends what has become due."""

AGGREGATED_ONE_IN = 3
"""The first third of each tick is sent aggregated, the rest plain: so a key has both kinds."""

AT_ONCE = 500
"""Records that are sent together where there is no pace."""

KEYS = 200
"""Of what a `Feeder` makes up."""

_PIECE_MS = 1_000
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


async def feed(
    records: Sequence[InputRecord],
    producer: Producer,
    *,
    duration_ms: int,
    clock: Clock,
    on_sent: Callable[[Sequence[SentRecord]], None] = lambda _: None,
) -> list[SentRecord]:
    """
    Feed records in their order at a steady pace.

    Falls behind the pace while the stream refuses, and then catches up.

    Args:
        records: what to feed.
        producer: the way into the stream.
        duration_ms: all records are spread evenly over this time; 0 feeds without a pause.
        clock: for the pace.
        on_sent: called after each tick with what the stream has accepted in it.

    Raises:
        Throttled, StreamGone, InvalidRecord: as `Producer.send`.

    """
    began_ms = clock.monotonic_ms()
    sent: list[SentRecord] = []
    for tick in itertools.count(1):
        elapsed_ms = clock.monotonic_ms() - began_ms
        due = len(sent) + AT_ONCE
        if duration_ms:
            due = len(records) * (elapsed_ms + TICK_MS) // duration_ms
        if chunk := records[len(sent) : due]:
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
        if duration_ms:
            await clock.sleep_ms(max(0, began_ms + tick * TICK_MS - clock.monotonic_ms()))
        if len(sent) == len(records):
            break
    return sent


@asynccontextmanager
async def opened_producer(
    account: DeployTarget, stream_arn: str, *, record_bytes: int = STREAM_RECORD_BYTES
) -> AsyncIterator[Producer]:
    """Open a producer for a stream; its threads end with the block."""
    pool = ThreadPool("feed", threads=2)
    once = client_config(2, attempts=1, read_timeout_s=_SEND_TIMEOUT_S)
    writer = KinesisWriter(
        stream_arn,
        records=account.client("kinesis", once),
        control=account.client("kinesis"),
        pool=pool,
    )
    settings = ProducerSettings(record_bytes=record_bytes)
    try:
        yield Producer(writer, clock=SystemClock(), entropy=SystemEntropy(), settings=settings)
    finally:
        await pool.close(within_ms=1000 * _SEND_TIMEOUT_S)


async def feed_stream(
    records: Sequence[InputRecord],
    account: DeployTarget,
    *,
    stream_arn: str,
    duration_ms: int,
    on_sent: Callable[[Sequence[SentRecord]], None] = lambda _: None,
) -> tuple[list[SentRecord], ProducerCounts]:
    """
    Feed a stream, which is told first to take the largest record; see `feed`.

    Returns:
        What was sent, and what the producer went through.

    """
    most = await asyncio.to_thread(_let_in, records, account, stream_arn)
    async with opened_producer(account, stream_arn, record_bytes=most) as producer:
        sent = await feed(
            records, producer, duration_ms=duration_ms, clock=SystemClock(), on_sent=on_sent
        )
        return sent, producer.counts


def _let_in(records: Sequence[InputRecord], account: DeployTarget, stream_arn: str) -> int:
    """Let the stream take the largest record; return the bytes of one that it takes then."""
    if all(len(each.data) + len(each.key.encode()) <= STREAM_RECORD_BYTES for each in records):
        return STREAM_RECORD_BYTES
    kinesis = account.client("kinesis")
    kinesis.update_max_record_size(
        StreamARN=stream_arn, MaxRecordSizeInKiB=MAX_RECORD_BYTES // 1024
    )
    kinesis.get_waiter("stream_exists").wait(
        StreamARN=stream_arn, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
    )
    return MAX_RECORD_BYTES


@dataclass(slots=True)
class Feeder:
    """
    Feeds a stream while it runs; numbers its records from 1.

    Attributes:
        account: where the stream is.
        stream_arn: the stream.
        per_s: records a second.
        sent: what the stream has accepted.
        is_quiet: whether nothing is sent for now.

    """

    account: DeployTarget
    stream_arn: str
    per_s: int
    sent: list[SentRecord] = field(default_factory=list)
    is_quiet: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _first: list[InputRecord] = field(default_factory=list)

    async def run(self) -> None:
        """
        Send until cancelled.

        Raises:
            Throttled, StreamGone: as `Producer.send`.

        """
        async with opened_producer(self.account, self.stream_arn) as producer:
            while True:
                first, self._first = self._first, []
                clicks = self._clicks(0 if self.is_quiet else self.per_s)
                await self._send(producer, first + clicks, _PIECE_MS)

    async def top_up(self, records: int) -> None:
        """
        Send without a pause until so many records have been sent in all.

        Raises:
            Throttled, StreamGone: as `Producer.send`.

        """
        async with opened_producer(self.account, self.stream_arn) as producer:
            await self._send(producer, self._clicks(records - len(self.sent)), 0)

    def hang(self, token: str) -> None:
        """Send a record that makes its handler hang, once."""
        self._first.append(self._record({"hang": token}))

    async def _send(
        self, producer: Producer, records: Sequence[InputRecord], duration_ms: int
    ) -> None:
        clock = SystemClock()
        await feed(
            records, producer, duration_ms=duration_ms, clock=clock, on_sent=self.sent.extend
        )

    def _clicks(self, count: int) -> list[InputRecord]:
        return [self._record({"click": number}) for number in range(count)]

    def _record(self, content: dict[str, object]) -> InputRecord:
        number = next(self._numbers)
        data = json.dumps({**content, "number": number}).encode()
        return InputRecord(number, f"visitor-{number % KEYS}", data)
