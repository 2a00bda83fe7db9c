"""
What the fleet is expected to cost, told at synthesis, from dated list prices.

For the stream's shards if they are known here, else for some numbers of shards. `shardfleet cost`
says later what it costs in truth.
"""

from __future__ import annotations

from collections.abc import Iterable

from aws_cdk import aws_kinesis as kinesis

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.estimate import Setup, per_month, stream_per_month, workers_for
from shardfleet.domain.cost.prices import PRICES
from shardfleet_cdk.options import ManagerOptions, WorkerOptions

EXAMPLES = (1, 10, 100)


def shards_of(stream: kinesis.IStream) -> int | None:
    """Return how many shards a stream of this app has; None for others, and on demand."""
    made = stream.node.default_child
    count = made.shard_count if isinstance(made, kinesis.CfnStream) else None
    return int(count) if isinstance(count, int | float) else None


def told(
    config: FleetConfig,
    *,
    shards: int | None,
    worker: WorkerOptions,
    manager: ManagerOptions,
    machine: str = "aarch64",
) -> str:
    """Return what so many shards cost a month, and the stream's shards themselves beside it."""
    dearer = "" if machine == "aarch64" else " Prices are of arm64; x86_64 adds 25 % to Lambda's."
    wanted = EXAMPLES if shards is None else (shards,)
    amounts = "; ".join(_amounts(config, wanted, worker=worker, manager=manager))
    budget = ""
    if config.budget_cents_per_day:
        budget = f" The budget is ${config.budget_cents_per_day / 100:.2f} a day."
    return (
        f"expected cost of the fleet a month, all shards read all the time, alarms and handler's "
        f"own calls not counted (list prices of {PRICES.as_of}, {PRICES.region}, no free tier): "
        f"{amounts}.{dearer}{budget} `shardfleet cost` tells what it is (docs/cost.md)."
    )


def _amounts(
    config: FleetConfig, wanted: Iterable[int], *, worker: WorkerOptions, manager: ManagerOptions
) -> Iterable[str]:
    for shards in wanted:
        setup = Setup(
            shards=shards,
            worker_mb=worker.memory_mb,
            manager_mb=manager.memory_mb,
            worker_timeout_ms=worker.timeout_s * 1_000,
        )
        dollars = per_month(config, setup).total
        workers = workers_for(config, shards)
        yield (
            f"{_many(shards, 'shard')}, {_many(workers, 'worker')}: ${dollars:,.2f} "
            f"(the shards themselves ${stream_per_month(shards):,.2f})"
        )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
