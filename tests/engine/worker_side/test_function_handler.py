"""Workers whose handler is a Lambda function: what it and Lambda do wrong loses nothing."""

import asyncio
import json

import pytest

from shardfleet.adapters.invoked_function import FunctionAnswer
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.engine.retry import Patience
from shardfleet.errors import HandlerNotLoaded, Throttled
from shardfleet.events.delivery import BatchFailed, ConsumerFailed, RecordSkipped
from shardfleet.runtime.function_runner import EVENT_BYTES_LIMIT, FunctionHandlerRunner
from shardfleet.runtime.handler_call import EventSource
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import SeededEntropy
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import within

SETTINGS = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "handler_function": "orders"}
GONE = HandlerNotLoaded("handler_function orders: it cannot be invoked", kind=FailureKind.FUNCTION)


class Pool:
    async def run(self, call):
        return call()


class Function:
    """A function that notes what it got; ``fault`` may raise, or return an answer instead."""

    name = "orders"

    def __init__(self, clock, *, takes_ms=10):
        self.fault = lambda shard_id, numbers: None
        self.seen = []
        self.running = 0
        self.running_most = 0
        self._clock = clock
        self._takes_ms = takes_ms

    async def check(self):
        self.fault("", [])

    async def invoke(self, event):
        records = json.loads(event)["Records"]
        (shard_id,) = {record["eventID"].partition(":")[0] for record in records}
        numbers = [record["kinesis"]["sequenceNumber"] for record in records]
        instead = self.fault(shard_id, numbers)
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        await self._clock.sleep_ms(self._takes_ms)
        self.running -= 1
        if instead is not None:
            return instead
        self.seen += [(shard_id, int(number)) for number in numbers]
        return FunctionAnswer(payload=b"null")


def in_world(scenario, *, takes_ms=10, **config):
    async def main():
        world = World(**{**SETTINGS, **config})
        function = Function(world.clock, takes_ms=takes_ms)
        world.handler = FunctionHandlerRunner(
            function,
            pool=Pool(),
            source=EventSource.of(MEMORY_STREAM_ARN, function_arn="worker"),
            timeout_ms=world.config.handler_timeout_ms,
            patience=Patience.of(world.config, clock=world.clock, entropy=SeededEntropy(2)),
        )
        await scenario(world, function)

    return run_virtual(main())


def expected(world, shards=1):
    return [
        (key(shard), int(number))
        for shard in range(shards)
        for number in world.stream.sequence_numbers(key(shard))
    ]


@within(in_world, max_batch_records=4)
async def test_records_go_in_order_and_are_checkpointed(world, function, /):
    world.put(1, 9)
    assert await world.turn() is TurnOutcome.CONTINUE
    assert function.seen == expected(world)
    assert int(world.lease().checkpoint.sequence_number) == function.seen[-1][1]


@within(in_world, shards=4, max_batch_records=3, takes_ms=500)
async def test_invocations_of_different_shards_overlap_and_those_of_one_do_not(world, function, /):
    for shard in range(4):
        world.put(1, 9, number=shard)
    await world.turn()
    assert sorted(function.seen) == expected(world, shards=4)
    assert function.running_most == 4
    for shard in range(4):
        own = [each for each in function.seen if each[0] == key(shard)]
        assert own == sorted(own)


@pytest.mark.parametrize("is_gone_at", ["first", "later"])
@within(in_world, max_batch_records=2, on_exhausted="sqs", failed_queue_url="q")
async def test_a_function_that_is_gone_stops_the_worker_says_so_and_loses_nothing(
    world, function, /, is_gone_at
):
    world.put(1, 6)

    def gone(_, numbers):
        if is_gone_at == "first" or (numbers and len(function.seen) >= 2):
            raise GONE

    function.fault = gone
    before = asyncio.all_tasks()
    assert await world.turn() is TurnOutcome.FAILED
    assert asyncio.all_tasks() == before
    failure = world.slot().failure
    assert failure.kind is FailureKind.FUNCTION
    assert "deploy that function again" in failure.remedy
    stored = world.lease().checkpoint
    assert stored.is_sentinel if is_gone_at == "first" else not stored.is_sentinel

    function.fault = lambda *_: None
    assert await world.turn() is TurnOutcome.CONTINUE
    assert function.seen == expected(world)
    assert not world.dead_letters.kept
    assert world.slot().failure is None


@within(in_world, shards=2, max_attempts=1, on_exhausted="sqs", failed_queue_url="q")
async def test_a_throttle_of_one_shard_is_waited_for_and_no_attempt_of_its_records(
    world, function, /
):
    world.put(1, 3)
    world.put(4, 6, number=1)
    until_ms = world.clock.monotonic_ms() + 60_000

    def throttle(shard_id, _):
        if shard_id == key(0) and world.clock.monotonic_ms() < until_ms:
            raise Throttled("TooManyRequestsException")

    function.fault = throttle
    await world.turn()
    assert sorted(function.seen) == expected(world, shards=2)
    assert not world.told(BatchFailed)
    assert not world.dead_letters.kept
    assert {event.lease_key for event in world.told(ConsumerFailed)} == {key(0)}


@within(in_world, max_attempts=2, on_exhausted="s3", failed_bucket="b")
async def test_a_record_too_large_for_lambda_goes_by_policy_and_its_neighbours_are_handled(
    world, function, /
):
    world.put(1, 2)
    world.stream.put(bytes(EVENT_BYTES_LIMIT * 3 // 4), key="k", shard_id=key(0))
    world.put(4, 5)
    await world.turn()
    numbers = expected(world)
    assert function.seen == [*numbers[:2], *numbers[3:]]
    (kept,) = world.dead_letters.kept
    assert [int(record.sequence_number) for record in kept.records] == [numbers[2][1]]
    assert f"record {numbers[2][1]}:" in kept.error
    assert len(world.told(RecordSkipped)) == 1


@within(in_world, max_attempts=3, on_exhausted="s3", failed_bucket="b")
async def test_what_the_function_raises_uses_up_attempts_and_the_record_alone_is_given_up(
    world, function, /
):
    world.put(1, 5)
    numbers = expected(world)
    error = FunctionAnswer(payload=b'{"errorType": "ValueError"}', failed=True)
    function.fault = lambda _, sent: error if str(numbers[2][1]) in sent else None
    await world.turn()
    (kept,) = world.dead_letters.kept
    assert [int(record.sequence_number) for record in kept.records] == [numbers[2][1]]
    assert (kept.attempts, kept.error) == (3, "ValueError (in orders)")
    assert set(function.seen) == {*numbers[:2], *numbers[3:]}


@pytest.mark.parametrize("fault", ["none", "throttled", "gone", "raises"])
@within(
    in_world,
    takes_ms=300,
    parallelism=4,
    max_batch_records=3,
    max_attempts=2,
    on_exhausted="s3",
    failed_bucket="b",
)
async def test_with_lanes_invocations_of_a_shard_overlap_and_no_fault_of_one_loses_a_record(
    world, function, /, fault
):
    world.put(1, 24)
    numbers = expected(world)
    until_ms = world.clock.monotonic_ms() + 20_000
    error = FunctionAnswer(payload=b'{"errorType": "ValueError"}', failed=True)

    def strike(_, sent):
        if str(numbers[7][1]) not in sent or fault == "none":
            return None
        if fault == "raises":
            return error
        if world.clock.monotonic_ms() < until_ms:
            raise GONE if fault == "gone" else Throttled("TooManyRequestsException")
        return None

    function.fault = strike
    for _ in range(4):
        await world.turn(turn_ms=60_000)
        await world.clock.sleep_ms(10_000)  # As the state machine waits behind a failure.
    kept = [int(r.sequence_number) for each in world.dead_letters.kept for r in each.records]
    assert kept == ([numbers[7][1]] if fault == "raises" else [])
    assert {n for _, n in function.seen} | set(kept) == {n for _, n in numbers}
    assert int(world.lease().checkpoint.sequence_number) == numbers[-1][1]
    assert function.running_most > 1


def test_a_dead_workers_call_may_write_late_and_a_condition_on_the_number_keeps_what_is_newer():
    """Nothing ends an invocation whose worker died; the sequence number is the fence (E7)."""

    async def scenario(world, function):
        plain, fenced, late, late_ms = {}, {}, [], 60_000

        async def invoke(event):
            records = json.loads(event)["Records"]
            if not late:
                late.append(records)
                await world.clock.sleep_ms(late_ms)
            for each in (record["kinesis"] for record in records):
                name, number = each["partitionKey"], int(each["sequenceNumber"])
                plain[name] = number
                fenced[name] = max(number, fenced.get(name, -1))
            return FunctionAnswer(payload=b"null")

        # What is invoked goes on without the one who waits.
        function.invoke = lambda event: asyncio.shield(asyncio.create_task(invoke(event)))
        world.put(1, 5, key_of=lambda _: "k")
        dying = asyncio.create_task(world.turn())
        await world.run_until(lambda: late)
        dying.cancel()
        await asyncio.wait([dying])
        world.put(6, 29, key_of=lambda _: "k")
        await world.turn(turn_ms=30_000)
        newest = int(world.stream.sequence_numbers(key(0))[-1])
        assert plain == fenced == {"k": newest}
        await world.clock.sleep_ms(late_ms)
        assert plain == {"k": int(late[0][-1]["kinesis"]["sequenceNumber"])}
        assert fenced == {"k": newest}

    in_world(scenario, max_batch_records=5)
