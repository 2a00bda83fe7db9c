"""
What a Python worker keeps between tasks: clients, threads and a producer for each sink.

Spark uses its Python workers again, for the tasks of later micro-batches too. A producer that is
kept knows the shards and how fast each of them may be written to; a new one would have to learn
both again in every task. A worker runs one task at a time, so nothing here is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.stream.shards import Shard
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings, ShardAnswer

if TYPE_CHECKING:
    from shardfleet_spark.options.sink_options import SinkOptions

PUT_AT_ONCE = 500
"""Records handed to the producer in one call, which waits while too much is on its way."""

_CONNECTIONS = 8
_CLOSE_MS = 1_000  # A request that hangs is not waited for any longer.


def open_shards(options: SinkOptions) -> list[Shard]:
    """
    Return the stream's open shards in the order of their hash keys.

    Raises:
        ConfigurationError: no region is known, or there is no such stream.

    """
    clients = _clients(options)
    stream_arn = clients.stream_arn(options.stream)
    found = [each for each in list_shards(clients.stream_control, stream_arn) if each.is_open]
    return sorted(found, key=lambda shard: shard.hash_key_range.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """
    What one call of :meth:`SinkSession.send` went through.

    Attributes:
        rows: accepted by the stream.
        requests: PutRecords calls.
        refused: entries that the stream refused and that were sent again.
        unanswered: requests of unknown outcome; their records may be there twice.
        batch_size: smallest batch that flow control came to; 0 when nothing was sent.
        pause_ms: longest pause that it came to.

    """

    rows: int = 0
    requests: int = 0
    refused: int = 0
    unanswered: int = 0
    batch_size: int = 0
    pause_ms: int = 0


def settings_of(options: SinkOptions) -> ProducerSettings:
    """Return what the options say about sending."""
    return ProducerSettings(
        aggregate_bytes=min(options.aggregate_size_bytes, options.max_record_size_bytes),
        aggregate_records=options.aggregate_records,
        record_bytes=options.max_record_size_bytes,
        give_up_ms=options.give_up_after_ms,
    )


class SinkSession:
    """
    A producer and the event loop that runs it.

    Args:
        options: of the sink.

    Attributes:
        answers: what the last call of :meth:`send` heard of each shard.

    """

    def __init__(self, options: SinkOptions) -> None:
        clients = _clients(options)
        self._aggregate = options.aggregate
        self._runner = asyncio.Runner()
        self.answers: list[ShardAnswer] = []
        self._pool = ThreadPool("sink", threads=_CONNECTIONS)
        writer = KinesisWriter(
            clients.stream_arn(options.stream),
            records=clients.stream_records,
            control=clients.stream_control,
            pool=self._pool,
        )
        self._producer = Producer(
            writer,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            settings=settings_of(options),
            observe=self.answers.append,
        )

    def send(self, records: Iterator[OutgoingRecord]) -> Sent:
        """
        Send records in their order and wait until the stream has accepted all of them.

        Raises:
            Throttled: still refused after ``giveUpAfter``.
            StreamGone: there is no such stream (any more).

        """
        before = replace(self._producer.counts)
        self.answers.clear()
        rows = self._runner.run(self._send(records))
        now = self._producer.counts
        return Sent(
            rows=rows,
            requests=now.requests - before.requests,
            refused=now.refused - before.refused,
            unanswered=now.unanswered - before.unanswered,
            batch_size=min((each.batch for each in self.answers), default=0),
            pause_ms=max((each.pause_ms for each in self.answers), default=0),
        )

    def close(self) -> None:
        """Give up what the producer still holds, and leave neither task nor thread."""
        self._runner.run(self._pool.close(within_ms=_CLOSE_MS))
        self._runner.close()

    async def _send(self, records: Iterator[OutgoingRecord]) -> int:
        rows = 0
        while chunk := list(islice(records, PUT_AT_ONCE)):
            await self._producer.put(*chunk, aggregate=self._aggregate)
            rows += len(chunk)
        await self._producer.flush()
        return rows


@lru_cache(maxsize=8)
def session_of(options: SinkOptions) -> SinkSession:
    """Return this worker's session of a sink, made when first asked for."""
    return SinkSession(options)


def send(records: Iterator[OutgoingRecord], options: SinkOptions) -> Sent:
    """
    Send records through this worker's session of a sink.

    Raises:
        Throttled, StreamGone: as :meth:`SinkSession.send`; the session is given up then, with
            what its producer still held.

    """
    session = session_of(options)
    try:
        return session.send(records)
    except BaseException:
        session_of.cache_clear()
        session.close()
        raise


def _clients(options: SinkOptions) -> AccountClients:
    access = Access(**options.access, connections=_CONNECTIONS)
    return AccountClients(access, stream=options.stream)
