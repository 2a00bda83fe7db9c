"""
A worker turn of ours on shards that have nothing: what it uses once it has settled.

Asked line by line as :mod:`protocol` says, but a task's `records` are the seconds to measure.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

import ours
from protocol import Task

from shardfleet.config import FleetConfig

SETTLED_S = 5.0


def handle(_: object) -> None:
    """Have nothing to do."""


def watch(task: Task) -> dict[str, float]:
    """Run a turn, and measure a part of it."""
    config = FleetConfig(
        fleet="bench",
        stream_arn=task.arn,
        consumer_arn=os.environ.get("CONSUMER_ARN", ""),
        failover_ms=int(os.environ.get("FAILOVER_MS", "10000")),
        lease_table=task.lease_table,
        state_table=task.state_table,
        handler="idle_worker:handle",
        leases_per_worker=len(task.shards),
        # A minute's metrics in the measured time, whatever that is.
        metrics_ms=task.records * 1_000,
        stream_calls=os.environ["STREAM_CALLS"],
    )
    used = {}

    def measure() -> None:
        time.sleep(SETTLED_S)
        cpu_s, wall_s = time.process_time(), time.monotonic()
        time.sleep(task.records)
        used.update(cpu_s=time.process_time() - cpu_s, wall_s=time.monotonic() - wall_s)
        ours.all_seen.set()

    ours.all_seen.clear()
    threading.Thread(target=measure).start()
    asyncio.run(ours.turn(config))
    return used


if __name__ == "__main__":
    sys.modules["idle_worker"] = sys.modules["__main__"]
    answers, sys.stdout = sys.stdout, Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for line in sys.stdin:
        print(json.dumps(watch(Task(**json.loads(line)))), file=answers, flush=True)
