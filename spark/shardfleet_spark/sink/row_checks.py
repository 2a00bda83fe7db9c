"""
Rows on their way into a stream: which columns they have, and which of them Kinesis would refuse.

Whole columns are compared with the limits; a row is looked at only when something is wrong with
it. Limits: API reference of ``PutRecords`` (keys of 1 to 256 characters, explicit hash keys of 0
to 2**128-1, data and key together no larger than the stream's largest record).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from shardfleet.domain.delivery.record_ids import FRAME_BYTES, ID_BYTES_MOST
from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.hash_keys import MAX_PARTITION_KEY_CHARACTERS, parse_hash_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DATA, PARTITION_KEY, HASH_KEY, RECORD_ID = "data", "partition_key", "explicit_hash_key", "record_id"

TYPES = {
    DATA: ("binary", "string"),
    PARTITION_KEY: ("string",),
    HASH_KEY: ("string",),
    RECORD_ID: ("string",),
}
"""The columns a sink takes and the Spark types of each; the first two must be there."""

# 38 digits are below 2**128, 39 may be; those are looked at one by one.
_SURELY_A_HASH_KEY = "^(0|[1-9][0-9]{0,37})$"
_ROWS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """
    What is allowed.

    Attributes:
        record_bytes: data, key and the frame of an id together.
        framed: whether an id will be put before the data.

    """

    record_bytes: int
    framed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """
    A row that Kinesis would refuse.

    Attributes:
        row: its index in what the task was given, from 0.
        problem: what is wrong, what is allowed.
        values: column to value.

    """

    row: int
    problem: str
    values: dict[str, Any]

    def shown(self) -> str:
        """Return the row for a person: how long each value is, for what it is may be private."""
        parts = ", ".join(f"{name}: {_size(value)}" for name, value in self.values.items())
        return f"row {self.row} ({parts}): {self.problem}"

    def as_json(self) -> str:
        """Return the row whole, for a file of diverted rows; data in base64."""
        values = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in self.values.items()
        }
        return json.dumps({"row": self.row, "problem": self.problem, **values}, ensure_ascii=False)


def check_columns(schema: StructType, *, record_id: str) -> None:
    """
    Refuse a table that is no list of records, before the query starts.

    Raises:
        ConfigurationError: a column is missing, superfluous or of a wrong type.

    """
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    wanted = [DATA, PARTITION_KEY, *([RECORD_ID] if record_id == "column" else [])]
    problems = [f"column {name} is missing" for name in wanted if name not in found]
    for name, kind in found.items():
        if name not in TYPES:
            problems.append(
                f"column {name} is none that a stream takes (those are {', '.join(TYPES)}): put it "
                "into data, or drop it"
            )
        elif kind not in TYPES[name]:
            problems.append(f"column {name} is of type {kind}: {' or '.join(TYPES[name])} wanted")
    if RECORD_ID in found and record_id != "column":
        problems.append("column record_id is there, but option recordId is not column")
    if problems:
        raise ConfigurationError(
            f"{'; '.join(problems)}. shardfleet_spark.sink.by_shard.as_records(df, data=…, "
            "partition_key=…) makes such a table"
        )


def checked(
    batch: pa.RecordBatch, limits: RowLimits, *, first_row: int
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """
    Return the rows that may be sent, and those that may not.

    Args:
        batch: of the sink's columns, others are left alone.
        limits: what is allowed.
        first_row: index of the batch's first row in the task.

    """
    doubtful = _doubtful(batch, limits)
    if doubtful is None:
        return batch, []
    bad = list(_bad_rows(batch, doubtful, limits, first_row=first_row))
    if not bad:
        return batch, []
    refused = {each.row - first_row for each in bad}
    kept = pa.array([row not in refused for row in range(batch.num_rows)])
    return batch.filter(kept), bad


def refuse(bad: Sequence[BadRow], *, total: int) -> InvalidRecord:
    """Return the error that shows the first rows."""
    shown = "; ".join(each.shown() for each in bad[:_ROWS_SHOWN])
    return InvalidRecord(
        f"{total} rows cannot be sent, nothing of this task was: {shown}. Correct them in the "
        "query, or let option divertTo name a folder for such rows"
    )


def _doubtful(batch: pa.RecordBatch, limits: RowLimits) -> list[int] | None:
    """Return the rows to look at one by one; None when all are fine."""
    data, keys = batch.column(DATA), batch.column(PARTITION_KEY)
    sizes = pc.add(_lengths(data), _lengths(keys))
    frame = FRAME_BYTES + ID_BYTES_MOST if limits.framed else 0
    doubts = [
        pc.is_null(data),
        pc.is_null(keys),
        pc.equal(pc.utf8_length(keys), 0),
        pc.greater(pc.utf8_length(keys), MAX_PARTITION_KEY_CHARACTERS),
        pc.greater(sizes, limits.record_bytes - frame),
    ]
    if HASH_KEY in batch.schema.names:
        hash_keys = batch.column(HASH_KEY)
        fine = pc.match_substring_regex(hash_keys, _SURELY_A_HASH_KEY)
        doubts.append(pc.and_(pc.is_valid(hash_keys), pc.invert(fine)))
    if RECORD_ID in batch.schema.names:
        ids = batch.column(RECORD_ID)
        doubts += [
            pc.is_null(ids),
            pc.equal(pc.binary_length(ids), 0),
            pc.greater(pc.binary_length(ids), ID_BYTES_MOST),
        ]
    any_doubt = pc.fill_null(doubts[0], True)  # noqa: FBT003 - a value, not a flag
    for doubt in doubts[1:]:
        any_doubt = pc.or_(any_doubt, pc.fill_null(doubt, True))  # noqa: FBT003 - as above
    if not pc.any(any_doubt).as_py():
        return None
    found: list[int] = pc.indices_nonzero(any_doubt).to_pylist()
    return found


def _lengths(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).cast(pa.int64())


def _bad_rows(
    batch: pa.RecordBatch, rows: Sequence[int], limits: RowLimits, *, first_row: int
) -> Iterator[BadRow]:
    for row in rows:
        values = {
            name: batch.column(name)[row].as_py() for name in batch.schema.names if name in TYPES
        }
        problem = _problem(values, limits)
        if problem:
            yield BadRow(row=first_row + row, problem=problem, values=values)


def _problem(values: dict[str, Any], limits: RowLimits) -> str:
    data, key = values[DATA], values[PARTITION_KEY]
    if data is None:
        return "data is null: an empty record is b''"
    if not key:
        return "partition_key is missing: every record needs one"
    if len(key) > MAX_PARTITION_KEY_CHARACTERS:
        return (
            f"partition_key has {len(key)} characters, {MAX_PARTITION_KEY_CHARACTERS} are allowed "
            "(a digest of the key keeps its order)"
        )
    if values.get(HASH_KEY) is not None:
        try:
            parse_hash_key(values[HASH_KEY])
        except InvalidRecord as error:
            return str(error)
    if RECORD_ID in values:
        length = len((values[RECORD_ID] or "").encode())
        if not 1 <= length <= ID_BYTES_MOST:
            return f"record_id has {length} bytes: 1 to {ID_BYTES_MOST} are allowed"
    frame = FRAME_BYTES + ID_BYTES_MOST if limits.framed else 0
    size = len(data.encode() if isinstance(data, str) else data) + len(key.encode())
    if size + frame > limits.record_bytes:
        room = f", of which {frame} are kept free for the id" if frame else ""
        return (
            f"data and key have {size:,} bytes, {limits.record_bytes:,} are allowed "
            f"(option maxRecordSize){room}"
        )
    return ""


def _size(value: object) -> str:
    if isinstance(value, str):
        return f"{len(value):,} characters"
    return f"{len(value):,} bytes" if isinstance(value, bytes) else type(value).__name__
