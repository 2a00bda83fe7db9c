"""Stream records of one shard, whether each is an object or all are columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeGuard

import pyarrow as pa

from shardfleet.kpl.envelope import MAGIC, is_framed
from shardfleet.records import StreamRecord

if TYPE_CHECKING:
    from shardfleet_spark.aws.columns import RecordColumns


def _are_columns(records: Sequence[StreamRecord]) -> TypeGuard[RecordColumns]:
    """Return whether a page was read as columns, without loading what could: numpy may be away."""
    return hasattr(records, "batch")


def columns_of(records: Sequence[StreamRecord]) -> pa.RecordBatch | None:
    """Return records as columns, a row each, if they are; None if each is an object."""
    return records.batch if _are_columns(records) else None


def joined(pieces: Sequence[Sequence[StreamRecord]]) -> Sequence[StreamRecord]:
    """Return the records of some pieces, as columns if all of them are."""
    if len(pieces) == 1:
        return pieces[0]
    batches = [batch for each in pieces if (batch := columns_of(each)) is not None]
    if not batches or len(batches) < len(pieces):
        return [*chain.from_iterable(pieces)]
    from shardfleet_spark.aws.columns import RecordColumns  # noqa: PLC0415 - no other has made them

    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
    # Arrow's columns of bytes end at 2 GiB: then it makes several.
    return RecordColumns(whole[0]) if len(whole) == 1 else [*chain.from_iterable(pieces)]


def size_of(records: Sequence[StreamRecord]) -> int:
    """Return the bytes of data and keys."""
    if _are_columns(records):
        return records.size
    # Lists: for thousands of records a generator costs half as much again.
    return sum(data_sizes_of(records)) + sum([len(each.partition_key) for each in records])


def data_sizes_of(records: Sequence[StreamRecord]) -> list[int]:
    """Return the bytes of each record's data."""
    if _are_columns(records):
        return records.data_sizes
    return [len(each.data) for each in records]


def sequence_numbers_of(records: Sequence[StreamRecord]) -> list[str]:
    """Return the sequence numbers."""
    if _are_columns(records):
        return records.sequence_numbers
    return [each.sequence_number for each in records]


def last_arrival_ms(records: Sequence[StreamRecord]) -> int:
    """Return the latest arrival of some records, at least one."""
    if _are_columns(records):
        return records.last_arrival_ms
    return max([each.approximate_arrival_ms for each in records])


def have_aggregates(records: Sequence[StreamRecord]) -> bool:
    """Return whether any is an aggregate, intact or not."""
    if _are_columns(records):
        return records.have_aggregates
    # Nearly always none looks like one, which is told sooner in a list than record by record.
    looks = [each.data.startswith(MAGIC) for each in records]
    return True in looks and any(is_framed(each.data) for each in records)
