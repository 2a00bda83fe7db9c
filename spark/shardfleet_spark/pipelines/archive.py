"""
The ready pipeline ``archive``: a stream into partitioned Parquet, each record exactly once.

Files lie in ``date=2026-11-21/hour=14`` by arrival (UTC) and are named after query, micro-batch
and part, so that a repeated micro-batch, which this source delivers unchanged, writes the same
files again. Any reader of Parquet sees the archive; unlike Spark's own file sink it needs no log.
A file appears whole: it is written under a hidden name first. Small files of hours that are over
are put together (:mod:`shardfleet_spark.pipelines.compaction`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import functions as sf

from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.files import file_system
from shardfleet_spark.host.session import query_id, tasks_at_once
from shardfleet_spark.options.options import (
    read_options,
)
from shardfleet_spark.pipelines.archive_options import ArchiveOptions
from shardfleet_spark.pipelines.compaction import Compactor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from shardfleet_spark.pipelines.plan import PipelinePlan

_ARRIVAL = "approximate_arrival_timestamp"
_PLACED_BY = ("date", "hour", "part")
_WRITTEN = "folder string, file string, rows bigint, bytes bigint"
_QUERY_SHOWN = 8  # Characters of the query's id in names: it tells two archives in a folder apart.


def writer(df: DataFrame, plan: PipelinePlan) -> DataStreamWriter:
    """
    Return the writer of the archive.

    Raises:
        ConfigurationError: the sink is no folder of Parquet, the table has no arrival times, or a
            setting is wrong.

    """
    place = plan.to_place
    if place.format != "parquet":
        raise ConfigurationError(f"archive: sink {plan.sink!r}: parquet:folder is needed")
    if _ARRIVAL not in df.columns:
        raise ConfigurationError(
            f"archive: the source has no column {_ARRIVAL}; add it to its option columns"
        )
    options = read_options(ArchiveOptions, plan.settings)
    archive = _Archive(place.where, options, checkpoint=plan.checkpoint)
    return df.writeStream.foreachBatch(archive.write)


class _Archive:
    """Writes micro-batches, on the driver; the tasks do the work."""

    def __init__(self, folder: str, options: ArchiveOptions, *, checkpoint: str) -> None:
        self._folder = folder
        self._options = options
        self._checkpoint = checkpoint
        self._query = ""
        self._compactor: Compactor | None = None

    def write(self, df: DataFrame, batch: int) -> None:
        """Write one micro-batch, and put together what has become old enough."""
        self._query = self._query or query_id(df.sparkSession, self._checkpoint)
        prefix = f"{self._query[:_QUERY_SHOWN]}-"
        name = f"{prefix}{batch:010d}"
        # A file needs an hour, also of records of which nobody says when they arrived.
        seconds = sf.coalesce(sf.unix_seconds(_ARRIVAL), sf.lit(0))
        placed = (
            df.withColumn("date", sf.date_from_unix_date((seconds / 86_400).cast("int")))
            .withColumn("date", sf.col("date").cast("string"))
            .withColumn("hour", sf.pmod(sf.floor(seconds / 3_600), sf.lit(24)).cast("int"))
            .withColumn("part", _part(df.columns, self._options.files))
        )
        tasks = max(self._options.files, tasks_at_once(df.sparkSession))
        laid = placed.repartition(tasks, *_PLACED_BY)
        written = laid.mapInArrow(
            _file_writer(self._folder, name, self._options), _WRITTEN
        ).collect()
        by_folder: dict[str, set[str]] = {}
        for row in written:
            by_folder.setdefault(row["folder"], set()).add(row["file"])
        system, root = file_system(self._folder)
        for folder, files in by_folder.items():
            _remove_others(system, f"{root}/{folder}", prefix=f"{name}-", kept=files)
        if self._compactor is None:
            self._compactor = Compactor(self._folder, self._options, prefix=prefix)
        self._compactor.after_batch(batch, touched=by_folder)


def _part(columns: Sequence[str], files: int) -> Any:
    """Divide a batch's rows of an hour among files, the same way whenever it is repeated."""
    identity = [name for name in ("sequence_number", "sub_sequence_number") if name in columns]
    if files == 1 or not identity:
        return sf.lit(0)
    return sf.pmod(sf.xxhash64(*identity), sf.lit(files)).cast("int")


def _file_writer(
    folder: str, name: str, options: ArchiveOptions
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that writes a task's rows; it yields what it has written."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, root = file_system(folder)
        parts: dict[tuple[Any, ...], _Part] = {}
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for key, rows in _by_place(table):
                part = parts.get(key)
                if part is None:
                    part = parts[key] = _Part(system, root, key=key, name=name, options=options)
                part.add(rows)
        rows = [row for part in parts.values() for row in part.close()]
        yield pa.RecordBatch.from_pylist(
            rows,
            schema=pa.schema(
                [
                    ("folder", pa.string()),
                    ("file", pa.string()),
                    ("rows", pa.int64()),
                    ("bytes", pa.int64()),
                ]
            ),
        )

    return write


def _by_place(table: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Divide rows by hour and part; the rows of each keep their order."""
    keys = list(zip(*(table.column(name).to_pylist() for name in _PLACED_BY), strict=True))
    data = table.drop_columns(list(_PLACED_BY))
    for key in dict.fromkeys(keys):
        mask = [each == key for each in keys]
        yield key, data if all(mask) else data.filter(pa.array(mask))


class _Part:
    """The files of one hour, part and micro-batch: one at a time, whole before it is seen."""

    def __init__(
        self,
        system: fs.FileSystem,
        root: str,
        *,
        key: tuple[Any, ...],
        name: str,
        options: ArchiveOptions,
    ) -> None:
        date, hour, part = key
        self._system = system
        self._folder = f"date={date}/hour={hour:02d}"
        self._path = f"{root}/{self._folder}"
        self._name = f"{name}-{part}"
        self._options = options
        self._writer: pq.ParquetWriter | None = None
        self._hidden = ""
        self._rows = 0
        self._done: list[dict[str, Any]] = []
        system.create_dir(self._path, recursive=True)

    def add(self, rows: pa.Table) -> None:
        """Write rows; begin a new file where the limit of rows is reached."""
        while rows.num_rows:
            if self._writer is None:
                self._hidden = f"{self._path}/_writing-{uuid4().hex}"
                self._writer = pq.ParquetWriter(
                    self._hidden,
                    rows.schema,
                    filesystem=self._system,
                    compression=self._options.compression,
                )
            now = rows.slice(0, self._options.rows_per_file - self._rows)
            self._writer.write_table(now)
            self._rows += now.num_rows
            rows = rows.slice(now.num_rows)
            if self._rows == self._options.rows_per_file:
                self._finish()

    def close(self) -> list[dict[str, Any]]:
        """Finish the last file and return what was written."""
        if self._writer is not None:
            self._finish()
        return self._done

    def _finish(self) -> None:
        assert self._writer is not None
        self._writer.close()
        file = f"{self._name}-{len(self._done)}.parquet"
        self._system.move(self._hidden, f"{self._path}/{file}")
        size = self._system.get_file_info(f"{self._path}/{file}").size
        self._done.append({"folder": self._folder, "file": file, "rows": self._rows, "bytes": size})
        self._writer, self._rows = None, 0


def _remove_others(system: fs.FileSystem, folder: str, *, prefix: str, kept: set[str]) -> None:
    """Remove files of this micro-batch that an earlier attempt, set up otherwise, has left."""
    for each in system.get_file_info(fs.FileSelector(folder)):
        if each.base_name.startswith(prefix) and each.base_name not in kept:
            system.delete_file(each.path)
