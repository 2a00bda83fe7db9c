"""
From stream records to Arrow record batches: the one seam between reading and Spark.

The schema of a batch is exactly that of :mod:`shardfleet_spark.options.columns`; Spark compares
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.kpl.deaggregate import (
    ExpansionLimits,
    MisroutedPolicy,
    UserRecord,
    deaggregate,
    records_after,
)
from shardfleet.kpl.envelope import is_framed
from shardfleet.records import StreamRecord
from shardfleet_spark.options.columns import COLUMNS, TYPES
from shardfleet_spark.read.records import columns_of, data_sizes_of, have_aggregates, joined

try:
    from shardfleet_spark.aws.arrow import UserColumns, user_columns
except ImportError:  # Without numpy, row by row; pyarrow is all that this package asks for.
    user_columns = None  # type: ignore[assignment]

# What is taken apart at once stays in the processor's cache.
_CHUNK_BYTES = 512 * 1024
# 1,000 to 4,000 rows or 1 to 4 MiB are the best sizes of a batch.
ROWS_PER_BATCH = 2_000
BYTES_PER_BATCH = 4 * 1024 * 1024
# A batch of less costs Spark more than it costs to join it with others.
_LITTLE = ROWS_PER_BATCH // 4
_ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_LIMITS = ExpansionLimits()
_US_PER_MS = 1_000


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns; all of them if none is named."""
    return pa.schema([(name, _ARROW[TYPES[name]]) for name in columns or COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """
    How the records of one shard become rows.

    Attributes:
        shard_id: the shard.
        stream: the stream's name.
        done: the last user record that is done before the first record; None: none is.
        deaggregate: whether aggregates are taken apart.
        misrouted: see :data:`shardfleet.kpl.deaggregate.MisroutedPolicy`.
        hash_range: the shard's hash keys, None if unknown.
        columns: of the batches; empty for all.

    """

    shard_id: str
    stream: str
    done: ExtendedSequenceNumber | None = None
    deaggregate: bool = True
    misrouted: MisroutedPolicy = "deliver"
    hash_range: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()

    @property
    def are_plainly_made(self) -> bool:
        """Return whether each user record of an aggregate becomes a row, whatever its key."""
        return self.deaggregate and (self.misrouted == "deliver" or self.hash_range is None)

    def users_of(self, record: StreamRecord) -> Sequence[UserRecord]:
        """Return the user records of one stream record that are not done yet."""
        if not self.deaggregate:
            return (UserRecord(record.partition_key, None, record.data, 0),)
        found = deaggregate(
            record.data,
            partition_key=record.partition_key,
            limits=_LIMITS,
            hash_range=self.hash_range,
            policy=self.misrouted,
        )
        if self.done is None:
            return found.records
        return records_after(found, sequence_number=record.sequence_number, done=self.done)


class _Columns:
    """The columns of a batch while it grows."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._schema = arrow_schema(rows.columns)
        self._users: list[UserRecord] = []
        self._records: list[StreamRecord] = []  # of each user record, the one around it
        self.size = 0

    def add(self, record: StreamRecord) -> None:
        users = self._rows.users_of(record)
        self._users += users
        self._records += [record] * len(users)
        # Of the rows, not of the record: many may share one long key.
        self.size += sum([len(user.data) + len(user.partition_key) for user in users])

    @property
    def is_full(self) -> bool:
        return len(self._users) >= ROWS_PER_BATCH or self.size >= BYTES_PER_BATCH

    @property
    def is_empty(self) -> bool:
        return not self._users

    def batch(self) -> pa.RecordBatch:
        arrays = [self._array(field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field) -> pa.Array:
        users, records = self._users, self._records
        match field.name:
            case "data":
                values: list[object] = [user.data for user in users]
            case "partition_key":
                values = [user.partition_key for user in users]
            case "explicit_hash_key":
                values = [user.explicit_hash_key for user in users]
            case "sub_sequence_number":
                values = [user.sub_sequence_number for user in users]
            case "sequence_number":
                values = [record.sequence_number for record in records]
            case "approximate_arrival_timestamp":
                values = [*map(_arrived_us, records)]
            case "encryption_type":
                values = [record.encryption_type for record in records]
            case name:
                constant = self._rows.shard_id if name == "shard_id" else self._rows.stream
                return pa.repeat(pa.scalar(constant, field.type), len(users))
        return pa.array(values, field.type)


def _arrived_us(record: StreamRecord) -> int | None:
    """Return when a record arrived, epoch microseconds; None: Kinesis did not say."""
    return record.approximate_arrival_ms * _US_PER_MS or None


def batches_of(shards: Iterable[tuple[Sequence[StreamRecord], Rows]]) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of some shards' records, each shard's in order, in batches of a good size.

    Shards that have little share a batch: each costs Spark as much as some hundred rows.
    """
    waiting: list[tuple[Sequence[StreamRecord], Rows]] = []
    count = size = 0
    for records, rows in shards:
        for some, some_bytes in _chunks(records):
            is_whole = rows.done is None or int(some[0].sequence_number) > int(
                rows.done.sequence_number
            )
            is_plain = is_whole and not (rows.deaggregate and have_aggregates(some))
            # Columns are copied when they are joined with others.
            is_alone = is_plain and len(some) >= _LITTLE and columns_of(some) is not None
            is_full = count + len(some) > ROWS_PER_BATCH or size + some_bytes > BYTES_PER_BATCH
            if waiting and (is_full or is_alone or not is_plain):
                yield _plain_batch(waiting)
                waiting, count, size = [], 0, 0
            if is_alone:
                yield _plain_batch([(some, rows)])
            elif is_plain:
                waiting.append((some, rows))
                count, size = count + len(some), size + some_bytes
            else:
                yield from _expanded([*some], rows, may_be_columns=is_whole)
    if waiting:
        yield _plain_batch(waiting)


def _expanded(
    records: list[StreamRecord], rows: Rows, *, may_be_columns: bool
) -> Iterator[pa.RecordBatch]:
    """Yield a row per user record."""
    may_expand = user_columns is not None and may_be_columns and rows.are_plainly_made
    found = user_columns(records, _LIMITS) if may_expand else None
    if found is None:
        yield from _row_by_row(records, rows)
    else:
        yield _batch_of_users(records, rows, found)


def _chunks(records: Sequence[StreamRecord]) -> Iterator[tuple[Sequence[StreamRecord], int]]:
    """Cut records where a batch is full, aggregates, which grow, sooner; with their bytes."""
    ends = [*accumulate(data_sizes_of(records))]
    first = before = 0
    while first < len(records):
        most = _CHUNK_BYTES if is_framed(records[first].data) else BYTES_PER_BATCH
        # As many as fit, up to so many rows, but one at least.
        end = bisect_right(ends, before + most, first + 1, min(len(ends), first + ROWS_PER_BATCH))
        yield records[first:end], ends[end - 1] - before
        first, before = end, ends[end - 1]


def _plain_batch(shards: Sequence[tuple[Sequence[StreamRecord], Rows]]) -> pa.RecordBatch:
    """Return a row per record, of one shard or of several."""
    counts = [len(some) for some, _ in shards]
    records = joined([some for some, _ in shards])

    def column(field: pa.Field) -> pa.Array:
        if field.name == "shard_id" and len(shards) > 1:
            ids = [rows.shard_id for _, rows in shards]
            return pa.array(chain.from_iterable(map(repeat, ids, counts)), field.type)
        return _of_records(field, records, shards[0][1])

    schema = arrow_schema(shards[0][1].columns)
    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def _batch_of_users(
    records: Sequence[StreamRecord], rows: Rows, found: UserColumns
) -> pa.RecordBatch:
    """Return a row per user record, put beside what the stream record around it says."""
    # Of each row, the index of the stream record around it.
    indexes = [index for index, users in enumerate(found.counts) for _ in range(users)]
    around = pa.array(indexes, pa.int32())

    def column(field: pa.Field) -> pa.Array:
        if field.name in ("data", "partition_key", "sub_sequence_number"):
            return getattr(found, field.name)
        return _of_records(field, records, rows).take(around)

    schema = arrow_schema(rows.columns)
    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def _of_records(field: pa.Field, records: Sequence[StreamRecord], rows: Rows) -> pa.Array:
    """Return a column with what is to be said of each stream record."""
    columns = columns_of(records)
    match field.name:
        case "data" | "partition_key" | "sequence_number" | "encryption_type" as name:
            if columns is not None:
                return columns.column(name)
            return pa.array([*map(attrgetter(name), records)], field.type)
        case "approximate_arrival_timestamp":
            if columns is not None:
                told_ms = columns.column("approximate_arrival_ms")
                arrivals = pc.if_else(pc.not_equal(told_ms, 0), told_ms, None)
                return arrivals.cast(pa.timestamp("ms", tz="UTC")).cast(field.type)
            return pa.array([*map(_arrived_us, records)], field.type)
        case "explicit_hash_key":
            return pa.nulls(len(records), field.type)
        case name:
            constants = {"shard_id": rows.shard_id, "stream": rows.stream}
            return pa.repeat(pa.scalar(constants.get(name, 0), field.type), len(records))


def _row_by_row(records: Sequence[StreamRecord], rows: Rows) -> Iterator[pa.RecordBatch]:
    growing = _Columns(rows)
    for record in records:
        growing.add(record)
        if growing.is_full:
            yield growing.batch()
            growing = _Columns(rows)
    if not growing.is_empty:
        yield growing.batch()
