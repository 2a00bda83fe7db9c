"""A life of a query into a Delta table: `… delta_life.py PLAN DIE`; 1: killed after a write."""

import os
import signal
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from shardfleet_spark.pipelines import delta
from shardfleet_spark.pipelines.delta import delta_settings
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.spark.conftest import SETTINGS


def main(plan, die):
    """Run the plan; where it is wanted, kill Java and this process after a new batch's write."""
    few = {"spark.databricks.delta.snapshotPartitions": "2"}
    settings = SETTINGS | delta_settings(pyspark.__version__) | few
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    real = delta._append

    def append_and_die(*arguments):
        append = real(*arguments)

        def write(batch, number):
            append(batch, number)
            killed = Path(f"{PipelinePlan.from_json(plan).checkpoint}-killed-{number}")
            if killed.exists():
                return  # This life repeats what the last one wrote, and goes on to the next batch.
            killed.touch()
            java = session.sparkContext._gateway.proc.pid
            os.kill(java, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        return write

    if die == "1":
        delta._append = append_and_die
    run_pipeline(session, PipelinePlan.from_json(plan))
    found = session.read.format("delta").load(PipelinePlan.from_json(plan).to_place.where)
    sys.stdout.write(f"{found.count()} {found.select('data').distinct().count()}\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
