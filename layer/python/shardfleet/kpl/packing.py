"""
Many user records at once into the wire format of an aggregate: column by column, not one by one.

What a producer does for every record decides what it costs, and an interpreted loop per record is
the most expensive way. Here every step is one pass of a built-in over all records: lengths, indexes
of keys, heads from tables, one join. The bytes are the same as those of ``AggregateBuilder.add``;
``AggregateBuilder.fill`` decides when this is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

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
        keys: in their order, with their fields as far as these are made; not to be changed.

    """

    def __init__(self, tag: bytes = RECORD_KEY_INDEX) -> None:
        """Begin with index 0."""
        self.keys: dict[str, bytes] = {}
        self._fields_made = 0
        self._tag = tag

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.keys)

    def get(self, key: str) -> bytes | None:
        """Return the field of a key, None if it is not in the table."""
        return self._made().get(key)

    def add(self, key: str) -> None:
        """Give a new key the next index."""
        field = b""
        if self._fields_made == len(self):
            field, self._fields_made = self.following(), len(self) + 1
        self.keys[key] = field

    def following(self) -> bytes:
        """Return the field that the next new key will have."""
        return self._tag + varint(len(self))

    def new_of(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of several keys that the table lacks, each once, in their order."""
        found, known = dict.fromkeys(keys, b""), self.keys
        return {key: b"" for key in found if key not in known} if known else found

    def keep(self, new: dict[str, bytes]) -> None:
        """Give new partition keys the next indexes."""
        if self.keys:
            self.keys.update(new)
        else:
            self.keys = new

    def of_all(self, keys: Sequence[str]) -> Sequence[bytes]:
        """Return the fields of several keys of the table."""
        return looked_up(self._made(), keys)

    def _made(self) -> dict[str, bytes]:
        made, wanted = self._fields_made, len(self)
        if made < wanted:
            # Partition keys: keep() puts in many at once, add() keeps up.
            new = list(islice(self.keys, made, None))
            self.keys.update(zip(new, _first_fields(wanted)[made:], strict=True))
            self._fields_made = wanted
        return self.keys


@lru_cache(maxsize=_FIELDS_CACHE)
def _fields_up_to(power: int) -> tuple[bytes, ...]:
    return tuple(RECORD_KEY_INDEX + varint(number) for number in range(1 << power))


def _first_fields(number: int) -> tuple[bytes, ...]:
    """Return the fields of the first so many partition keys."""
    return _fields_up_to(max(_SMALLEST_POWER, number.bit_length()))[:number]


def looked_up(table: Mapping[_K, _V], wanted: Sequence[_K]) -> Sequence[_V]:
    """
    Return what a table has of several keys, at least one, in a single call.

    Raises:
        KeyError: the table lacks one.

    """
    return itemgetter(*wanted)(table) if len(wanted) > 1 else (table[wanted[0]],)


class _Table:
    """Bytes by length, made when first asked for; forgets everything when there are too many."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make
        self._made: dict[int, bytes] = {}

    def of_all(self, lengths: Sequence[int]) -> Sequence[bytes]:
        """Return what is made of several lengths, at least one."""
        try:
            return looked_up(self._made, lengths)
        except KeyError:
            pass
        wanted = set(lengths)
        made = {} if len(self._made) + len(wanted) > _TABLE_MOST else self._made
        made.update((length, self._make(length)) for length in wanted.difference(made))
        self._made = made
        return looked_up(made, lengths)


def _before_field(index_bytes: int, data_bytes: int) -> bytes:
    return RECORD + varint(index_bytes + len(RECORD_DATA + varint(data_bytes)) + data_bytes)


_BEFORE_SHORT_INDEX = _Table(lambda length: _before_field(_SHORT_INDEX, length))
_BEFORE_LONG_INDEX = _Table(lambda length: _before_field(_SHORT_INDEX + 1, length))
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
        sizes: lengths of the data.

    """

    keys: Sequence[str]
    data: Sequence[bytes]
    sizes: Sequence[int]

    def between(self, start: int, stop: int) -> PlainColumns:
        """Return the records from one index to before another."""
        if not start and stop >= len(self.keys):
            return self
        return PlainColumns(self.keys[start:stop], self.data[start:stop], self.sizes[start:stop])


def plain_columns(records: Sequence[Any]) -> PlainColumns | None:
    """
    Return the columns of records of which none needs a closer look.

    Returns:
        None if one does: it is of another type, has an explicit hash key, or a key that is not
        plain ASCII of allowed length. An empty sequence has no columns either.

    """
    count = len(records)
    if not count or list(map(type, records)).count(OutgoingRecord) != count:
        return None
    keys, data, hash_keys = zip(*records, strict=False)  # All have three fields.
    if hash_keys.count(None) != count or list(map(type, data)).count(bytes) != count:
        return None
    shortest, longest = _extremes(list(map(len, keys)))
    if shortest < 1 or longest > _LONGEST_KEY or not "".join(keys).isascii():
        return None
    return PlainColumns(keys, data, list(map(len, data)))


def pack(
    columns: PlainColumns, indexes: KeyIndexes, *, room: int, fewest: int = FEWEST
) -> Packed | None:
    """
    Pack as many of the first records as surely fit, and give new keys their indexes.

    Args:
        columns: the records in their order.
        indexes: of the aggregate so far.
        room: bytes that may be added.
        fewest: that are worth it.

    Returns:
        None if fewer surely fit.

    """
    columns = columns.between(0, _fitting(columns.sizes, room, overhead=OVERHEAD_LEAST))
    while (count := len(columns.keys)) >= fewest:
        new = indexes.new_of(columns.keys)
        keys_after = len(indexes) + len(new)
        if keys_after > _LONGER_INDEXES_FROM:
            return None
        entries = _entries(new)
        overhead = _overhead_most(max(columns.sizes), short=keys_after <= _LONG_INDEXES_FROM)
        fitting = _fitting(columns.sizes, room - len(entries), overhead=overhead)
        if fitting == count:
            return Packed(count, entries, _packed(columns, indexes, new))
        # So many fit even with the keys of all; if the keys alone are too much, look at fewer.
        columns = columns.between(0, fitting if fitting >= fewest else count // 2)
    return None


def _packed(columns: PlainColumns, indexes: KeyIndexes, new: dict[str, bytes]) -> bytes:
    """Return records as they stand in an aggregate, and put their new keys into its table."""
    keys, data, sizes = columns
    known = len(indexes)
    indexes.keep(new)
    if len(new) == len(keys):  # All of them new: their indexes are in order.
        fields: Sequence[bytes] = _first_fields(known + len(keys))[known:]
        before = _before(sizes, short=max(0, _LONG_INDEXES_FROM - known))
    else:
        fields = indexes.of_all(keys)
        all_short = len(indexes) <= _LONG_INDEXES_FROM
        before = _BEFORE_SHORT_INDEX.of_all(sizes) if all_short else _before_mixed(fields, sizes)
    parts = [b""] * (4 * len(keys))
    parts[::4] = before
    parts[1::4] = fields
    parts[2::4] = _BEHIND_INDEX.of_all(sizes)
    parts[3::4] = data
    return b"".join(parts)


def _overhead_most(longest: int, *, short: bool) -> int:
    """Return the most that the format adds to data of up to a length, with a short index or not."""
    index_bytes = _SHORT_INDEX if short else _SHORT_INDEX + 1
    behind_bytes = len(RECORD_DATA + varint(longest))
    return len(_before_field(index_bytes, longest)) + index_bytes + behind_bytes


def _fitting(sizes: Sequence[int], room: int, *, overhead: int) -> int:
    """Return how many of the first records fit, with so many bytes on top of each one's data."""
    if sum(sizes) + overhead * len(sizes) <= room:
        return len(sizes)
    needed = list(accumulate(sizes))
    fitting = range(len(needed))
    return bisect_right(fitting, room, key=lambda n: needed[n] + overhead * (n + 1))


def _extremes(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the least and the greatest; often all are the same, which is seen at once."""
    first = sizes[0]
    return (first, first) if sizes.count(first) == len(sizes) else (min(sizes), max(sizes))


def _before(sizes: Sequence[int], *, short: int) -> Sequence[bytes]:
    """Return what stands before each index: so many short ones, then long ones."""
    if short >= len(sizes):
        return _BEFORE_SHORT_INDEX.of_all(sizes)
    if not short:
        return _BEFORE_LONG_INDEX.of_all(sizes)
    found = _BEFORE_SHORT_INDEX.of_all(sizes[:short]), _BEFORE_LONG_INDEX.of_all(sizes[short:])
    return [*found[0], *found[1]]


def _before_mixed(fields: Sequence[bytes], sizes: Sequence[int]) -> Sequence[bytes]:
    """Return what stands before each index, short ones and long ones in any order."""
    widths = bytes(map(len, fields))
    # Those of the first keys of an aggregate stand at its beginning, where they are new.
    short = widths.find(_SHORT_INDEX + 1)
    before = list(_before(sizes, short=short if short >= 0 else len(sizes)))
    number = short
    while (number := widths.find(_SHORT_INDEX, number + 1)) > short >= 0:
        before[number] = _before_field(_SHORT_INDEX, sizes[number])
    return before


def _entries(keys: Collection[str]) -> bytes:
    """Return the entries of the table of keys."""
    if not keys:
        return b""
    sizes = list(map(len, keys))
    shortest, longest = _extremes(sizes)
    if shortest == longest:
        head = _KEY_HEADS[shortest]
        return (head + head.join(keys)).encode("latin-1")
    entries = [""] * (2 * len(keys))
    entries[::2] = map(_KEY_HEADS.__getitem__, sizes)
    entries[1::2] = keys
    return "".join(entries).encode("latin-1")
