"""Records in, at a steady pace, until told otherwise."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardfleet.adapters.clients.aws_clients import client_config
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet_local.acceptance.deployment import AcceptanceAccount
from shardfleet_local.rig.feed import FeedPace, InputRecord, SentRecord, feed

KEYS = 200
_PIECE_MS = 1_000
_SEND_TIMEOUT_S = 20.0
_AT_END = 500


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

    account: AcceptanceAccount
    stream_arn: str
    per_s: int
    sent: list[SentRecord] = field(default_factory=list)
    is_quiet: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _first: list[InputRecord] = field(default_factory=list)
    _ends: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """
        Send until `end`.

        Raises:
            Throttled, StreamGone: as `Producer.send`.

        """
        async with self._producer() as producer:
            while not self._ends.is_set():
                await self._send(producer, 0 if self.is_quiet else self.per_s, _PIECE_MS)

    async def top_up(self, records: int) -> None:
        """
        Send without a pause until so many records have been sent in all.

        Raises:
            Throttled, StreamGone: as `Producer.send`.

        """
        async with self._producer() as producer:
            await self._send(producer, records - len(self.sent), 0)

    def hang(self, token: str) -> None:
        """Send a record that makes its handler hang, once."""
        self._first.append(self._record({"hang": token}))

    def end(self) -> None:
        """Let `run` return after what it is sending."""
        self._ends.set()

    async def _send(self, producer: Producer, count: int, duration_ms: int) -> None:
        added, self._first = self._first, []
        records = added + [self._record({"click": number}) for number in range(count)]
        if not records:
            await SystemClock().sleep_ms(_PIECE_MS)
            return
        pace = FeedPace(duration_ms, tick_records=_AT_END)
        await feed(records, producer, pace=pace, clock=SystemClock(), on_sent=self.sent.extend)

    def _record(self, content: dict[str, object]) -> InputRecord:
        number = next(self._numbers)
        data = json.dumps({**content, "number": number}).encode()
        return InputRecord(number, f"visitor-{number % KEYS}", data)

    def _producer(self) -> _Opened:
        return _Opened(self.account, self.stream_arn)


class _Opened:
    """A producer, and the threads that it sends with."""

    def __init__(self, account: AcceptanceAccount, stream_arn: str) -> None:
        self._pool = ThreadPool("feed", threads=2)
        once = client_config(2, attempts=1, read_timeout_s=_SEND_TIMEOUT_S)
        writer = KinesisWriter(
            stream_arn,
            records=account.client("kinesis", once),
            control=account.client("kinesis"),
            pool=self._pool,
        )
        self._producer = Producer(writer, clock=SystemClock(), entropy=SystemEntropy())

    async def __aenter__(self) -> Producer:
        return self._producer

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close(within_ms=1000 * _SEND_TIMEOUT_S)
