"""
Records that a handler has and has not checkpointed, with ``checkpoint`` ``manual``.

They stay open across handler calls, in the order of the shard. The shard's checkpoint moves to what
the handler checkpoints (the KCL's ``RecordProcessorCheckpointer``), and behind records that no
handler gets (filtered, given up) only once nothing before them is open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.records import Record


class OpenRecords:
    """
    What is open of one shard, within bounds.

    Args:
        records_most: with so many open, no more are handed over.
        bytes_most: the same for their payload.
        age_most_ms: the same once the oldest is open for so long.

    """

    __slots__ = ("_age_most_ms", "_bytes", "_bytes_most", "_open", "_passed", "_records_most")

    def __init__(self, *, records_most: int, bytes_most: int, age_most_ms: int) -> None:
        """Begin with nothing open."""
        self._records_most = records_most
        self._bytes_most = bytes_most
        self._age_most_ms = age_most_ms
        self._open: deque[tuple[ExtendedSequenceNumber, int, int]] = deque()
        self._bytes = 0
        self._passed: ExtendedSequenceNumber | None = None

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    @property
    def records_left(self) -> int:
        """Return how many more records fit."""
        return self._records_most - len(self._open)

    @property
    def bytes_left(self) -> int:
        """Return how many more payload bytes fit."""
        return self._bytes_most - self._bytes

    def is_full(self, now_ms: int, *, adding: Sequence[Record] = ()) -> bool:
        """Return whether a bound is reached, or will be with these records."""
        is_old = bool(self._open) and now_ms - self._open[0][2] >= self._age_most_ms
        if is_old or self.records_left <= len(adding):
            return True
        return self.bytes_left <= sum(len(record.data) for record in adding)

    def add(self, records: Sequence[Record], *, now_ms: int) -> None:
        """Note that a handler call has returned from these."""
        for record in records:
            self._open.append((position_of(record), len(record.data), now_ms))
            self._bytes += len(record.data)

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Note that no handler gets what lies behind the open records, up to here."""
        self._passed = position

    def close(self, through: ExtendedSequenceNumber | None) -> ExtendedSequenceNumber | None:
        """Close what is checkpointed; return up to where everything is done, None: no news."""
        done = None
        while self._open and through is not None and self._open[0][0] <= through:
            done, size, _ = self._open.popleft()
            self._bytes -= size
        if self._open or self._passed is None:
            return done
        return self._passed if done is None else max(done, self._passed)
