"""
Bad records beside the output: files of Parquet in a folder, each record exactly once.

The task that reads a shard's part of a micro-batch writes those of its records that do not fit, and
hands on the others. A file has the bad records of one shard and micro-batch and is named after the
first of them: a repeated micro-batch, which this source delivers unchanged, writes the same files
again, also where a task is not told its batch's number (Spark Connect). It appears whole: it is
written under a hidden name first. So it is there before Spark notes that its micro-batch is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.files import file_system
from shardfleet_spark.payload.json_objects import INDEX
from shardfleet_spark.payload.parsing import BAD, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHARD = "shard_id"
_PLACE = (_SHARD, "sequence_number", "sub_sequence_number")


def set_aside(df: DataFrame, folder: str) -> DataFrame:
    """
    Return a table without its bad records, which go to a folder when it is read.

    Args:
        df: parsed, with the source's columns that say where a record was.
        folder: a path or a URI, for this query alone.

    Raises:
        ConfigurationError: a column is missing, or the folder's file system is not known.

    """
    missing = [name for name in _PLACE if name not in df.columns]
    if missing:
        raise ConfigurationError(
            f"bad records: the columns {', '.join(missing)} are missing; add them to the source's "
            "option columns"
        )
    file_system(folder)

    return df.mapInArrow(partial(diverted, folder=folder), df.schema)


def diverted(batches: Iterable[pa.RecordBatch], *, folder: str) -> Iterator[pa.RecordBatch]:
    """Yield a task's good rows; the bad ones are in the folder when it has come to its end."""
    files: dict[str, _File] = {}
    try:
        for batch in batches:
            is_good = pc.is_null(batch.column(BAD))
            _write(batch.filter(pc.invert(is_good)), files, folder)
            yield batch.filter(is_good)
        for each in files.values():
            each.finish()
    finally:
        for each in files.values():
            each.discard()


def _write(batch: pa.RecordBatch, files: dict[str, _File], folder: str) -> None:
    rows = pa.Table.from_batches([batch]).drop_columns([PAYLOAD])
    for shard in pc.unique(rows.column(_SHARD)).to_pylist():
        own = rows.filter(pc.equal(rows.column(_SHARD), shard))
        if shard not in files:
            files[shard] = _File(folder, first=own.slice(0, 1))
        files[shard].add(own)


class _File:
    """The bad records of a shard and micro-batch: hidden until it is whole."""

    def __init__(self, folder: str, *, first: pa.Table) -> None:
        system, root = file_system(folder)
        named_by = [name for name in (*_PLACE, INDEX) if name in first.column_names]
        name = "-".join(str(first.column(each)[0].as_py()) for each in named_by)
        self._system = system
        self._path = f"{root}/{name}.parquet"
        self._hidden = f"{root}/_writing-{uuid4().hex}"
        system.create_dir(root, recursive=True)
        self._writer = pq.ParquetWriter(self._hidden, first.schema, filesystem=system)
        self._is_whole = False

    def add(self, rows: pa.Table) -> None:
        """Write rows."""
        self._writer.write_table(rows)

    def finish(self) -> None:
        """Show the file."""
        self._writer.close()
        self._system.move(self._hidden, self._path)
        self._is_whole = True

    def discard(self) -> None:
        """Remove a file that was not finished."""
        if not self._is_whole:
            self._writer.close()
            self._system.delete_file(self._hidden)
