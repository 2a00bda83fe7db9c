"""The user's code in a thread of its own, one idea: never overlapping, timed out, stopped."""

import asyncio
import sys
import threading
import time
import types

import pytest

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ConfigurationError
from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_runner import ThreadHandlerRunner

STREAM_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
# A call may wait for other processes of a loaded machine, never for this.
LONG_MS = 60_000
SHORT_MS = 200


class InvocationContext:
    function_name = "worker"
    memory_limit_in_mb = "512"
    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:worker:live"
    aws_request_id = "5c1d"

    def get_remaining_time_in_millis(self):
        return 900_000


def a_batch(*, shard=0, count=2, within_ms=LONG_MS):
    records = [
        Record(
            data=str(n).encode(),
            partition_key="k",
            sequence_number=str(100 + n),
            shard_id=f"shardId-{shard:012d}",
            approximate_arrival_ms=0,
        )
        for n in range(count)
    ]
    return Batch(
        records,
        shard_id=f"shardId-{shard:012d}",
        stream_arn=STREAM_ARN,
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=SystemClock().now_ms() + within_ms,
    )


@pytest.fixture
def run_with(monkeypatch):
    """Run a scenario with a runner of the given function; the thread must be gone after it."""

    def run(function, scenario, *, contract="auto", threads=1):
        module = types.ModuleType("user_code_of_a_test")
        module.handle = function
        monkeypatch.setitem(sys.modules, module.__name__, module)
        runner = ThreadHandlerRunner(
            f"{module.__name__}:handle",
            contract=contract,
            context=InvocationContext(),
            stream_arn=STREAM_ARN,
            clock=SystemClock(),
        )
        runner.threads_most = threads

        async def main():
            await runner.load()
            return await scenario(runner)

        return asyncio.run(main())

    return run


OTHERS = set()  # threads that other tests have left


@pytest.fixture(autouse=True)
def _others():
    OTHERS.update(threading.enumerate())
    yield
    OTHERS.clear()


def handler_threads():
    return [t for t in threading.enumerate() if t.name == "shardfleet-handler" and t not in OTHERS]


def test_calls_that_overlap_have_threads_of_their_own_and_these_are_used_again(run_with):
    meet, used = threading.Barrier(3), set()

    def handle(batch):
        used.add(threading.get_ident())
        meet.wait(LONG_MS / 1000)
        asyncio.run(asyncio.sleep(0))  # Each may run a loop, as in Lambda.

    async def scenario(runner):
        for _ in range(4):
            results = await asyncio.gather(*(runner.run(a_batch(shard=0)) for _ in range(3)))
            assert [(r.done_count, r.error) for r in results] == [(2, None)] * 3
        assert len(handler_threads()) == 3
        assert await runner.close()

    run_with(handle, scenario, threads=3)
    assert len(used) == 3
    assert not handler_threads()


# --- what is called and what it means


def test_a_native_handler_gets_the_batch_and_its_normal_end_means_all_is_done(run_with):
    seen = []

    def handle(batch):
        seen.append(batch)

    async def scenario(runner):
        batch = a_batch()
        result = await runner.run(batch)
        assert (result.done_count, result.error, result.timed_out) == (2, None, False)
        assert seen == [batch]
        assert await runner.close()

    run_with(handle, scenario)


def test_an_event_handler_gets_lambdas_event_and_the_time_left_of_its_batch(run_with):
    seen = {}

    def handle(event, context):
        seen.update(event=event, left_ms=context.get_remaining_time_in_millis())
        seen["context"] = [
            context.function_name,
            context.memory_limit_in_mb,
            context.invoked_function_arn,
            context.aws_request_id,
        ]
        return {"batchItemFailures": [{"itemIdentifier": "101"}]}

    async def scenario(runner):
        result = await runner.run(a_batch(within_ms=40_000))
        assert result.done_count == 1
        assert "batchItemFailures" in result.error
        assert await runner.close()

    run_with(handle, scenario)
    assert [r["eventID"] for r in seen["event"]["Records"]] == [
        "shardId-000000000000:100",
        "shardId-000000000000:101",
    ]
    assert 0 < seen["left_ms"] <= 40_000
    assert seen["context"] == [
        "worker",
        "512",
        InvocationContext.invoked_function_arn,
        "5c1d",
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_native_handlers_reply_says_what_failed_and_another_is_an_error(
    run_with, caplog, is_async
):
    replies = [{"batchItemFailures": [{"itemIdentifier": "101"}]}, "done"]

    def handle(batch):
        batch.checkpoint(batch[0])
        return replies.pop(0)

    async def handle_async(batch):
        return handle(batch)

    async def scenario(runner):
        partial = await runner.run(a_batch(count=3))
        assert (partial.done_count, partial.error.partition(":")[0]) == (1, "batchItemFailures")
        unknown = await runner.run(a_batch(count=3))
        assert unknown.done_count == 1
        assert unknown.error.startswith("InvalidReply: the handler returned a str; it returns")
        assert await runner.close()

    run_with(handle_async if is_async else handle, scenario)
    assert "InvalidReply: the handler returned a str; it returns nothing when" in caplog.text


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_user_code_raises_is_a_failed_batch_with_what_it_declared_done(
    run_with, is_async, error
):
    def handle(batch):
        batch.checkpoint(batch[0])
        raise error

    async def handle_async(batch):
        handle(batch)

    async def scenario(runner):
        for _ in range(2):
            result = await runner.run(a_batch(count=3))
            assert result.done_count == 1
            assert type(error).__name__ in result.error
            assert not result.timed_out
        assert await runner.close()

    run_with(handle_async if is_async else handle, scenario)


def test_a_handler_of_powertools_batch_processor_runs_unmodified(run_with):
    from aws_lambda_powertools.utilities.batch import (  # noqa: PLC0415 - the user's import
        BatchProcessor,
        EventType,
        process_partial_response,
    )

    processor = BatchProcessor(event_type=EventType.KinesisDataStreams)
    handled = []

    def one(record):
        data = record.kinesis.data_as_bytes()
        if data == b"3":
            raise ValueError("not this one")
        handled.append(data)

    def handle(event, context):
        return process_partial_response(
            event=event, record_handler=one, processor=processor, context=context
        )

    async def scenario(runner):
        result = await runner.run(a_batch(count=6))
        assert result.done_count == 3
        assert handled == [b"0", b"1", b"2", b"4", b"5"]
        assert await runner.close()

    run_with(handle, scenario)


def test_a_synchronous_handler_may_run_loops_of_its_own(run_with):
    """As in Lambda, where no loop runs around it."""

    async def inner():
        await asyncio.sleep(0)
        return 1

    def handle(batch):
        assert asyncio.run(inner()) == 1

    def handle_old(batch):
        assert asyncio.get_event_loop().run_until_complete(inner()) == 1

    async def scenario(runner):
        assert (await runner.run(a_batch())).error is None
        assert await runner.close()

    run_with(handle, scenario)
    run_with(handle_old, scenario)


def test_a_coroutine_function_behind_an_ordinary_decorator_is_awaited(run_with):
    seen = []

    async def inner(batch):
        await asyncio.sleep(0)
        seen.append(len(batch))

    def handle(batch):
        return inner(batch)

    async def scenario(runner):
        assert (await runner.run(a_batch())).error is None
        assert not runner.overlaps
        assert await runner.close()

    run_with(handle, scenario)
    assert seen == [2]


# --- where it runs


def test_user_code_runs_in_one_thread_that_is_not_the_engines(run_with):
    """H17: importing and every call; the thread is gone when the turn is over (H10)."""
    threads = []

    def handle(batch):
        threads.append(threading.current_thread())

    async def scenario(runner):
        for shard in range(3):
            await runner.run(a_batch(shard=shard))
        assert await runner.close()

    run_with(handle, scenario)
    assert len(set(threads)) == 1
    assert threads[0] is not threading.main_thread()
    assert handler_threads() == []


def test_synchronous_calls_never_overlap(run_with):
    running, most = [0], [0]

    def handle(batch):
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1

    async def scenario(runner):
        assert not runner.overlaps
        results = await asyncio.gather(*(runner.run(a_batch(shard=n)) for n in range(5)))
        assert [result.error for result in results] == [None] * 5
        assert await runner.close()

    run_with(handle, scenario)
    assert most == [1]


def test_coroutines_of_different_shards_overlap(run_with):
    async def scenario(runner):
        assert runner.overlaps
        results = await asyncio.gather(*(runner.run(a_batch(shard=n)) for n in range(3)))
        assert [result.error for result in results] == [None] * 3
        assert await runner.close()

    arrived, all_there = [], asyncio.Event()

    async def handle(batch):
        # Each waits until all three are there: they could not, one after another.
        arrived.append(batch.shard_id)
        if len(arrived) == 3:
            all_there.set()
        await all_there.wait()

    run_with(handle, scenario)


def test_the_engines_loop_goes_on_while_user_code_blocks(run_with):
    """H17: time.sleep, or requests.get, inside a coroutine function stops no renewal."""
    release = threading.Event()

    async def handle(batch):
        release.wait(LONG_MS / 1000)

    async def scenario(runner):
        call = asyncio.create_task(runner.run(a_batch()))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not call.done()
        release.set()
        assert (await call).error is None
        assert await runner.close()

    run_with(handle, scenario)


# --- time-outs: hazard H10


def test_a_synchronous_call_that_outlives_its_deadline_is_told_and_cannot_be_closed(
    run_with, caplog
):
    release = threading.Event()

    def handle(batch):
        batch.checkpoint(batch[0])
        release.wait(LONG_MS / 1000)

    async def scenario(runner):
        result = await runner.run(a_batch(within_ms=SHORT_MS))
        assert (result.timed_out, result.done_count) == (True, 1)
        assert not await runner.close()
        assert "release.wait(LONG_MS / 1000)" in caplog.text  # The stack.

    try:
        run_with(handle, scenario)
    finally:
        release.set()
        for thread in handler_threads():
            thread.join(LONG_MS / 1000)


def test_a_coroutine_that_outlives_its_deadline_is_cancelled_and_the_process_may_live(run_with):
    ended = []

    async def handle(batch):
        batch.checkpoint(batch[0])
        try:
            await asyncio.sleep(LONG_MS / 1000)
        finally:
            ended.append(True)

    async def scenario(runner):
        result = await runner.run(a_batch(within_ms=SHORT_MS))
        assert (result.timed_out, result.done_count) == (False, 1)
        assert "time-out" in result.error
        assert ended == [True]
        assert await runner.close()

    run_with(handle, scenario)


def test_a_time_out_of_the_handlers_own_is_its_error_and_not_the_deadline(run_with):
    async def handle(batch):
        async with asyncio.timeout(SHORT_MS / 10_000):
            await asyncio.sleep(LONG_MS / 1000)

    async def scenario(runner):
        result = await runner.run(a_batch(within_ms=LONG_MS))
        assert (result.timed_out, result.error.split()[0]) == (False, "TimeoutError")
        assert await runner.close()

    run_with(handle, scenario)


def test_a_coroutine_that_blocks_its_loop_past_the_deadline_is_told_and_cannot_be_closed(run_with):
    release = threading.Event()

    async def handle(batch):
        release.wait(LONG_MS / 1000)

    async def scenario(runner):
        result = await runner.run(a_batch(within_ms=SHORT_MS))
        assert result.timed_out
        assert not await runner.close()

    try:
        run_with(handle, scenario)
    finally:
        release.set()
        for thread in handler_threads():
            thread.join(LONG_MS / 1000)


def test_tasks_that_a_handler_leaves_behind_end_with_the_turn(run_with):
    ended = []

    async def background():
        try:
            await asyncio.sleep(LONG_MS / 1000)
        finally:
            ended.append(True)

    tasks = []

    async def handle(batch):
        tasks.append(asyncio.create_task(background()))

    async def scenario(runner):
        await runner.run(a_batch())
        await runner.run(a_batch())
        assert ended == []
        assert await runner.close()

    run_with(handle, scenario)
    assert ended == [True, True]
    assert handler_threads() == []


# --- loading


def test_a_closed_runner_can_be_loaded_again(run_with):
    """A warm sandbox serves many turns."""
    seen = []

    async def handle(batch):
        seen.append(batch.shard_id)

    async def scenario(runner):
        for shard in range(3):
            await runner.run(a_batch(shard=shard))
            assert await runner.close()
            await runner.load()
        assert await runner.close()
        assert await runner.close()

    run_with(handle, scenario)
    assert len(seen) == 3
    assert handler_threads() == []


def test_a_name_that_cannot_be_loaded_is_a_configuration_error_and_leaves_no_thread():
    async def main():
        runner = ThreadHandlerRunner(
            "user_nowhere:handle",
            contract="auto",
            context=InvocationContext(),
            stream_arn=STREAM_ARN,
            clock=SystemClock(),
        )
        with pytest.raises(ConfigurationError, match="no module 'user_nowhere'"):
            await runner.load()
        assert await runner.close()

    asyncio.run(main())
    assert handler_threads() == []
