"""
A canary in key, payload and a handler's error appears in nothing that is logged, raised or kept.

Each path is run with the defaults: a whole worker turn with a failing handler (log, metrics, the
note of the stop), one whose process dies (crash notes), one whose consumer raises what nobody
foresaw, a manager's turns over a stopped shard (its plan, report and history), the producer's and
Spark's refusals, answers that cannot be read, and the commands that show a stopped shard. What is
left out on purpose: the record that was given up, kept whole where `on_exhausted` says, and
`log_errors`, which is asked for. Spark's reading: `tests/spark/test_no_record_in_texts.py`.
"""

import asyncio
import io
import json
import logging
import sys
import traceback
import types
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.adapters.telemetry.emf import EmfEventSink, Telling
from shardfleet.domain.delivery.record_ids import with_record_id
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import InvalidReply, ShardfleetError
from shardfleet.events.base import Level
from shardfleet.kpl.hash_keys import check_partition_key, parse_hash_key
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.producer.calls import checked
from shardfleet.runtime.handler_call import HandlerCaller
from shardfleet.runtime.handler_errors import HandlerErrors
from shardfleet.runtime.handler_loading import load_handler
from shardfleet.runtime.handler_runner import _call
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import examination, fleet_access
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryLauncher, SeededEntropy
from tests.cli.memory_access import memory_access
from tests.cli.test_foreign_text import facts
from tests.engine.worker_side.worker_kit import Crash, World

CANARY = "canary-jane-doe-4711"


class InvocationContext:
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:worker"
    aws_request_id = "a-request"
    memory_limit_in_mb = 512
    function_name = "worker"


class InLoop:
    """The product's way to call a handler, in virtual time: without its thread."""

    overlaps = False
    has_hooks = False

    def __init__(self, clock):
        self._clock = clock

    async def load(self):
        self._caller = HandlerCaller(
            load_handler("canary_code:handle", contract="auto"),
            context=InvocationContext(),
            source=None,
            now_ms=self._clock.now_ms,
        )

    async def run(self, batch):
        await asyncio.sleep(0)
        return _call(self._caller, batch, None, errors=HandlerErrors("tests", tells_words=False))

    async def close(self):
        return True


def raise_all_of_it(batch):
    """What a careless handler does: the error quotes the record, and so does its cause."""
    record = batch[0]
    try:
        raise KeyError(record.data)
    except KeyError as error:
        raise ValueError(f"{record.partition_key}: cannot read {record.data!r}\n") from error


def reply_with_it(batch):
    return {"batchItemFailures": [{"itemIdentifier": batch[0].data.decode()}]}


def exit_with_it(batch):
    raise SystemExit(batch[0].data.decode())


def derive_from_ours(batch):
    raise type("Mine", (InvalidReply,), {})(batch[0].data.decode())


@pytest.fixture
def handler(monkeypatch):
    def use(function):
        module = types.ModuleType("canary_code")
        module.handle = function
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return use


def a_world(**config):
    world = World(max_attempts=2, retry_first_ms=100, max_retry_ms=200, **config)
    world.out = io.StringIO()
    world.events = EmfEventSink(
        "fleet", clock=world.clock, telling=Telling(level=Level.DEBUG), stream=world.out
    )
    world.stream.put(CANARY.encode(), key=CANARY)
    return world


def kept_of(world):
    """Everything that the turn has logged, measured and stored."""
    documents = [[d.kind, d.id, dict(d.body)] for d in world.state.documents.values()]
    return world.out.getvalue() + json.dumps(documents) + repr(world.leases.leases)


@pytest.mark.parametrize(
    "function", [raise_all_of_it, reply_with_it, exit_with_it, derive_from_ours]
)
@pytest.mark.parametrize(
    "policy",
    [
        {"on_exhausted": "stop"},
        {"on_exhausted": "sqs", "failed_queue_url": "https://queue"},
    ],
    ids=["stop", "skip"],
)
def test_a_failing_handlers_words_are_logged_measured_and_kept_nowhere(
    function, policy, handler, caplog, capsys
):
    handler(function)

    async def main():
        world = a_world(**policy)
        await world.turn(handler=InLoop(world.clock))
        world.events.flush()
        return world

    with caplog.at_level(logging.DEBUG):
        world = run_virtual(main())
    kept = kept_of(world)
    assert '"BatchFailed"' in kept
    assert ("ShardStopped" in kept) == (policy["on_exhausted"] == "stop")
    said = capsys.readouterr()
    assert CANARY not in kept + caplog.text + said.out + said.err


def test_a_managers_documents_tell_a_stopped_shard_and_not_what_it_stopped_at(handler, caplog):
    handler(raise_all_of_it)

    async def main():
        world = a_world()
        await world.turn(handler=InLoop(world.clock))
        manager = LeaseManager(
            world.config,
            ManagerPorts(
                leases=world.leases,
                kcl3=MemoryKcl3Store(),
                state=FleetState(world.state, world.clock),
                stream=world.stream,
                source=PolledSource(world.stream, world.clock),
                launcher=MemoryLauncher(),
                clock=world.clock,
                entropy=SeededEntropy(7),
                events=world.events,
            ),
        )
        reports = [await manager.turn()]
        await world.clock.sleep_ms(60_000)
        reports.append(await manager.turn())
        world.events.flush()
        return world, reports

    with caplog.at_level(logging.DEBUG):
        world, reports = run_virtual(main())
    kept = kept_of(world)
    assert {"plan", "places", "turn", "loads"} <= {kind for kind, _ in world.state.documents}
    assert "ValueError (test_canary.py:" in kept
    assert CANARY not in kept + repr(reports) + caplog.text


@pytest.mark.parametrize("command", ["leases", "status", "explain", "resume", "doctor"])
def test_the_commands_that_show_a_stopped_shard_tell_where_and_not_what(
    command, handler, monkeypatch, capsys
):
    """`tail` and `where` show a record to whoever asks for it; these show it to nobody."""
    handler(raise_all_of_it)

    async def main():
        world = a_world()
        await world.turn(handler=InLoop(world.clock))
        return world

    world = run_virtual(main())

    @asynccontextmanager
    async def opened(_stack):
        state = FleetState(world.state, world.clock)
        yield memory_access(
            world.config,
            leases=world.leases,
            state=state,
            stream=world.stream,
            clock=world.clock,
        )

    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(fleet_access, "_opened", opened)
    monkeypatch.setattr(fleet_access.asyncio, "run", run_virtual)
    monkeypatch.setattr(examination, "examine", lambda stack: facts_of(world, stack))
    for form in ([], ["--json"]):
        application.run([command, *form])
        said = capsys.readouterr()
        assert CANARY not in said.out + said.err
        assert ("ValueError (test_canary.py:" in said.out) == (command != "status"), said


def facts_of(world, stack):
    """What the doctor would gather, of which the leases alone are of interest."""
    reading = fleet_access.with_fleet(stack, lambda fleet: fleet.reading())
    return replace(facts("x"), config=world.config, reading=reading)


def test_with_log_errors_they_are_told(handler):
    handler(raise_all_of_it)

    async def main():
        world = a_world()
        runner = InLoop(world.clock)
        runner.run = lambda batch: told_in_full(runner, batch)
        await world.turn(handler=runner)
        world.events.flush()
        return world

    async def told_in_full(runner, batch):
        await asyncio.sleep(0)
        return _call(runner._caller, batch, None, errors=HandlerErrors("tests", tells_words=True))

    assert CANARY in kept_of(run_virtual(main()))


def test_a_death_and_a_fault_of_our_own_note_positions_only(caplog):
    async def dies(_batch):
        raise Crash(CANARY)

    async def main():
        world = a_world(script=dies)
        for _ in range(3):
            await world.turn_that_may_die()

        def ill(call):
            if call.operation == "get_records":
                raise RuntimeError(CANARY)

        world.stream.fault = ill
        await world.turn_that_may_die()
        world.events.flush()
        return world

    with caplog.at_level(logging.DEBUG):
        kept = kept_of(run_virtual(main()))
    assert '"crash"' in kept or '"note"' in kept
    assert "ConsumerFailed" in kept
    assert CANARY not in kept + caplog.text


LONG = CANARY * 100
KEYS = [LONG, f"{CANARY}\ud800"]
RECORD = OutgoingRecord(CANARY, CANARY.encode())


@pytest.mark.parametrize(
    "refused",
    [
        *(lambda k=k: check_partition_key(k) for k in KEYS),
        lambda: parse_hash_key(CANARY),
        lambda: with_record_id(LONG, b""),
        lambda: list(aggregate([RECORD], max_bytes=30)),
        lambda: list(aggregate([OutgoingRecord(CANARY, CANARY)])),
        lambda: decode_page(b'{"Records":[{"Data":"' + CANARY.encode() + b"\xff"),
        lambda: checked(
            [OutgoingRecord(CANARY, CANARY.encode() * 100_000)], record_bytes=1_048_576
        ),
        lambda: checked([OutgoingRecord(CANARY, CANARY)], record_bytes=1_048_576),
    ],
)
def test_no_refusal_quotes_a_record(refused):
    with pytest.raises((ShardfleetError, UnreadableAnswer)) as caught:
        refused()
    error = caught.value
    assert CANARY not in repr(error) + "".join(traceback.format_exception(error))


def test_sparks_refusal_tells_how_long_a_value_is_and_not_what_it_is():
    row_checks = pytest.importorskip("shardfleet_spark.sink.row_checks")
    pa = pytest.importorskip("pyarrow")
    batch = pa.RecordBatch.from_pydict({"data": [CANARY.encode()], "partition_key": [LONG]})
    limits = row_checks.RowLimits(record_bytes=1024, framed=False)
    _, bad = row_checks.checked(batch, limits, first_row=0)
    text = str(row_checks.refuse(bad, total=1))
    assert "2,000 characters" in text
    assert CANARY not in text
