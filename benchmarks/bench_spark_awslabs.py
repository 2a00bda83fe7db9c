"""
What does a row cost through awslabs' spark-sql-kinesis-connector, where its jar is given?

    AWSLABS_JAR=FILE python benchmarks/bench_spark_awslabs.py [--folder DIR]

64 MiB of records of 1 KiB in 8 shards of our Kinesis engine go to nowhere (noop), in queries that
take turns: CPU time of the JVM and its Python processes per row, starting and ending in. Its jar is
built from its source; Maven Central is asked for it each time by Spark's own launcher, with nothing
kept from before. Something that surely is there is asked for in the same way: only then is "not
found" an answer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache

import pyspark
import side_by_side
import spark_bench
from side_by_side import Figures, Skipped
from spark_bench import Kinesis, Meter

from shardfleet_spark.host.java import use_java

# The releases whose README names Spark 3.5 and 4.1; 2.13 is the Scala of Spark 4.
COORDINATES = tuple(
    f"org.apache.spark:spark-streaming-sql-kinesis-connector_2.13:{version}"
    for version in ("2.1.0", "2.0.0", "1.4.0")
)
SHARDS, WARM_UP, ROUNDS = 8, 3, 7
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


def figures() -> Iterator[Figures | Skipped]:
    """Measure with the jar that is given, or yield why there is none."""
    jar = os.environ.get("AWSLABS_JAR", "")
    if jar:
        yield measured(jar)
    else:
        yield Skipped(
            name="spark_source_awslabs",
            reason=f"no AWSLABS_JAR: the jar is built from source. {look_up_connector()}",
        )


def measured(jar: str) -> Figures:
    """Let queries of both take turns; the first of each, which warm the JVM, do not count."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jar} pyspark-shell"
    load = spark_bench.load("1k")
    with Kinesis(quotas=False) as kinesis, tempfile.TemporaryDirectory() as place:
        kinesis.make_stream("rows", shards=SHARDS)
        kinesis.put("rows", load.data, shards=SHARDS)
        spark = spark_bench.session()
        meter = Meter(spark)
        start = {"startingPosition": "TRIM_HORIZON"}
        theirs = {
            "region": "us-east-1",
            "streamName": "rows",
            "consumerType": "GetRecords",
            # It takes the second part between dots for the region that it signs for.
            "endpointUrl": kinesis.endpoint.replace("//", "//kinesis.us-east-1.local@"),
            "awsAccessKeyId": os.environ["AWS_ACCESS_KEY_ID"],
            "awsSecretKey": os.environ["AWS_SECRET_ACCESS_KEY"],
        }
        ways = {
            "ours": ("shardfleet", kinesis.options("rows") | start),
            "awslabs": ("aws-kinesis", {f"kinesis.{k}": v for k, v in (theirs | start).items()}),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(WARM_UP + ROUNDS):
            for name, (format_name, options) in ways.items():
                run = f"{place}/{name}-{number}"
                seals = {"sealStore": f"file:{run}-seals"} if name == "ours" else {}
                frame = spark.readStream.format(format_name).options(**options, **seals).load()
                writer = frame.writeStream.format("noop")
                with meter.measured() as cost:
                    query = spark_bench.to_the_end(writer.option("checkpointLocation", run))
                rows = sum(int(each["numInputRows"]) for each in query.recentProgress)
                assert rows == load.rows, f"{name} had {rows} of {load.rows} rows"
                print(f"{name}: {cost.cpu_s * 1e6 / rows:.1f} us a row", flush=True)
                found[name] += [cost.cpu_s * 1e6 / rows] if number >= WARM_UP else []
        spark.stop()
    ours, peer = (statistics.median(found[name]) for name in ways)
    return Figures(
        name="spark_source_awslabs",
        compares=f"Spark source beside awslabs' connector, 1 KiB, {SHARDS} shards",
        summary=f"{ours:.1f} us of CPU a row; awslabs' {peer:.1f}, {peer / ours:.2f} x ours",
        details={"cpu_us_per_row": found},
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
    side_by_side.main(__doc__, figures)
