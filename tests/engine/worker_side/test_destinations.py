"""A destination that refuses never lets the checkpoint pass, whichever it is, however it does."""

import asyncio
import json

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from shardfleet.adapters.dead_letters import (
    Invocation,
    S3DeadLetters,
    SnsDeadLetters,
    SqsDeadLetters,
)
from shardfleet.events.delivery import RecordNotKept, RecordSkipped
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from tests.engine.worker_side.worker_kit import World
from tests.virtual import virtual

FUNCTION = "arn:aws:lambda:eu-central-1:111122223333:function:worker:live"
SOURCE = EventSource.of(MEMORY_STREAM_ARN, function_arn=FUNCTION)
INVOCATION = Invocation(
    fleet="fleet",
    function_arn=FUNCTION,
    request_id="r",
    as_event=lambda records: kinesis_event(records, SOURCE),
)
BAD, COUNT = 3, 5


def refusal(code, status=400):
    error = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(error, "Put")


REFUSALS = {
    "throttled": refusal("ThrottlingException"),
    "denied": refusal("AccessDenied", 403),
    "gone": refusal("NoSuchBucket", 404),
    "broken": refusal("InternalError", 500),
    "of another kind": refusal("Whatever"),
    "not there": EndpointConnectionError(endpoint_url="https://aws"),
    "silent": ReadTimeoutError(endpoint_url="https://aws"),
}
DESTINATIONS = {
    "s3": {"failed_bucket": "b"},
    "sqs": {"failed_queue_url": "q"},
    "sns": {"failed_bucket": "b", "failed_topic_arn": "t"},
}
OPERATION = {"s3": "put_object", "sqs": "send_message", "sns": "publish"}


class Pool:
    async def run(self, call):
        return call()


class Clients:
    """S3, SQS and SNS in one; the destination's own operation refuses so many times."""

    def __init__(self, refuses, error, times):
        self.calls = []
        self._refuses, self._error, self._left = refuses, error, times

    def __getattr__(self, operation):
        def call(**given):
            if operation == self._refuses and self._left:
                self._left -= 1
                raise self._error
            self.calls.append((operation, given))
            return {"MessageId": "m"}

        return call


def letters(policy, clients):
    common = {"client": clients, "pool": Pool(), "invocation": INVOCATION}
    bucket = S3DeadLetters("b", **common)
    if policy == "sqs":
        return SqsDeadLetters("q", **common)
    return SnsDeadLetters("t", **common, kept=bucket) if policy == "sns" else bucket


def number_of(clients):
    """Return which record each write that succeeded has in it."""
    texts = [
        given.get("Body") or given.get("MessageBody") or given["Message"]
        for _, given in clients.calls
    ]
    return [json.loads(text)["KinesisBatchInfo"]["startSequenceNumber"] for text in texts]


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("policy", DESTINATIONS)
@virtual
async def test_the_shard_waits_until_the_record_is_kept(policy, error):
    world = World(
        handler_timeout_ms=5_000,
        turn_margin_ms=3_000,
        max_attempts=1,
        on_exhausted=policy,
        **DESTINATIONS[policy],
    )
    clients = Clients(OPERATION[policy], error, times=6)
    world.dead_letters = letters(policy, clients)

    async def fail(batch):
        if str(BAD).encode() in [record.data for record in batch]:
            raise ValueError("no")

    world.handler._script = fail
    world.put(1, COUNT)
    numbers = world.stream.sequence_numbers("shardId-000000000000")
    told_before = []

    def passing(change, result):
        stored = world.lease().checkpoint
        if not stored.is_sentinel and int(stored.sequence_number) >= int(numbers[BAD - 1]):
            told_before.append([operation for operation, _ in clients.calls])

    world.leases.after = passing
    await world.turn(turn_ms=120_000)

    assert len(world.told(RecordNotKept)) == 6
    assert len(world.told(RecordSkipped)) == 1
    assert told_before
    assert all(OPERATION[policy] in done for done in told_before)
    assert set(number_of(clients)) == {numbers[BAD - 1]}
    assert world.numbers[-1] == COUNT
    assert world.lease().checkpoint.sequence_number == numbers[-1]


@pytest.mark.parametrize("policy", DESTINATIONS)
@virtual
async def test_one_that_refuses_for_ever_holds_the_shard_before_the_record(policy):
    world = World(
        handler_timeout_ms=5_000,
        turn_margin_ms=3_000,
        max_attempts=1,
        on_exhausted=policy,
        **DESTINATIONS[policy],
    )
    clients = Clients(OPERATION[policy], REFUSALS["denied"], times=10**9)
    world.dead_letters = letters(policy, clients)

    async def fail(batch):
        if str(BAD).encode() in [record.data for record in batch]:
            raise ValueError("no")

    world.handler._script = fail
    world.put(1, COUNT)
    numbers = world.stream.sequence_numbers("shardId-000000000000")
    before = asyncio.all_tasks()
    await world.turn(turn_ms=60_000)
    assert asyncio.all_tasks() == before
    assert world.lease().checkpoint.sequence_number == numbers[BAD - 2]
    assert not world.told(RecordSkipped)
