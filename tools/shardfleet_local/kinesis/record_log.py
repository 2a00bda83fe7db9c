"""
The records of one shard, ready to be sent: append at the end, trim at the front, read from a place.

A place is an *offset*: how many records the shard had taken before. Offsets outlive trimming, so an
iterator needs nothing else. Four parallel lists share one index, so that every search is a
bisection and every read a slice:

    _records    the wire form of each record, data still in base64 (neither put nor get decodes it)
    _sequences  sequence numbers, strictly increasing, all of one length (see sequence.py)
    _arrivals   arrival times in ms, never decreasing
    _ends       bytes up to and including each record, since the shard began
"""

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

_COMPACT_AT = 4_096  # ours


class StoredRecord(dict[str, Any]):
    """
    The wire form of a record.

    Attributes:
        cbor: the same in CBOR, once somebody has read it so: to encode a record takes longer than
            to send ten.

    """

    __slots__ = ("cbor",)

    def __init__(self, members: dict[str, Any]) -> None:
        """Keep the members; nothing is in CBOR yet."""
        super().__init__(members)
        self.cbor: bytes | None = None


class Slice(NamedTuple):
    """What one read found: wire records, the offset after them, their bytes."""

    records: list[StoredRecord]
    next_offset: int
    size_bytes: int


class RecordLog:
    """An append-only log whose oldest part falls away."""

    __slots__ = ("_arrivals", "_base", "_bytes_before", "_ends", "_head", "_records", "_sequences")

    def __init__(self) -> None:
        self._records: list[StoredRecord] = []
        self._sequences: list[str] = []
        self._arrivals: list[int] = []
        self._ends: list[int] = []
        self._base = 0
        self._head = 0
        self._bytes_before = 0

    @property
    def oldest(self) -> int:
        """Offset of the oldest record still there (equal to `end` when there is none)."""
        return self._base + self._head

    @property
    def end(self) -> int:
        """Offset that the next record will have."""
        return self._base + len(self._records)

    def append(self, record: StoredRecord, *, arrival_ms: int, size_bytes: int) -> None:
        """Add a record in wire form; sequence number and arrival must not go backwards."""
        self._records.append(record)
        self._sequences.append(record["SequenceNumber"])
        self._arrivals.append(arrival_ms)
        self._ends.append((self._ends[-1] if self._ends else self._bytes_before) + size_bytes)

    def trim(self, horizon_ms: int) -> None:
        """Forget every record that arrived before the horizon."""
        if self._head < len(self._arrivals) and self._arrivals[self._head] < horizon_ms:
            self._head = bisect_left(self._arrivals, horizon_ms, lo=self._head)
            self._compact()

    def _compact(self) -> None:
        # Deleting a prefix moves the rest of four lists; doing it once half is gone keeps the cost
        # per record constant.
        head = self._head
        if head < len(self._records) and (head < _COMPACT_AT or head * 2 < len(self._records)):
            return
        self._bytes_before = self._ends[head - 1] if head else self._bytes_before
        for column in (self._records, self._sequences, self._arrivals, self._ends):
            del column[:head]
        self._base += head
        self._head = 0

    def offset_at_sequence(self, number: str) -> int:
        """Return the offset of the first record with this sequence number or a greater one."""
        return self._base + bisect_left(self._sequences, number, lo=self._head)

    def has_trimmed(self, number: str) -> bool:
        """Return whether a record with this sequence number may have been forgotten."""
        at = self.offset_at_sequence(number)
        is_there = at < self.end and self.sequence_number(at) == number
        return 0 < at == self.oldest and not is_there

    def offset_after_sequence(self, number: str) -> int:
        """Return the offset of the first record with a greater sequence number."""
        return self._base + bisect_right(self._sequences, number, lo=self._head)

    def offset_at_time(self, at_ms: int) -> int:
        """Return the offset of the first record that arrived at that instant or later."""
        return self._base + bisect_left(self._arrivals, at_ms, lo=self._head)

    def arrival_ms(self, offset: int) -> int:
        """Return when the record at the offset arrived (epoch ms)."""
        return self._arrivals[offset - self._base]

    def sequence_number(self, offset: int) -> str:
        """Return the sequence number of the record at the offset."""
        return self._sequences[offset - self._base]

    def read(self, offset: int, *, limit: int, max_bytes: int) -> Slice:
        """
        Return records from the offset on (from the oldest, if that one is gone).

        At most `limit` records and `max_bytes` bytes, but always one record if there is one.
        """
        first = max(offset - self._base, self._head)
        before = self._ends[first - 1] if first else self._bytes_before
        last = min(first + limit, bisect_right(self._ends, before + max_bytes, lo=first))
        last = min(max(last, first + 1), len(self._records))
        size = self._ends[last - 1] - before if last > first else 0
        return Slice(self._records[first:last], self._base + last, size)
