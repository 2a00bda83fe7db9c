"""
The sink: rows into a stream, at least once, in order per partition key within a partition.

A task holds its rows until all of them are checked, so that a row which Kinesis would refuse fails
the task, or is diverted, before anything of the task is sent;
:func:`shardfleet_spark.sink.by_shard` checks before its shuffle, and hence before anything of the
whole batch is sent. ``write`` returns when the stream has accepted every row: what Spark commits
has been flushed. Kinesis has no transactions, so a repeated task sends its rows again; the
``recordId`` option puts an id before each record's data by which a reader drops such repeats
(:mod:`shardfleet.domain.delivery.record_ids`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from shardfleet.domain.delivery.record_ids import with_record_id
from shardfleet.errors import ConfigurationError
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_spark.host.collector import forget_archives
from shardfleet_spark.options.options import option_names, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions
from shardfleet_spark.sink.diverted_rows import write_diverted
from shardfleet_spark.sink.held_rows import HeldRows
from shardfleet_spark.sink.row_checks import (
    DATA,
    HASH_KEY,
    PARTITION_KEY,
    RECORD_ID,
    BadRow,
    RowLimits,
    check_columns,
    checked,
    refuse,
)
from shardfleet_spark.sink.sink_session import Sent, send
from shardfleet_spark.sink.task_place import TaskPlace, task_place

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LOG = logging.getLogger(__name__)

# Spark 4.0 has no Arrow writer for streams: there, rows are put together into batches.
_ArrowStreamWriter: Any = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)
_GIVES_ROWS = _ArrowStreamWriter is datasource.DataSourceStreamWriter
_ROWS_TOGETHER = 2_000
_BAD_KEPT = 10_000  # Diverted rows of a task are held whole: more are a mistake in the query.


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit(WriterCommitMessage):
    """
    What one task did.

    Attributes:
        partition: the task's.
        diverted: rows not sent.
        sent: what was, with flow control's batch size and pause.

    """

    partition: int
    diverted: int
    sent: Sent


def make_stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,  # noqa: FBT001 - as Spark calls it
) -> datasource.DataSourceStreamWriter:
    """
    Return the writer of one micro-batch.

    Raises:
        ConfigurationError: an option or a column is wrong.

    """
    del overwrite  # Every output mode appends: a stream's records cannot be changed.
    writer: datasource.DataSourceStreamWriter = StreamSink(_checked_options(options, schema))
    return writer


def make_batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:  # noqa: FBT001 - as Spark calls it
    """
    Return the writer of a batch.

    Raises:
        ConfigurationError: an option or a column is wrong, or the mode is ``overwrite``.

    """
    if overwrite:
        raise ConfigurationError(
            'mode "overwrite": a stream\'s records cannot be removed; use mode("append")'
        )
    read = _checked_options(options, schema)
    if read.record_id == "position" and not read.run_id:
        raise ConfigurationError(
            "option recordId = 'position' needs option runId in a batch write: a name that is the "
            "same when the same write is repeated"
        )
    return BatchSink(read)


def _checked_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    read = read_options(SinkOptions, options, elsewhere=option_names(BatchOptions))
    check_columns(schema, record_id=read.record_id)
    return read


class _Sink:
    """
    What both writers do; pickled to the tasks, so it has nothing but options.

    Args:
        options: of the sink.

    """

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> SinkCommit:
        """
        Check and send one partition.

        Raises:
            InvalidRecord: rows that Kinesis would refuse; nothing of the partition was sent.
            Throttled: still refused after ``giveUpAfter``; some rows may have been accepted.

        """
        forget_archives()
        options = self.options
        place = task_place(run_id=options.run_id)
        bad: list[BadRow] = []
        with HeldRows(options.held_in_memory_bytes) as held:
            for good, found in check_batches(batches, options):
                held.add(good)
                bad += found
                stop_at_bad(bad, options)
            if bad:
                file = write_diverted(options.divert_to, place, bad, stage="sink")
                LOG.warning("%d rows were diverted to %s", len(bad), file)
            return self._send(held, place, diverted=len(bad))

    def _send(self, held: HeldRows, place: TaskPlace, *, diverted: int) -> SinkCommit:
        records = outgoing(held.batches(), self.options.record_id, place=place)
        sent = send(records, self.options) if held.rows else Sent()
        return SinkCommit(partition=place.partition, diverted=diverted, sent=sent)


class StreamSink(_Sink, _ArrowStreamWriter):  # type: ignore[misc]  # Depends on Spark's version.
    """The writer of one micro-batch."""

    def write(self, iterator: Iterator[Any]) -> SinkCommit:
        """Send one partition and wait until the stream has accepted it."""
        return self.write_batches(_batches_of(iterator) if _GIVES_ROWS else iterator)

    def commit(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what was sent; there is nothing left to do."""
        _tell(messages, f"batch {batchId}")

    def abort(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what was sent nevertheless: it will be sent again."""
        _tell(messages, f"batch {batchId} failed; it will be repeated. Before that")


class BatchSink(_Sink, DataSourceArrowWriter):
    """The writer of a batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one partition and wait until the stream has accepted it."""
        return self.write_batches(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was sent; there is nothing left to do."""
        _tell(messages, "batch write")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was sent nevertheless."""
        _tell(messages, "batch write failed. Before that")


def check_batches(
    batches: Iterator[pa.RecordBatch], options: SinkOptions
) -> Iterator[tuple[pa.RecordBatch, list[BadRow]]]:
    """Yield of each batch the rows that may be sent, and those that may not."""
    limits = RowLimits(
        record_bytes=options.max_record_size_bytes, framed=options.record_id != "none"
    )
    first_row = 0
    for batch in batches:
        yield checked(batch, limits, first_row=first_row)
        first_row += batch.num_rows


def stop_at_bad(bad: Sequence[BadRow], options: SinkOptions) -> None:
    """
    Raise if there are bad rows and they may not be diverted, or too many.

    Raises:
        InvalidRecord: shows the first rows.

    """
    if bad and (not options.divert_to or len(bad) > _BAD_KEPT):
        raise refuse(bad, total=len(bad))


def outgoing(
    batches: Iterator[pa.RecordBatch], record_id: str, *, place: TaskPlace
) -> Iterator[OutgoingRecord]:
    """Yield checked rows as records, with an id before the data if that is wanted."""
    row = 0
    for batch in batches:
        names = batch.schema.names
        data = batch.column(DATA).cast(pa.binary()).to_pylist()
        keys = batch.column(PARTITION_KEY).to_pylist()
        nothing = [None] * batch.num_rows
        hash_keys = batch.column(HASH_KEY).to_pylist() if HASH_KEY in names else nothing
        if record_id == "position":
            ids = [f"{place.name}:{row + each}" for each in range(batch.num_rows)]
            data = [with_record_id(*pair) for pair in zip(ids, data, strict=True)]
        elif record_id == "column":
            ids = batch.column(RECORD_ID).to_pylist()
            data = [with_record_id(*pair) for pair in zip(ids, data, strict=True)]
        row += batch.num_rows
        yield from map(OutgoingRecord, keys, data, hash_keys)


def _batches_of(rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    together: list[dict[str, Any]] = []
    for row in rows:
        together.append(row.asDict())
        if len(together) == _ROWS_TOGETHER:
            yield _batch_of(together)
            together = []
    if together:
        yield _batch_of(together)


def _batch_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Put rows into one batch; a type per column, whatever is null in it."""
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        values = [bytes(each) if isinstance(each, bytearray) else each for each in values]
        is_text = name != DATA or any(isinstance(each, str) for each in values)
        columns[name] = pa.array(values, pa.string() if is_text else pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _tell(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    done = [each for each in messages if isinstance(each, SinkCommit)]
    sent = [each.sent for each in done]
    LOG.info(
        "%s: %d rows accepted in %d requests by %d tasks; %d entries refused and sent again, "
        "%d requests unanswered, %d rows diverted; batch size down to %d, pause up to %d ms",
        what,
        sum(each.rows for each in sent),
        sum(each.requests for each in sent),
        len(done),
        sum(each.refused for each in sent),
        sum(each.unanswered for each in sent),
        sum(each.diverted for each in done),
        min((each.batch_size for each in sent if each.requests), default=0),
        max((each.pause_ms for each in sent), default=0),
    )
