"""No way of failing leaves a task behind: neither of what waited, nor of what was on its way."""

import asyncio

import pytest

from shardfleet.errors import (
    InvalidRecord,
    KeyDenied,
    OutcomeUnknown,
    StreamGone,
    Throttled,
    Unsettled,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer import requests
from shardfleet_testkit.clock import VirtualTimeLoop
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_puts import producer_of

# More than goes at once: what waits behind a failure waits for seconds.
RECORDS = [OutgoingRecord(f"k{n % 700}", str(n).encode()) for n in range(2_000)]


class FailingStream(MemoryStream):
    """A stream of four shards that fails from the third request on; answers take their time."""

    def __init__(self, failure):
        super().__init__(4)
        self.failure = failure
        self.latency_ms = lambda: 20 if len(self.requests) % 2 else 300

    async def put_records(self, entries):
        if len(self.requests) > 2 and self.failure is not None:
            self.requests.append(list(entries))
            await asyncio.sleep(0.02)
            raise self.failure
        return await super().put_records(entries)


async def gone():
    raise StreamGone("orders")


def refusing_entries():
    stream = FailingStream(None)
    stream.refuse = lambda position: position % 2 == 0
    return stream


def gone_when_listed():
    stream = FailingStream(None)
    stream.list_shards = gone
    return stream


def gone_when_listed_again():
    stream = FailingStream(None)
    stream.before_put = lambda number: stream.split(0) if number == 3 else None
    listing = stream.list_shards

    async def listed_once():
        stream.list_shards = gone
        return await listing()

    stream.list_shards = listed_once
    return stream


WAYS = {
    "refused as it is": (lambda: FailingStream(InvalidRecord("large")), InvalidRecord),
    "of a reason that nobody knows": (
        lambda: FailingStream(Unsettled(InvalidRecord("odd"))),
        InvalidRecord,
    ),
    "a key denied": (lambda: FailingStream(Unsettled(KeyDenied("key"))), KeyDenied),
    "throttled": (lambda: FailingStream(Throttled("slow down")), Throttled),
    "unanswered": (lambda: FailingStream(OutcomeUnknown("lost")), Throttled),
    "each second entry refused": (refusing_entries, Throttled),
    "gone": (lambda: FailingStream(StreamGone("orders")), StreamGone),
    "gone when listed": (gone_when_listed, StreamGone),
    "gone when listed again": (gone_when_listed_again, StreamGone),
    "a fault of its own": (lambda: FailingStream(ZeroDivisionError()), ZeroDivisionError),
}
CALLS = {
    "send": lambda producer, aggregate: producer.send(RECORDS, aggregate=aggregate),
    "put and flush": lambda producer, aggregate: put_and_flush(producer, aggregate=aggregate),
}


async def put_and_flush(producer, *, aggregate):
    await producer.put(*RECORDS, aggregate=aggregate)
    await producer.flush()


def tasks_after(main, failure):
    """Return the tasks that are there the moment a failed call has returned, and run its loop."""
    loop = VirtualTimeLoop()
    with pytest.raises(failure):
        loop.run_until_complete(main)
    left = {task.get_name() for task in asyncio.all_tasks(loop)}
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return left


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_failed_call_leaves_no_task(way, call, aggregate):
    make, failure = WAYS[way]
    producer = producer_of(make(), give_up_ms=2_000, shard_records_per_s=60, aggregate_records=9)
    assert tasks_after(CALLS[call](producer, aggregate), failure) == set()


def test_a_fault_while_a_request_is_made_leaves_no_task(monkeypatch):
    build, built = requests.AggregateBuilder.build, []

    def at_third(builder):
        built.append(builder)
        if len(built) == 3:
            raise MemoryError("no room for an aggregate")
        return build(builder)

    monkeypatch.setattr(requests.AggregateBuilder, "build", at_third)
    producer = producer_of(FailingStream(None), aggregate_records=9)
    assert tasks_after(producer.send(RECORDS, aggregate=True), MemoryError) == set()


@pytest.mark.parametrize("seconds", [0, 0.01, 0.05, 0.5, 2])
def test_a_call_that_is_called_off_leaves_no_task_but_of_what_is_on_its_way(seconds):
    """Of what is on its way nobody knows whether it arrives: its answer is waited for."""
    stream = FailingStream(None)

    async def main():
        sending = asyncio.create_task(producer.send(RECORDS))
        await asyncio.sleep(seconds)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.sleep(0.7)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        raise InterruptedError

    producer = producer_of(stream, shard_records_per_s=60)
    assert tasks_after(main(), InterruptedError) == set()


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_fails_takes_no_other_along_or_leaves_a_task_for_it(way):
    """The failure ends; the other call's records go their way, and then nothing is left."""
    make, failure = WAYS[way]
    stream = make()
    given_up_ms = 2_000

    async def main():
        producer = producer_of(stream, give_up_ms=given_up_ms, shard_records_per_s=60)
        with pytest.raises(failure):
            await producer.send(RECORDS)
        stream.failure, stream.refuse = None, lambda _: False
        stream.list_shards = MemoryStream.list_shards.__get__(stream)
        await producer.send(RECORDS[:100])
        raise InterruptedError

    assert tasks_after(main(), InterruptedError) == set()
