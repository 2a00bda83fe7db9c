"""
The program that a cluster starts: `spark-submit job.py '<plan as JSON>'`.

`SparkPipeline` of the CDK uploads it as the job's entry point. Everything else is in the packaged
environment: this distribution, and the module with the user's transform.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline


def main(arguments: list[str]) -> None:
    """
    Run the plan that is the one argument.

    Raises:
        ConfigurationError: there is no plan, or it is wrong.
        pyspark.errors.PySparkException: what Spark says against it.

    """
    plan = PipelinePlan.from_json(arguments[0] if arguments else "")
    run_pipeline(SparkSession.builder.getOrCreate(), plan)


if __name__ == "__main__":
    main(sys.argv[1:])
