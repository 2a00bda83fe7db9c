"""
The Spark process of the demo: `python -m shardfleet_local.rig.spark_program PLANS RESULT`.

PLANS is a JSON list of pipeline plans, run one after the other in one session; RESULT gets the
progress of each, as Spark reports it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from shardfleet_spark.host.java import use_java
from shardfleet_spark.host.local_python import use_local_python
from shardfleet_spark.host.private import LOOPBACK_ONLY
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline

_SETTINGS = {
    **LOOPBACK_ONLY,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


def main(plans: str, result: str) -> None:
    """Run the plans; nothing is written when one of them fails."""
    use_java()
    use_local_python()
    builder = SparkSession.builder.master("local[2]").appName("shardfleet demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        progress = [
            run_pipeline(session, PipelinePlan(**plan)).progress
            for plan in json.loads(Path(plans).read_text(encoding="utf-8"))
        ]
    finally:
        session.stop()
    Path(result).write_text(json.dumps(progress), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
