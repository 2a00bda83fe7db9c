"""
Whether awslabs' spark-sql-kinesis-connector can be had for this Spark, asked of Maven Central.

Spark's own launcher resolves `spark.jars.packages`, in a process of its own; what it says when
there is no such artifact is the answer. The coordinates are those of the project's pom.xml.

    python benchmarks/connector_lookup.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from shardfleet_spark.java import use_java

# The releases whose README names Spark 3.5 and 4.1; 2.13 is the Scala of Spark 4.
COORDINATES = tuple(
    f"org.apache.spark:spark-streaming-sql-kinesis-connector_2.13:{version}"
    for version in ("2.1.0", "2.0.0", "1.4.0")
)
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
builder.config("spark.jars.packages", sys.argv[1]).getOrCreate().stop()
"""
_LIMIT_S = 240
_ERROR = "unresolved dependency"


@cache
def look_up_connector() -> str:
    """Return what Spark says to each of the coordinates, in a sentence."""
    use_java()
    return "; ".join(f"{each}: {_answer(each)}" for each in COORDINATES)


def _answer(coordinates: str) -> str:
    words = [sys.executable, "-c", _PROGRAM, coordinates]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {_LIMIT_S} s"
    if not found.returncode:
        return "resolved"
    lines = [line for line in found.stderr.splitlines() if _ERROR in line]
    said = lines[0] if lines else found.stderr.strip().splitlines()[-1]
    return said.partition("RuntimeException:")[2].strip() or said


if __name__ == "__main__":
    print(look_up_connector())
