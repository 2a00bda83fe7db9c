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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import compress
from typing import Any, NamedTuple

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.hash_keys import effective_hash

# What a missing index of an explicit hash key reads as (messages.proto). Index 0 would be the first
# key of the table, which one library does give to records that have none.
_ABSENT = 2**64 - 1


class Fault(Enum):
    """Why a body is no aggregate for us."""

    BAD_ENCODING = "bad_encoding"
    BAD_INDEX = "bad_index"
    EMPTY = "empty"
    TOO_MANY_RECORDS = "too_many_records"


class Content(NamedTuple):
    """
    The user records of an aggregate, each a place of each column, and the tables of their keys.

    Many records may share one long key, so what depends on a key is found once for its entry in
    the table, never once for each record: else a small aggregate costs what it would expand to.

    Attributes:
        data: of each record.
        keys: partition keys.
        places: of each record, where in ``keys`` its own is.
        hash_keys: explicit hash keys, and None for the records that have none.
        hash_places: of each record, where in ``hash_keys`` its own is; empty: no record has one.

    """

    data: Sequence[bytes]
    keys: Sequence[str]
    places: Sequence[int]
    hash_keys: Sequence[str | None]
    hash_places: Sequence[int]

    def partition_keys(self) -> Iterator[str]:
        """Return the partition key of each record."""
        return map(self.keys.__getitem__, self.places)

    def explicit_hash_keys(self) -> Iterator[str | None] | None:
        """Return the explicit hash key of each record; None: no record has one."""
        return map(self.hash_keys.__getitem__, self.hash_places) if self.hash_places else None

    def expanded_bytes(self) -> int:
        """Return the bytes of data and UTF-8 keys of all records, a shared key counted anew."""
        keys = [len(key.encode()) for key in self.keys]
        hash_keys = [len((key or "").encode()) for key in self.hash_keys]
        return (
            sum(map(len, self.data))
            + sum(map(keys.__getitem__, self.places))
            + sum(map(hash_keys.__getitem__, self.hash_places))
        )

    def hashes(self) -> Iterator[int]:
        """
        Yield the hash keys that decide where the records belong, each table entry's once.

        An explicit hash key that is no hash key comes from no KPL, which checks them, so its rule
        of sending again cannot be relied on: such a record belongs everywhere, and is left out.
        """
        routed_by_key: Iterable[int] = self.places
        if self.hash_places:
            has_none = [self.hash_keys[place] is None for place in self.hash_places]
            routed_by_key = compress(self.places, has_none)
        for place in set(routed_by_key):
            yield effective_hash(self.keys[place])
        for place in set(self.hash_places):
            with suppress(InvalidRecord):
                if (hash_key := self.hash_keys[place]) is not None:
                    yield effective_hash("", hash_key)


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
        keys = _texts(message.partition_key_table)
        hash_keys = _texts(message.explicit_hash_key_table)
    except DecodeError:
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


def _texts(table: Iterable[str | bytes]) -> Sequence[str]:
    """Return texts; of what is no UTF-8 and hence handed out as bytes, what Java makes of it."""
    # Each access decodes the text anew; a list shares one string among all records of a key.
    return [each if isinstance(each, str) else each.decode(errors="replace") for each in table]


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
    keys: tuple[Sequence[str], Sequence[int]],
    hash_keys: tuple[Sequence[str], Sequence[int]],
) -> Content | Fault:
    """Put columns together: data, and tables with the places in them."""
    table, places = keys
    hash_table, hash_places = hash_keys
    if max(places) >= len(table):
        return Fault.BAD_INDEX
    if not hash_places:
        return Content(data, table, places, (), ())
    none_at = len(hash_table)
    if max((at for at in hash_places if at != _ABSENT), default=-1) >= none_at:
        return Fault.BAD_INDEX
    found = [none_at if at == _ABSENT else at for at in hash_places]
    return Content(data, table, places, [*hash_table, None], found)
