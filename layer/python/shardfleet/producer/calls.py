"""
What callers gave a producer, in columns: the records of a call, their sizes, what became of them.

Records travel as parts of their call, in columns, so that thousands of them cost one object on each
stop of their way and none of their own.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import itemgetter
from typing import NamedTuple, TypeVar

from msgspec import Struct

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.hash_keys import (
    MAX_PARTITION_KEY_CHARACTERS,
    check_partition_key,
    parse_hash_key,
)
from shardfleet.kpl.packing import OutgoingRecord, plain_columns
from shardfleet.producer.settings import Receipt

T = TypeVar("T")

_KEY_BYTES_MOST = 4 * MAX_PARTITION_KEY_CHARACTERS  # In UTF-8.


class PutCall(Struct, eq=False):
    """
    The records of one call.

    Attributes:
        aggregate: whether they may travel in aggregates.
        until_ms: when to give up what is still refused, monotonic milliseconds.
        left: how many are not accepted yet.
        on_over: called once, when everything is accepted or the rest is given up.
        receipts: by place in the call, None while not accepted; None if nobody asks for them.
        error: why some of them are given up; the first error counts.
        given_up: how many are.

    """

    aggregate: bool
    until_ms: int
    left: int
    on_over: Callable[[PutCall], None]
    receipts: list[Receipt | None] | None = None
    error: BaseException | None = None
    given_up: int = 0

    @property
    def is_stopped(self) -> bool:
        """Return whether nothing more of it is sent: its caller waits for receipts or an error."""
        return self.error is not None and self.receipts is not None

    def fail(self, error: BaseException, records: int) -> None:
        """
        Give up so many records, and the rest with them if somebody waits for receipts.

        What ``put`` has taken goes on: calls of it may be taken together, and none of them is to
        fail for another.
        """
        if self.is_stopped or not self.left:
            return
        if self.error is None:
            self.error = error
        self.left -= records
        self.given_up += records
        if self.is_stopped or not self.left:
            self.on_over(self)

    def accept(self, part: Part, shard_id: str, sequence_number: str, *, first: int | None) -> None:
        """
        Note that the stream has some of the records.

        Args:
            part: which.
            shard_id: who has them.
            sequence_number: of the stream record.
            first: index of the first of them in their aggregate; None: it is a plain record.

        """
        if self.receipts is not None:
            aggregated = first is not None
            for sub, place in enumerate(part.columns.places, start=first or 0):
                self.receipts[place] = Receipt(shard_id, sequence_number, sub, aggregated)
        self.left -= len(part)
        if not self.left and not self.is_stopped:
            self.on_over(self)


class Columns(NamedTuple):
    """
    Some records in their order, a column for each of what is known of them.

    Attributes:
        keys: partition keys.
        data: bytes.
        sizes: bytes of the data.
        hash_keys: explicit ones, None where there is none; empty if all records are plain
            (``plain_columns``).
        places: in the call; empty if the call keeps no receipts.

    """

    keys: Sequence[str]
    data: Sequence[bytes]
    sizes: Sequence[int]
    hash_keys: Sequence[str | None] = ()
    places: Sequence[int] = ()

    @property
    def bytes(self) -> int:
        """Return the bytes of data and keys, as the quotas count them; adds them up."""
        return sum(self.sizes) + len("".join(self.keys).encode())

    def upto(self, number: int) -> Columns:
        """Return the first so many records."""
        return Columns._make([column[:number] for column in self])

    def behind(self, number: int) -> Columns:
        """Return the records behind the first so many."""
        return Columns._make([column[number:] for column in self])

    def at(self, numbers: Sequence[int]) -> Columns:
        """Return some records by their numbers here, at least one."""
        if len(numbers) == 1:  # As often as there are records, where they travel one by one.
            only = numbers[0]
            return Columns._make([column[only : only + 1] for column in self])
        taken = itemgetter(*numbers)
        return Columns._make([taken(column) if column else () for column in self])

    def where(self, wanted: Sequence[bool]) -> Columns:
        """Return some records by whether they are wanted, each said in its place."""
        return Columns._make([tuple(compress(each, wanted)) if each else () for each in self])

    def records(self) -> Iterator[OutgoingRecord]:
        """Yield each record."""
        return map(OutgoingRecord, self.keys, self.data, self.hash_keys or repeat(None))


def joined(several: Sequence[Columns]) -> Columns:
    """Return the records of several, which have no places."""
    hash_keys: list[str | None] = []
    if any(each.hash_keys for each in several):
        for each in several:
            hash_keys += each.hash_keys or repeat(None, len(each.keys))
    keys, data, sizes, *_ = (
        list(chain.from_iterable(column)) for column in zip(*several, strict=True)
    )
    return Columns(keys, data, sizes, hash_keys)


class Part(Struct, eq=False):
    """
    Some records of a call that travel together.

    Attributes:
        call: whose records.
        columns: the records.
        company_most: records of an aggregate that these may be in, after a larger one was refused.

    """

    call: PutCall
    columns: Columns
    _size: int | None = None
    company_most: int = sys.maxsize

    def __len__(self) -> int:
        """Return how many records."""
        return len(self.columns.keys)

    @property
    def size(self) -> int:
        """Return the bytes of data and keys, added up once."""
        if self._size is None:
            self._size = self.columns.bytes
        return self._size

    def cut(self, length: int) -> Part:
        """Take so many records away from the front and return them."""
        columns, size = self.columns, self.size
        if length >= len(columns.keys):
            self.columns, self._size = _NOTHING, 0
            return self.of(columns, size)
        head = self.of(columns.upto(length))
        self.columns, self._size = columns.behind(length), size - head.size
        return head

    def by(self, owners: Sequence[T]) -> list[tuple[T, Part]]:
        """Return the records of each owner in their order; ``owners`` names one for each record."""
        numbers: defaultdict[T, list[int]] = defaultdict(list)
        for number, owner in enumerate(owners):
            numbers[owner].append(number)
        if len(numbers) == 1:
            return [(owners[0], self)]
        return [(owner, self.at(its)) for owner, its in numbers.items()]

    def at(self, numbers: Sequence[int]) -> Part:
        """Return some of the records by their numbers in this part, at least one."""
        return self.of(self.columns.at(numbers))

    def of(self, columns: Columns, size: int | None = None) -> Part:
        """Return some of the records as a part of their own."""
        return Part(self.call, columns, size, self.company_most)


_NOTHING = Columns((), (), ())


def all_records(parts: Iterable[Part]) -> Iterator[OutgoingRecord]:
    """Yield the records of several parts, in their order."""
    return chain.from_iterable(part.columns.records() for part in parts)


def size_of(record: OutgoingRecord) -> int:
    """Return the bytes of a record's data and key, as the quotas count them."""
    return len(record.data) + len(record.partition_key.encode())


def checked_alone(record: OutgoingRecord, *, record_bytes: int) -> int:
    """
    Return the bytes of a record's data and key.

    Raises:
        InvalidRecord: as ``checked``.

    """
    if type(record) is OutgoingRecord:
        key, data, hash_key = record
        if (
            hash_key is None
            and type(data) is bytes
            and type(key) is str
            and key.isascii()
            and 0 < len(key) <= MAX_PARTITION_KEY_CHARACTERS
            and (size := len(data) + len(key)) <= record_bytes
        ):
            return size
    _, size = checked((record,), record_bytes=record_bytes)
    return size


def checked(records: Sequence[OutgoingRecord], *, record_bytes: int) -> tuple[Columns, int]:
    """
    Return records as columns, and the bytes of their data and keys.

    Raises:
        InvalidRecord: a record breaks a limit of Kinesis, has no bytes for data, or has more than
            ``record_bytes``.

    """
    plain = plain_columns(records)
    if plain is not None:
        columns = Columns(*plain)
    else:
        for record in records:
            _check(record)
        keys, data, hash_keys = zip(*records, strict=False)
        columns = Columns(keys, data, list(map(len, data)), hash_keys)
    size = columns.bytes
    if size > record_bytes:  # Otherwise none of them is larger alone.
        _check_sizes(columns, record_bytes)
    return columns, size


def _check_sizes(columns: Columns, record_bytes: int) -> None:
    if max(columns.sizes) + _KEY_BYTES_MOST <= record_bytes:
        return
    for number, (key, data_bytes) in enumerate(zip(columns.keys, columns.sizes, strict=True)):
        size = data_bytes + len(key.encode())
        if size > record_bytes:
            raise InvalidRecord(
                f"record {number} has {size:,} bytes with its key, and {record_bytes:,} are "
                "allowed; send less, or raise the stream's MaxRecordSizeInKiB and the producer's "
                "record_bytes"
            )


def _check(record: OutgoingRecord) -> None:
    if not isinstance(record.data, bytes):
        raise InvalidRecord(
            f"data of a record is of type {type(record.data).__name__}: expected bytes; encode it "
            "first"
        )
    check_partition_key(record.partition_key)
    if record.explicit_hash_key is not None:
        parse_hash_key(record.explicit_hash_key)
