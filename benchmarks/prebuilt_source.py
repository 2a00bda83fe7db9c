"""
A source for Spark that has nothing to do: the record batches lie ready in its workers' memory.

It is the least that a source in Python can cost on this Spark: two tasks a batch, each of which
hands out one half of the same rows, read once from a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from naive_source import SCHEMA, CountedBatches
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from shardfleet_spark.host.collector import leave_imports_alone

TASKS = 2
ROWS_PER_BATCH = 2_000  # Of a source's batches, 1,000 to 4,000 rows are the best size.
_ready: dict[str, list[pa.RecordBatch]] = {}


class PrebuiltDataSource(DataSource):
    """Options: file (of the rows), batches (how many there are to be)."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "prebuilt"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's
        """Return the reader."""
        return PrebuiltReader(dict(self.options))


class PrebuiltReader(CountedBatches):
    """Its batches are all the same."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks."""
        del start, end
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand out one task's share of the record batches."""
        name = self._options["file"]
        if name not in _ready:
            with pa.memory_map(name) as file:
                _ready[name] = pa.ipc.open_file(file).read_all().to_batches()
        leave_imports_alone(len(_ready))
        yield from _ready[name][partition.value :: TASKS]


def write_rows(rows: DataFrame, file: Path) -> None:
    """Write what the source is to hand out, in the order of the rows."""
    table = rows.toArrow().combine_chunks()
    schema = pa.schema([(each.name, _plain(each.type)) for each in table.schema])
    table = table.cast(schema)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_BATCH)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(kind) else kind
