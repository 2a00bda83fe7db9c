"""
Can awslabs' spark-sql-kinesis-connector be had for this Spark? Asked of Maven Central.

Spark's own launcher resolves `spark.jars.packages`, in a process of its own and with nothing kept
from before; what it says when there is no such artifact is the answer. The coordinates are those
of the project's pom.xml; its README has one build the jar. Something that surely is in Maven
Central is asked for in the same way: only then is "not found" an answer.

    python benchmarks/connector_lookup.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache

import pyspark
import side_by_side
from side_by_side import Skipped

from shardfleet_spark.host.java import use_java

# The releases whose README names Spark 3.5 and 4.1; 2.13 is the Scala of Spark 4.
COORDINATES = tuple(
    f"org.apache.spark:spark-streaming-sql-kinesis-connector_2.13:{version}"
    for version in ("2.1.0", "2.0.0", "1.4.0")
)
SURELY_THERE = "org.slf4j:slf4j-api:2.0.17"
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
builder = builder.config("spark.jars.ivy", sys.argv[2])
builder.config("spark.jars.packages", sys.argv[1]).getOrCreate().stop()
"""
_LIMIT_S = 240
_ERROR = "unresolved dependency"


@cache
def look_up_connector() -> str:
    """Return what Spark says to each of the coordinates, in a sentence."""
    use_java()
    answers = [f"{each} {_answer(each)}" for each in (*COORDINATES, SURELY_THERE)]
    return f"Spark {pyspark.__version__} asked Maven Central: {', '.join(answers)}"


def contests() -> Iterator[Skipped]:
    """Yield why the connector takes no part."""
    yield Skipped(
        name="spark_source_awslabs",
        reason=f"awslabs' connector for Scala 2.13 is built from source. {look_up_connector()}",
    )


def _answer(coordinates: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", _PROGRAM, coordinates, folder]
        try:
            found = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {_LIMIT_S} s"
    if not found.returncode:
        return "resolved"
    lines = [line for line in found.stderr.splitlines() if _ERROR in line]
    if lines and "not found" in lines[0]:
        return "not found"
    return (lines or found.stderr.strip().splitlines())[-1]


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
