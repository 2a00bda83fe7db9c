"""
What does a worker spend on shards that have nothing?

The polling reader of the worker, thread pool, wire and all, asks idle shards of the project's
Kinesis engine, in a process of its own; the peer is the same reader with the SDK's client. CPU time
per call, from which follows what an idle shard costs in an hour at a pause of `idle_read_ms`
(1 s by default), and how many idle shards one core can watch.

    python benchmarks/bench_idle_shards.py [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import side_by_side
from side_by_side import Contest, Figures

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import FleetConfig
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON

REGION, STREAM, SHARDS, THREADS = "us-east-1", "idle", 100, 16
ARN = f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}"
PAUSE_MS = FleetConfig(fleet="-", stream_arn="-", lease_table="-", state_table="-").idle_read_ms
HOUR_S = 3_600


@contextmanager
def engine() -> Iterator[str]:
    """Run the Kinesis engine without quotas; yield its endpoint, its key in the environment."""
    words = [sys.executable, "-P", "-m", "shardfleet_local.kinesis", "--no-quotas"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            os.environ |= told["environment"]
            yield told["endpoint"]
        finally:
            process.terminate()


async def poll(reader: KinesisPolling, iterators: dict[str, str]) -> int:
    """Ask every shard once; return how many had nothing."""
    pages = await asyncio.gather(
        *(
            reader.page(shard, FROM_TRIM_HORIZON, resume_token=iterator, limit=10_000)
            for shard, iterator in iterators.items()
        )
    )
    return sum(not page.records for page in pages)


def same(ours: int, theirs: int) -> None:
    assert ours == theirs == SHARDS


def contests() -> Iterator[Contest | Figures]:
    with engine() as endpoint, asyncio.Runner() as runner:
        os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": REGION}
        limits = ConnectionLimits(writes=1, reads=1, streams=THREADS)
        clients = AwsClients(limits, stream_region=REGION)
        clients.stream_control.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        pool = ThreadPool("streams", threads=THREADS)
        made = partial(
            KinesisPolling,
            ARN,
            records=clients.stream_records,
            control=clients.stream_control,
            pool=pool,
        )
        ours, theirs = made(wire=clients.wire_to(ARN)), made(wire=None)
        first = partial(ours.page, start=FROM_TRIM_HORIZON, resume_token=None, limit=1)
        iterators = {
            shard.shard_id: runner.run(first(shard.shard_id)).page_token or ""
            for shard in runner.run(ours.list_shards())
        }
        work = partial(_polled, runner, ours, iterators)
        peer = partial(_polled, runner, theirs, iterators)
        yield Contest(
            name="idle_shards",
            compares=f"{SHARDS} idle shards asked once by {THREADS} threads",
            ours=work,
            peer=peer,
            peer_name="the same reader with boto3",
            check=same,
            time_goes_to="handing each call to a thread and back, and its system calls.",
        )
        yield idle_hour(work)
        runner.run(pool.close(within_ms=5_000))


def idle_hour(work: Callable[[], int]) -> Figures:
    """Return what an idle shard costs in an hour; `work` asks each once."""
    timing = side_by_side.take_turns({"ours": work})["ours"]
    call_ms = timing.median_ms / SHARDS
    cpu_s = call_ms / 1000 * HOUR_S * 1000 / PAUSE_MS
    return Figures(
        name="e2e_lambda_idle",
        compares=f"CPU of the worker's polling for one idle shard, a call each {PAUSE_MS} ms",
        summary=(
            f"{call_ms:.3f} ms a call, {cpu_s:.2f} CPU seconds per idle shard-hour; "
            f"one core could watch {PAUSE_MS / call_ms:,.0f} idle shards"
        ),
        details={"call_ms": call_ms, "cpu_s_per_shard_hour": cpu_s, "spread": timing.spread},
        time_goes_to=(
            "`e2e_lambda_idle` counts the calls for records and what brings them; renewing the "
            "leases comes on top, per lease and not per call. Measured here, not on Lambda."
        ),
    )


def _polled(runner: asyncio.Runner, reader: KinesisPolling, iterators: dict[str, str]) -> int:
    return runner.run(poll(reader, iterators))


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
