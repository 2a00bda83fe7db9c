"""
What is expected to cost how much, told at synthesis, from dated list prices.

A fleet's figures are for the stream's shards if they are known here, else for some numbers of
shards. `shardfleet cost` says later what it costs in truth; both ask `shardfleet_ops.cost.model`.
"""

from __future__ import annotations

from aws_cdk import aws_kinesis as kinesis
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.prices import PRICES
from shardfleet_cdk.spark_options import SparkOptions
from shardfleet_ops.cost.model import (
    Setup,
    State,
    fan_out_per_month,
    per_month,
    spark_per_month,
    spilled_per_month,
    stream_per_month,
    window_per_month,
    workers_for,
)
from shardfleet_ops.template.spark import worker_size

EXAMPLES = (1, 10, 100)
_LIST = f"list prices of {PRICES.as_of}, {PRICES.region}"


def shards_of(stream: kinesis.IStream) -> int | None:
    """Return how many shards a stream of this app has; None for others, and on demand."""
    made = stream.node.default_child
    count = made.shard_count if isinstance(made, kinesis.CfnStream) else None
    return int(count) if isinstance(count, int | float) else None


def fleet_cost(
    config: FleetConfig, setup: Setup, *, shards: int | None, machine: str = "aarch64"
) -> str:
    """
    Return what a fleet costs a month, and the stream's shards themselves beside it.

    Args:
        config: of the fleet.
        setup: what else there is, but for the shards.
        shards: of the stream; None: not known here.
        machine: on which the functions run.

    """
    dearer = "" if machine == "aarch64" else " Prices are of arm64; x86_64 adds 25 % to Lambda's."
    amounts = "; ".join(
        _amount(config, replace(setup, shards=count))
        for count in (EXAMPLES if shards is None else (shards,))
    )
    return (
        "expected cost of the fleet a month, all shards read all the time, alarms and dashboard "
        f"counted, handler's own calls not ({_LIST}, no free tier): {amounts}.{dearer} "
        "`shardfleet cost` tells what it is (docs/cost.md)."
    )


def _amount(config: FleetConfig, setup: Setup) -> str:
    dollars, shards = per_month(config, setup).total, setup.shards
    asleep = ""
    if config.sleep:
        asleep = f", ${per_month(config, setup, state=State.ASLEEP).total:,.2f} while all sleep"
    return (
        f"{_many(shards, 'shard')}, {_many(workers_for(config, shards), 'worker')}: "
        f"${dollars:,.2f}{asleep} (the shards themselves ${stream_per_month(shards):,.2f})"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def fan_out_cost() -> str:
    """Return what it costs that records are pushed."""
    hours, gigabyte = fan_out_per_month(1), PRICES.consumer_gb
    return (
        f"records are pushed (enhanced fan-out): ${hours:,.2f} a month and shard, counted above, "
        f"and ${gigabyte} for each GB read, which is not ({_LIST})."
    )


def sleep_cost(config: FleetConfig) -> str:
    """Return how long waking takes at most, and what the manager does for it."""
    runs_s = config.linger_ms // 1_000
    looks = f"stays {runs_s} s of each minute to look" if runs_s else "looks once a minute"
    return (
        f"sleep is on: a shard falls asleep after {config.sleep_after_ms // 1_000} s without a "
        f"record, and the first record waits up to {config.max_wake_ms // 1_000} s "
        f"(max_wake_ms), for which the manager {looks}, and is paid by the time."
    )


def spill_cost(config: FleetConfig, setup: Setup) -> str:
    """Return what of the fleet's price is left while processes carry all of it."""
    shards = setup.shards or EXAMPLES[1]
    led = spilled_per_month(config, replace(setup, shards=shards, workers=2)).total
    return (
        f"spill is on: while two processes carry all of {_many(shards, 'shard')}, the fleet costs "
        f"${led:,.2f} a month beside them ({_LIST}), and what Lambda runs is added by the second."
    )


def window_cost(config: FleetConfig) -> str:
    """Return what a kilobyte of a window's state costs, and what makes it cheaper."""
    large = (
        "a state above 340 KB goes to failed_bucket, an object a checkpoint"
        if config.failed_bucket
        else "a state above 340 KB is refused, for failed_bucket is not set"
    )
    return (
        f"tumbling windows of {config.tumbling_window_ms // 1_000} s: the state of a busy shard is "
        f"written each {config.checkpoint_ms} ms (checkpoint_ms), for about "
        f"${window_per_month(config):.2f} a month and shard for each KB of it ({_LIST}); a longer "
        f"checkpoint_ms is cheaper and repeats more after a crash; {large}."
    )


def spark_cost(spark: SparkOptions, *, streaming: bool) -> str:
    """Return what a job's workers cost a month: its driver alone, and all it may have."""
    driver, executor = worker_size(spark.conf, "driver"), worker_size(spark.conf, "executor")
    cpu, memory = (
        one + spark.max_executors * each for one, each in zip(driver, executor, strict=True)
    )
    when = "while it runs, which is always" if streaming else "if it ran all the time"
    return (
        f"expected cost of the Spark job {when} ({_LIST}, x86_64; arm64, on which it runs, is "
        "about a fifth less): its driver alone "
        f"${spark_per_month(*driver):,.2f} a month, with all {spark.max_executors} executors "
        f"${spark_per_month(cpu, memory):,.2f}; storage, logs and what it reads and writes are not "
        "counted (docs/cost.md)."
    )
