"""
A producer by the name of its stream: clients and threads of its own, closed with it.

    async with open_producer("clicks", region="eu-central-1") as producer:
        await producer.put(OutgoingRecord("ada", b"..."))

    with BlockingProducer(lambda: open_producer("clicks")) as producer:
        producer.put(OutgoingRecord("ada", b"..."))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings, ShardAnswer

if TYPE_CHECKING:
    from shardfleet.engine.ports import Clock
    from shardfleet.producer.kpl_metrics import KplMetrics

TELL_MS = 60_000
"""Between two lines of metrics, at least: the KPL's ``MetricsUploadDelay``."""

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
        settings: limits, and whether metrics are written.
        observe: called with what each request did to each shard; must not raise.

    Raises:
        ConfigurationError: no region is known, or there is no such stream.
        Throttled, InvalidRecord, StreamGone: at the end, as ``Producer.flush``.

    """
    limits = settings or ProducerSettings()
    count = limits.max_requests + 1  # Beside the requests, a listing of the shards.
    access = Access(region=region, endpoint=endpoint, role_arn=role_arn, connections=count)
    clients = AccountClients(access, stream=stream)
    pool = ThreadPool("producer", threads=count)
    try:
        arn = await pool.run(lambda: clients.stream_arn(stream))
        writer = KinesisWriter(
            arn,
            records=clients.later("stream_records"),
            control=clients.wired_control,
            pool=pool,
            wire=clients.wire_to(arn),
        )
        producer, tell = _producer_of(writer, arn, settings=limits, observe=observe)
        try:
            async with producer:
                yield producer
        finally:
            tell()
    finally:
        await pool.close(within_ms=_CLOSE_MS)


def _producer_of(
    writer: KinesisWriter,
    stream_arn: str,
    *,
    settings: ProducerSettings,
    observe: Callable[[ShardAnswer], None],
) -> tuple[Producer, Callable[[], None]]:
    """Return a producer, and what is to be called at its end."""
    clock, entropy = SystemClock(), SystemEntropy()
    if not settings.metrics_namespace:
        producer = Producer(
            writer, clock=clock, entropy=entropy, settings=settings, observe=observe
        )
        return producer, lambda: None
    from shardfleet.producer.kpl_metrics import KplMetrics  # noqa: PLC0415 - few want it

    def observed(answer: ShardAnswer) -> None:
        observe(answer)
        teller.tell_if_due()

    producer = Producer(writer, clock=clock, entropy=entropy, settings=settings, observe=observed)
    metrics = KplMetrics(settings.metrics_namespace, stream_arn.rpartition("/")[2], clock=clock)
    teller = _Teller(producer, metrics, clock)
    return producer, teller.tell


class _Teller:
    """
    Writes what a producer went through: as its answers come, once a minute, and at its end.

    Told is what is known exactly. Means and times, of which CloudWatch would want each value, are
    left to whoever divides the sums; so are what the KPL counts in bytes, by code and by record.
    """

    def __init__(self, producer: Producer, metrics: KplMetrics, clock: Clock) -> None:
        self._producer = producer
        self._metrics = metrics
        self._clock = clock
        self._told: Counter[str] = Counter()
        self._told_ms = clock.monotonic_ms()

    def tell_if_due(self) -> None:
        """Write a line unless the last one is too young."""
        if self._clock.monotonic_ms() - self._told_ms >= TELL_MS:
            self.tell()

    def tell(self) -> None:
        """Write what has happened since the last time, and what is pending now."""
        producer, counts = self._producer, self._producer.counts
        so_far = Counter(
            UserRecordsReceived=producer.received,
            UserRecordsPut=counts.accepted,
            KinesisRecordsPut=counts.entries,
            AllErrors=counts.refused,
        )
        since = {name: count - self._told[name] for name, count in so_far.items()}
        self._told, self._told_ms = so_far, self._clock.monotonic_ms()
        self._metrics.write({**since, "UserRecordsPending": producer.pending})
