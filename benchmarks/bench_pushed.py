"""
What do records that are pushed wait and cost, beside records that are polled?

The wait: 2,000 records, 40 a second, from before the put to the handler call, by two workers of one
program on the same four shards of the embedded AWS, over TLS; one polls as quickly as AWS's quota
of five reads a second lets it, to the other is pushed, over HTTP/2. The cost: of an event of 20 and
of 900 records of 1 KiB, from the frames of HTTP/2 to records, beside decoding the same records from
a GetRecords body, and beside botocore's EventStream; CPU time of one thread. And that of a whole
worker whose 64 shards have nothing (`bench_idle_worker.py`), pushed and polled in turns, over TLS.

    python benchmarks/bench_pushed.py [--only pushed_wait] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import answers
import charts
import side_by_side
from bench_e2e_consumer import OURS, Account, process_environment
from bench_idle_worker import IDLE, shard_hour_s
from bench_live_pages import task_of
from botocore.eventstream import EventStream
from botocore.session import get_session
from hyperframe.frame import DataFrame
from side_by_side import Figures
from tls_server import certificate_in

from shardfleet import Batch, Worker
from shardfleet.adapters.http.h2_connection import ArrivingAnswer, SharedConnection
from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.kinesis.pushed import PushedShard
from shardfleet.adapters.sdk_errors import SdkCall
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_local.kinesis import wire

RECORDS, APART_S, SHARDS, SETTLE_S = 2_000, 0.025, 4, 8.0
EVENTS = {20: 1.8, 900: 1.5}  # records of an event, and how many times its GetRecords body at most
BOTOCORE_LEAST = 8
ROUND_S, ROUNDS = 0.2, 9
CONSUMER = "bench"
IDLE_MOST_S, IDLE_ROUNDS = 0.3, 3
# Of a lease that is not renewed in the measured time.
HARDLY_RENEWED_MS = "3600000"
PLOT = Path(__file__).parent.parent / "docs/img/pushed.svg"


def contests() -> Iterator[Figures]:
    """Yield the figures, one after the other."""
    for records, most in EVENTS.items():
        yield costs(records, most)
    yield waits()
    yield idles()


# --- the cost


def costs(records: int, most: float) -> Figures:
    data = answers.payloads("b")[:records]
    body = answers.body_of(data)
    event = wire.decode(body, wire.JSON)
    event["ContinuationSequenceNumber"] = event["Records"][-1]["SequenceNumber"]
    event.pop("NextShardIterator", None)
    message = wire.event_frame("SubscribeToShardEvent", event, content_type=wire.JSON)
    first = wire.event_frame("initial-response", {}, content_type=wire.JSON)
    size = 16_384
    frames = b"".join(
        DataFrame(1, message[at : at + size]).serialize() for at in range(0, len(message), size)
    )
    pushed, page = pushing(frames, first), decode_page(body)
    assert [each.data for each in pushed().records] == [each.data for each in page.records]
    ours, polled, theirs = (
        cpu_us(each) for each in (pushed, lambda: decode_page(body), botocores(first, message))
    )
    return Figures(
        name=f"pushed_event_of_{records}",
        compares=f"an event of {records} records of 1 KiB, HTTP/2 to records, CPU",
        summary=(
            f"{ours:,.0f} µs; {ours / polled:.2f} times as much as its GetRecords body "
            f"({polled:,.0f} µs), a {theirs / ours:.1f}th of botocore's EventStream "
            f"({theirs:,.0f} µs)"
        ),
        gate=f"at most {most} times the body, botocore at least {BOTOCORE_LEAST} times as much",
        met=ours <= most * polled and theirs >= BOTOCORE_LEAST * ours,
        details={"ours_us": ours, "body_us": polled, "botocore_us": theirs},
    )


def pushing(frames: bytes, first: bytes) -> Callable[[], Any]:
    """Return what takes an event's frames off a connection, as often as it is called."""

    async def made() -> SharedConnection:
        return SharedConnection()

    connection = asyncio.run(made())
    answer = ArrivingAnswer(connection, 1, lambda: None)
    answer.status = 200
    connection._answers[1] = answer  # noqa: SLF001 - as if it had asked
    answer.body += first
    subscription = PushedShard(answer, SdkCall("SubscribeToShard"))
    pieces = [frames[at : at + 262_144] for at in range(0, len(frames), 262_144)]

    def push() -> Any:
        for piece in pieces:
            connection.data_received(piece)
        page = subscription.take()
        answer._unread = connection._unread = 0  # noqa: SLF001 - no window to open
        return page

    return push


class Raw:
    """What botocore's EventStream reads from."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    def stream(self) -> Iterator[bytes]:
        """Yield all of it."""
        yield from self._chunks


def botocores(first: bytes, message: bytes) -> Callable[[], Any]:
    from botocore.parsers import EventStreamJSONParser  # noqa: PLC0415

    model = get_session().get_service_model("kinesis")
    shape: Any = model.operation_model("SubscribeToShard").get_event_stream_output()

    def parse() -> Any:
        stream: EventStream[Any] = EventStream(
            Raw(first, message), shape, EventStreamJSONParser(), "SubscribeToShard"
        )
        stream.get_initial_response()
        return list(stream)

    return parse


def cpu_us(call: Callable[[], Any]) -> float:
    """Return the CPU time of a call, microseconds: the least of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        calls, began = 0, time.thread_time()
        while (spent := time.thread_time() - began) < ROUND_S:
            call()
            calls += 1
        rounds.append(spent / calls * 1e6)
    return min(rounds)


# --- the wait


@contextmanager
def over_tls() -> Iterator[tuple[EmbeddedAws, dict[str, str]]]:
    """Run an embedded AWS; yield it and the environment in which it is spoken to over TLS."""
    with tempfile.TemporaryDirectory() as folder:
        file = certificate_in(Path(folder))
        with EmbeddedAws(behaviour=AwsBehaviour(certificate=str(file))) as aws:
            yield aws, {"AWS_ENDPOINT_URL": aws.tls_endpoint_url, "AWS_CA_BUNDLE": str(file)}


def with_consumer(kinesis: Any, name: str, shards: int) -> tuple[str, str]:
    """Make a stream with a consumer; return the ARNs of both."""
    kinesis.create_stream(StreamName=name, ShardCount=shards)
    kinesis.get_waiter("stream_exists").wait(StreamName=name)
    summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    arn = summary["StreamARN"]
    made = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=CONSUMER)
    return arn, made["Consumer"]["ConsumerARN"]


def waits() -> Figures:
    with over_tls() as (aws, environment):
        os.environ.update(aws.environment() | environment)
        polled, pushed = asyncio.run(both(aws))
    PLOT.write_text(picture(polled=sorted(polled), pushed=sorted(pushed)), encoding="utf-8")
    shares = [statistics.quantiles(waited, n=100) for waited in (polled, pushed)]
    polled_half, pushed_half = (share[49] for share in shares)
    polled_most, pushed_most = (share[98] for share in shares)
    return Figures(
        name="pushed_wait",
        compares=f"put to handler, {RECORDS:,} records, pushed beside polled",
        summary=(
            f"{pushed_half:.1f} ms (median) and {pushed_most:.1f} ms (99 %) pushed, "
            f"{polled_half:.1f} ms and {polled_most:.1f} ms polled"
        ),
        gate="a fifth of polling's median, half of its 99 %",
        met=pushed_half * 5 <= polled_half and pushed_most * 2 <= polled_most,
        details={"polled_ms": sorted(polled), "pushed_ms": sorted(pushed)},
    )


def picture(**waited: list[float]) -> str:
    """Draw which part of the records had waited how long, each way."""
    title = "records handled, % of all, by the time since they were put"
    return charts.picture([charts.waiting(title, waited)])


async def both(aws: EmbeddedAws) -> tuple[list[float], list[float]]:
    """Return how long each record waited, polled and pushed, milliseconds."""
    kinesis = aws.client("kinesis")
    _, consumer_arn = with_consumer(kinesis, "clicks", SHARDS)
    waited: dict[str, list[float]] = {"polled": [], "pushed": []}

    def worker(name: str, **options: Any) -> Worker:
        async def handle(batch: Batch) -> None:
            now_s = time.time()
            waited[name] += [(now_s - float(record.data)) * 1_000 for record in batch]

        return Worker(
            stream="clicks", application=name, handler=handle, idle_read_ms=200, **options
        )

    async with worker("polled") as one, worker("pushed", consumer_arn=consumer_arn) as two:
        running = [asyncio.create_task(each.run()) for each in (one, two)]
        # First what no figure has: until all shards are read.
        await asyncio.to_thread(put, kinesis, SHARDS)
        await reached(waited, SHARDS)
        await asyncio.sleep(SETTLE_S)
        for found in waited.values():
            found.clear()
        await asyncio.to_thread(put, kinesis, RECORDS)
        await reached(waited, RECORDS)
        one.stop()
        two.stop()
        await asyncio.gather(*running)
    return waited["polled"], waited["pushed"]


def put(kinesis: Any, count: int) -> None:
    due_s = time.monotonic()
    for number in range(count):
        due_s += APART_S
        time.sleep(max(0.0, due_s - time.monotonic()))
        key = str(number % SHARDS * 2**128 // SHARDS)
        kinesis.put_record(
            StreamName="clicks", PartitionKey="k", ExplicitHashKey=key, Data=repr(time.time())
        )


async def reached(waited: dict[str, list[float]], count: int) -> None:
    async with asyncio.timeout(120):
        while min(map(len, waited.values())) < count:  # noqa: ASYNC110 - of other threads
            await asyncio.sleep(0.05)


# --- nothing to read


def idles() -> Figures:
    spent: dict[str, list[float]] = {"alone": [], "pushed": [], "polled": []}
    with over_tls() as (aws, environment):
        kinesis, account = aws.client("kinesis"), Account(aws)
        arn, consumer_arn = with_consumer(kinesis, "idle", IDLE.shards)
        found = kinesis.list_shards(StreamARN=arn)["Shards"]
        task = replace(task_of(IDLE), arn=arn, shards=[each["ShardId"] for each in found])
        env = process_environment(aws, OURS) | environment | {"STREAM_CALLS": "wire"}
        for _ in range(IDLE_ROUNDS):
            for way, found_s in spent.items():
                more = {"CONSUMER_ARN": consumer_arn} if way != "polled" else {}
                more |= {"FAILOVER_MS": HARDLY_RENEWED_MS} if way == "alone" else {}
                found_s.append(shard_hour_s(account, env | more, task))
    alone, pushed, polled = (statistics.median(each) for each in spent.values())
    return Figures(
        name="pushed_idle",
        compares=f"CPU of a whole worker for one of {IDLE.shards} idle shards, in an hour, TLS",
        summary=(
            f"{alone:.2f} CPU seconds per idle shard-hour for what is pushed; with renewals "
            f"{pushed:.2f}, polled {polled:.2f}"
        ),
        gate=f"at most {IDLE_MOST_S} CPU seconds without renewals",
        met=alone <= IDLE_MOST_S,
        details=dict(spent),
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
