"""
Many user records at once into the wire format of an aggregate: column by column, not one by one.

What a producer does for every record decides what it costs, and an interpreted loop per record is
the most expensive way. Here every step is one pass of a built-in over all records: lengths, indexes
of keys, heads from tables, one join. The bytes are the same as those of ``AggregateBuilder.add``;
``AggregateBuilder.fill`` decides when this is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from operator import add
from typing import Any, NamedTuple

# Tags of the wire format: field number * 8 + type (0 = varint, 2 = length-delimited).
KEY_ENTRY = b"\x0a"
HASH_ENTRY = b"\x12"
RECORD = b"\x1a"
RECORD_KEY_INDEX = b"\x08"
RECORD_HASH_INDEX = b"\x10"
RECORD_DATA = b"\x1a"

FEWEST = 16
"""Below so many records the passes cost more than a loop."""

_LOW_BITS = 0x7F
_MORE = 0x80
_VARINT_CACHE = 4096  # Indexes and lengths repeat; about 100 bytes each.
_TABLE_MOST = 16_384  # Different lengths remembered; about 1 MB.
_FIELDS_CACHE, _SMALLEST_POWER = 8, 9  # Fields of indexes, made for 512, 1024, ... keys at once.
_LONGEST_KEY = 256  # Characters; quota of ``PutRecord``.
# Most that the format adds to data and key of a record: two tags and lengths of the record (5 + 5
# bytes), tag and index of the key (4), tag and length of its table entry (3).
_OVERHEAD_MOST = 17
OVERHEAD_LEAST = 6
"""Least that the format adds to the data of a record: three tags, two lengths, an index."""
_SHORT_INDEX = 2  # Tag and one byte: the first 128 keys.


class OutgoingRecord(NamedTuple):
    """A user record on its way out."""

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


@lru_cache(maxsize=_VARINT_CACHE)
def varint(value: int) -> bytes:
    """Return a protobuf varint: seven bits per byte, lowest first, the high bit says *more*."""
    encoded = bytearray()
    while value > _LOW_BITS:
        encoded.append(value & _LOW_BITS | _MORE)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class KeyIndexes:
    """
    The keys of one table in their order, and the field of a record that refers to each.

    Fields are made when first looked up: often nobody asks, because every key is new.

    Args:
        tag: of that field.

    Attributes:
        keys: in their order; not to be changed.

    """

    def __init__(self, tag: bytes = RECORD_KEY_INDEX) -> None:
        """Begin with index 0."""
        self.keys: dict[str, None] = {}
        self._fields: dict[str, bytes] = {}
        self._tag = tag

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.keys)

    def get(self, key: str) -> bytes | None:
        """Return the field of a key, None if it is not in the table."""
        return self._made().get(key)

    def add(self, key: str) -> None:
        """Give a new key the next index."""
        if len(self._fields) == len(self):
            self._fields[key] = self.following()
        self.keys[key] = None

    def following(self) -> bytes:
        """Return the field that the next new key will have."""
        return self._tag + varint(len(self))

    def of_all(self, keys: Sequence[str]) -> Sequence[bytes]:
        """Return the fields of several partition keys; new ones get the next indexes."""
        known = len(self.keys)
        found = dict.fromkeys(keys)
        if known:
            self.keys.update(found)
        else:
            self.keys = found
        if len(self.keys) == known + len(keys):
            return _first_fields(known + len(keys))[known:]
        return list(map(self._made().__getitem__, keys))

    def _made(self) -> dict[str, bytes]:
        made, wanted = len(self._fields), len(self)
        if made < wanted:
            # Partition keys: of_all() puts in many at once, add() keeps up.
            new = islice(self.keys, made, None)
            self._fields.update(zip(new, _first_fields(wanted)[made:], strict=True))
        return self._fields


@lru_cache(maxsize=_FIELDS_CACHE)
def _fields_up_to(power: int) -> tuple[bytes, ...]:
    return tuple(RECORD_KEY_INDEX + varint(number) for number in range(1 << power))


def _first_fields(number: int) -> tuple[bytes, ...]:
    """Return the fields of the first so many partition keys."""
    return _fields_up_to(max(_SMALLEST_POWER, number.bit_length()))[:number]


class _Table(dict[int, bytes]):
    """Bytes by length, made when first asked for; forgets everything when there are too many."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _TABLE_MOST:
            self.clear()
        made = self[length] = self._make(length)
        return made


def _before(index_bytes: int, data_bytes: int) -> bytes:
    return RECORD + varint(index_bytes + len(RECORD_DATA + varint(data_bytes)) + data_bytes)


_BEFORE_SHORT_INDEX = _Table(lambda length: _before(_SHORT_INDEX, length))
_BEFORE_LONG_INDEX = _Table(lambda length: _before(_SHORT_INDEX + 1, length))
_BEHIND_INDEX = _Table(lambda length: RECORD_DATA + varint(length))
# Heads of keys as text: each byte of them is a character of Latin-1, like each of an ASCII key.
_KEY_HEADS = tuple((KEY_ENTRY + varint(n)).decode("latin-1") for n in range(_LONGEST_KEY + 1))
_LONG_INDEXES_FROM, _LONGER_INDEXES_FROM = 1 << 7, 1 << 14


class Packed(NamedTuple):
    """
    What the first records of a sequence add to an aggregate.

    Attributes:
        taken: how many records.
        keys: entries of the table of partition keys, for the keys that were new.
        records: the records.

    """

    taken: int
    keys: bytes
    records: bytes


class PlainColumns(NamedTuple):
    """
    Records whose keys are ASCII, which have no explicit hash keys, column by column.

    Attributes:
        keys: partition keys.
        data: bytes.
        key_sizes: lengths of the keys.

    """

    keys: Sequence[str]
    data: Sequence[bytes]
    key_sizes: Sequence[int]


def plain_columns(records: Sequence[Any]) -> PlainColumns | None:
    """
    Return the columns of records of which none needs a closer look.

    Returns:
        None if one does: it is of another type, has an explicit hash key, or a key that is not
        plain ASCII of allowed length. An empty sequence has no columns either.

    """
    if set(map(type, records)) != {OutgoingRecord}:
        return None
    keys, data, hash_keys = zip(*records, strict=False)  # All have three fields.
    if hash_keys.count(None) != len(keys) or set(map(type, data)) != {bytes}:
        return None
    key_sizes = list(map(len, keys))
    shortest, longest = _extremes(key_sizes)
    if shortest < 1 or longest > _LONGEST_KEY or not "".join(keys).isascii():
        return None
    return PlainColumns(keys, data, key_sizes)


def pack(
    keys: Sequence[str],
    data: Sequence[bytes],
    indexes: KeyIndexes,
    *,
    room: int,
    fewest: int = FEWEST,
) -> Packed | None:
    """
    Pack as many of the first records as surely fit, and give new keys their indexes.

    Args:
        keys: of the records in their order, as ``plain_columns`` returns them.
        data: of the same.
        indexes: of the aggregate so far.
        room: bytes that may be added.
        fewest: that are worth it.

    Returns:
        None if fewer surely fit.

    """
    key_sizes, sizes = list(map(len, keys)), list(map(len, data))
    cut = _surely_fitting(key_sizes, sizes, room) if len(keys) >= fewest else 0
    if cut < fewest:
        return None
    if cut < len(keys):
        keys, data = keys[:cut], data[:cut]
        key_sizes, sizes = key_sizes[:cut], sizes[:cut]
    known = len(indexes)
    if known + len(keys) > _LONGER_INDEXES_FROM:
        return None
    fields = indexes.of_all(keys)
    if len(indexes) == known + len(keys):  # All of them new: their indexes are in order.
        entries = _entries(keys, key_sizes)
        before = _before_ordered(sizes, short=max(0, _LONG_INDEXES_FROM - known))
    else:
        new = list(islice(indexes.keys, known, None))
        entries = _entries(new, list(map(len, new)))
        all_short = len(indexes) <= _LONG_INDEXES_FROM
        before = (
            _before_ordered(sizes, short=len(sizes)) if all_short else _before_mixed(fields, sizes)
        )
    parts = [b""] * (4 * len(keys))
    parts[::4] = before
    parts[1::4] = fields
    parts[2::4] = map(_BEHIND_INDEX.__getitem__, sizes)
    parts[3::4] = data
    return Packed(len(keys), entries, b"".join(parts))


def _surely_fitting(key_sizes: Sequence[int], sizes: Sequence[int], room: int) -> int:
    """Return how many of the first records fit whatever the format adds to each."""
    if sum(sizes) + sum(key_sizes) + _OVERHEAD_MOST * len(sizes) <= room:
        return len(sizes)
    needed = list(accumulate(map(add, key_sizes, sizes)))
    fitting = range(len(needed))
    return bisect_right(fitting, room, key=lambda n: needed[n] + _OVERHEAD_MOST * (n + 1))


def _extremes(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the least and the greatest; often all are the same, which is seen at once."""
    first = sizes[0]
    return (first, first) if sizes.count(first) == len(sizes) else (min(sizes), max(sizes))


def _before_ordered(sizes: Sequence[int], *, short: int) -> list[bytes]:
    """Return what stands before each index: so many short ones, then long ones."""
    if short >= len(sizes):
        return list(map(_BEFORE_SHORT_INDEX.__getitem__, sizes))
    found = list(map(_BEFORE_SHORT_INDEX.__getitem__, sizes[:short]))
    found += map(_BEFORE_LONG_INDEX.__getitem__, sizes[short:])
    return found


def _before_mixed(fields: Sequence[bytes], sizes: Sequence[int]) -> list[bytes]:
    """Return what stands before each index, short ones and long ones in any order."""
    short, long = _BEFORE_SHORT_INDEX, _BEFORE_LONG_INDEX
    return [
        short[size] if len(field) == _SHORT_INDEX else long[size]
        for field, size in zip(fields, sizes, strict=True)
    ]


def _entries(keys: Sequence[str], sizes: Sequence[int]) -> bytes:
    """Return the entries of the table of keys."""
    if not keys:
        return b""
    shortest, longest = _extremes(sizes)
    if shortest == longest:
        head = _KEY_HEADS[shortest]
        return (head + head.join(keys)).encode("latin-1")
    entries = [""] * (2 * len(keys))
    entries[::2] = map(_KEY_HEADS.__getitem__, sizes)
    entries[1::2] = keys
    return "".join(entries).encode("latin-1")
