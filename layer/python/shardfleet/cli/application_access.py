"""
A KCL application by its lease table alone: a Spark query's, or a Java worker's.

Such an application has no stack and no manager of ours, so what is known of it is in its leases.
Whether its owners live is seen by looking again: a counter that stands still is no heartbeat.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shardfleet.cli.fleet_access import (
    CALLS_AT_ONCE,
    FleetAccess,
    NobodyListens,
    table_pools,
    thread_pool,
    with_fleet,
    with_opened,
)
from shardfleet.domain.explain.fleet_view import FleetReading
from shardfleet.domain.leases.expiry import Sighting, update_sightings

if TYPE_CHECKING:
    from shardfleet.engine.ports import Clock, LeaseStore, StreamDirectory

T = TypeVar("T")

# KCL's failover time, which the table does not say.
FAILOVER_MS = 10_000

ApplicationOption = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Instead of a stack: a KCL application by its lease table, such as a Spark query's.",
    ),
]


@dataclass(slots=True)
class ApplicationTable:
    """
    A lease table, opened for one command.

    Attributes:
        name: of the table.
        leases: what is in it.
        clock: this machine's.
        sightings: counters as seen at the last reading.

    """

    name: str
    leases: "LeaseStore"
    clock: "Clock"
    sightings: dict[str, Sighting] = field(default_factory=dict)

    async def reading(self) -> FleetReading:
        """
        Read the table once; from the second reading on, owners that stand still are seen.

        Raises:
            ConfigurationError: there is no such table.
            Throttled: the table refused; try again.

        """
        started_ms = self.clock.now_ms()
        found = await self.leases.survey()
        now_ms = self.clock.now_ms()
        self.sightings = update_sightings(
            self.sightings,
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
            sightings=self.sightings,
            stops={},
            planned_ms=0,
            failover_ms=FAILOVER_MS,
        )


def with_reading(
    stack: str, application: str, work: Callable[[FleetAccess | ApplicationTable], Awaitable[T]]
) -> T:
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
    return with_opened(_opened(name), work)


@asynccontextmanager
async def _opened(name: str) -> AsyncIterator[ApplicationTable]:
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore
    from shardfleet.adapters.system import SystemClock

    limits = ConnectionLimits(writes=CALLS_AT_ONCE, reads=CALLS_AT_ONCE, streams=1)
    async with thread_pool("leases") as pool:
        pools = table_pools(AwsClients(limits), pool)
        store = DynamoDBLeaseStore(name, pools, events=NobodyListens())
        yield ApplicationTable(name, store, SystemClock())


@asynccontextmanager
async def opened_stream(stream: str) -> AsyncIterator["StreamDirectory"]:
    """
    Open a stream by its name or ARN.

    Raises:
        ConfigurationError: there is no such stream.

    """
    from shardfleet.adapters.clients.account_access import Access, AccountClients
    from shardfleet.adapters.kinesis.polling import KinesisPolling

    clients = AccountClients(Access(), stream=stream)
    arn = await asyncio.to_thread(clients.stream_arn, stream)
    control = clients.stream_control
    async with thread_pool("stream") as pool:
        yield KinesisPolling(arn, records=control, control=control, pool=pool)
