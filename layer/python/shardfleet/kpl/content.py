"""
What is inside an intact aggregate, column by column.

An interpreted look at each user record is what deaggregation used to cost. So the parser is given
a schema in which all records of an aggregate merge into one, and hands out their data and indexes
as columns (``AggregatedColumns`` in messages.proto). That a value of each column belongs to the
record of the same place is proved, not hoped: a second schema counts the records and requires the
fields of each, and when there are as many values as records, each record has exactly one. Where
that does not hold (a field twice, hash keys for some records) records are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

# What a missing index of an explicit hash key reads as (messages.proto). Index 0 would be the first
# key of the table, which one library does give to records that have none.
_ABSENT = 2**64 - 1


class Fault(Enum):
    """Why a body is no aggregate for us."""

    BAD_ENCODING = "bad_encoding"
    EMPTY = "empty"
    TOO_MANY_RECORDS = "too_many_records"


class Content(NamedTuple):
    """
    The user records of an aggregate; iterating over keys raises IndexError for one in no table.

    Attributes:
        size: how many there are.
        data: of each.
        keys: partition key of each.
        hash_keys: explicit hash key of each, or None; None: no record has one.

    """

    size: int
    data: Iterable[bytes]
    keys: Iterable[str]
    hash_keys: Iterable[str | None] | None


def content_of(body: bytes, *, max_records: int) -> Content | Fault:
    """Return the content of an intact body, or why it is not an aggregate for us."""
    # Loading protobuf takes about 16 ms: only streams with aggregates pay for it.
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from shardfleet.kpl.messages_pb2 import (  # noqa: PLC0415
        AggregatedColumns,
        AggregatedRecord,
        AggregateShape,
    )

    try:
        shape: Any = AggregateShape.FromString(body)
        message: Any = AggregatedColumns.FromString(body)
        # Each access decodes the text anew; a list shares one string among all records of a key.
        keys, hash_keys = list(message.partition_key_table), list(message.explicit_hash_key_table)
        "".join(keys + hash_keys)
    except (DecodeError, UnicodeDecodeError, TypeError):  # Invalid UTF-8 is handed out as bytes.
        return Fault.BAD_ENCODING
    count = len(shape.records)
    if not count:
        return Fault.EMPTY
    if count > max_records:
        return Fault.TOO_MANY_RECORDS
    if not shape.IsInitialized():
        return Fault.BAD_ENCODING
    columns = message.records
    data, indexes = columns.data, columns.partition_key_index
    if len(data) == len(indexes) == count:
        places = _hash_key_places(body, columns, count) if hash_keys else ()
        if places is not None:
            return _content(data, (keys, indexes), (hash_keys, places))
    try:
        records = AggregatedRecord.FromString(body).records
    except DecodeError:  # In a tag, which nobody needs; but then the rest is odd, too.
        return Fault.BAD_ENCODING
    places = [record.explicit_hash_key_index for record in records] if hash_keys else ()
    indexes = [record.partition_key_index for record in records]
    return _content([record.data for record in records], (keys, indexes), (hash_keys, places))


def _hash_key_places(body: bytes, columns: Any, count: int) -> Sequence[int] | None:
    """Return the index of each record's hash key, () if none has one, None if only some do."""
    from shardfleet.kpl.messages_pb2 import HashKeysShape  # noqa: PLC0415

    places: Sequence[int] = columns.explicit_hash_key_index
    if not places:
        return ()
    if len(places) == count and HashKeysShape.FromString(body).IsInitialized():
        return places
    return None


def _content(
    data: Sequence[bytes],
    keys: tuple[Sequence[str], Iterable[int]],
    hash_keys: tuple[Sequence[str], Sequence[int]],
) -> Content:
    """Put columns together: data, and tables with the places in them."""
    table, indexes = keys
    hash_table, places = hash_keys
    found = (None if at == _ABSENT else hash_table[at] for at in places) if places else None
    return Content(len(data), data, map(table.__getitem__, indexes), found)
