"""
The composition root of the Lambda functions: environment, configuration, adapters, ports.

What is dear to make (SDK clients) is kept for the life of a sandbox. What may leave something
running (thread pools) is made for each invocation and closed at its end, because nothing may
outlive its turn (hazard H10). No code of the user is imported here (hazard H16).

AWS actions (hazard H19; `cdk/shardfleet_cdk/permissions.py` grants exactly these):

worker
    kinesis: DescribeStreamSummary, ListShards, GetShardIterator, GetRecords; SubscribeToShard on
    the consumer by which records are pushed;
    dynamodb, lease table: GetItem, PutItem (of child shards), UpdateItem; Query on the index;
    dynamodb, fleet-state table: GetItem; UpdateItem of the worker's kinds of documents;
    sqs: SendMessage, s3: PutObject and sns: Publish where given-up records go there;
    s3: GetObject, PutObject, DeleteObject of large states of windows;
    lambda: InvokeFunction where the handler is a function of its own.
manager
    kinesis: as the worker;
    dynamodb, lease table: GetItem, PutItem, UpdateItem, DeleteItem, Scan;
    dynamodb, fleet-state table: GetItem, UpdateItem, DeleteItem, Query;
    states: StartExecution, DescribeExecution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Never

from msgspec import Struct, field

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits, region_of
from shardfleet.adapters.dead_letters import (
    Invocation,
    S3DeadLetters,
    SnsDeadLetters,
    SqsDeadLetters,
)
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.http.plain_environment import plain_environment
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.system import (
    SystemClock,
    SystemCpu,
    SystemEntropy,
    SystemProcess,
)
from shardfleet.adapters.telemetry.emf import EmfEventSink, Telling
from shardfleet.adapters.telemetry.whole_lines import finish_lines
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import WIRED, FleetConfig
from shardfleet.domain.delivery.contract import HandlerContract
from shardfleet.domain.delivery.policies import Destination
from shardfleet.engine.ports import (
    Clock,
    DeadLetters,
    Entropy,
    HandlerRunner,
    LeaseStore,
    Process,
    StateStore,
    WindowStates,
)
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.shard.usage import CpuMeter
from shardfleet.errors import ConfigurationError
from shardfleet.events.base import Level
from shardfleet.runtime.handler_call import EventSource, LambdaContext, kinesis_event
from shardfleet.runtime.handler_loading import LoadedHandler, load_handler
from shardfleet.runtime.handler_runner import ThreadHandlerRunner

if TYPE_CHECKING:
    from shardfleet.adapters.telemetry.otlp import OtlpMetrics
    from shardfleet.engine.shard.reader import ShardSource
    from shardfleet.engine.worker.ports import WorkerPorts

# A turn renews its leases in one wave; more threads than this would wait for CPU, not for DynamoDB.
WRITE_THREADS_MOST = 16
# Slot, lease and document reads of one turn; a manager needs few at once.
READ_THREADS = 8
# Invocations of a handler that is a function of its own: one per lane, each with a thread.
CALL_THREADS_MOST = 256
# Powertools' and Lambda's names of the log level.
_MEMORY_VARIABLE = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"  # set by Lambda
_LEVEL_VARIABLES = ("POWERTOOLS_LOG_LEVEL", "AWS_LAMBDA_LOG_LEVEL")


class Rest:
    """The time between two invocations, in which Lambda freezes the process (hazard H10)."""

    def __init__(self) -> None:
        """Nothing has been invoked yet."""
        self._since: tuple[int, int] | None = None

    def begin(self, clock: Clock) -> None:
        """Note that an invocation ends."""
        self._since = (clock.now_ms(), clock.monotonic_ms())

    def lasted_ms(self, clock: Clock) -> int:
        """Return the longer of what both clocks say: either may stand still or be set (H15)."""
        if self._since is None:
            return 0
        now_ms, monotonic_ms = self._since
        return max(clock.now_ms() - now_ms, clock.monotonic_ms() - monotonic_ms)


class Sandbox(Struct, frozen=True, kw_only=True):
    """
    What outlives an invocation.

    Attributes:
        config: of the fleet.
        clients: of the SDK.
        events: metrics and logs.
        clock: the system's.
        entropy: the system's.
        process: this one.
        cpu: what this process uses; None where the memory size is not known.
        rest: the time since the last invocation.
        load: makes the user's handler of its name and contract.

    """

    config: FleetConfig
    clients: AwsClients
    events: EmfEventSink
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    process: Process = field(default_factory=SystemProcess)
    cpu: CpuMeter | None = None
    rest: Rest = field(default_factory=Rest)
    load: Callable[..., LoadedHandler] = load_handler

    def drop_what_may_have_died(self) -> None:
        """After a rest, connect anew: connections may have died while the sandbox was frozen."""
        if self.rest.lasted_ms(self.clock) > self.config.connection_idle_ms:
            self.clients.drop_connections()


def open_sandbox(
    env: Mapping[str, str],
    *,
    memory_mb: int = 0,
    load: Callable[..., LoadedHandler] = load_handler,
    lines: IO[str] | None = None,
    has_emf: bool = True,
) -> Sandbox:
    """
    Read the configuration and prepare what outlives an invocation; nothing is asked of AWS.

    Args:
        env: the environment.
        memory_mb: what Lambda would give for as much CPU, where it does not say.
        load: makes the user's handler of its name and contract.
        lines: where logs and metrics go; None: standard output.
        has_emf: whether metrics are written as lines, which CloudWatch bills as metrics.

    Raises:
        ConfigurationError: lists every variable that is missing or wrong.

    """
    config = FleetConfig.from_env(env)
    clock = SystemClock()
    memory_mb = int(env.get(_MEMORY_VARIABLE) or memory_mb)
    telling = Telling(
        level=_log_level(env),
        flush_ms=min(config.metrics_ms, 10_000) if config.writes_all_metrics else config.metrics_ms,
        all_metrics=config.writes_all_metrics,
        shard_metrics=config.writes_shard_metrics,
        has_emf=has_emf,
    )
    otlp = _otlp(config, clock)
    return Sandbox(
        config=config,
        clients=AwsClients(
            _connection_limits(config),
            stream_region=region_of(config.stream_arn),
            plain=plain_environment(env),
        ),
        events=EmfEventSink(config.fleet, clock=clock, telling=telling, otlp=otlp, stream=lines),
        clock=clock,
        cpu=SystemCpu(memory_mb) if memory_mb else None,
        load=load,
    )


def _connection_limits(config: FleetConfig) -> ConnectionLimits:
    return ConnectionLimits(
        writes=_write_threads(config),
        reads=READ_THREADS,
        streams=config.io_threads,
        calls=_call_threads(config),
        call_ms=config.handler_timeout_ms,
        idle_ms=config.connection_idle_ms,
    )


def _otlp(config: FleetConfig, clock: Clock) -> OtlpMetrics | None:
    if not config.otlp_endpoint:
        return None
    # Few fleets have a collector; the others do not wait for this at each cold start.
    from shardfleet.adapters.telemetry.otlp import OtlpMetrics  # noqa: PLC0415

    return OtlpMetrics(config.otlp_endpoint, clock=clock)


class TurnThreads:
    """
    The threads of one invocation: lease and state writes, table reads, and everything else.

    Three pools, so that hung stream reads delay neither a renewal nor a look at the slot (H17), and
    one for a handler that is a function of its own.
    """

    def __init__(self, config: FleetConfig) -> None:
        """Start no thread yet."""
        self.writes = ThreadPool("writes", threads=_write_threads(config))
        self.reads = ThreadPool("reads", threads=READ_THREADS)
        self.streams = ThreadPool("streams", threads=config.io_threads)
        self.calls = ThreadPool("calls", threads=_call_threads(config))
        self.connections: list[Callable[[], Awaitable[None]]] = []
        """What closes connections of the invocation's own event loop, which ends with it."""

    async def close(self, *, within_ms: int) -> bool:
        """
        Close connections and join all threads; False when one outlived ``within_ms``.

        Then the process must end (hazard H10).
        """
        for close in self.connections:
            await close()
        pools = (self.calls, self.streams, self.reads, self.writes)
        return all(await asyncio.gather(*(pool.close(within_ms=within_ms) for pool in pools)))


def lease_store(sandbox: Sandbox, threads: TurnThreads) -> LeaseStore:
    """Return the lease table."""
    tables = tables_of(sandbox, threads)
    return DynamoDBLeaseStore(sandbox.config.lease_table, tables, events=sandbox.events)


def state_store(sandbox: Sandbox, threads: TurnThreads) -> StateStore:
    """Return the fleet-state table."""
    return DynamoDBStateStore(sandbox.config.state_table, tables_of(sandbox, threads))


def stream(sandbox: Sandbox, threads: TurnThreads) -> KinesisPolling:
    """Return the stream: its shards, and their records."""
    config, clients = sandbox.config, sandbox.clients
    wired = WIRED[config.stream_calls]
    return KinesisPolling(
        config.stream_arn,
        records=clients.later("stream_records"),
        control=clients.wired_control if wired else clients.later("stream_control"),
        pool=threads.streams,
        wire=clients.wire_to(config.stream_arn) if wired else None,
    )


def source(sandbox: Sandbox, threads: TurnThreads, kinesis: KinesisPolling) -> ShardSource:
    """Return what a worker reads records from: polled, or pushed if there is a consumer."""
    # The manager's start does not wait for what only workers need, nor theirs for what few do.
    from shardfleet.engine.shard.polling import PolledSource  # noqa: PLC0415

    config, clock = sandbox.config, sandbox.clock
    polled = PolledSource.of_worker(kinesis, clock, config)
    if not config.consumer_arn:
        return polled
    from shardfleet.adapters.kinesis.pushed import KinesisPushing  # noqa: PLC0415
    from shardfleet.engine.shard.pushing import PushedSource  # noqa: PLC0415

    wire = sandbox.clients.wire_to(config.stream_arn)
    pushing = KinesisPushing(
        config.stream_arn, config.consumer_arn, wire=wire, pool=threads.streams
    )
    pushed = PushedSource(pushing, polled, clock=clock, events=sandbox.events)
    threads.connections.append(pushed.close)
    return pushed


class TellingProcess(Struct, frozen=True):
    """The ``Process`` port that ends a sandbox's process, once all that was gathered is told."""

    sandbox: Sandbox

    def end(self, reason: str) -> Never:
        """Write metrics and lines that were begun, which would end with the process; end it."""
        with suppress(Exception):
            self.sandbox.events.flush()
            finish_lines()
        self.sandbox.process.end(reason)


def handler_runner(sandbox: Sandbox, threads: TurnThreads, context: LambdaContext) -> HandlerRunner:
    """
    Return what will import and call the user's code, or invoke the user's function.

    Raises:
        ConfigurationError: no handler is configured.

    """
    config = sandbox.config
    if config.handler_function:
        return _function_runner(sandbox, threads, context)
    if not config.handler:
        raise ConfigurationError(
            "SHARDFLEET_HANDLER: missing; package.module:function or :Class expected, "
            "in the worker's asset"
        )
    # An event has no checkpoint(): a handler of Lambda's contract would never get any further.
    is_native = config.way.handler_checkpoints
    runner = ThreadHandlerRunner(
        config.handler,
        contract=HandlerContract.NATIVE if is_native else config.handler_contract,
        context=context,
        stream_arn=config.stream_arn,
        clock=sandbox.clock,
        tells_errors=config.log_errors,
    )
    runner.loader = sandbox.load
    runner.threads_most = config.calls_at_once
    return runner


def _function_runner(
    sandbox: Sandbox, threads: TurnThreads, context: LambdaContext
) -> HandlerRunner:
    # Only a fleet with such a handler has a right to Lambda, and need of its client.
    from shardfleet.adapters.invoked_function import InvokedFunction  # noqa: PLC0415
    from shardfleet.runtime.function_runner import FunctionHandlerRunner  # noqa: PLC0415

    config, pool = sandbox.config, threads.calls
    name, client = config.handler_function, sandbox.clients.functions
    return FunctionHandlerRunner(
        InvokedFunction(name, client=client, pool=pool),
        pool=pool,
        source=EventSource.of(config.stream_arn, function_arn=context.invoked_function_arn),
        timeout_ms=config.handler_timeout_ms,
        patience=Patience.of(config, clock=sandbox.clock, entropy=sandbox.entropy),
        tells_errors=config.log_errors,
    )


def _bucket(sandbox: Sandbox, pool: ThreadPool, invocation: Invocation) -> S3DeadLetters:
    return S3DeadLetters(
        sandbox.config.failed_bucket,
        client=sandbox.clients.later("s3"),
        pool=pool,
        invocation=invocation,
    )


def _queue(sandbox: Sandbox, pool: ThreadPool, invocation: Invocation) -> SqsDeadLetters:
    return SqsDeadLetters(
        sandbox.config.failed_queue_url,
        client=sandbox.clients.later("sqs"),
        pool=pool,
        invocation=invocation,
        overflow=_bucket(sandbox, pool, invocation) if sandbox.config.failed_bucket else None,
    )


def _topic(sandbox: Sandbox, pool: ThreadPool, invocation: Invocation) -> SnsDeadLetters:
    return SnsDeadLetters(
        sandbox.config.failed_topic_arn,
        client=sandbox.clients.later("sns"),
        pool=pool,
        invocation=invocation,
        kept=_bucket(sandbox, pool, invocation),
    )


_DEAD_LETTERS: Mapping[
    Destination, Callable[[Sandbox, ThreadPool, Invocation], DeadLetters | None]
] = {
    Destination.NOTHING: lambda *_: None,
    Destination.QUEUE: _queue,
    Destination.BUCKET: _bucket,
    Destination.TOPIC: _topic,
}


def failure_policy(
    sandbox: Sandbox, threads: TurnThreads, *, context: LambdaContext
) -> FailurePolicy:
    """Return what becomes of records that failed for good."""
    config = sandbox.config
    source = EventSource.of(config.stream_arn, function_arn=context.invoked_function_arn)
    invocation = Invocation(
        fleet=config.fleet,
        function_arn=context.invoked_function_arn,
        request_id=context.aws_request_id,
        as_event=lambda records: kinesis_event(records, source),
    )
    keeping = _DEAD_LETTERS[config.policy_terms.destination]
    return FailurePolicy(config.policy_terms, keeping(sandbox, threads.streams, invocation))


def window_states(
    sandbox: Sandbox, threads: TurnThreads, *, context: LambdaContext
) -> WindowStates | None:
    """Return where large states of tumbling windows are kept; None: nowhere."""
    config = sandbox.config
    if not (config.tumbling_window_ms and config.failed_bucket):
        return None
    # Few fleets have windows; the others do not wait for this at each cold start.
    from shardfleet.adapters.window_states import S3WindowStates  # noqa: PLC0415

    return S3WindowStates(
        config.failed_bucket,
        client=sandbox.clients.later("s3"),
        pool=threads.streams,
        fleet=config.fleet,
        function_arn=context.invoked_function_arn,
    )


def worker_ports(sandbox: Sandbox, threads: TurnThreads, context: LambdaContext) -> WorkerPorts:
    """Return everything that a worker's turn asks of the world."""
    # The manager's start does not wait for what only workers need.
    from shardfleet.engine.worker.ports import WorkerPorts  # noqa: PLC0415
    from shardfleet.runtime.delivering import progress_of  # noqa: PLC0415

    kinesis = stream(sandbox, threads)
    return WorkerPorts(
        clock=sandbox.clock,
        entropy=sandbox.entropy,
        leases=lease_store(sandbox, threads),
        state=state_store(sandbox, threads),
        stream=kinesis,
        source=source(sandbox, threads, kinesis),
        handler=handler_runner(sandbox, threads, context),
        progress=progress_of(sandbox.config),
        policy=failure_policy(sandbox, threads, context=context),
        events=sandbox.events,
        process=TellingProcess(sandbox),
        cpu=sandbox.cpu,
        window_states=window_states(sandbox, threads, context=context),
    )


class CalledManager(Struct, frozen=True):
    """The ``ManagerCall`` port: the manager is a function of its own."""

    sandbox: Sandbox
    threads: TurnThreads

    async def call(self, function: str) -> None:
        """Have it invoked."""
        # Few turns call it: no slot's cold start waits for this.
        from shardfleet.adapters.invoked_function import InvokedFunction  # noqa: PLC0415

        client, pool = self.sandbox.clients.later("functions"), self.threads.calls
        await InvokedFunction(function, client=client, pool=pool).begin()


def tables_of(sandbox: Sandbox, threads: TurnThreads) -> TablePools:
    """Return the clients of both tables, each with its threads."""
    clients, wired = sandbox.clients, WIRED[sandbox.config.stream_calls]
    return TablePools(
        writes=threads.writes,
        reads=threads.reads,
        write_client=clients.wired_writes if wired else clients.table_writes,
        read_client=clients.wired_reads if wired else clients.table_reads,
    )


def _write_threads(config: FleetConfig) -> int:
    return min(config.leases_per_worker + 1, WRITE_THREADS_MOST)  # one more: the slot's heartbeat


def _call_threads(config: FleetConfig) -> int:
    return min(config.leases_per_worker * config.parallelism, CALL_THREADS_MOST)


def _log_level(env: Mapping[str, str]) -> Level:
    named = [env[name].upper() for name in _LEVEL_VARIABLES if name in env]
    known = [Level[name] for name in named if name in Level.__members__]
    return known[0] if known else Level.INFO
