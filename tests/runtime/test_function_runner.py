"""A handler that is a Lambda function: cut by bytes, in order, its failures as attempts."""

import base64
import json
from itertools import pairwise
from types import SimpleNamespace

import pytest

from shardfleet.adapters.invoked_function import FunctionAnswer
from shardfleet.engine.retry import Patience
from shardfleet.errors import HandlerNotLoaded, OutcomeUnknown, Throttled
from shardfleet.records import Batch, Record, TumblingWindow
from shardfleet.runtime.function_runner import EVENT_BYTES_LIMIT, FunctionHandlerRunner, cuts_of
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy

SHARD = "shardId-000000000000"
ARN = "arn:aws:kinesis:eu-central-1:111122223333:stream/orders"
SOURCE = EventSource.of(ARN, function_arn="arn:aws:lambda:eu-central-1:111122223333:function:w")
TIMEOUT_MS = 60_000
# Of a record alone: as much base64 as an event takes beside its fields.
TOO_LARGE = EVENT_BYTES_LIMIT * 3 // 4


def records(*sizes, key="k"):
    return [
        Record(
            data=bytes([n % 251]) * size,
            partition_key=key,
            sequence_number=str(100 + n),
            shard_id=SHARD,
            approximate_arrival_ms=1_700_000_000_123,
        )
        for n, size in enumerate(sizes)
    ]


class Function:
    """Answers one after another, the last one again and again; an exception is raised."""

    name = "orders"

    def __init__(self, clock, *answers, takes_ms=0):
        self.clock = clock
        self.answers = list(answers) or [None]
        self.takes_ms = takes_ms
        self.events = []
        self.sizes = []
        self.checks = 0

    async def check(self):
        self.checks += 1
        self._next()

    async def invoke(self, event):
        self.events.append(json.loads(event))
        self.sizes.append(len(event))
        await self.clock.sleep_ms(self.takes_ms)
        answer = self._next()
        if isinstance(answer, FunctionAnswer):
            return answer
        return FunctionAnswer(payload=json.dumps(answer).encode())

    def _next(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Pool:
    async def run(self, call):
        return call()


def run_batch(given, *answers, takes_ms=0, tells_errors=False, load=False, of_window=None):
    """Return the result, or the exception, the function, and how long it took."""

    async def main():
        clock = VirtualClock()
        function = Function(clock, *answers, takes_ms=takes_ms)
        runner = FunctionHandlerRunner(
            function,
            pool=Pool(),
            source=SOURCE,
            timeout_ms=TIMEOUT_MS,
            patience=Patience(clock=clock, entropy=SeededEntropy(1), first_ms=200, most_ms=5_000),
            tells_errors=tells_errors,
        )
        batch = Batch(
            given,
            shard_id=SHARD,
            stream_arn=ARN,
            millis_behind_latest=0,
            attempt=1,
            deadline_ms=clock.now_ms() + TIMEOUT_MS,
        )
        if of_window:
            batch.window, batch.state = of_window
        began_ms = clock.now_ms()
        try:
            result = await (runner.load() if load else runner.run(batch))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            result = error
        return SimpleNamespace(result=result, function=function, took_ms=clock.now_ms() - began_ms)

    return run_virtual(main())


def failed(payload):
    return FunctionAnswer(payload=json.dumps(payload).encode(), failed=True)


# --- events


@pytest.mark.parametrize("key", ["k", "é" * 256, "\U0001f600" * 128, '"\\' * 128])
def test_cuts_hold_every_record_once_in_order_each_smaller_than_lambda_takes(key):
    given = records(*([3_000] * 3_000), key=key)
    cuts = list(cuts_of(given, SOURCE))

    assert [r for cut in cuts for r in cut.records] == given
    assert len(cuts) > 1
    assert all(len(cut.event) == cut.size < EVENT_BYTES_LIMIT for cut in cuts)
    for cut in cuts:
        assert json.loads(cut.event) == kinesis_event(cut.records, SOURCE)
    # None is cut off early: with the next record it would be too large.
    for cut, following in pairwise(cuts):
        more = json.dumps(kinesis_event([*cut.records, following.records[0]], SOURCE))
        assert len(more.encode()) >= EVENT_BYTES_LIMIT


def sized(count, total):
    """Return records whose one event would have so many bytes, to the byte."""
    given = records(*([1_500_000] * (count - 1)), 0)
    quads, rest = divmod(total - len(json.dumps(kinesis_event(given, SOURCE))), 4)
    (last,) = records(3 * quads, key="k" * (1 + rest))
    given[-1] = last
    assert len(json.dumps(kinesis_event(given, SOURCE))) == total
    return given


@pytest.mark.parametrize(("over", "fits"), [(-1, True), (0, False), (1, False)])
def test_a_record_alone_fits_up_to_the_byte(over, fits):
    (cut,) = cuts_of(sized(1, EVENT_BYTES_LIMIT + over), SOURCE)
    assert cut.size == EVENT_BYTES_LIMIT + over
    assert (cut.event is not None) is fits


@pytest.mark.parametrize(("over", "count"), [(-1, 1), (0, 2), (1, 2)])
def test_two_records_go_together_up_to_the_byte(over, count):
    assert len(list(cuts_of(sized(2, EVENT_BYTES_LIMIT + over), SOURCE))) == count


def test_a_batch_larger_than_an_event_is_handled_in_order_to_its_end():
    given = records(*([2_000_000] * 5))
    ran = run_batch(given)

    assert (ran.result.done_count, ran.result.error) == (5, None)
    numbers = [[r["kinesis"]["sequenceNumber"] for r in e["Records"]] for e in ran.function.events]
    assert numbers == [["100", "101"], ["102", "103"], ["104"]]
    sent = [r["kinesis"]["data"] for e in ran.function.events for r in e["Records"]]
    assert [base64.b64decode(data) for data in sent] == [r.data for r in given]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_record_too_large_for_an_event_fails_by_name_and_what_comes_before_it_is_done(at):
    sizes = [10, 10, 10]
    sizes[at] = TOO_LARGE
    ran = run_batch(records(*sizes))

    assert ran.result.done_count == at
    assert f"record {100 + at}:" in ran.result.error
    assert "fewer than 6291456 (synchronous Invoke)" in ran.result.error
    assert len(ran.function.events) == (1 if at else 0)


# --- replies


@pytest.mark.parametrize("reply", [None, {}, "", [], {"batchItemFailures": []}])
def test_an_empty_reply_is_success(reply):
    ran = run_batch(records(1, 1), reply)
    assert (ran.result.done_count, ran.result.error) == (2, None)


def test_a_record_that_a_reply_names_has_failed_and_those_before_it_are_done():
    ran = run_batch(records(1, 1, 1), {"batchItemFailures": [{"itemIdentifier": "101"}]})
    assert ran.result.done_count == 1
    assert "not handled from record 101" in ran.result.error


def test_a_failure_in_the_second_event_keeps_the_first_one_done():
    reply = {"batchItemFailures": [{"itemIdentifier": "103"}]}
    ran = run_batch(records(*([2_000_000] * 4)), None, reply)
    assert ran.result.done_count == 3


def test_an_identifier_of_the_other_event_is_unknown_and_fails_the_whole_event():
    reply = {"batchItemFailures": [{"itemIdentifier": "100"}]}
    ran = run_batch(records(*([2_000_000] * 4)), None, reply)
    assert ran.result.done_count == 2
    assert "names no record of this batch" in ran.result.error


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"statusCode": 200}, "InvalidReply: the handler returned a dict without batchItem"),
        ("ok", "InvalidReply: the handler returned a str"),
        (True, "InvalidReply: the handler returned a bool"),
        (FunctionAnswer(payload=b"[" * 100_000), "InvalidReply: the function returned what is no"),
        (FunctionAnswer(payload=b"<html>"), "InvalidReply: the function returned what is no JSON"),
        (
            FunctionAnswer(payload=b"\xff\xfe"),
            "InvalidReply: the function returned what is no JSON",
        ),
    ],
)
def test_a_reply_that_is_none_is_an_error_and_nothing_is_done(answer, told):
    ran = run_batch(records(1, 1), answer)
    assert ran.result.done_count == 0
    assert ran.result.error.startswith(told)


# --- failures


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"errorType": "ValueError", "errorMessage": "card 4111"}, "ValueError (in orders)"),
        (
            {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out after 3.00 seconds"},
            "Sandbox.Timedout (in orders)",
        ),
        ({"errorMessage": "Task timed out"}, "an error without a type (in orders)"),
        ("no object", "an error without a type (in orders)"),
        ({"errorType": "Runtime.MarshalError"}, "Runtime.MarshalError (in orders)"),
    ],
)
def test_what_a_function_raises_is_an_attempt_told_without_its_words(payload, told):
    ran = run_batch(records(1, 1), failed(payload))
    assert (ran.result.done_count, ran.result.error) == (0, told)


def test_its_words_are_told_where_they_may_be():
    error = failed({"errorType": "ValueError", "errorMessage": "card 4111"})
    ran = run_batch(records(1), error, tells_errors=True)
    assert ran.result.error == "ValueError: card 4111 (in orders)"


def test_an_event_that_lambda_refuses_is_an_attempt():
    ran = run_batch(
        records(1), FunctionAnswer(refusal="Invoke of orders: RequestTooLargeException: x")
    )
    assert (ran.result.done_count, "RequestTooLarge" in ran.result.error) == (0, True)


def test_a_throttle_is_waited_for_and_is_no_attempt():
    ran = run_batch(records(1, 1), *[Throttled("later")] * 5, None)
    assert (ran.result.done_count, ran.result.error) == (2, None)
    assert len(ran.function.events) == 6
    assert ran.took_ms < TIMEOUT_MS


def test_a_throttle_without_an_end_is_raised_within_the_time_of_a_batch():
    ran = run_batch(records(1), Throttled("later"))
    assert isinstance(ran.result, Throttled)
    assert TIMEOUT_MS - 5_000 <= ran.took_ms <= TIMEOUT_MS


def test_a_function_that_is_gone_is_raised_at_once():
    gone = HandlerNotLoaded("handler_function orders: gone", kind="FUNCTION")
    ran = run_batch(records(1), gone)
    assert ran.result is gone
    assert ran.took_ms == 0


def test_an_invocation_without_an_answer_may_run_still_and_nothing_runs_beside_it():
    ran = run_batch(records(1), OutcomeUnknown("hung up"))
    assert ran.result.done_count == 0
    assert "no answer within handler_timeout_ms (60000): hung up" in ran.result.error
    assert not ran.result.timed_out  # No thread of user code runs here: the process may live.
    assert ran.took_ms == TIMEOUT_MS


def test_no_event_is_begun_that_the_time_of_the_batch_has_no_room_for():
    ran = run_batch(records(*([2_000_000] * 4)), takes_ms=40_000)
    assert ran.result.done_count == 2
    assert "handler_timeout_ms (60000) is too short" in ran.result.error
    assert len(ran.function.events) == 1


def test_loading_looks_whether_the_function_may_be_invoked_and_waits_while_it_is_busy():
    ran = run_batch(records(1), Throttled("later"), None, load=True)
    assert ran.result is None
    assert (ran.function.checks, ran.function.events) == (2, [])


# --- tumbling windows


def a_window(*, is_final=False, **state):
    window = TumblingWindow(start_ms=0, end_ms=60_000, is_final=is_final, is_terminated_early=False)
    return window, state


def test_each_invocation_of_a_batch_is_given_the_state_of_the_one_before():
    answers = [{"state": {"n": 1}}, {"state": {"n": 2}}]
    ran = run_batch(records(*([1_000_000] * 6)), *answers, of_window=a_window(n=0))

    events = ran.function.events
    assert [event["state"] for event in events] == [{"n": 0}, {"n": 1}]
    assert [len(event["Records"]) for event in events] == [3, 3]
    assert events[0]["window"] == {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:01:00Z"}
    assert (ran.result.done_count, ran.result.state) == (6, '{"n":2}')


def test_a_failure_keeps_the_state_of_the_invocations_before_it():
    answers = [{"state": {"n": 1}}, failed({"errorType": "Oops"})]
    ran = run_batch(records(*([1_000_000] * 6)), *answers, of_window=a_window())

    assert (ran.result.done_count, ran.result.state) == (3, '{"n":1}')
    assert ran.result.error.startswith("Oops")


def test_an_event_with_the_largest_state_is_smaller_than_lambda_takes():
    state = {"k": "ä" * (2**19 - 4)}  # One mebibyte of JSON.
    ran = run_batch(records(*([300_000] * 40)), {"state": state}, of_window=a_window(**state))

    assert ran.result.error is None
    assert len(ran.function.sizes) > 1
    assert EVENT_BYTES_LIMIT * 0.9 < max(ran.function.sizes) < EVENT_BYTES_LIMIT


def test_the_last_call_of_a_window_is_one_invocation_without_records():
    ran = run_batch([], {"state": {}}, of_window=a_window(is_final=True, n=3))

    (event,) = ran.function.events
    assert (event["Records"], event["state"]) == ([], {"n": 3})
    assert event["isFinalInvokeForWindow"] is True
    assert ran.result.error is None


def test_an_answer_without_a_state_has_failed():
    ran = run_batch(records(1), None, of_window=a_window())

    assert ran.result.done_count == 0
    assert ran.result.error.startswith("InvalidReply: the handler returned NoneType")
