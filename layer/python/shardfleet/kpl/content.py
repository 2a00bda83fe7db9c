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

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import compress
from typing import Any, NamedTuple, TypeVar

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.hash_keys import effective_hash

# What a missing index of an explicit hash key reads as (messages.proto). Index 0 would be the first
# key of the table, which one library does give to records that have none.
_ABSENT = 2**64 - 1
# Of a larger body the fields are counted before it is parsed: an interpreted look at each, which
# costs as much as all the rest of a sound one. No aggregate of the KPL is so large.
_MUCH_BYTES = 1024 * 1024
_AT_A_STEP = 20_000  # fields or texts: 10 ms
# Wire types of protobuf; groups consist of fields.
_KIND, _VARINT, _VARINTS, _MORE = 7, 0, (0, 2), 0x80
_FIXED_BYTES = {1: 8, 5: 4}
# A UTF-16 surrogate in the form of UTF-8, or its beginning; what stands for text that is none.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_UNKNOWN = "\ufffd".encode()

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Some work in steps, between which others may have their turn; its return value is the result."""

Route = tuple[int | None, int | None]
"""What a record is routed by: the place of its partition key, or that of its explicit hash key."""


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

    def routes(self) -> Iterator[tuple[Route, int]]:
        """
        Yield what decides where records belong, each table entry once, and its hash key.

        An explicit hash key that is no hash key comes from no KPL, which checks them, so its rule
        of sending again cannot be relied on: such a record belongs everywhere, and is left out.
        """
        routed_by_key: Iterable[int] = self.places
        if self.hash_places:
            has_none = [self.hash_keys[place] is None for place in self.hash_places]
            routed_by_key = compress(self.places, has_none)
        for place in set(routed_by_key):
            yield (place, None), effective_hash(self.keys[place])
        for place in set(self.hash_places):
            with suppress(InvalidRecord):
                if (hash_key := self.hash_keys[place]) is not None:
                    yield (None, place), effective_hash("", hash_key)

    def routes_of_records(self) -> Iterator[Route]:
        """Return what decides where each record belongs."""
        if not self.hash_places:
            return ((place, None) for place in self.places)
        return (
            (place, None) if self.hash_keys[at] is None else (None, at)
            for place, at in zip(self.places, self.hash_places, strict=True)
        )


def at_once(steps: Steps[T]) -> T:
    """Take all steps of some work, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def content_of(body: bytes, *, max_records: int) -> Content | Fault:
    """Return the content of an intact body, or why it is not an aggregate for us."""
    return at_once(content_in_steps(body, max_records=max_records))


def content_in_steps(body: bytes, *, max_records: int) -> Steps[Content | Fault]:
    """
    Find the same as :func:`content_of`, step by step.

    A step costs what one pass of the parser over the body costs, at most: of 10 MiB, whatever is
    in them, that is less than 0.2 s on a processor of 2026.
    """
    # Loading protobuf takes about 16 ms: only streams with aggregates pay for it.
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from shardfleet.kpl.messages_pb2 import (  # noqa: PLC0415
        AggregatedColumns,
        AggregatedRecord,
        AggregateShape,
    )

    if len(body) > _MUCH_BYTES and not (yield from _has_few_fields(body, 3 * max_records)):
        return Fault.TOO_MANY_RECORDS
    try:
        # Refused by its shape, nothing more is made of it.
        shape: Any = AggregateShape.FromString(body)
        count = len(shape.records)
        if not count:
            return Fault.EMPTY
        if count > max_records:
            return Fault.TOO_MANY_RECORDS
        if not shape.IsInitialized():
            return Fault.BAD_ENCODING
        yield
        message: Any
        try:
            message = AggregatedColumns.FromString(body)
        except DecodeError:  # To it alone an index of another wire type is packed numbers.
            message = AggregatedColumns()
        yield
        keys, hash_keys = message.partition_key_table, message.explicit_hash_key_table
        columns = message.records
        data, indexes = columns.data, columns.partition_key_index
        if len(data) == len(indexes) == count:
            places = _hash_key_places(body, columns, count) if hash_keys else ()
            if places and max(places) >= len(hash_keys):
                return Fault.BAD_INDEX  # Each has one, so none that reads as absent is.
            if places is not None:
                return (yield from _content(data, (keys, indexes), (hash_keys, places)))
        yield
        message = AggregatedRecord.FromString(body)
    except DecodeError:  # Also in a tag, which nobody needs; but then the rest is odd, too.
        return Fault.BAD_ENCODING
    return (yield from _one_by_one(message))


def _one_by_one(message: Any) -> Steps[Content | Fault]:
    """Find the same by a look at each record."""
    keys, hash_keys = message.partition_key_table, message.explicit_hash_key_table
    records = message.records
    places = [record.explicit_hash_key_index for record in records] if hash_keys else ()
    if any(
        place == _ABSENT and record.HasField("explicit_hash_key_index")
        for place, record in zip(places, records, strict=False)
    ):
        return Fault.BAD_INDEX
    indexes = [record.partition_key_index for record in records]
    data = [record.data for record in records]
    return (yield from _content(data, (keys, indexes), (hash_keys, places)))


def _has_few_fields(body: bytes, most: int) -> Steps[bool]:
    """
    Return whether a body has no more fields than that; a damaged one is the parser's to refuse.

    Each costs the parser memory, whatever is in it: five million empty records, 250 MB.
    """
    at, count, end = 0, 0, len(body)
    try:
        while at < end:
            count += 1
            if count > most:
                return False
            tag = body[at]
            while body[at] >= _MORE:
                at += 1
            at += 1
            kind = tag & _KIND
            length = _FIXED_BYTES.get(kind, 0)
            if kind in _VARINTS:
                shift = 0
                while body[at] >= _MORE:
                    length |= (body[at] & ~_MORE) << shift
                    at, shift = at + 1, shift + 7
                length |= body[at] << shift
                at += 1
            at += 0 if kind == _VARINT else length
            if not count % _AT_A_STEP:
                yield
    except IndexError:
        pass
    return True


def _texts(
    table: Sequence[str | bytes], places: Sequence[int]
) -> Steps[tuple[Sequence[str], Sequence[int]]]:
    """
    Return the texts of a table, and places in them.

    What is no UTF-8 is handed out as bytes, and becomes what Java makes of it; that costs ten times
    as much. So of a table that has more entries than are used, only those are looked at.
    """
    if len(table) > len(places):
        used = {place: at for at, place in enumerate(dict.fromkeys(places))}
        table, places = [table[place] for place in used], [used[place] for place in places]
    texts: list[str] = []
    for start in range(0, len(table), _AT_A_STEP):
        # Each access decodes the text anew; a list shares one string among all records of a key.
        some = table[start : start + _AT_A_STEP]
        texts += [e if isinstance(e, str) else _text_as_in_java(e) for e in some]
        yield
    return texts, places


def _text_as_in_java(malformed: bytes) -> str:
    """Return what Java's ``String`` makes of what is no UTF-8: a surrogate is one fault there."""
    return _SURROGATE.sub(_UNKNOWN, malformed).decode(errors="replace")


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
    keys: tuple[Sequence[str | bytes], Sequence[int]],
    hash_keys: tuple[Sequence[str | bytes], Sequence[int]],
) -> Steps[Content | Fault]:
    """Put columns together: data, and tables with the places in them."""
    table, places = keys
    hash_table, hash_places = hash_keys
    used = [at for at in hash_places if at != _ABSENT]
    if max(places) >= len(table) or max(used, default=-1) >= len(hash_table):
        return Fault.BAD_INDEX
    texts, places = yield from _texts(table, places)
    if not hash_places:
        return Content(data, texts, places, (), ())
    hash_texts, found = yield from _texts(hash_table, used)
    none_at, following = len(hash_texts), iter(found)
    found = [none_at if at == _ABSENT else next(following) for at in hash_places]
    return Content(data, texts, places, [*hash_texts, None], found)
