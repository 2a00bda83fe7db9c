"""
The driver of one run: two queries over one stream, restarted when they fail, until told to finish.

`python -m tests.spark.kills.program SETTINGS.json` runs in a process of its own, to be killed. One
query appends to Parquet files, the other counts per shard; each has its own checkpoint, and what a
driver before this one has left there is taken up.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

FINISH = "finish"
"""A file of this name in the run's folder: everything is put, read to the end and leave."""

FAILURES = "failures.log"
"""A line for each query that failed and was started again."""

REPLAYS = "replays.log"
"""A line for each batch of counts that was run again: its id, and whether it was the same."""

LIMIT_S = 300


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

    def __init__(self, spark, settings):
        self._spark = spark
        self._settings = settings
        self._folder = Path(settings["folder"])
        self._running = {}

    def keep_running(self):
        """Start what does not run; say what has failed."""
        for name in ("files", "counts"):
            query = self._running.get(name)
            if query is not None and query.isActive:
                continue
            if query is not None:
                self._note_failure(name, query.exception())
            self._running[name] = self._writer(name).trigger(processingTime="200 milliseconds").start()

    def finish(self):
        """Read what is there to its end, however often a query fails over it."""
        for query in self._running.values():
            query.stop()
        deadline = time.monotonic() + LIMIT_S
        for name in self._running:
            done = False
            while not done:
                if time.monotonic() > deadline:
                    message = f"the query {name} did not end within {LIMIT_S} s"
                    raise TimeoutError(message)
                query = self._writer(name).trigger(availableNow=True).start()
                try:
                    done = query.awaitTermination(LIMIT_S)
                except StreamingQueryException as error:
                    self._note_failure(name, error)

    def _note_failure(self, name, error):
        note(self._folder / FAILURES, f"{name}: {str(error)[-1500:]!r}")

    def _writer(self, name):
        source = self._spark.readStream.format("shardfleet").options(**self._settings["source"])
        frame = source.load()
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
        if path.exists():
            same = json.loads(path.read_text("utf-8")) == counts
            note(self._folder / REPLAYS, f"{batch_id} {'same' if same else 'different'}")
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(counts), "utf-8")
        draft.replace(path)


def main(arguments):
    settings = json.loads(Path(arguments[0]).read_text("utf-8"))
    spark = session(settings)
    queries = Queries(spark, settings)
    while not (Path(settings["folder"]) / FINISH).exists():
        queries.keep_running()
        time.sleep(0.2)
    queries.keep_running()
    queries.finish()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
