"""From the environment to the ports."""

import asyncio
import io
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from shardfleet.adapters.dead_letters import S3DeadLetters, SnsDeadLetters, SqsDeadLetters
from shardfleet.adapters.telemetry.emf import EmfEventSink
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.changes import create, renew
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON
from shardfleet.domain.slots.slot import SlotInput
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.errors import ConfigurationError, HandlerNotLoaded
from shardfleet.events.base import Level
from shardfleet.events.delivery import PageRead
from shardfleet.runtime import bootstrap, entry_points, managing
from shardfleet.runtime.bootstrap import TurnThreads, open_sandbox
from shardfleet_testkit.memory import ProcessEndedError
from tests.adapters.loopback import HANG, Service, serving
from tests.adapters.tables import create_lease_table

CONFIG = FleetConfig(
    fleet="orders",
    stream_arn="arn:aws:kinesis:ap-south-1:111122223333:stream/orders",
    lease_table="orders",
    state_table="orders-state",
    state_machine_arn="arn:aws:states:eu-central-1:111122223333:stateMachine:orders",
)
CONTEXT = SimpleNamespace(invoked_function_arn="arn", aws_request_id="id")


def sandbox_of(**more):
    values = {name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}
    return open_sandbox(FleetConfig(**{**values, **more}).to_env())


def test_every_missing_variable_is_named_at_once():
    with pytest.raises(ConfigurationError) as raised:
        open_sandbox({"SHARDFLEET_FLEET": "orders"})
    for name in ("SHARDFLEET_STREAM_ARN", "SHARDFLEET_LEASE_TABLE", "SHARDFLEET_STATE_TABLE"):
        assert name in str(raised.value)


def test_a_sandbox_makes_each_client_once_and_none_before_it_is_needed():
    sandbox = sandbox_of()
    assert "table_writes" not in vars(sandbox.clients)
    assert sandbox.clients.table_writes is sandbox.clients.table_writes


def test_writes_are_sent_once_and_reads_may_be_repeated():
    """Hazard H1: a silent second attempt would hide that an outcome was ever unknown."""
    clients = sandbox_of().clients
    attempts = {
        name: getattr(clients, name).meta.config.retries["total_max_attempts"]
        for name in ("table_writes", "table_reads", "stream_records", "stream_control")
    }
    assert attempts == {
        "table_writes": 1,
        "table_reads": 3,
        "stream_records": 1,
        "stream_control": 3,
    }
    assert clients.table_writes.meta.config.read_timeout <= 2
    assert clients.table_writes.meta.config.connect_timeout <= 2


def test_the_stream_is_asked_in_its_own_region(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert sandbox_of().clients.stream_records.meta.region_name == "ap-south-1"


def test_lease_writes_table_reads_and_stream_reads_have_threads_of_their_own():
    """Hung stream reads must not hold up a renewal or a look at the slot (hazard H17)."""
    sandbox = sandbox_of(leases_per_worker=4, io_threads=9)
    threads = TurnThreads(sandbox.config)
    store = bootstrap.lease_store(sandbox, threads)
    reader = bootstrap.stream(sandbox, threads)
    assert store._pools.writes is threads.writes
    assert store._pools.reads is threads.reads
    assert reader._pool is threads.streams
    assert len({id(threads.writes), id(threads.reads), id(threads.streams)}) == 3
    assert threads.writes.threads_most == 5  # its leases at once, and the slot
    assert threads.streams.threads_most == 9
    assert asyncio.run(threads.close(within_ms=60_000))


def test_each_pool_has_as_many_connections_as_threads():
    clients = sandbox_of(leases_per_worker=4, io_threads=9).clients
    assert clients.table_writes.meta.config.max_pool_connections == 5
    assert clients.stream_records.meta.config.max_pool_connections == 9


def test_the_manager_cannot_do_without_a_state_machine():
    sandbox = sandbox_of(state_machine_arn="")
    with pytest.raises(ConfigurationError, match="SHARDFLEET_STATE_MACHINE_ARN"):
        managing.worker_launcher(sandbox, TurnThreads(sandbox.config))


@pytest.mark.parametrize("name", ["handler", "handle"])
def test_with_manual_checkpoints_a_handler_of_events_is_refused(name, tmp_path, monkeypatch):
    code = "def handler(event, context): ...\ndef handle(batch): ...\n"
    (tmp_path / "kept_open.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    sandbox = sandbox_of(handler=f"kept_open:{name}", checkpoint="manual")
    runner = bootstrap.handler_runner(sandbox, TurnThreads(sandbox.config), CONTEXT)

    async def load():
        try:
            await runner.load()
        finally:
            assert await runner.close()

    if name == "handle":
        asyncio.run(load())
        return
    with pytest.raises(HandlerNotLoaded, match=r"the contract native calls it with \(batch\)"):
        asyncio.run(load())


@pytest.mark.parametrize(
    ("config", "threads"),
    [
        ({}, 1),
        ({"handler_threads": 8}, 8),
        ({"parallelism": 4}, 4),
        ({"handler_threads": 8, "parallelism": 16}, 16),
    ],
    ids=str,
)
def test_a_handler_has_as_many_threads_as_its_calls_need(config, threads):
    sandbox = sandbox_of(handler="orders.app:handle", **config)
    runner = bootstrap.handler_runner(sandbox, TurnThreads(sandbox.config), CONTEXT)
    assert runner.threads_most == threads


def test_a_handler_that_is_a_function_has_a_thread_and_a_connection_for_each_lane():
    function = {"handler_function": "orders", "handler_timeout_ms": 90_000}
    sandbox = sandbox_of(**function, leases_per_worker=6, parallelism=5)
    threads = TurnThreads(sandbox.config)
    runner = bootstrap.handler_runner(sandbox, threads, CONTEXT)
    assert type(runner).__name__ == "FunctionHandlerRunner"
    assert threads.calls.threads_most == 30
    assert sandbox.clients.functions.meta.config.max_pool_connections == 30
    assert sandbox.clients.functions.meta.config.read_timeout == 90


def test_a_worker_cannot_do_without_a_handler():
    with pytest.raises(ConfigurationError, match="SHARDFLEET_HANDLER"):
        bootstrap.handler_runner(sandbox_of(), None, CONTEXT)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, type(None)),
        ({"failed_bucket": "failed"}, type(None)),
        ({"on_exhausted": "s3", "failed_bucket": "failed"}, S3DeadLetters),
        ({"on_exhausted": "sqs", "failed_queue_url": "http://127.0.0.1/q"}, SqsDeadLetters),
        (
            {"on_exhausted": "sns", "failed_bucket": "failed", "failed_topic_arn": "arn"},
            SnsDeadLetters,
        ),
    ],
)
def test_given_up_records_go_where_the_policy_says(settings, kind):
    sandbox = sandbox_of(**settings)
    threads = TurnThreads(sandbox.config)
    policy = bootstrap.failure_policy(sandbox, threads, context=CONTEXT)
    assert policy.terms is sandbox.config.policy_terms
    assert policy.admits is None
    assert type(policy._dead_letters) is kind


def test_a_queue_overflows_into_the_bucket_if_there_is_one():
    for bucket, has_overflow in (("failed", True), ("", False)):
        sandbox = sandbox_of(
            on_exhausted="sqs", failed_queue_url="http://127.0.0.1/q", failed_bucket=bucket
        )
        threads = TurnThreads(sandbox.config)
        policy = bootstrap.failure_policy(sandbox, threads, context=CONTEXT)
        assert (policy._dead_letters.overflow is not None) is has_overflow


@pytest.mark.parametrize(
    ("env", "level"),
    [
        ({}, Level.INFO),
        ({"POWERTOOLS_LOG_LEVEL": "debug"}, Level.DEBUG),
        ({"AWS_LAMBDA_LOG_LEVEL": "ERROR"}, Level.ERROR),
        ({"POWERTOOLS_LOG_LEVEL": "WARNING", "AWS_LAMBDA_LOG_LEVEL": "DEBUG"}, Level.WARNING),
        ({"POWERTOOLS_LOG_LEVEL": "LOUD"}, Level.INFO),
    ],
)
def test_the_log_level_is_the_one_that_the_environment_names(env, level):
    assert open_sandbox({**CONFIG.to_env(), **env}).events._telling.level == level


@pytest.mark.processes
def test_a_renewal_goes_through_while_every_stream_thread_hangs(embedded_aws, monkeypatch):
    """Hazard H17, with real sockets: GetRecords is never answered."""
    for name, value in embedded_aws.environment().items():
        monkeypatch.setenv(name, value)
    table = f"leases-{uuid.uuid4().hex[:8]}"
    create_lease_table(embedded_aws.client("dynamodb"), table)
    service = Service(HANG)
    with serving(service) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", endpoint)
        sandbox = sandbox_of(lease_table=table, io_threads=2)
        asyncio.run(renew_while_reads_hang(sandbox, service))


async def renew_while_reads_hang(sandbox, service):
    threads = TurnThreads(sandbox.config)
    leases = bootstrap.lease_store(sandbox, threads)
    reader = bootstrap.stream(sandbox, threads)
    lease = Lease(lease_key="shardId-000000000000", checkpoint=AT_TRIM_HORIZON)
    await leases.apply(create(lease))
    reads = [
        asyncio.create_task(
            reader.page(lease.lease_key, FROM_TRIM_HORIZON, resume_token="iterator", limit=1)
        )
        for _ in range(6)
    ]
    assert await asyncio.to_thread(service.has_requests, 2)  # both stream threads are taken
    assert (await leases.apply(renew(lease))).lease.lease_counter == 1
    assert not any(read.done() for read in reads)
    for read in reads:
        read.cancel()
    service.released.set()
    assert await threads.close(within_ms=60_000)


def test_what_was_gathered_is_told_before_a_process_ends_itself(monkeypatch):
    """Up to a minute of metrics would be lost just when a handler hangs (hazard H10)."""
    out, told = io.StringIO(), []

    class Ending:
        def end(self, reason):
            told.append(out.getvalue())
            raise ProcessEndedError(reason)

    async def hung(turn):
        page = {"stream_records": 7, "brings": True, "size_bytes": 1, "millis_behind_latest": 0}
        turn._ports.events.emit(PageRead(lease_key="shard", **page))
        assert not out.getvalue()
        turn._ports.process.end("a handler hangs")

    @asynccontextmanager
    async def invocation(sandbox, *_, **__):
        yield TurnThreads(sandbox.config)

    sandbox = sandbox_of(handler="a:b")
    events = EmfEventSink("orders", clock=sandbox.clock, stream=out)
    monkeypatch.setattr(entry_points.invocation, "invocation", invocation)
    monkeypatch.setattr(entry_points.WorkerTurn, "run", hung)
    given = SlotInput(slot_id="s1", name="n", start_epoch=0, generation=0)
    work = entry_points._work(
        given, replace(sandbox, events=events, process=Ending()), context=CONTEXT, deadline_ms=0
    )
    with pytest.raises(ProcessEndedError):
        asyncio.run(work)
    (written,) = told
    assert '"CloudWatchMetrics"' in written


@pytest.mark.parametrize("consumer", ["", f"{CONFIG.stream_arn}/consumer/orders:1700000000"])
def test_records_are_pushed_where_there_is_a_consumer_and_h2_is_loaded_nowhere_else(consumer):
    settings = {"handler": "x:y", "consumer_arn": consumer}
    environment = FleetConfig(
        **{**{name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}, **settings}
    ).to_env()
    program = f"""
import asyncio, sys
from types import SimpleNamespace
from shardfleet.runtime.bootstrap import TurnThreads, open_sandbox, worker_ports

async def main():
    sandbox = open_sandbox({environment!r})
    threads = TurnThreads(sandbox.config)
    context = SimpleNamespace(invoked_function_arn="arn", aws_request_id="id")
    ports = worker_ports(sandbox, threads, context)
    print(type(ports.source).__name__, "h2" in sys.modules, "botocore" in sys.modules)
    assert await threads.close(within_ms=1_000)

asyncio.run(main())
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert told.split() == (
        ["PushedSource", "True", "False"] if consumer else ["PolledSource", "False", "False"]
    )
