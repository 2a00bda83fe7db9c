"""
From options to the stream and the seal store, kept in each process that uses them.

A query waits for the process that plans it to begin: what only some of these need is imported where
it is needed.
Spark reuses its Python workers: connections, threads and clients made for one batch serve the
next one. The driver-side reader, the planner processes and the workers each have their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.kinesis.wire import JSON_PAGES, takes_cbor
from shardfleet.adapters.system import SystemEntropy
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet_spark.host.attended import AttendedClock
from shardfleet_spark.offsets.file_seals import FileSealStore
from shardfleet_spark.read.sealing import insist
from shardfleet_spark.read.shard_pages import FetchPorts, ReadPolicy

if TYPE_CHECKING:
    from shardfleet.adapters.kinesis.wire import PageFormat
    from shardfleet.domain.leases.lease import Lease
    from shardfleet.events.base import Event
    from shardfleet_spark.offsets.seals import SealStore
    from shardfleet_spark.options.source_options import SourceOptions
    from shardfleet_spark.publish.figures import Figures
    from shardfleet_spark.publish.publishing import Publishing

_CLOSE_MS = 5_000
_LEASE_WRITES = 8
_kept: dict[tuple[object, ...], KinesisPolling] = {}


def read_ports(options: SourceOptions, *, probes_alone: bool = False) -> FetchPorts:
    """
    Return the stream and all that reading it needs, the same objects each time.

    Args:
        options: of the source.
        probes_alone: whether no page is to be long.

    Raises:
        ConfigurationError: no region is known, or there is no such stream.

    """
    stream = _stream_of(options, probes_alone=probes_alone)
    return FetchPorts(
        stream=stream,
        source=stream,
        clock=AttendedClock(),
        entropy=SystemEntropy(),
        policy=ReadPolicy(
            poll_interval_ms=options.poll_interval_ms,
            records_per_read=options.records_per_read,
            concurrency=options.concurrency,
            retry_first_ms=options.retry_first_ms,
            max_retry_pause_ms=options.max_retry_pause_ms,
            retry_attempts=options.retry_attempts,
            fail_on_data_loss=options.fail_on_data_loss,
        ),
    )


def kept_streams() -> int:
    """Return how many streams this process keeps clients for."""
    return len(_kept)


def _stream_of(options: SourceOptions, *, probes_alone: bool) -> KinesisPolling:
    # A forked process must not share its parent's connections.
    access = sorted(options.access.items())
    key = (os.getpid(), options.stream, options.stream_calls, probes_alone, *access)
    if key not in _kept:
        clients = AccountClients(Access(**options.access), stream=options.stream)
        arn, is_wired = clients.stream_arn(options.stream), options.stream_calls == "wire"
        long_pages = JSON_PAGES if probes_alone or not takes_cbor() else _cbor_pages()
        _kept[key] = KinesisPolling(
            arn,
            records=clients.later("stream_records"),
            control=clients.wired_control if is_wired else clients.later("stream_control"),
            pool=ThreadPool("spark-source", threads=options.concurrency),
            wire=clients.wire_to(arn, long_pages=long_pages) if is_wired else None,
        )
    return _kept[key]


def _cbor_pages() -> PageFormat:
    try:
        from shardfleet_spark.aws.columns import CBOR_PAGES  # noqa: PLC0415 - see above
    except ImportError:  # Without numpy: pyarrow is all that this package asks for.
        return JSON_PAGES
    return CBOR_PAGES


async def leases_of(options: SourceOptions, application: str) -> Sequence[Lease]:
    """
    Read the lease table of a fleet.

    Raises:
        ConfigurationError, MalformedLease, Throttled: see the messages.

    """
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools  # noqa: PLC0415 - see above

    pool = ThreadPool("spark-leases", threads=1)
    client = _store_clients(options).table_reads
    pools = TablePools(writes=pool, reads=pool, write_client=client, read_client=client)
    try:
        return await DynamoDBLeaseStore(application, pools, events=_NoEvents()).scan()
    finally:
        await pool.close(within_ms=_CLOSE_MS)


def publishing_of(options: SourceOptions, sid: str) -> Publishing:
    """
    Return what publishes the positions of a query, and make its lease table if there is none.

    Raises:
        ConfigurationError, ShardfleetError: see the messages.

    """
    from shardfleet.adapters.dynamodb.leases import (  # noqa: PLC0415 - see above
        DynamoDBLeaseStore,
        TablePools,
    )
    from shardfleet.adapters.dynamodb.tables import (  # noqa: PLC0415 - see above
        ensure_lease_table,
    )
    from shardfleet_spark.publish.publication import owner_of  # noqa: PLC0415 - see above
    from shardfleet_spark.publish.publisher import Publication, Publisher  # noqa: PLC0415 - see above
    from shardfleet_spark.publish.publishing import Publishing  # noqa: PLC0415 - see above

    clients = _store_clients(options)
    reads, writes = clients.table_reads, clients.table_writes
    ports = read_ports(options)
    asyncio.run(insist(lambda: ensure_lease_table(reads, options.publish_to), ports))
    pool = ThreadPool("spark-publishing", threads=_LEASE_WRITES)
    pools = TablePools(writes=pool, reads=pool, write_client=writes, read_client=reads)
    publisher = Publisher(
        DynamoDBLeaseStore(options.publish_to, pools, events=_NoEvents()),
        ports.clock,
        Publication(application=options.publish_to, owner=owner_of(sid)),
    )
    return Publishing(
        publisher,
        ports,
        interval_ms=options.publish_interval_ms,
        lives=AttendedClock().is_attended,
    )


def figures_of(options: SourceOptions) -> Figures | None:
    """Return where the options send figures, None for nowhere."""
    if not options.metrics:
        return None
    from shardfleet_spark.publish.figures import figures_to  # noqa: PLC0415 - see above

    clients = partial(_store_clients, options)
    return figures_to(options.metrics, AttendedClock(), cloudwatch=lambda: clients().cloudwatch)


def _store_clients(options: SourceOptions) -> AccountClients:
    access = Access(**{**options.access, "endpoint": options.store_endpoint})
    return AccountClients(access, stream=options.stream)


class _NoEvents:
    """The ``EventSink`` port: a driver has no metrics stream of the fleet's."""

    def emit(self, event: Event) -> None:
        """Drop it."""


def seal_store(options: SourceOptions) -> SealStore | None:
    """Return the seal store that the options name, None when they name none."""
    return store_named(options.seal_store, partial(_store_clients, options))


def store_named(text: str, clients: Callable[[], AccountClients]) -> SealStore | None:
    """
    Return a seal store, None for no text.

    Args:
        text: as in option ``sealStore``.
        clients: of the account of a table or bucket.

    """
    kind, _, rest = text.partition(":")
    if kind == "file":
        return FileSealStore(Path(rest.removeprefix("//")))
    if not text:
        return None
    from shardfleet_spark.aws.seal_stores import DynamoDBSealStore, S3SealStore  # noqa: PLC0415

    if kind == "dynamodb":
        return DynamoDBSealStore(clients().table_reads, table=rest, clock=AttendedClock())
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    return S3SealStore(clients().s3, bucket=bucket, prefix=prefix)
