"""
What a Python worker keeps between tasks: clients, threads and a producer for each sink.

Spark uses its Python workers again, for the tasks of later micro-batches too. A producer that is
kept knows the shards and how fast each of them may be written to; a new one would have to learn
both again in every task. A worker runs one task at a time, so nothing here is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from shardfleet.adapters.account_access import Access, AccountClients
from shardfleet.adapters.kinesis_shards import list_shards
from shardfleet.adapters.kinesis_writer import KinesisWriter
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.shards import Shard
from shardfleet.engine.producer import Producer, ProducerCounts, ProducerSettings
from shardfleet.kpl.aggregate import OutgoingRecord

if TYPE_CHECKING:
    from shardfleet_spark.sink_options import SinkOptions

SENT_AT_ONCE = 10_000
"""Records handed to the producer in one call: enough for several requests in flight."""

_CONNECTIONS = 8


def open_shards(options: SinkOptions) -> list[Shard]:
    """
    Return the stream's open shards in the order of their hash keys.

    Raises:
        ConfigurationError: no region is known, or there is no such stream.

    """
    clients = _clients(options)
    stream_arn = clients.stream_arn(options.stream)
    found = [each for each in list_shards(clients.stream_control(), stream_arn) if each.is_open]
    return sorted(found, key=lambda shard: shard.hash_key_range.start)


class SinkSession:
    """
    A producer and the event loop that runs it.

    Args:
        options: of the sink.

    """

    def __init__(self, options: SinkOptions) -> None:
        clients = _clients(options)
        self._aggregate = options.aggregate
        self._runner = asyncio.Runner()
        writer = KinesisWriter(
            clients.stream_arn(options.stream),
            records=clients.stream_records(),
            control=clients.stream_control(),
            pool=ThreadPool("sink", threads=_CONNECTIONS),
        )
        self.producer = Producer(
            writer,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            settings=ProducerSettings(
                aggregate_bytes=options.aggregate_size_bytes,
                aggregate_records=options.aggregate_records,
                give_up_ms=options.give_up_after_ms,
            ),
        )

    def send(self, records: Iterator[OutgoingRecord]) -> int:
        """
        Send records in their order and wait until the stream has accepted all of them.

        Returns:
            How many.

        Raises:
            Throttled: still refused after ``giveUpAfter``.
            StreamGone: there is no such stream (any more).

        """
        sent = 0
        chunk: list[OutgoingRecord] = []
        for record in records:
            chunk.append(record)
            if len(chunk) == SENT_AT_ONCE:
                sent += self._send(chunk)
                chunk = []
        return sent + self._send(chunk)

    def figures(self) -> ProducerCounts:
        """Return a copy of what the producer has gone through so far."""
        return replace(self.producer.counts)

    def _send(self, chunk: Sequence[OutgoingRecord]) -> int:
        if chunk:
            self._runner.run(self.producer.send(chunk, aggregate=self._aggregate))
        return len(chunk)


@lru_cache(maxsize=8)
def session_of(options: SinkOptions) -> SinkSession:
    """Return this worker's session of a sink, made when first asked for."""
    return SinkSession(options)


def _clients(options: SinkOptions) -> AccountClients:
    access = Access(
        region=options.region,
        endpoint=options.endpoint,
        role_arn=options.role_arn,
        role_session_name=options.role_session_name,
        role_external_id=options.role_external_id,
        connections=_CONNECTIONS,
    )
    return AccountClients(access, stream=options.stream)
