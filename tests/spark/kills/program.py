"""
The driver: two queries per run over the run's stream, restarted when they fail, until told to stop.

`python -m tests.spark.kills.program FOLDER` runs in a process of its own, to be killed. It serves
the runs of its folder one after the other. One query appends to Parquet files, the other counts
per shard; each has its own checkpoint, and what a driver before this one has left there is taken
up.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

SOURCE = "source.json"
"""A run's folder has this file: the options of its source."""

FINISH = "finish"
"""A file of this name in a run's folder: everything has arrived, stop its queries."""

DONE = "done"
"""The driver's answer."""

STOP = "stop"
"""A file of this name in the folder of all runs: leave."""

FAILURES = "failures.log"
"""A line for each query that failed and was started again."""

REPLAYS = "replays.log"
"""A line for each batch of counts that was run again: its id, and whether it was the same."""

AIMED = "aimed"
"""A file of this name in a run's folder: the driver is to be killed right behind a write."""

WRITTEN = "written"
"""The driver's answer: now. It waits for it."""

FAILS_EACH = 2
"""So many batches of counts, and one fails although it is written: Spark runs it again."""


class FailedBehindItsWrite(Exception):
    """Planted."""


def session(settings):
    builder = SparkSession.builder.master(settings["master"]).appName("kills")
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def note(path, line):
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


class Queries:
    """The two queries of a driver."""

    def __init__(self, spark, folder):
        self._spark = spark
        self._folder = folder
        self._source = json.loads((folder / SOURCE).read_text("utf-8"))
        self._running = {}

    def keep_running(self):
        """Start what does not run; say what has failed."""
        for name in ("files", "counts"):
            query = self._running.get(name)
            if query is not None and query.isActive:
                continue
            if query is not None:
                self._note_failure(name, query.exception())
            self._running[name] = (
                self._writer(name).trigger(processingTime="200 milliseconds").start()
            )

    def stop(self):
        for query in self._running.values():
            query.stop()

    def _note_failure(self, name, error):
        note(self._folder / FAILURES, f"{name}: {str(error)[-1500:]!r}")

    def _writer(self, name):
        # Each query has an application of its own, and one of the two shows its positions.
        source = {k: v for k, v in self._source.items() if name == "files" or k != "publishTo"}
        frame = self._spark.readStream.format("shardfleet").options(**source).load()
        checkpoint = str(self._folder / f"{name}-checkpoint")
        if name == "files":
            rows = frame.selectExpr(
                "cast(data as string) as data", "partition_key", "shard_id", "sequence_number"
            )
            writer = rows.writeStream.format("parquet").option("path", str(self._folder / name))
        else:
            counts = frame.groupBy("shard_id").count()
            writer = counts.writeStream.outputMode("complete").foreachBatch(self._keep_counts)
        return writer.option("checkpointLocation", checkpoint)

    def _keep_counts(self, frame, batch_id):
        counts = dict(sorted((row["shard_id"], row["count"]) for row in frame.collect()))
        path = self._folder / "counts" / f"{batch_id}.json"
        path.parent.mkdir(exist_ok=True)
        if again := path.exists():
            same = json.loads(path.read_text("utf-8")) == counts
            note(self._folder / REPLAYS, f"{batch_id} {'same' if same else 'different'}")
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(counts), "utf-8")
        draft.replace(path)
        while (self._folder / AIMED).exists():
            (self._folder / WRITTEN).touch()
            time.sleep(0.05)
        if not again and batch_id % FAILS_EACH == FAILS_EACH - 1:
            message = f"batch {batch_id} of {self._folder.name}"
            raise FailedBehindItsWrite(message)


def serve(spark, folder):
    """Keep the queries of a run going until it is finished."""
    queries = Queries(spark, folder)
    while not (folder / FINISH).exists():
        queries.keep_running()
        time.sleep(0.2)
    queries.stop()
    (folder / DONE).touch()


def main(arguments):
    folder = Path(arguments[0])
    spark = session(json.loads((folder / "settings.json").read_text("utf-8")))
    while not (folder / STOP).exists():
        for source in sorted(folder.glob(f"run-*/{SOURCE}")):
            if not (source.parent / DONE).exists():
                serve(spark, source.parent)
        time.sleep(0.2)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
