"""
How much does one shard at its limit slow the other three, through Spark's sink?

Four shards of our Kinesis engine, 1,000 rows of 10 KiB for each: a shard takes 1 MiB/s, so it is
the engine's limits that set the pace, 100 rows/s, and neither a processor nor Python. In every
second run another writer takes 70 % of one shard for 30 s. Both kinds of run take turns. Once each
shard has a task of its own, once one task has all four. Measured is the pace of the three other
shards, from the first row of each that arrived to its last one. All rows must arrive, each key in
order. The picture shows the flow control in the last run of one task.

    python benchmarks/bench_spark_throttled_sink.py [--folder DIR]
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import charts
import side_by_side
import spark_bench
from botocore.exceptions import ClientError
from observed_sink import FOLDER, ObservedDataSource
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from side_by_side import Figures
from spark_bench import Kinesis

from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet_spark.sink.by_shard import as_records, by_shard

SHARDS, ROWS, ROW_BYTES, ROUNDS = 4, 1_000, 10 * 1024, 5
OTHERS_PER_S, OTHERS_S = 70, 30.0
KEYS = 40
GATE = 0.9
OTHER = b"other" * (ROW_BYTES // 5)
PLOT = Path(__file__).parent.parent / "docs" / "img" / "spark_throttled_sink.svg"


@dataclass(slots=True)
class Run:
    """
    What one run did.

    Attributes:
        arrivals: of each shard, epoch seconds of its rows.
        others: of the first shard, epoch seconds of the other writer's records.
        answers: (seconds from the first one, shard's index, batch, pause in ms).

    """

    arrivals: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    others: list[float] = field(default_factory=list)
    answers: list[tuple[float, int, int, int]] = field(default_factory=list)

    def pace(self) -> float:
        """Return rows/s of the other shards, the median of them."""
        return statistics.median(
            (len(times) - 1) / (max(times) - min(times))
            for shard, times in self.arrivals.items()
            if shard
        )

    def per_second(self, shard: int) -> list[tuple[float, float]]:
        """Return the shard's rows in each second since the first row of all."""
        first = min(map(min, self.arrivals.values()))
        counts = Counter(int(each - first) for each in self.arrivals[shard])
        return [(second, counts[second]) for second in range(max(counts) + 1)]


def keys_of_shard(shard: int) -> list[str]:
    """Return keys that the shard owns."""
    owned = (
        f"user-{n}"
        for n in range(100_000)
        if hash_of_partition_key(f"user-{n}") * SHARDS >> 128 == shard
    )
    return [next(owned) for _ in range(KEYS)]


def other_writer(client: Any, stream: str) -> None:
    """Take most of shard 0 for a while; what is refused is not sent again."""
    record = {"Data": OTHER, "PartitionKey": keys_of_shard(0)[0]}
    started = time.monotonic()
    for tick in range(int(10 * OTHERS_S)):
        time.sleep(max(0.0, started + tick / 10 - time.monotonic()))
        client.put_records(StreamName=stream, Records=[record] * (OTHERS_PER_S // 10))


def read_shard(client: Any, stream: str, shard_id: str) -> list[dict[str, Any]]:
    """Return all records of a shard, within its limits."""
    iterator: str | None = client.get_shard_iterator(
        StreamName=stream, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    found: list[dict[str, Any]] = []
    while iterator:
        try:
            answer = client.get_records(ShardIterator=iterator, Limit=150)
        except ClientError as error:
            if "ProvisionedThroughputExceeded" not in str(error):
                raise
            time.sleep(0.5)
            continue
        found += answer["Records"]
        iterator = answer.get("NextShardIterator") if answer["MillisBehindLatest"] else None
    return found


def what_arrived(client: Any, stream: str) -> Run:
    """Read the stream, and check that all rows are there and each key is in order."""
    shards = [each["ShardId"] for each in client.list_shards(StreamName=stream)["Shards"]]
    with ThreadPoolExecutor(SHARDS) as pool:
        found = list(pool.map(lambda shard_id: read_shard(client, stream, shard_id), shards))
    run, by_key = Run(), defaultdict(list)
    for shard, records in enumerate(found):
        for record in records:
            at_s = record["ApproximateArrivalTimestamp"].timestamp()
            if record["Data"] == OTHER:
                run.others.append(at_s)
            else:
                run.arrivals[shard].append(at_s)
                by_key[record["PartitionKey"]].append(int(record["Data"][:8]))
    assert sum(map(len, by_key.values())) == SHARDS * ROWS, "rows are missing or repeated"
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "out of order"
    return run


def one_run(
    spark: SparkSession, kinesis: Kinesis, name: str, *, tasks: int, contested: bool
) -> Run:
    """Write everything; return what arrived when."""
    kinesis.make_stream(name, shards=SHARDS)
    keys = [keys_of_shard(n % SHARDS)[n // SHARDS] for n in range(SHARDS * KEYS)]
    rows = spark.range(SHARDS * ROWS, numPartitions=1).select(
        sf.rpad(sf.lpad(sf.col("id").cast("string"), 8, "0"), ROW_BYTES, "x").alias("row"),
        sf.get(sf.array(*map(sf.lit, keys)), (sf.col("id") % len(keys)).cast("int")).alias("key"),
    )
    options = kinesis.options(name)
    placed = by_shard(as_records(rows, data="row", partition_key="key"), options, tasks=tasks)
    other = threading.Thread(target=other_writer, args=(kinesis.client, name))
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as folder:
        if contested:
            other.start()
            time.sleep(1)
        placed.write.format("observed").options(**options, **{FOLDER: folder}).mode("append").save()
        if contested:
            other.join()
        files = Path(folder).glob("*.json")
        answers = sorted(each for file in files for each in json.loads(file.read_text("utf-8")))
    run = what_arrived(kinesis.client, name)
    kinesis.client.delete_stream(StreamName=name)
    first = answers[0][0]
    run.answers = [
        ((at_ms - first) / 1_000, int(shard[-2:]), batch, pause_ms)
        for at_ms, shard, batch, pause_ms in answers
    ]
    return run


def plot(alone: Run, beside: Run) -> str:
    """Return the picture of the last runs."""
    last = max(second for second, *_ in beside.answers)
    marks = range(0, int(last) + 6, 5)
    first = min(map(min, beside.arrivals.values()))
    quiet = max(beside.arrivals[1]) - first
    shared = (max(0.0, min(beside.others) - first), min(last, max(beside.others) - first))

    def curve(value: int, shard: int) -> charts.Points:
        return [(each[0], each[value]) for each in beside.answers if each[1] == shard]

    def chart(title: str, lines: dict[str, charts.Points]) -> charts.Chart:
        most = max(y for points in lines.values() for _, y in points) or 1
        return charts.Chart(
            title=title,
            lines=lines,
            x_name="seconds",
            x_marks=marks,
            y_marks=(0, most // 2, most),
            bands=[shared],
        )

    return charts.picture(
        [
            chart(
                f"rows/s that arrive; another writer takes {OTHERS_PER_S} of 100 of shard 0 "
                f"(shaded); the others are through after {quiet:.0f} s",
                {
                    "shard 0": beside.per_second(0),
                    "shard 1": beside.per_second(1),
                    "shard 0 alone": alone.per_second(0),
                },
            ),
            chart(
                "flow control: most entries in a request",
                {f"shard {shard}": curve(2, shard) for shard in (0, 1)},
            ),
            chart(
                "flow control: pause between requests, ms",
                {f"shard {shard}": curve(3, shard) for shard in (0, 1)},
            ),
        ]
    )


def figures() -> Iterator[Figures]:
    """Run both kinds in turns, with a task for each shard and with one for all."""
    found: dict[tuple[int, bool], list[Run]] = defaultdict(list)
    with Kinesis(quotas=True) as kinesis:
        spark = spark_bench.session(SHARDS)
        spark.dataSource.register(ObservedDataSource)
        one_run(spark, kinesis, "warm-up", tasks=SHARDS, contested=False)
        for number in range(ROUNDS):
            for tasks in (SHARDS, 1):
                for contested in (False, True):
                    name = f"run-{number}-{tasks}-{contested}"
                    run = one_run(spark, kinesis, name, tasks=tasks, contested=contested)
                    found[tasks, contested].append(run)
                    print(f"{name}: the others at {run.pace():.1f} rows/s", flush=True)
        spark.stop()
    PLOT.write_text(plot(found[1, False][-1], found[1, True][-1]), encoding="utf-8")
    paces = {case: statistics.median(run.pace() for run in runs) for case, runs in found.items()}
    ratios = {tasks: paces[tasks, True] / paces[tasks, False] for tasks in (SHARDS, 1)}
    squeezed = statistics.median(
        max(run.arrivals[0]) - min(run.arrivals[0]) for run in found[1, True]
    )
    yield Figures(
        name="spark_throttled_sink",
        compares="Spark sink: three shards beside one of which another writer takes 70 %",
        summary=(
            f"the other three at {ratios[SHARDS]:.1%} of their pace without it with a task for "
            f"each shard, at {ratios[1]:.1%} with one task for all ({paces[1, True]:.0f} of 100 "
            f"rows/s); the shard itself takes {squeezed:.0f} s; all rows arrived, every key in "
            "order"
        ),
        gate="the other shards at 90 % or more",
        met=min(ratios.values()) >= GATE,
        details={
            "rows_per_shard": ROWS,
            "row_bytes": ROW_BYTES,
            "other_writer_records_per_s": OTHERS_PER_S,
            "rows_per_s_of_the_others": {
                f"{tasks} tasks, {'beside' if contested else 'alone'}": [
                    round(run.pace(), 2) for run in runs
                ]
                for (tasks, contested), runs in found.items()
            },
        },
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
