"""
From a name to what a command works on: the fleet of a stack, or an application's lease table.

A command needs nothing but the stack's name (`fleets.py`), and works against AWS and the embedded
AWS alike (`AWS_ENDPOINT_URL`). Region and credentials come from the environment, as for the AWS
command line.

A KCL application (a Spark query's, or a Java worker's) has no stack and no manager of ours, so
what is known of it is in its leases. Whether its owners live is seen by looking again: a counter
that stands still is no heartbeat.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec.structs import replace

from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.expiry import Sighting, update_sightings
from shardfleet.errors import ConfigurationError, ShardfleetError, StreamGone
from shardfleet.events.base import Event
from shardfleet_ops.cli.fleets import FleetName, application_config, find_fleet
from shardfleet_ops.explain.fleet_view import FleetReading

if TYPE_CHECKING:
    from shardfleet.adapters.clients.aws_clients import AwsClients
    from shardfleet.adapters.dynamodb.leases import TablePools
    from shardfleet.adapters.kinesis.polling import KinesisPolling
    from shardfleet.adapters.thread_pool import ThreadPool
    from shardfleet.engine.ports import Clock, Kcl3Store, LeaseStore, OwnerIndex, StreamDirectory
    from shardfleet.engine.shard.reader import ReadPorts
    from shardfleet.engine.state.fleet_state import FleetState
    from shardfleet.producer.kinesis_writer import KinesisWriter
    from shardfleet.records import Record

A = TypeVar("A")
T = TypeVar("T")

CALLS_AT_ONCE = 4
_CLOSE_MS = 10_000
ENVIRONMENT = (
    "Region, credentials and endpoint come from the environment, as for the AWS command line "
    "(--region, --profile)"
)
# KCL's failover time, which the table does not say.
FAILOVER_MS = 10_000

ApplicationOption = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Instead of a stack: a KCL application by its lease table, such as a Spark query's.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs; -o yaml: YAML.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAccess:
    """
    A deployed fleet, opened for one command.

    Attributes:
        config: as the manager has it.
        leases: the lease table.
        state: the fleet-state table.
        stream: the stream, to read.
        writer: the stream, to write.
        kcl3: what a KCL 3 keeps beside the leases.
        index: of the lease table, by owner.
        clock: this machine's.

    """

    config: FleetConfig
    leases: "LeaseStore"
    state: "FleetState"
    stream: "KinesisPolling"
    writer: "KinesisWriter"
    kcl3: "Kcl3Store"
    index: "OwnerIndex"
    clock: "Clock"

    @property
    def read_ports(self) -> "ReadPorts":
        """Return what reads shards, patiently, beside the fleet."""
        from shardfleet.engine.retry import Patience
        from shardfleet.engine.shard.polling import PolledSource
        from shardfleet.engine.shard.reader import ReadPorts

        return ReadPorts(
            source=PolledSource(self.stream, self.clock),
            clock=self.clock,
            events=NobodyListens(),
            patience=Patience.of(self.config, clock=self.clock, entropy=SystemEntropy()),
        )

    async def records(
        self, shard_id: str, *, since_ms: int
    ) -> AsyncIterator[tuple[Sequence["Record"], int | None]]:
        """
        Yield one page of a shard a second, from the first record that arrived at an instant on.

        One call a second leaves four of the shard's five to the fleet. Ends at the shard's end.

        Yields:
            The records in order, aggregates taken apart, and how far they lie behind the tip, None
            where Kinesis does not say.

        Raises:
            ShardGone: no such shard.

        """
        from shardfleet.domain.leases.shard_ref import ShardRef
        from shardfleet.domain.reading.cursor import ReadFrom, ReadLimits
        from shardfleet.domain.reading.pages import StartingPosition, StartKind
        from shardfleet.engine.shard.deaggregation import Deaggregator
        from shardfleet.engine.shard.reader import ShardReader

        ports, shard = self.read_ports, ShardRef(self.config.stream_arn, shard_id)
        reader = ShardReader(
            shard,
            ReadFrom(start=StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=since_ms)),
            limits=ReadLimits(back_off_ms=ports.patience.back_off_ms),
            ports=ports,
        )
        expander = Deaggregator(shard, None, config=self.config, sink=ports.events)
        async for page in reader.pages():
            expanded = await expander.expand(page.records, None)
            yield expanded.records, page.millis_behind_latest

    async def reading(self) -> FleetReading:
        """
        Read both tables once, and see whether the stream is there.

        Raises:
            Throttled: a table or the stream refused; try again.

        """
        from shardfleet_ops.operate.read import read_fleet

        reading = await read_fleet(
            self.leases, self.state, clock=self.clock, failover_ms=self.config.failover_ms
        )
        try:
            await self.stream.incarnation()
        except StreamGone:
            return replace(reading, stream_is_gone=True)
        return reading


def refuse_unknown(given: Iterable[str], known: Collection[str], complaint: str) -> None:
    """
    Refuse names that there are not.

    Args:
        given: names that a person typed.
        known: names that there are.
        complaint: what is wrong, with ``{unknown}`` and ``{known}`` in it.

    Raises:
        ConfigurationError: one of the names is unknown.

    """
    unknown = [name for name in given if name not in known]
    if unknown:
        there_are = ", ".join(known) or "none"
        raise ConfigurationError(complaint.format(unknown=", ".join(unknown), known=there_are))


class NobodyListens:
    """A command's reader sees rows, not the events of the adapters."""

    def emit(self, event: Event) -> None:
        """Drop it."""


def with_fleet(name: FleetName, work: Callable[[FleetAccess], Awaitable[T]]) -> T:
    """
    Open a fleet, do the work, and close it again.

    Raises:
        ConfigurationError: no such fleet, or no way to reach AWS.

    """
    return with_opened(_opened(name), work)


def with_opened(opened: AbstractAsyncContextManager[A], work: Callable[[A], Awaitable[T]]) -> T:
    """
    Open something of AWS, do the work, and close it again.

    Raises:
        ConfigurationError: it is not there, or there is no way to reach AWS.

    """

    async def run() -> T:
        async with opened as access:
            return await work(access)

    with reaching_aws():
        return asyncio.run(run())


@contextmanager
def reaching_aws() -> Iterator[None]:
    """Turn what keeps the SDK from even asking (no region, no credentials) into one message."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        raise ConfigurationError(f"{str(error).rstrip('.')}. {ENVIRONMENT}") from error


@asynccontextmanager
async def thread_pool(name: str) -> AsyncIterator["ThreadPool"]:
    """Provide threads for the calls of one command, and wait for them at its end."""
    from shardfleet.adapters.thread_pool import ThreadPool

    pool = ThreadPool(name, threads=CALLS_AT_ONCE)
    try:
        yield pool
    finally:
        await pool.close(within_ms=_CLOSE_MS)


def table_pools(clients: "AwsClients", pool: "ThreadPool") -> "TablePools":
    """Return what tables are asked by: in a command, no renewal waits for a slow read."""
    from shardfleet.adapters.dynamodb.leases import TablePools

    return TablePools(
        writes=pool,
        reads=pool,
        write_client=clients.table_writes,
        read_client=clients.table_reads,
    )


@asynccontextmanager
async def _opened(name: FleetName) -> AsyncIterator[FleetAccess]:
    config = await asyncio.to_thread(fleet_config, name)
    async with _opened_as(config, call=partial(call_manager, name)) as access:
        yield access


def call_manager(name: FleetName) -> None:
    """
    Invoke a fleet's manager, and do not wait for it; processes that run a fleet need no call.

    Raises:
        ShardfleetError: it cannot be found, or may not be invoked.

    """
    import boto3

    from shardfleet.adapters.sdk_errors import SdkCall

    manager = find_fleet(name).manager
    if manager:
        functions = boto3.session.Session().client("lambda")
        call = SdkCall(f"Invoke of {manager}")
        call.run(functions.invoke, FunctionName=manager, InvocationType="Event")


@asynccontextmanager
async def _opened_as(
    config: FleetConfig, *, call: Callable[[], None] = lambda: None
) -> AsyncIterator[FleetAccess]:
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits, region_of
    from shardfleet.adapters.dynamodb.kcl3 import DynamoDBKcl3Store
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore
    from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
    from shardfleet.adapters.kinesis.polling import KinesisPolling
    from shardfleet.producer.kinesis_writer import KinesisWriter
    from shardfleet_ops.aws.calling_state import CallingState
    from shardfleet_ops.aws.owner_index import DynamoDBOwnerIndex

    limits = ConnectionLimits(writes=CALLS_AT_ONCE, reads=CALLS_AT_ONCE, streams=CALLS_AT_ONCE)
    clients = AwsClients(limits, stream_region=region_of(config.stream_arn))
    clock = SystemClock()
    async with thread_pool("tables") as tables, thread_pool("streams") as streams:
        pools = table_pools(clients, tables)
        yield FleetAccess(
            config=config,
            leases=DynamoDBLeaseStore(config.lease_table, pools, events=NobodyListens()),
            state=CallingState(DynamoDBStateStore(config.state_table, pools), clock, call=call),
            stream=KinesisPolling(
                config.stream_arn,
                records=clients.stream_records,
                control=clients.stream_control,
                pool=streams,
            ),
            writer=KinesisWriter(
                config.stream_arn,
                records=clients.stream_records,
                control=clients.stream_control,
                pool=streams,
                wire=clients.wire_to(config.stream_arn),
            ),
            kcl3=DynamoDBKcl3Store(config.lease_table, pools, own=config.kcl_tables),
            index=DynamoDBOwnerIndex(config.lease_table, pools),
            clock=clock,
        )


def fleet_config(name: FleetName) -> FleetConfig:
    """
    Return a deployed fleet's configuration, as its manager's function has it.

    Raises:
        ConfigurationError: there is no such fleet.

    """
    return find_fleet(name).config


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
            foreign_leases=found.foreign_leases,
            slots=[],
            sightings=self.sightings,
            stops={},
            planned_ms=0,
            failover_ms=FAILOVER_MS,
        )


def with_reading(
    name: FleetName,
    application: str,
    work: Callable[[FleetAccess | ApplicationTable], Awaitable[T]],
) -> T:
    """
    Open an application if one is named, else the fleet; do the work, and close it.

    An application whose processes are ours is a fleet, too.

    Raises:
        ConfigurationError: no such table or fleet, or no way to reach AWS.

    """
    if application and (config := application_config(application)) is not None:
        return with_opened(_opened_as(config), work)
    return with_application(application, work) if application else with_fleet(name, work)


def with_application(name: str, work: Callable[[ApplicationTable], Awaitable[T]]) -> T:
    """
    Open an application's lease table, do the work, and close it again.

    Raises:
        ConfigurationError: no such table, or no way to reach AWS.

    """
    return with_opened(_opened_table(name), work)


@asynccontextmanager
async def _opened_table(name: str) -> AsyncIterator[ApplicationTable]:
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore

    limits = ConnectionLimits(writes=CALLS_AT_ONCE, reads=CALLS_AT_ONCE, streams=1)
    async with thread_pool("leases") as pool:
        pools = table_pools(AwsClients(limits), pool)
        store = DynamoDBLeaseStore(name, pools, events=NobodyListens())
        try:
            yield ApplicationTable(name, store, SystemClock())
        except ShardfleetError as error:
            if "ResourceNotFoundException" not in str(error):
                raise
            raise ConfigurationError(
                f"there is no table {name}: name the application's lease table. {ENVIRONMENT}"
            ) from error


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
