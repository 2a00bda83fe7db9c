"""
A producer by the name of its stream: clients and threads of its own, closed with it.

    async with open_producer("clicks", region="eu-central-1") as producer:
        await producer.put(OutgoingRecord("ada", b"..."))

    with BlockingProducer(lambda: open_producer("clicks")) as producer:
        producer.put(OutgoingRecord("ada", b"..."))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.kinesis.writer import KinesisWriter
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.producer.sending import Producer
from shardfleet.engine.producer.settings import ProducerSettings, ShardAnswer

# Of a block that ends with an error: a request that hangs is not waited for any longer.
_CLOSE_MS = 1_000


@asynccontextmanager
async def open_producer(
    stream: str,
    *,
    region: str = "",
    endpoint: str = "",
    role_arn: str = "",
    settings: ProducerSettings | None = None,
    observe: Callable[[ShardAnswer], None] = lambda _: None,
) -> AsyncIterator[Producer]:
    """
    Open a producer; the end of the block flushes it, unless an error ends it, and closes it.

    Args:
        stream: name or ARN; a name costs a call of DescribeStreamSummary, and its right.
        region: empty: the ARN's, else the environment's.
        endpoint: URL of Kinesis; empty: AWS's own, or the environment's.
        role_arn: role to assume; empty: the default credential chain as it is.
        settings: limits.
        observe: called with what each request did to each shard; must not raise.

    Raises:
        ConfigurationError: no region is known, or there is no such stream.
        Throttled, InvalidRecord, StreamGone: at the end, as ``Producer.flush``.

    """
    limits = settings or ProducerSettings()
    count = limits.requests_most + 1  # Beside the requests, a listing of the shards.
    access = Access(region=region, endpoint=endpoint, role_arn=role_arn, connections=count)
    clients = AccountClients(access, stream=stream)
    pool = ThreadPool("producer", threads=count)
    try:
        arn = await pool.run(lambda: clients.stream_arn(stream))
        writer = KinesisWriter(
            arn,
            records=clients.stream_records,
            control=clients.stream_control,
            pool=pool,
            wire=clients.wire_to(arn),
        )
        producer = Producer(
            writer, clock=SystemClock(), entropy=SystemEntropy(), settings=limits, observe=observe
        )
        async with producer:
            yield producer
    finally:
        await pool.close(within_ms=_CLOSE_MS)
