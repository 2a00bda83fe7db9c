"""
A KCL application by its lease table alone: a Spark query's, or a Java worker's.

Such an application has no stack and no manager of ours, so what is known of it is in its leases.
Whether its owners live is seen by looking again: a counter that stands still is no heartbeat.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from shardfleet.cli.fleet_access import reaching_aws, with_fleet

if TYPE_CHECKING:
    from shardfleet.domain.explain.fleet_view import FleetReading
    from shardfleet.domain.leases.expiry import Sighting
    from shardfleet.domain.stream.sequence import StreamIncarnation
    from shardfleet.domain.stream.shards import Shard
    from shardfleet.engine.ports import Clock, LeaseStore
    from shardfleet.events import Event

T = TypeVar("T")

# KCL's failover time, which the table does not say.
FAILOVER_MS = 10_000
_THREADS = 4
_CLOSE_MS = 10_000

ApplicationOption = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Instead of a stack: a KCL application by its lease table, such as a Spark query's.",
    ),
]


class Readable(Protocol):
    """A fleet, or an application, of which a command wants a reading."""

    async def reading(self) -> "FleetReading":
        """Read the tables once."""


class ApplicationTable:
    """
    A lease table, opened for one command.

    Attributes:
        name: of the table.
        leases: what is in it.
        clock: this machine's.

    """

    def __init__(self, name: str, leases: "LeaseStore", clock: "Clock") -> None:
        """Nothing is read yet."""
        self.name = name
        self.leases = leases
        self.clock = clock
        self._sightings: dict[str, Sighting] = {}

    async def reading(self) -> "FleetReading":
        """
        Read the table once; from the second reading on, owners that stand still are seen.

        Raises:
            ConfigurationError: there is no such table.
            Throttled: the table refused; try again.

        """
        from shardfleet.domain.explain.fleet_view import FleetReading
        from shardfleet.domain.leases.expiry import update_sightings

        started_ms = self.clock.now_ms()
        found = await self.leases.survey()
        now_ms = self.clock.now_ms()
        self._sightings = update_sightings(
            self._sightings,
            found.leases,
            read_started_ms=started_ms,
            read_finished_ms=now_ms,
            skew_ms=0,
        )
        return FleetReading(
            at_ms=now_ms,
            leases=found.leases,
            unreadable=found.unreadable,
            slots=[],
            sightings=self._sightings,
            stops={},
            planned_ms=0,
            failover_ms=FAILOVER_MS,
        )


class _NobodyListens:
    """A command's reader sees rows, not the events of the adapters."""

    def emit(self, event: "Event") -> None:
        """Drop it."""


def with_reading(stack: str, application: str, work: Callable[[Readable], Awaitable[T]]) -> T:
    """
    Open an application if one is named, else the fleet of a stack; do the work, and close it.

    Raises:
        ConfigurationError: no such table, stack or fleet, or no way to reach AWS.

    """
    return with_application(application, work) if application else with_fleet(stack, work)


def with_application(name: str, work: Callable[[ApplicationTable], Awaitable[T]]) -> T:
    """
    Open an application's lease table, do the work, and close it again.

    Raises:
        ConfigurationError: no such table, or no way to reach AWS.

    """

    async def run() -> T:
        async with opened(name) as application:
            return await work(application)

    with reaching_aws():
        return asyncio.run(run())


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[ApplicationTable]:
    """Open a lease table."""
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
    from shardfleet.adapters.system import SystemClock
    from shardfleet.adapters.thread_pool import ThreadPool

    limits = ConnectionLimits(writes=_THREADS, reads=_THREADS, streams=1)
    clients, pool = AwsClients(limits), ThreadPool("leases", threads=_THREADS)
    pools = TablePools(
        writes=pool,
        reads=pool,
        write_client=clients.table_writes,
        read_client=clients.table_reads,
    )
    try:
        store = DynamoDBLeaseStore(name, pools, events=_NobodyListens())
        yield ApplicationTable(name, store, SystemClock())
    finally:
        await pool.close(within_ms=_CLOSE_MS)


class StreamAccess(Protocol):
    """What a command asks of a stream that no fleet names."""

    async def incarnation(self) -> "StreamIncarnation":
        """Describe the stream."""

    async def list_shards(self) -> "Sequence[Shard]":
        """List shards, all pages."""


@asynccontextmanager
async def opened_stream(stream: str) -> AsyncIterator[StreamAccess]:
    """
    Open a stream by its name or ARN.

    Raises:
        ConfigurationError: there is no such stream.

    """
    from shardfleet.adapters.clients.account_access import Access, AccountClients
    from shardfleet.adapters.kinesis.polling import KinesisPollingReader
    from shardfleet.adapters.thread_pool import ThreadPool

    clients, pool = AccountClients(Access(), stream=stream), ThreadPool("stream", threads=1)
    arn = await asyncio.to_thread(clients.stream_arn, stream)
    control = clients.stream_control()
    try:
        yield KinesisPollingReader(arn, records=control, control=control, pool=pool)
    finally:
        await pool.close(within_ms=_CLOSE_MS)
