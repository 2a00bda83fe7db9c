"""The two Lambda functions with everything real behind them: the embedded AWS, and our engine."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from shardfleet.adapters.step_functions import execution_arn
from shardfleet.adapters.telemetry.whole_lines import WholeLines
from shardfleet.config import FleetConfig
from shardfleet.engine.state.ledger import day_of
from shardfleet.errors import ConfigurationError
from shardfleet.runtime import invocation
from shardfleet.runtime.bootstrap import TellingProcess, open_sandbox
from shardfleet.runtime.entry_points import worker_handler
from shardfleet.runtime.managing import ALLOCATIONS_BETWEEN_LOOKS, manager_handler
from shardfleet_testkit.memory import MemoryProcess, ProcessEndedError
from tests.adapters.tables import create_lease_table, create_state_table

# A worker here is this test's thread, so the state machine itself only waits.
WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}}
HANDLER = """
import json
import pathlib

def handle(batch):
    with pathlib.Path({out!r}).open("a") as out:
        for record in batch:
            out.write(record.data.decode() + "\\n")
"""
DEADLINE_S = 120  # generous: reached only when something is broken


class Context:
    """Lambda's context object of one invocation."""

    aws_request_id = "request-1"
    invoked_function_arn = "arn:aws:lambda:us-east-1:111122223333:function:worker:live"
    memory_limit_in_mb = "512"

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self):
        return max(0, int((self._end - time.monotonic()) * 1000))


class Fleet:
    """A stream, both tables and a state machine; the functions' environment."""

    def __init__(self, aws, folder):
        self.aws = aws
        name = f"orders-{uuid.uuid4().hex[:8]}"
        self.kinesis, self.tables = aws.client("kinesis"), aws.client("dynamodb")
        self.states = aws.client("stepfunctions")
        self.kinesis.create_stream(StreamName=name, ShardCount=2)
        self.kinesis.get_waiter("stream_exists").wait(StreamName=name)
        create_lease_table(self.tables, name)
        create_state_table(self.tables, f"{name}-state")
        machine = self.states.create_state_machine(
            name=name,
            definition=json.dumps(WAITING),
            roleArn="arn:aws:iam::111122223333:role/any",
        )
        stream = self.kinesis.describe_stream_summary(StreamName=name)
        self.out = folder / "handled"
        module = f"handler_{uuid.uuid4().hex[:8]}"
        (folder / f"{module}.py").write_text(HANDLER.format(out=str(self.out)))
        self.name = name
        self.config = FleetConfig(
            fleet="orders",
            stream_arn=stream["StreamDescriptionSummary"]["StreamARN"],
            lease_table=name,
            state_table=f"{name}-state",
            state_machine_arn=machine["stateMachineArn"],
            handler=f"{module}:handle",
            cycle_ms=300,
            manager_run_ms=60_000,
            turn_margin_ms=1_000,
            max_turn_ms=DEADLINE_S * 1_000,
            handler_timeout_ms=1_000,
            idle_end_ms=500,
            leases_per_worker=2,
        )

    def close(self):
        for execution in self.executions():
            self.states.stop_execution(executionArn=execution["executionArn"])

    def put(self, count):
        records = [{"PartitionKey": f"k{n}", "Data": b"%d" % n} for n in range(count)]
        self.kinesis.put_records(StreamName=self.name, Records=records)

    def executions(self):
        machine = self.config.state_machine_arn
        answer = self.states.list_executions(stateMachineArn=machine, statusFilter="RUNNING")
        return answer["executions"]

    def payload(self):
        """Return what the state machine would hand to the worker's first invocation."""
        (execution,) = self.executions()
        arn = execution_arn(self.config.state_machine_arn, execution["name"])
        return json.loads(self.states.describe_execution(executionArn=arn)["input"])

    def leases(self):
        items = self.tables.scan(TableName=self.name, ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items}

    def slot(self):
        answer = self.tables.get_item(
            TableName=f"{self.name}-state",
            Key={"kind": {"S": "slot"}, "id": {"S": self.payload()["slot"]}},
            ConsistentRead=True,
        )
        return answer["Item"]["body"]["M"]

    def handled(self):
        return self.out.read_text().split() if self.out.exists() else []


@pytest.fixture
def fleet(embedded_aws, tmp_path, monkeypatch):
    made = Fleet(embedded_aws, tmp_path)
    for name, value in {**embedded_aws.environment(), **made.config.to_env()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path)
    use(made.config, monkeypatch)
    yield made
    made.close()


def use(config, monkeypatch, **parts):
    """Give the entry points a sandbox of this configuration."""
    sandbox = replace(open_sandbox(config.to_env()), **parts)
    monkeypatch.setattr(invocation, "kept_sandbox", lambda: sandbox)
    return sandbox


def eventually(question):
    deadline = time.monotonic() + DEADLINE_S
    while not question():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.05)  # Polling for an outcome, bounded above.


class Invocation(threading.Thread):
    """An invocation of the worker beside the test."""

    def __init__(self, payload, seconds):
        super().__init__()
        self._arguments = payload, Context(seconds)
        self.reply = None

    def run(self):
        self.reply = worker_handler(*self._arguments)


@pytest.mark.processes
def test_manager_and_worker_bring_every_record_to_the_handler_and_checkpoint_it(fleet, monkeypatch):
    others = set(
        threading.enumerate()
    )  # A source of Spark keeps its threads as long as its process.
    fleet.put(50)
    assert manager_handler({"trigger": "schedule"}, Context(12))["turns"] >= 1
    assert sorted(fleet.leases()) == ["shardId-000000000000", "shardId-000000000001"]
    worker = Invocation({**fleet.payload(), "fault": ""}, seconds=DEADLINE_S)
    worker.start()
    manager_handler({"trigger": "schedule"}, Context(16))
    eventually(lambda: len(set(fleet.handled())) == 50)
    eventually(lambda: all(item["checkpoint"]["S"].isdigit() for item in fleet.leases().values()))
    assert {item["leaseOwner"]["S"] for item in fleet.leases().values()} == {"orders-s0001"}
    drain(fleet)
    worker.join(DEADLINE_S)
    assert worker.reply == {"version": 1, "outcome": "DRAINED"}
    assert sorted(map(int, fleet.handled())) == list(range(50))
    assert not any("leaseOwner" in item for item in fleet.leases().values())
    mine = [each.name for each in threading.enumerate() if each not in others]
    left = [name for name in mine if name.startswith("shardfleet")]
    assert left == []  # hazard H10


def drain(fleet):
    fleet.tables.update_item(
        TableName=f"{fleet.name}-state",
        Key={"kind": {"S": "slot"}, "id": {"S": "s0001"}},
        UpdateExpression="SET body.drain = :yes ADD version :one",
        ExpressionAttributeValues={":yes": {"BOOL": True}, ":one": {"N": "1"}},
    )


INVOKED = """
import json, os, sys, time
from types import SimpleNamespace
from {module} import {function}

end_s = time.monotonic() + {seconds}
context = SimpleNamespace(
    aws_request_id="request-1",
    invoked_function_arn="arn:aws:lambda:eu-central-1:111122223333:function:any:live",
    memory_limit_in_mb="512",
    get_remaining_time_in_millis=lambda: max(0, int((end_s - time.monotonic()) * 1000)),
)
{function}({event!r}, context)
"""
PRODUCED = """
from shardfleet.producer.blocking import BlockingProducer
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.open import open_producer

with BlockingProducer(lambda: open_producer({stream!r})) as producer:
    producer.put(OutgoingRecord("k", b"from a producer"))
"""
# Powertools imports the empty package "botocore", in 0.6 ms, to register with it.
TELLING = """
import pathlib, sys
of_sdk = [name for name in sys.modules if name.partition(".")[0] in ("boto3", "botocore")]
pathlib.Path(%r).write_text(" ".join(sorted({*of_sdk} - {"botocore"})) or "nothing")
"""


class Process:
    """What of the SDK a program has loaded when it tells, in a process of its own."""

    def __init__(self, fleet, folder):
        self.told = folder / "loaded"
        self.tell = TELLING % str(self.told)
        config = replace(fleet.config, idle_end_ms=DEADLINE_S * 1_000)
        # As in Lambda: no file of settings is named there, and no variable of a test.
        self._env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder)}
        self._env |= {**fleet.aws.environment(), **config.to_env()}

    def begun(self, program):
        return subprocess.Popen([sys.executable, "-c", program], env=self._env)

    def loaded_by(self, program):
        assert self.begun(program + self.tell).wait(DEADLINE_S) == 0
        return self.told.read_text()


@pytest.mark.processes
def test_a_managers_first_turn_loads_nothing_of_the_sdk(fleet, tmp_path):
    program = INVOKED.format(
        module="shardfleet.runtime.managing", function="manager_handler", event={}, seconds=6
    )
    assert Process(fleet, tmp_path).loaded_by(program) == "nothing"
    assert len(fleet.leases()) == 2, "the turn was a whole one"
    assert len(fleet.executions()) == 1, "and it started a worker"


@pytest.mark.processes
def test_a_workers_first_batch_comes_without_anything_of_the_sdk(fleet, tmp_path):
    process = Process(fleet, tmp_path)
    fleet.put(3)
    manager_handler({}, Context(6))
    (module,) = tmp_path.glob("handler_*.py")
    module.write_text(f"{module.read_text()}    exec({process.tell!r})\n")
    worker = process.begun(
        INVOKED.format(
            module="shardfleet.runtime.entry_points",
            function="worker_handler",
            event=fleet.payload(),
            seconds=DEADLINE_S,
        )
    )
    manager_handler({}, Context(16))
    eventually(process.told.exists)
    drain(fleet)
    assert worker.wait(DEADLINE_S) == 0
    assert process.told.read_text() == "nothing"
    assert sorted(map(int, fleet.handled())) == [0, 1, 2]


@pytest.mark.processes
@pytest.mark.parametrize("named_by", ["name", "ARN"])
def test_a_producers_first_record_goes_without_anything_of_the_sdk(fleet, tmp_path, named_by):
    stream = fleet.name if named_by == "name" else fleet.config.stream_arn
    assert Process(fleet, tmp_path).loaded_by(PRODUCED.format(stream=stream)) == "nothing"


@pytest.mark.processes
def test_what_is_loaded_of_the_sdk_is_seen(fleet, tmp_path):
    assert Process(fleet, tmp_path).loaded_by("import boto3").split()[0] == "boto3"


@pytest.mark.processes
def test_what_each_invocation_used_is_in_the_ledger_by_writer(fleet, monkeypatch):
    # Its end is its run's, not the invocation's: whoever is cut short leaves no note.
    use(replace(fleet.config, manager_run_ms=3_000), monkeypatch)
    manager_handler({}, Context(DEADLINE_S))
    worker_handler(fleet.payload(), Context(DEADLINE_S))
    manager_handler({}, Context(DEADLINE_S))

    def used(writer):
        key = {"kind": {"S": f"ledger {day_of(time.time() * 1_000)}"}, "id": {"S": writer}}
        body = fleet.tables.get_item(TableName=f"{fleet.name}-state", Key=key)["Item"]["body"]["M"]
        names = {name["S"] for name in body["metrics"]["L"]}
        return {name: int(value["N"]) for name, value in body["used"]["M"].items()}, names

    manager, names = used("manager")
    assert (manager["requests"], manager["scheduled_runs"], manager["transitions"]) == (2, 2, 0)
    assert manager["mb_ms"] > 2 * 100 * 512
    assert min(manager["read_tenths"], manager["write_tenths"], manager["log_bytes"]) > 0
    assert {"total_leases", "uncovered"} <= names
    worker, names = used("s0001")
    assert (worker["requests"], worker["transitions"]) == (1, 2)
    assert worker["write_tenths"] > 0
    assert "worker_leases" in names


@pytest.mark.processes
def test_a_worker_of_a_start_that_is_over_is_drained_and_touches_nothing(fleet):
    manager_handler({}, Context(6))
    before = fleet.slot()
    given = {**fleet.payload(), "start_epoch": 99}
    assert worker_handler(given, Context(60)) == {"version": 1, "outcome": "DRAINED"}
    assert fleet.slot() == before


@pytest.mark.processes
@pytest.mark.parametrize(
    ("max_turn_ms", "seconds"), [(1_500, 60), (120_000, 6)], ids=["turn's", "invocation's"]
)
def test_a_worker_claims_its_slot_and_goes_on_when_the_turns_or_invocations_time_is_over(
    fleet, monkeypatch, max_turn_ms, seconds
):
    manager_handler({}, Context(6))
    use(replace(fleet.config, max_turn_ms=max_turn_ms, idle_end_ms=30_000), monkeypatch)
    context = Context(seconds)
    assert worker_handler(fleet.payload(), context) == {"version": 1, "outcome": "CONTINUE"}
    assert context.get_remaining_time_in_millis() > 0
    slot = fleet.slot()
    assert (slot["epoch"], slot["state"], slot["turn_open"]) == (
        {"N": "1"},
        {"S": "RUNNING"},
        {"BOOL": False},
    )


@pytest.mark.processes
def test_a_worker_that_is_told_to_end_ends_its_turn_in_good_order_and_goes_on(
    fleet, monkeypatch, request
):
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # Not ours: then the turn goes on.
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    manager_handler({}, Context(6))
    use(replace(fleet.config, idle_end_ms=DEADLINE_S * 1_000), monkeypatch)

    def tell():
        eventually(lambda: fleet.slot()["turn_open"]["BOOL"])
        os.kill(os.getpid(), signal.SIGTERM)

    telling = threading.Thread(target=tell)
    telling.start()
    context = Context(DEADLINE_S)
    assert worker_handler(fleet.payload(), context) == {"version": 1, "outcome": "CONTINUE"}
    telling.join()
    assert context.get_remaining_time_in_millis() > DEADLINE_S * 500
    assert fleet.slot()["turn_open"] == {"BOOL": False}


@pytest.mark.processes
def test_a_worker_without_work_is_idle(fleet):
    manager_handler({}, Context(6))
    assert worker_handler(fleet.payload(), Context(60)) == {"version": 1, "outcome": "IDLE"}


@pytest.mark.processes
def test_a_turn_that_leaves_a_thread_behind_ends_the_process(fleet, monkeypatch, request):
    """Hazard H10: what cannot be joined must not meet the next invocation."""
    use(fleet.config, monkeypatch, process=MemoryProcess())
    begun, release, hung = threading.Event(), threading.Event(), []
    request.addfinalizer(release.set)

    def hang():
        begun.set()
        release.wait(DEADLINE_S)

    class Hanging(invocation.TurnThreads):
        async def close(self, *, within_ms):
            hung.append(asyncio.create_task(self.streams.run(hang)))
            # A call that has not begun would just be dropped.
            assert await asyncio.to_thread(begun.wait, DEADLINE_S)
            return await super().close(within_ms=min(within_ms, 100))

    monkeypatch.setattr(invocation, "TurnThreads", Hanging)
    with pytest.raises(ProcessEndedError, match="outlived its turn"):
        manager_handler({}, Context(6))


@pytest.mark.processes
def test_a_line_that_was_begun_is_in_the_log_when_the_invocation_is_over(fleet, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", WholeLines(written))
    sys.stdout.write("so far")
    manager_handler({}, Context(6))
    assert written.getvalue() == "so far\n"


def test_a_line_that_was_begun_is_in_the_log_when_the_process_ends_itself(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", WholeLines(written))
    sandbox = SimpleNamespace(events=SimpleNamespace(flush=list), process=MemoryProcess())
    sys.stdout.write("so far")
    with pytest.raises(ProcessEndedError):
        TellingProcess(sandbox).end("a call outlived its time-out")
    assert written.getvalue() == "so far\n"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({}, "version None"),
        ({"version": 99}, "version 99"),
        ({"version": 1, "slot": "s0001"}, "missing generation, name, start_epoch"),
    ],
)
def test_a_payload_that_cannot_be_read_says_what_is_wrong(monkeypatch, event, words):
    config = FleetConfig(
        fleet="orders",
        stream_arn="arn:aws:kinesis:us-east-1:111122223333:stream/orders",
        lease_table="orders",
        state_table="state",
    )
    use(config, monkeypatch)
    with pytest.raises(ConfigurationError, match=words):
        worker_handler(event, Context(60))


def imported_by(code):
    listing = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout))


def test_a_cold_start_loads_no_protobuf_no_type_stubs_and_nothing_for_development():
    loaded = {
        name.partition(".")[0]
        for name in imported_by("import shardfleet.runtime.entry_points")
        if not name.startswith("google._")
    }
    unwanted = {"google", "hypothesis", "moto", "mypy_boto3_dynamodb", "ministack", "aws_cdk"}
    assert loaded & unwanted == set()
    parts = imported_by("import shardfleet.runtime.entry_points")
    assert not [
        name for name in parts if name.startswith(("shardfleet_testkit", "shardfleet_local"))
    ]


def test_the_managers_file_hands_on_the_librarys_entry_point():
    code = "import sys; sys.path.insert(0, 'functions/lease_manager'); import handler"
    assert "shardfleet.runtime.managing" in imported_by(code)


def test_the_managers_process_looks_for_circles_seldom_and_never_among_what_is_imported():
    code = (
        "import gc, sys; sys.path.insert(0, 'functions/lease_manager'); import handler; "
        "print(*gc.get_threshold(), gc.get_freeze_count())"
    )
    words = [sys.executable, "-c", code]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    *threshold, frozen = map(int, told.split())
    assert tuple(threshold) == ALLOCATIONS_BETWEEN_LOOKS
    assert frozen > 10_000


def test_the_sandbox_is_opened_once_per_process(monkeypatch):
    opened = []
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(
        invocation, "open_sandbox", lambda env: opened.append(env) or SimpleNamespace()
    )
    invocation.kept_sandbox.cache_clear()
    assert invocation.kept_sandbox() is invocation.kept_sandbox()
    assert len(opened) == 1
    invocation.kept_sandbox.cache_clear()
