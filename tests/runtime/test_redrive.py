"""Records that were given up, once more through the deployed handler."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from shardfleet.adapters.invoked_function import FunctionAnswer
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.ways import PLAIN, WAYS
from shardfleet.engine.retry import Patience
from shardfleet.errors import ConfigurationError, HandlerTimedOut, Throttled
from shardfleet.runtime.handler_call import kinesis_event
from shardfleet.runtime.redrive import Redrive, RedrivingWorker, records_of
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.adapters.test_dead_letters import SOURCE, STREAM, failed
from tests.virtual import virtual

RECORDS = failed(b"\x00one", b"two", b"three").records
_, MANUAL, WINDOWS = WAYS
EVENT = json.loads(json.dumps(kinesis_event(RECORDS, SOURCE)))


@virtual
async def run_through(script=None, *, hooks=None, way=PLAIN, load_error=""):
    """Return the result and the handler."""
    clock = VirtualClock()
    handler = MemoryHandler(clock, script, load_error=load_error)
    handler.hooks = hooks
    work = Redrive(
        records_of(EVENT),
        stream_arn=STREAM,
        way=way,
        timeout_ms=5_000,
        clock=clock,
    )
    return SimpleNamespace(result=await work.run(handler), handler=handler)


def test_the_records_of_an_event_are_the_ones_that_the_handler_had():
    assert records_of(EVENT) == list(RECORDS)


def test_with_windows_nothing_is_handed_over_and_it_says_why():
    ran = run_through(way=WINDOWS)

    assert ran.result.done_count == 0
    assert "the window of these records is over" in ran.result.error
    assert not ran.handler.calls


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        {"Records": []},
        {"Records": [{}]},
        {
            "Records": [
                {
                    **EVENT["Records"][0],
                    "kinesis": {
                        **EVENT["Records"][0]["kinesis"],
                        "approximateArrivalTimestamp": float("inf"),
                    },
                }
            ]
        },
        {"Records": [{**EVENT["Records"][0], "eventID": "another:1"}, EVENT["Records"][1]]},
        {
            "Records": [
                {
                    **EVENT["Records"][0],
                    "kinesis": {**EVENT["Records"][0]["kinesis"], "data": "no base64!"},
                }
            ]
        },
    ],
)
def test_what_is_no_event_is_refused(event):
    with pytest.raises(ConfigurationError, match="redrive: "):
        records_of(event)


def test_a_handler_gets_them_as_one_batch_and_has_handled_them():
    ran = run_through()
    (call,) = ran.handler.calls
    assert list(call.batch) == list(RECORDS)
    assert (ran.result.done_count, ran.result.error) == (3, None)


def test_what_a_handler_says_has_failed_is_told():
    async def fail(_):
        return {"batchItemFailures": [{"itemIdentifier": "101"}]}

    ran = run_through(fail)
    assert ran.result.done_count == 1
    assert "not handled from record 101" in ran.result.error


def test_a_class_is_told_of_a_beginning_and_an_end():
    told = []

    async def hooks(hook, shard):
        told.append((hook, shard.shard_id))

    ran = run_through(hooks=hooks)
    shard_id = RECORDS[0].shard_id
    assert told == [(Hook.STARTED, shard_id), (Hook.STOPPING, shard_id)]
    assert ran.result.done_count == 3


def test_a_class_that_does_not_start_has_handled_nothing():
    async def hooks(hook, _):
        raise ValueError(hook)

    ran = run_through(hooks=hooks)
    assert (ran.result.done_count, ran.result.error) == (0, "ValueError: started")
    assert not ran.handler.calls


@pytest.mark.parametrize("checkpointed", ["in the call", "in the last one", "never"])
def test_with_manual_checkpoints_they_are_done_when_they_are_checkpointed(checkpointed):
    async def script(batch):
        assert batch.must_flush
        if checkpointed == "in the call" or (not batch and checkpointed == "in the last one"):
            batch.checkpoint()

    ran = run_through(script, way=MANUAL)
    assert len(ran.handler.calls) == (1 if checkpointed == "in the call" else 2)
    if checkpointed == "never":
        assert ran.result.done_count == 0
        assert "has not checkpointed them" in ran.result.error
        return
    assert (ran.result.done_count, ran.result.error) == (3, None)


def test_a_class_with_manual_checkpoints_may_flush_when_it_is_told_to_stop():
    async def hooks(hook, shard):
        if hook is Hook.STOPPING:
            shard.checkpoint()

    ran = run_through(hooks=hooks, way=MANUAL)
    assert (ran.result.done_count, ran.result.error) == (3, None)


def test_a_call_that_hangs_ends_the_process():
    async def hang(_):
        await asyncio.sleep(60)

    with pytest.raises(HandlerTimedOut):
        run_through(hang)


def test_a_handler_that_cannot_be_loaded_is_told():
    with pytest.raises(ConfigurationError, match="no settings"):
        run_through(load_error="no settings")


# --- from outside


def asked(*answers, event=EVENT):
    class Worker:
        name = "worker:live"
        sent = ()

        async def invoke(self, text):
            self.sent = (*self.sent, json.loads(text))
            answer = answers[min(len(self.sent), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def main():
        clock = VirtualClock()
        patience = Patience(clock=clock, entropy=SeededEntropy(1), first_ms=100, most_ms=1_000)
        worker = Worker()
        result = await RedrivingWorker(worker, patience=patience).handle(event)
        return result, worker.sent

    return run_virtual(main())


def answer(document, **more):
    return FunctionAnswer(payload=json.dumps(document).encode(), **more)


def test_the_workers_answer_is_the_handlers():
    result, sent = asked(answer({"version": 1, "redrive": {"done": 3, "error": None}}))
    assert (result.done_count, result.error) == (3, None)
    assert sent == ({"redrive": EVENT},)
    result, _ = asked(answer({"version": 1, "redrive": {"done": 1, "error": "no"}}))
    assert (result.done_count, result.error) == (1, "no")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            answer({"errorType": "HandlerNotLoaded", "errorMessage": "no module"}, failed=True),
            "the worker failed: HandlerNotLoaded: no module",
        ),
        (FunctionAnswer(refusal="RequestTooLargeException"), "RequestTooLargeException"),
        (answer({"version": 1, "outcome": "DRAINED"}), "worker:live answers otherwise"),
        (answer(None), "worker:live answers otherwise"),
        (FunctionAnswer(payload=b"x"), "worker:live answers otherwise"),
        (FunctionAnswer(payload=b"[" * 100_000), "worker:live answers otherwise"),
        (answer({"redrive": {"done": "x"}}), "worker:live answers otherwise"),
    ],
)
def test_any_other_answer_has_handled_nothing(given, told):
    result, _ = asked(given)
    assert result.done_count == 0
    assert result.error.startswith(told)


def test_a_throttle_is_waited_for_a_few_times():
    done = answer({"version": 1, "redrive": {"done": 3, "error": None}})
    assert asked(Throttled("x"), Throttled("x"), done)[0].done_count == 3
    with pytest.raises(Throttled):
        asked(Throttled("x"))


def test_what_an_invocation_cannot_hold_is_said_and_not_sent():
    large = kinesis_event(failed(bytes(5_000_000)).records, SOURCE)
    result, sent = asked(answer(None), event=large)
    assert "Lambda takes fewer than 6291456" in result.error
    assert sent == ()
