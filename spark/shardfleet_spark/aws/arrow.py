"""
From aggregates to Arrow columns without an object per user record: for Spark.

The parser hands out the records of an aggregate as slices of bytes; their few leading bytes (index
of the key, length of the data) are decoded for all at once, and Arrow's ``take`` gathers keys and
data in C++ (performance.md §3: five times aws-kinesis-agg for small records). Of larger records it
hands out the columns (:mod:`shardfleet.kpl.content`), and Arrow copies them. Only plainly shaped
aggregates go these ways: intact, no explicit hash keys, within the limits; of all else
:func:`user_columns` says None, and the ordinary deaggregation, which decides what a record is, has
its turn. Needs pyarrow and numpy: nothing that runs in Lambda may import this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from msgspec import Struct

from shardfleet.kpl.content import Fault, content_of
from shardfleet.kpl.deaggregate import ExpansionLimits
from shardfleet.kpl.envelope import DIGEST_BYTES, MAGIC, body_of, is_framed
from shardfleet.kpl.messages_pb2 import AggregatedRecordBytes
from shardfleet.records import StreamRecord

CHUNK_BYTES = 512 * 1024
"""How much data is best handed over at once: it stays in the processor's cache."""

_LIMITS = ExpansionLimits()
# From this average size of a user record on, columns are quicker (benchmarks/bench_arrow.py); up to
# the other one, headers can be read.
_LARGE_RECORD, _LARGEST_SMALL = 500, 2_000
_KEY_TAG, _DATA_TAG = 0x08, 0x1A  # field 1 a varint; field 3 bytes (messages.proto)
_MORE, _SEVEN = 0x80, 0x7F  # of a varint's byte
_LENGTH_BYTES_MOST = 3
# Key tag, index of up to two bytes, data tag, length of up to three.
_HEADER_BYTES = 7

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


class UserColumns(Struct, frozen=True, kw_only=True):
    """
    The user records of some aggregates, in order, a row each.

    Attributes:
        data: binary.
        partition_key: string.
        sub_sequence_number: int64, 0...n-1 within each aggregate.
        counts: user records of each aggregate, to repeat its sequence number by.

    """

    data: pa.Array
    partition_key: pa.Array
    sub_sequence_number: pa.Array
    counts: Sequence[int]


def user_columns(
    records: Sequence[StreamRecord], limits: ExpansionLimits = _LIMITS
) -> UserColumns | None:
    """
    Return the user records of aggregates as columns, None if one is not plainly shaped.

    Args:
        records: stream records of one shard; best about :data:`CHUNK_BYTES` of data together.
        limits: how far they may expand together; beyond, each has to be looked at.

    """
    if _are_large(records):
        return _of_large(records, limits)
    parts = _parsed(records, limits)
    if parts is None:
        return None
    keys, key_counts, found, counts = parts
    # A few bytes more, so that the longest header can be looked at behind the last record.
    array = pa.array([*found, bytes(_HEADER_BYTES)], pa.binary())
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(found) + 1).astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    header = _headers(np.frombuffer(data_buffer, np.uint8), starts, ends)
    if header is None:
        return None
    index, begins = header
    tables = np.repeat(np.asarray(key_counts), counts)
    if bool((index >= tables).any()):
        return None
    places = np.repeat(np.asarray([0, *accumulate(key_counts)][:-1]), counts) + index
    lengths = np.asarray([len(key) for key in keys])
    if int((ends - begins + lengths[places]).sum()) > limits.max_expanded_bytes:
        return None
    try:
        names = pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        return None
    return UserColumns(
        data=gathered(data_buffer, begins, ends),
        partition_key=names.take(pa.array(places)),
        sub_sequence_number=pa.array(_numbers(counts)),
        counts=counts,
    )


def _are_large(records: Sequence[StreamRecord]) -> bool:
    """Tell by the first aggregate whether its user records are large."""
    data = records[0].data if records else b""
    if not is_framed(data):
        return False
    try:
        message = AggregatedRecordBytes.FromString(data[len(MAGIC) : -DIGEST_BYTES])
    except DecodeError:
        return False
    return len(data) >= len(message.records) * _LARGE_RECORD


def _of_large(records: Sequence[StreamRecord], limits: ExpansionLimits) -> UserColumns | None:
    """Return the columns as the parser hands them out."""
    data: list[bytes] = []
    keys: list[str] = []
    counts, size = [], 0
    for record in records:
        body = body_of(record.data) if is_framed(record.data) else None
        found = (
            Fault.EMPTY if body is None else content_of(body, max_records=limits.max_sub_records)
        )
        if body is None or isinstance(found, Fault) or found.hash_places:
            return None
        size += found.expanded_bytes()
        if size > limits.max_expanded_bytes:
            return None
        counts.append(len(found.data))
        data.extend(found.data)
        keys.extend(found.partition_keys())
    return UserColumns(
        data=pa.array(data, pa.binary()),
        partition_key=pa.array(keys, pa.string()),
        sub_sequence_number=pa.array(_numbers(counts)),
        counts=counts,
    )


def _parsed(
    records: Sequence[StreamRecord], limits: ExpansionLimits
) -> tuple[list[bytes], list[int], list[bytes], list[int]] | None:
    """Return all keys, keys per aggregate, all records, records per aggregate."""
    keys: list[bytes] = []
    found: list[bytes] = []
    key_counts, counts = [], []
    for record in records:
        body = body_of(record.data) if is_framed(record.data) else None
        if body is None:
            return None
        try:
            message = AggregatedRecordBytes.FromString(body)
        except DecodeError:
            return None
        users = len(message.records)
        within = 0 < users <= limits.max_sub_records and len(body) < users * _LARGEST_SMALL
        if not within or message.explicit_hash_key_table:
            return None
        key_counts.append(len(message.partition_key_table))
        counts.append(users)
        keys += message.partition_key_table
        found += message.records
    return (keys, key_counts, found, counts) if found else None


def _headers(
    data: np.ndarray[Any, np.dtype[np.uint8]], starts: _Ints, ends: _Ints
) -> tuple[_Ints, _Ints] | None:
    """
    Return the index of each record's key and where its data begins.

    None if a record is anything but a key index of one or two bytes, the tag of its data, the
    length of its data, and its data to the end.
    """
    if bool((data[starts] != _KEY_TAG).any()):
        return None
    low, high = data[starts + 1].astype(np.int64), data[starts + 2].astype(np.int64)
    is_long = low >= _MORE
    index = np.where(is_long, (low & _SEVEN) | (high << 7), low)
    at = starts + 2 + is_long
    if bool((is_long & (high >= _MORE)).any()) or bool((data[at] != _DATA_TAG).any()):
        return None
    length, at = _varint(data, at + 1)
    return (index, at) if bool((at + length == ends).all()) else None


def _varint(data: np.ndarray[Any, np.dtype[np.uint8]], at: _Ints) -> tuple[_Ints, _Ints]:
    """Return numbers of up to three bytes and where they end; longer ones come out wrong."""
    number = np.zeros(len(at), np.int64)
    goes_on: _Flags = np.ones(len(at), np.bool_)
    for place in range(_LENGTH_BYTES_MOST):
        byte = data[at].astype(np.int64)
        number += np.where(goes_on, (byte & _SEVEN) << (7 * place), 0)
        at = at + goes_on
        goes_on = goes_on & (byte >= _MORE)
        if not bool(goes_on.any()):
            break
    return number, at


def gathered(data: pa.Buffer, begins: _Ints, ends: _Ints) -> pa.Array:
    """Return what lies between some places of a buffer and others: binary, a value each."""
    offsets = np.empty(2 * len(begins) + 1, np.int32)
    offsets[0] = 0
    offsets[1::2], offsets[2::2] = begins, ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * len(begins), [None, pa.py_buffer(offsets.tobytes()), data]
    )
    return pieces.take(pa.array(np.arange(1, 2 * len(begins), 2)))


def _numbers(counts: Sequence[int]) -> _Ints:
    """Return 0...n-1 for each count, one after the other."""
    ends = np.cumsum(np.asarray(counts))
    numbers: _Ints = np.arange(ends[-1]) - np.repeat(ends - np.asarray(counts), counts)
    return numbers
