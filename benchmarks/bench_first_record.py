"""
How long is it from a command to the first record?

`shardfleet local run`: from the command to the first record's line of the user's handler, with the
embedded AWS and a fleet of one worker in between; beside it a program that starts the same embedded
AWS, makes a stream, puts the records and reads one back by boto3, which is what one tries first.

A streaming query of a fresh checkpoint in a JVM that is warm: from `start()` to the end of the
first batch, of a stream with 8 shards, which has a record of each. Beside it the source that one
writes in an hour (`naive_source.py`). Wall time: both wait for processes that begin.

    python benchmarks/bench_first_record.py [--only first_batch_in_spark] [--folder DIR]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import side_by_side
import spark_bench
from bench_spark_micro_batch import start, until
from naive_source import COLUMNS, NaiveDataSource
from pyspark.sql import DataFrame
from side_by_side import Figures
from spark_bench import Kinesis

ROUNDS, SHARDS, RECORDS = 9, 8, 20
MOST_S = 1.5
HANDLER = "def handle(batch):\n    for record in batch:\n        print('seen', flush=True)\n"
BY_HAND = f"""
from shardfleet_local.aws.launcher import EmbeddedAws

with EmbeddedAws() as aws:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="s", ShardCount=4)
    kinesis.get_waiter("stream_exists").wait(StreamName="s", WaiterConfig={{"Delay": 1}})
    for number in range({RECORDS}):
        kinesis.put_record(StreamName="s", PartitionKey=str(number), Data=b"x")
    for shard in kinesis.list_shards(StreamName="s")["Shards"]:
        first = kinesis.get_shard_iterator(
            StreamName="s", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        for _ in kinesis.get_records(ShardIterator=first["ShardIterator"])["Records"]:
            print("seen", flush=True)
"""


def seconds_to_first_line(words: list[str], folder: Path) -> float:
    """Return how long a program takes to its first record."""
    began_s = time.monotonic()
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = next((line for line in process.stdout if "seen" in line), None)
        took_s = time.monotonic() - began_s
        process.stdout.read()
    assert seen, f"{words} ended with {process.returncode} without a record"
    return took_s


def alternately(ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return what each way took in each round but the first, which warms caches."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + ROUNDS):
        for name, way in ways.items():
            took_s = way()
            found[name] += [round(took_s, 3)] if number else []
            print(f"{name}: {took_s:.2f} s", flush=True)
    return found


def told(found: dict[str, list[float]], **words: str) -> Figures:
    """Return the medians as a result; the second is the peer's."""
    (ours, mine), (peer, theirs) = found.items()
    middle = statistics.median(mine)
    return Figures(
        summary=f"{middle:.2f} s ({min(mine):.2f} to {max(mine):.2f}); "
        f"{peer} {statistics.median(theirs):.2f} s",
        details={ours: mine, peer: theirs},
        met=middle <= MOST_S if "gate" in words else None,
        **words,
    )


def on_a_laptop() -> Figures:
    """Measure `shardfleet local run`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "handler.py").write_text(HANDLER)
        (folder / "records.jsonl").write_text('{"n": 1}\n' * RECORDS)
        command = str(Path(sys.executable).with_name("shardfleet"))
        run = [command, "local", "run", "--handler", "handler:handle", "--input", "records.jsonl"]
        found = alternately(
            {
                "ours": lambda: seconds_to_first_line(run, folder),
                "boto3 by hand": lambda: seconds_to_first_line(
                    [sys.executable, "-c", BY_HAND], folder
                ),
            }
        )
    return told(
        found, name="first_record_local", compares="`shardfleet local run`, to the first record"
    )


def in_spark() -> Figures:
    """Measure a query of a fresh checkpoint."""
    with Kinesis(quotas=True) as kinesis, tempfile.TemporaryDirectory() as place:
        spark = spark_bench.session()
        spark.dataSource.register(NaiveDataSource)
        kinesis.make_stream("first", shards=SHARDS)
        kinesis.put("first", [b"x" * 100] * SHARDS, shards=SHARDS)
        options = kinesis.options("first") | {
            "startingPosition": "TRIM_HORIZON",
            "columns": ",".join(COLUMNS),
        }

        def first_batch(frame: DataFrame, name: str) -> float:
            began_s = time.monotonic()
            query = start(frame, f"{place}/checkpoint-{name}-{began_s}", every="1 second")
            until(query, 1)
            took_s = time.monotonic() - began_s
            query.stop()
            return took_s

        def ours() -> float:
            seals = {"sealStore": f"file:{place}/seals-{time.monotonic()}"}
            read = spark.readStream.format("shardfleet").options(**options, **seals)
            return first_batch(read.load(), "ours")

        def naive() -> float:
            read = spark.readStream.format("naive").options(**kinesis.options("first"))
            return first_batch(read.load(), "naive")

        found = alternately({"ours": ours, "naive tuples": naive})
        spark.stop()
    return told(
        found,
        name="first_batch_in_spark",
        compares=f"a query of a fresh checkpoint, warm JVM, {SHARDS} shards, to its first batch",
        gate=f"{MOST_S} s",
    )


def figures() -> Iterator[Figures]:
    """Measure both."""
    yield on_a_laptop()
    yield in_spark()


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
