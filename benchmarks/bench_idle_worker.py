"""
What does an hour of a shard that has nothing cost the whole worker?

A worker turn as Lambda runs it holds 64 leases of shards whose pages are empty (`page_server.py`),
with every option at its default: it asks each shard once a second, renews each lease a third of the
failover time after the last time, looks at its slot, tells its heartbeat, and writes the metrics
once. Tables are in the DynamoDB of the embedded AWS. CPU time of the worker's process once it has
settled, the way of the calls in turns: the wires, and the SDK for all (`stream_calls`).

    python benchmarks/bench_idle_worker.py [--folder DIR]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace

import side_by_side
from bench_e2e_consumer import HERE, OURS, Account, process_environment
from bench_live_pages import task_of
from consumers.protocol import Task
from page_server import Pages, serving
from side_by_side import Figures

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

IDLE = Pages(shards=64, pages=0, records=1, record_bytes=10)
ROUNDS, MEASURED_S, HOUR_S = 3, 20, 3_600
GOAL_S = 1.5
WAYS = ("wire", "boto3")


def shard_hour_s(account: Account, env: dict[str, str], of: Task) -> float:
    """Run a worker; return the CPU seconds of one shard in an hour."""
    task = replace(account.our_tables(of), records=MEASURED_S)
    found = subprocess.run(
        [sys.executable, "idle_worker.py"],
        input=json.dumps(asdict(task)) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=env,
        cwd=HERE / "consumers",
    )
    account.drop_tables()
    used = json.loads(found.stdout)
    cpu_s: float = used["cpu_s"] / used["wall_s"] * HOUR_S / len(of.shards)
    return cpu_s


def figures() -> Iterator[Figures]:
    """Measure both ways in turns."""
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        aws = stack.enter_context(EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)))
        account, endpoint = Account(aws), stack.enter_context(serving(IDLE))
        for turn in range(ROUNDS):
            for way in WAYS if turn % 2 else reversed(WAYS):
                env = process_environment(aws, OURS) | {
                    "AWS_ENDPOINT_URL_KINESIS": endpoint,
                    "STREAM_CALLS": way,
                }
                spent[way].append(shard_hour_s(account, env, task_of(IDLE)))
    wire, sdk = (statistics.median(spent[way]) for way in WAYS)
    yield Figures(
        name="idle_worker",
        compares=f"CPU of a whole worker for one of {IDLE.shards} idle shards, in an hour",
        summary=f"{wire:.2f} CPU seconds per idle shard-hour; with the SDK for all {sdk:.2f}",
        gate=f"at most {GOAL_S:g} CPU seconds",
        met=wire <= GOAL_S,
        details={"wire_s": spent["wire"], "boto3_s": spent["boto3"], "ratio": sdk / wire},
        time_goes_to="Plain HTTP, and measured here, not on Lambda.",
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
