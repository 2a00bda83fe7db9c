"""
From user records to the data of one Kinesis record, never larger than asked.

Rules: protocol.md §5.3, points 1 to 3; quotas of ``PutRecord``. Java: the KPL's ``KinesisRecord``,
which differs in two ways: it sends a single record plain, and it calls every aggregate ``a``. The
bytes are written by hand, since a table of ready prefixes and one join beat the protobuf library
(performance.md §6); tests compare the two. When to send, and to which shard, is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Sequence
from itertools import takewhile

from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.envelope import DEFAULT_MAX_SUB_RECORDS, ENVELOPE_BYTES, frame
from shardfleet.kpl.hash_keys import check_partition_key, parse_hash_key
from shardfleet.kpl.packing import (
    FEWEST,
    HASH_ENTRY,
    KEY_ENTRY,
    OVERHEAD_LEAST,
    RECORD,
    RECORD_DATA,
    RECORD_HASH_INDEX,
    RECORD_KEY_INDEX,
    KeyIndexes,
    OutgoingRecord,
    PlainColumns,
    pack,
    plain_columns,
    varint,
)

MAX_RECORD_BYTES = 10 * 1024 * 1024
"""Quota of ``PutRecord``: data and partition key of one record, on a stream that is set to it."""

STREAM_RECORD_BYTES = 1024 * 1024
"""Data and key of a record: what a stream takes unless its ``MaxRecordSizeInKiB`` says more."""

DEFAULT_MAX_BYTES = 51_200
"""The KPL's default ``AggregationMaxSize``: two billing units of 25 KiB."""

LEAST_BYTES = ENVELOPE_BYTES + 16
"""What an aggregate may be limited to: frame, a key of one character, and some bytes of data."""

_PIECES_MOST = 50  # A digest takes pieces one by one; more of them are joined first.

_Plan = tuple[int, bytes, bytes, bytes]
"""
What a record would add: bytes in all, the head before its data, and for either key its table entry
(empty if the key is known).
"""


class AggregateBuilder:
    """
    Collects user records until the aggregate is as large as it may be.

    Sizes are exact, not estimates: ``size_bytes`` is the length of what ``build`` would return.

    Args:
        max_bytes: length of the finished data with its frame (the key of the ``PutRecord`` call
            comes on top).
        max_records: user records per aggregate.

    Raises:
        ConfigurationError: a limit below its minimum, or more bytes than Kinesis takes.

    """

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_records: int = DEFAULT_MAX_SUB_RECORDS,
    ) -> None:
        if not LEAST_BYTES <= max_bytes <= MAX_RECORD_BYTES:
            raise ConfigurationError(
                f"max_bytes = {max_bytes}: expected {LEAST_BYTES} to {MAX_RECORD_BYTES}"
            )
        if max_records < 1:
            raise ConfigurationError(f"max_records = {max_records}: expected 1 or more")
        self.max_bytes = max_bytes
        self.max_records = max_records
        self.size_bytes = ENVELOPE_BYTES
        self._keys = _KeyTable(
            entry_tag=KEY_ENTRY, index_tag=RECORD_KEY_INDEX, check=check_partition_key
        )
        self._hash_keys = _KeyTable(
            entry_tag=HASH_ENTRY, index_tag=RECORD_HASH_INDEX, check=parse_hash_key
        )
        self._parts: list[bytes] = []
        self._count = 0
        self._first: OutgoingRecord | None = None
        self._planned: tuple[OutgoingRecord, _Plan] | None = None

    def __len__(self) -> int:
        """Return the number of user records so far."""
        return self._count

    @property
    def partition_keys(self) -> KeysView[str]:
        """The keys of the user records so far, each once; a view."""
        return self._keys.indexes.keys.keys()

    def is_full_for(self, record: OutgoingRecord) -> bool:
        """
        Return whether ``record`` has to wait for the next aggregate.

        Raises:
            InvalidRecord: the record breaks a limit of Kinesis, or is too large for an aggregate
                of its own (send it as a plain record).

        """
        plan = self._plan(record)
        if self._has_room_for(plan):
            self._planned = record, plan
            return False
        if not self._parts:
            raise self._too_large(record)
        alone = AggregateBuilder(max_bytes=self.max_bytes, max_records=self.max_records)
        alone.is_full_for(record)
        return True

    def add(self, record: OutgoingRecord) -> None:
        """
        Put a user record behind the others.

        Raises:
            InvalidRecord: the record breaks a limit of Kinesis, is too large for any aggregate, or
                has to wait (``is_full_for``); the builder is unchanged.

        """
        planned, self._planned = self._planned, None
        if planned is not None and planned[0] is record:
            plan = planned[1]
        else:
            plan = self._plan(record)
            if not self._has_room_for(plan):
                raise self._no_room(plan) if self._parts else self._too_large(record)
        size_bytes, head, key_entry, hash_entry = plan
        if key_entry:
            self._keys.keep(record.partition_key, key_entry)
        if hash_entry and record.explicit_hash_key is not None:
            self._hash_keys.keep(record.explicit_hash_key, hash_entry)
        if self._first is None:
            self._first = record
        self._parts += (head, record.data)
        self._count += 1
        self.size_bytes += size_bytes

    def fill(self, records: Sequence[OutgoingRecord], start: int = 0) -> int:
        """
        Add records from index ``start`` on until one has to wait, and return the index of that one.

        The same as ``is_full_for`` and ``add`` one by one, several times as fast. With an empty
        builder, an answer of ``start`` means that the record is too large for any aggregate.

        Raises:
            InvalidRecord: a record breaks a limit of Kinesis; the builder holds those before it.

        """
        most = self.max_records - self._count
        chosen = records if not start and len(records) <= most else records[start : start + most]
        columns = plain_columns(chosen)
        if columns is not None:
            return start + self.fill_plain(columns)
        return start + sum(1 for _ in takewhile(self._has_room_to_add, chosen))

    def fill_plain(self, columns: PlainColumns) -> int:
        """
        Add records as ``fill`` does, given as ``plain_columns`` returns them.

        Returns:
            how many were added.

        """
        keys, data, sizes = columns
        place, stop = 0, min(len(keys), self.max_records - self._count)
        while place < stop:
            packed = pack(
                columns.between(place, stop),
                self._keys.indexes,
                room=self.max_bytes - self.size_bytes,
                # To look at one record makes the fields of all keys, so no passes are too many.
                fewest=1 if place else FEWEST,
            )
            if packed is None:
                break
            self._first = self._first or OutgoingRecord(keys[place], data[place])
            self._keys.entries.append(packed.keys)
            self._parts.append(packed.records)
            self._count += packed.taken
            self.size_bytes += len(packed.keys) + len(packed.records)
            place += packed.taken
        while (
            place < stop
            and self.size_bytes + sizes[place] + OVERHEAD_LEAST <= self.max_bytes
            and self._has_room_to_add(OutgoingRecord(keys[place], data[place]))
        ):
            place += 1
        return place

    def build(self) -> OutgoingRecord:
        """
        Return the aggregate, to be put like any record; the builder is unchanged.

        Its keys are those of the first user record and route it to that one's shard, so put only
        records of one shard into it.

        Raises:
            InvalidRecord: there is no user record inside.

        """
        if self._first is None:
            raise InvalidRecord("an aggregate needs at least one user record: add one first")
        pieces = (*self._keys.entries, *self._hash_keys.entries, *self._parts)
        if len(pieces) > _PIECES_MOST:
            pieces = (b"".join(pieces),)
        return OutgoingRecord(
            self._first.partition_key, frame(*pieces), self._first.explicit_hash_key
        )

    def _has_room_to_add(self, record: OutgoingRecord) -> bool:
        """Add a record if there is room for it, and tell whether there was."""
        plan = self._plan(record)
        if not self._has_room_for(plan):
            return False
        self._planned = record, plan
        self.add(record)
        return True

    def _has_room_for(self, plan: _Plan) -> bool:
        return self.size_bytes + plan[0] <= self.max_bytes and len(self) < self.max_records

    def _plan(self, record: OutgoingRecord) -> _Plan:
        """Return what adding ``record`` now would write, having checked the record."""
        data, hash_key = record.data, record.explicit_hash_key
        if not isinstance(data, bytes):
            raise InvalidRecord(
                "data of a record is of type "
                f"{type(data).__name__}: expected bytes; encode it first"
            )
        key_entry = hash_index = hash_entry = b""
        key_index = self._keys.indexes.get(record.partition_key)
        if key_index is None:
            key_index, key_entry = self._keys.new(record.partition_key)
        if hash_key is not None:
            known = self._hash_keys.indexes.get(hash_key)
            hash_index, hash_entry = (known, b"") if known else self._hash_keys.new(hash_key)
        fields = key_index + hash_index + RECORD_DATA + varint(len(data))
        head = RECORD + varint(len(fields) + len(data)) + fields
        size_bytes = len(key_entry) + len(hash_entry) + len(head) + len(data)
        return size_bytes, head, key_entry, hash_entry

    def _no_room(self, plan: _Plan) -> InvalidRecord:
        return InvalidRecord(
            f"the aggregate is full: it has {len(self)} records of at most {self.max_records} and "
            f"{self.size_bytes} bytes of at most {self.max_bytes}, and the next record "
            f"needs {plan[0]} more; ask is_full_for first, and start "
            f"a new aggregate when it says so"
        )

    def _too_large(self, record: OutgoingRecord) -> InvalidRecord:
        return InvalidRecord(
            f"a record has {len(record.data)} bytes "
            f"of data and fits into no aggregate of at most {self.max_bytes} bytes; send it as a "
            f"plain record, or raise max_bytes"
        )


def aggregate(
    records: Iterable[OutgoingRecord],
    *,
    max_bytes: int = MAX_RECORD_BYTES,
    max_records: int = DEFAULT_MAX_SUB_RECORDS,
) -> bytes:
    """
    Return one aggregated record with all ``records``, in order.

    Raises:
        InvalidRecord: there are none, one breaks a limit of Kinesis, or together they are larger
            than allowed.

    """
    builder = AggregateBuilder(max_bytes=max_bytes, max_records=max_records)
    for record in records:
        builder.add(record)
    return builder.build().data


class _KeyTable:
    """
    One of the two key tables: each key is written once, and referred to by its index.

    Args:
        entry_tag: tag of the table's field in the aggregate.
        index_tag: tag of the field in a record that refers to it.
        check: raises InvalidRecord for a key that must not get into the table.

    """

    def __init__(
        self, *, entry_tag: bytes, index_tag: bytes, check: Callable[[str], object]
    ) -> None:
        self.entries: list[bytes] = []
        self.indexes = KeyIndexes(index_tag)
        self._entry_tag = entry_tag
        self._check = check

    def new(self, key: str) -> tuple[bytes, bytes]:
        """Return the field that would refer to ``key`` and the entry it would need."""
        self._check(key)
        text = key.encode()
        entry = self._entry_tag + varint(len(text)) + text
        return self.indexes.following(), entry

    def keep(self, key: str, entry: bytes) -> None:
        """Give a new key the place that ``new`` foresaw for it."""
        self.indexes.add(key)
        self.entries.append(entry)
