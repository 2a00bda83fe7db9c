"""What a Spark job costs, told at synthesis: its workers, by the hour, from dated list prices."""

from __future__ import annotations

from shardfleet.domain.cost.estimate import spark_per_month
from shardfleet.domain.cost.prices import PRICES
from shardfleet_cdk.spark_options import SparkOptions
from shardfleet_ops.template.spark import worker_size


def told(spark: SparkOptions, *, streaming: bool) -> str:
    """Return what the job costs a month with its driver alone, and with all it may have."""
    driver, executor = worker_size(spark.conf, "driver"), worker_size(spark.conf, "executor")
    cpu, memory = (
        one + spark.max_executors * each for one, each in zip(driver, executor, strict=True)
    )
    when = "while it runs, which is always" if streaming else "if it ran all the time"
    return (
        f"expected cost of the Spark job {when} (list prices of {PRICES.as_of}, {PRICES.region}, "
        "x86_64; arm64, on which it runs, is about a fifth less): its driver alone "
        f"${spark_per_month(*driver):,.2f} a month, with all {spark.max_executors} executors "
        f"${spark_per_month(cpu, memory):,.2f}; storage, logs and what it reads and writes are not "
        "counted (docs/cost.md)."
    )
