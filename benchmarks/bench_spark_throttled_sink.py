"""
How much does one shard at its limit slow the other three, through Spark's sink?

Four shards of the embedded AWS, 3,000 rows for each, one Spark task per shard. In every second run
another writer takes 900 of the 1,000 records/s of one shard. Measured is when the last row of the
three other shards arrives, from the first row on; the machine's noise falls on both kinds of run,
which take turns. All rows must arrive, each key in order.

    python benchmarks/bench_spark_throttled_sink.py [--folder DIR]
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import side_by_side
from pyspark.sql import SparkSession
from side_by_side import Figures

from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet.local import EmbeddedAws
from shardfleet_spark.by_shard import as_records, by_shard
from shardfleet_spark.java import use_java

SHARDS, ROWS, ROUNDS, OTHERS_PER_S = 4, 3_000, 3, 900
KEYS = 40
GATE = 0.9


def keys_of_shard(shard: int) -> list[str]:
    """Return keys that the shard owns."""
    owned = (
        f"user-{n}"
        for n in range(100_000)
        if hash_of_partition_key(f"user-{n}") * SHARDS >> 128 == shard
    )
    return [next(owned) for _ in range(KEYS)]


def other_writer(client: Any, stream: str, stop: threading.Event) -> None:
    """Take most of shard 0 until told to stop; what is refused is not sent again."""
    record = {"Data": b"other", "PartitionKey": keys_of_shard(0)[0]}
    while not stop.wait(0.1):
        client.put_records(StreamName=stream, Records=[record] * (OTHERS_PER_S // 10))


def arrivals(client: Any, stream: str) -> tuple[dict[int, list[float]], dict[str, list[int]]]:
    """Return arrival times by shard, and the rows of each key in the order of the stream."""
    times, rows = defaultdict(list), defaultdict(list)
    for place, shard in enumerate(client.list_shards(StreamName=stream)["Shards"]):
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = client.get_records(ShardIterator=iterator)
            for record in answer["Records"]:
                if record["Data"] != b"other":
                    times[place].append(record["ApproximateArrivalTimestamp"].timestamp())
                    rows[record["PartitionKey"]].append(int(record["Data"]))
            iterator = answer.get("NextShardIterator") if answer["Records"] else None
    return times, rows


def one_run(spark: SparkSession, aws: EmbeddedAws, name: str, *, contested: bool) -> float:
    """Write everything; return seconds until the last row of the other shards."""
    client = aws.client("kinesis")
    client.create_stream(StreamName=name, ShardCount=SHARDS)
    client.get_waiter("stream_exists").wait(StreamName=name)
    keys = [keys_of_shard(shard) for shard in range(SHARDS)]
    rows = [(str(n), keys[n % SHARDS][n // SHARDS % KEYS]) for n in range(SHARDS * ROWS)]
    table = spark.createDataFrame(rows, "data string, key string").coalesce(1)
    options = {"stream": name, "region": aws.region, "endpoint": aws.endpoint_url}
    placed = by_shard(as_records(table, data="data", partition_key="key"), options, tasks=SHARDS)
    stop = threading.Event()
    other = threading.Thread(target=other_writer, args=(client, name, stop))
    if contested:
        other.start()
        time.sleep(1)
    try:
        placed.write.format("shardfleet").options(**options).mode("append").save()
    finally:
        stop.set()
        if contested:
            other.join()
    times, by_key = arrivals(aws.client("kinesis"), name)
    assert sum(map(len, by_key.values())) == len(rows), "rows are missing or repeated"
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "out of order"
    first = min(min(each) for each in times.values())
    return max(max(times[shard]) for shard in range(1, SHARDS)) - first


def session() -> SparkSession:
    """Start a Spark with a slot for each task."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{SHARDS}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def figures() -> Iterator[Figures]:
    """Run both kinds in turns."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    found: dict[bool, list[float]] = {False: [], True: []}
    with EmbeddedAws() as aws:
        os.environ.update(aws.environment())
        spark = session()
        one_run(spark, aws, "warm-up", contested=False)
        for number in range(ROUNDS):
            for contested in (False, True):
                name = f"run-{number}-{contested}"
                found[contested].append(one_run(spark, aws, name, contested=contested))
        spark.stop()
    alone, beside = (statistics.median(found[kind]) for kind in (False, True))
    ratio = alone / beside
    yield Figures(
        name="spark_throttled_sink",
        compares="Spark sink: three shards beside one of which another writer takes 90 %",
        summary=(
            f"the other three reach {ratio:.0%} of their pace without it "
            f"({beside:.1f} s instead of {alone:.1f} s for {3 * ROWS:,} rows); "
            "all rows arrived, every key in order"
        ),
        gate="the other shards at 90 % or more",
        met=ratio >= GATE,
        details={
            "alone_s": [round(each, 3) for each in found[False]],
            "beside_s": [round(each, 3) for each in found[True]],
            "rows_per_shard": ROWS,
            "other_writer_records_per_s": OTHERS_PER_S,
        },
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
