"""
Which records of a batch are safe to checkpoint.

A checkpoint says that *everything* up to it is done, so it may not pass a record that is not:
completions out of order are kept until what lies before them is done (protocol.md §8 row 1).
Behaves like Java's ``RecordProcessorCheckpointer``, except that failed records hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shardfleet.domain.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError


class BatchProgress:
    """
    How far one batch is done.

    Raises:
        ProtocolError: the positions do not strictly ascend, or one is no sequence number.

    """

    __slots__ = ("_ahead", "_done", "_positions")

    def __init__(self, positions: Sequence[ExtendedSequenceNumber]) -> None:
        """Begin with nothing done; ``positions`` are those of the records, in shard order."""
        for position in positions:
            if position.is_sentinel:
                raise ProtocolError(f"batch position {position}: expected a sequence number")
        for before, after in pairwise(positions):
            if after <= before:
                raise ProtocolError(f"batch positions: {after} after {before}, expected ascending")
        self._positions = tuple(positions)
        self._done = 0
        self._ahead: set[int] = set()

    @property
    def done_count(self) -> int:
        """Return how many leading records are done."""
        return self._done

    @property
    def is_complete(self) -> bool:
        """Tell whether every record is done."""
        return self._done == len(self._positions)

    def complete(self, index: int) -> None:
        """
        Note that one record is done, in any order, any number of times.

        Raises:
            IndexError: no such record.

        """
        if not 0 <= index < len(self._positions):
            raise IndexError(f"record {index} of a batch of {len(self._positions)}")
        if index >= self._done:
            self._ahead.add(index)
        self._advance()

    def complete_through(self, count: int) -> None:
        """
        Note that the first ``count`` records are done; fewer than before changes nothing.

        Raises:
            IndexError: the batch has fewer records, or the count is negative.

        """
        if not 0 <= count <= len(self._positions):
            raise IndexError(f"{count} records of a batch of {len(self._positions)}")
        self._done = max(self._done, count)
        self._ahead = {index for index in self._ahead if index >= self._done}
        self._advance()

    def safe(self) -> ExtendedSequenceNumber | None:
        """Return the furthest position with everything before it done; None if there is none."""
        return self._positions[self._done - 1] if self._done else None

    def _advance(self) -> None:
        while self._done in self._ahead:
            self._ahead.discard(self._done)
            self._done += 1
