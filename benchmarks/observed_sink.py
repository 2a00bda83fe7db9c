"""The sink of shardfleet, which also writes down what its flow control does: for a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from shardfleet_spark.sink.sink import BatchSink, SinkCommit, make_batch_writer
from shardfleet_spark.sink.sink_session import session_of

FOLDER = "answersTo"


class ObservedDataSource(DataSource):
    """Options: those of the sink, and a folder for the answers of each task."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "observed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the sink."""
        options: dict[str, Any] = dict(self.options)
        folder = options.pop(FOLDER.lower())
        return ObservedSink(make_batch_writer(options, schema, overwrite=overwrite), Path(folder))


class ObservedSink(BatchSink):
    """Writes a file of answers for each task: monotonic ms, shard, batch and pause after it."""

    def __init__(self, sink: BatchSink, folder: Path) -> None:
        """Take over a sink's options."""
        super().__init__(sink.options)
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one partition, and write down what was heard."""
        message = super().write(iterator)
        answers = [
            [each.at_ms, each.shard_id, each.batch, each.pause_ms]
            for each in session_of(self.options).answers
        ]
        file = self._folder / f"{message.partition}.json"
        file.write_text(json.dumps(answers), encoding="utf-8")
        return message
