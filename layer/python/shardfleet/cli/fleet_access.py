"""
From the name of a stack to the fleet it deployed: tables, stream and configuration.

The stack's outputs name the manager's function, and its environment holds the fleet's whole
configuration, so a command needs nothing but the stack's name, and works against AWS and the
embedded AWS alike (`AWS_ENDPOINT_URL`). Region and credentials come from the environment, as for
the AWS command line.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError
from shardfleet.events.base import Event

if TYPE_CHECKING:
    from shardfleet.adapters.clients.aws_clients import AwsClients
    from shardfleet.adapters.dynamodb.leases import TablePools
    from shardfleet.adapters.kinesis.polling import KinesisPolling
    from shardfleet.adapters.kinesis.writer import KinesisWriter
    from shardfleet.adapters.thread_pool import ThreadPool
    from shardfleet.domain.explain.fleet_view import FleetReading
    from shardfleet.engine.ports import Clock, LeaseStore
    from shardfleet.engine.shard.reader import ReadPorts
    from shardfleet.engine.state.fleet_state import FleetState

A = TypeVar("A")
T = TypeVar("T")

DEFAULT_STACK = "ShardFleetStack"
CALLS_AT_ONCE = 4
_CLOSE_MS = 10_000

StackOption = Annotated[
    str,
    typer.Option(
        metavar="STACK", envvar="SHARDFLEET_STACK", help="The CloudFormation stack of the fleet."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


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
        clock: this machine's.

    """

    config: FleetConfig
    leases: "LeaseStore"
    state: "FleetState"
    stream: "KinesisPolling"
    writer: "KinesisWriter"
    clock: "Clock"

    @property
    def read_ports(self) -> "ReadPorts":
        """Return what reads shards, patiently, beside the fleet."""
        from shardfleet.adapters.system import SystemEntropy
        from shardfleet.engine.retry import Patience
        from shardfleet.engine.shard.reader import ReadPorts

        return ReadPorts(
            source=self.stream,
            clock=self.clock,
            events=NobodyListens(),
            patience=Patience.of(self.config, clock=self.clock, entropy=SystemEntropy()),
        )

    async def reading(self) -> "FleetReading":
        """
        Read both tables once.

        Raises:
            Throttled: a table refused; try again.

        """
        from shardfleet.engine.operate.read import read_fleet

        return await read_fleet(
            self.leases, self.state, clock=self.clock, failover_ms=self.config.failover_ms
        )


class NobodyListens:
    """A command's reader sees rows, not the events of the adapters."""

    def emit(self, event: Event) -> None:
        """Drop it."""


def with_fleet(stack: str, work: Callable[[FleetAccess], Awaitable[T]]) -> T:
    """
    Open the fleet of a stack, do the work, and close it again.

    Raises:
        ConfigurationError: no such stack, no fleet in it, or no way to reach AWS.

    """
    return with_opened(_opened(stack), work)


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
        raise ConfigurationError(
            f"{error} Region, credentials and endpoint come from the environment, as for the AWS "
            "command line"
        ) from error


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
async def _opened(stack: str) -> AsyncIterator[FleetAccess]:
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits, region_of
    from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore
    from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
    from shardfleet.adapters.kinesis.polling import KinesisPolling
    from shardfleet.adapters.kinesis.writer import KinesisWriter
    from shardfleet.adapters.system import SystemClock
    from shardfleet.engine.state.fleet_state import FleetState

    config = await asyncio.to_thread(fleet_config, stack)
    limits = ConnectionLimits(writes=CALLS_AT_ONCE, reads=CALLS_AT_ONCE, streams=CALLS_AT_ONCE)
    clients = AwsClients(limits, stream_region=region_of(config.stream_arn))
    clock = SystemClock()
    async with thread_pool("tables") as tables, thread_pool("streams") as streams:
        pools = table_pools(clients, tables)
        yield FleetAccess(
            config=config,
            leases=DynamoDBLeaseStore(config.lease_table, pools, events=NobodyListens()),
            state=FleetState(DynamoDBStateStore(config.state_table, pools), clock),
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
            ),
            clock=clock,
        )


def fleet_config(stack: str) -> FleetConfig:
    """
    Read a deployed fleet's configuration from its manager's function.

    Raises:
        ConfigurationError: there is no such stack, or it holds no fleet.

    """
    import boto3

    function = stack_outputs(stack)["ManagerFunction"]
    found = (
        boto3.session.Session().client("lambda").get_function_configuration(FunctionName=function)
    )
    return FleetConfig.from_env(found.get("Environment", {}).get("Variables", {}))


def stack_outputs(stack: str) -> Mapping[str, str]:
    """
    Return the outputs of the fleet's stack by name.

    Raises:
        ConfigurationError: there is no such stack, or it holds no fleet.

    """
    import boto3
    from botocore.exceptions import ClientError

    try:
        # A session of its own: the default one keeps the credentials that it saw first.
        client = boto3.session.Session().client("cloudformation")
        found: Any = client.describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        raise ConfigurationError(
            f"--stack {stack}: {error.response['Error']['Message']}; name the stack that deployed "
            "the fleet, and check region, credentials and endpoint"
        ) from error
    outputs = {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", ())}
    if "ManagerFunction" not in outputs:
        raise ConfigurationError(
            f"--stack {stack}: it has no output ManagerFunction, so it holds no fleet; its "
            f"outputs are: {', '.join(sorted(outputs)) or 'none'}"
        )
    return outputs
