"""
From stream records to Arrow record batches: the one seam between reading and Spark.

The schema of a batch is exactly that of :mod:`shardfleet_spark.columns`; Spark compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from shardfleet.domain.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import StreamRecord
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    UserRecord,
    deaggregate,
    records_after,
)
from shardfleet_spark.columns import COLUMNS, TYPES

# 1,000 to 4,000 rows or 1 to 4 MiB are the best sizes of a batch.
ROWS_PER_BATCH = 2_000
BYTES_PER_BATCH = 4 * 1024 * 1024
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

    def users_of(self, record: StreamRecord) -> Sequence[UserRecord]:
        """Return the user records of one stream record that are not done yet."""
        if not self.deaggregate:
            return (UserRecord(record.partition_key, None, record.data, 0),)
        found: Deaggregated = deaggregate(
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
        self.size += len(record.data)

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
                values = [record.approximate_arrival_ms * _US_PER_MS for record in records]
            case "encryption_type":
                values = [record.encryption_type for record in records]
            case name:
                constant = self._rows.shard_id if name == "shard_id" else self._rows.stream
                return pa.repeat(pa.scalar(constant, field.type), len(users))
        return pa.array(values, field.type)


def batches_of(records: Sequence[StreamRecord], rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard's records, in order, in batches of a good size."""
    growing = _Columns(rows)
    for record in records:
        growing.add(record)
        if growing.is_full:
            yield growing.batch()
            growing = _Columns(rows)
    if not growing.is_empty:
        yield growing.batch()
