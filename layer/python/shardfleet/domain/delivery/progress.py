"""
Which records of a batch are safe to checkpoint.

A checkpoint says that *everything* up to it is done, so it may not pass a record that is not:
the records of a batch are done from its front (protocol.md §8 row 1).
Behaves like Java's ``RecordProcessorCheckpointer``, except that failed records hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, overload

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError


class BatchPositions(Sequence[ExtendedSequenceNumber]):
    """
    The positions of a batch's records; each is made when it is asked for.

    A batch may have a hundred thousand, of which a first, a last and a failed one are ever looked
    at. That they ascend is checked of all, on the texts: of two numbers without leading zeros the
    longer one is greater.

    Args:
        numbers: sequence numbers, in shard order.
        subs: sub-sequence numbers of the same records.

    Raises:
        ProtocolError: they do not strictly ascend, or one is no sequence number.

    """

    __slots__ = ("_numbers", "_subs")

    def __init__(self, numbers: Sequence[str], subs: Sequence[int]) -> None:
        """Check that they ascend."""
        self._numbers, self._subs = numbers, subs
        before, sub_before = "no number", -1
        for number, sub in zip(numbers, subs, strict=True):
            if number is not before and number != before:
                if not (number.isascii() and number.isdecimal()):
                    raise ProtocolError(f"batch position {number}: expected a sequence number")
                if sub_before >= 0 and (len(number), number) < (len(before), before):
                    raise _not_ascending((before, sub_before), (number, sub))
                before = number
            elif sub <= sub_before:
                raise _not_ascending((before, sub_before), (number, sub))
            sub_before = sub

    @classmethod
    def of(cls, positions: Sequence[ExtendedSequenceNumber]) -> Self:
        """Return positions that were made already."""
        return cls(
            [position.sequence_number for position in positions],
            [position.sub_sequence_number for position in positions],
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> ExtendedSequenceNumber: ...

    @overload
    def __getitem__(self, index: slice) -> BatchPositions: ...

    def __getitem__(self, index: int | slice) -> ExtendedSequenceNumber | BatchPositions:
        """Return one position, or those of a part of the batch."""
        if isinstance(index, slice):
            return BatchPositions(self._numbers[index], self._subs[index])
        return ExtendedSequenceNumber(self._numbers[index], self._subs[index])


def _not_ascending(before: tuple[str, int], after: tuple[str, int]) -> ProtocolError:
    first, second = (f"{number}:{sub}" for number, sub in (before, after))
    return ProtocolError(f"batch positions: {second} after {first}, expected ascending")


class BatchProgress:
    """
    How far one batch is done.

    Raises:
        ProtocolError: the positions do not strictly ascend, or one is no sequence number.

    """

    __slots__ = ("_done", "_positions")

    def __init__(self, positions: Sequence[ExtendedSequenceNumber]) -> None:
        """Begin with nothing done; ``positions`` are those of the records, in shard order."""
        checked = isinstance(positions, BatchPositions)
        self._positions = positions if checked else BatchPositions.of(positions)
        self._done = 0

    @property
    def done_count(self) -> int:
        """Return how many leading records are done."""
        return self._done

    @property
    def is_complete(self) -> bool:
        """Tell whether every record is done."""
        return self._done == len(self._positions)

    def complete_through(self, count: int) -> None:
        """
        Note that the first ``count`` records are done; fewer than before changes nothing.

        Raises:
            IndexError: the batch has fewer records, or the count is negative.

        """
        if not 0 <= count <= len(self._positions):
            raise IndexError(f"{count} records of a batch of {len(self._positions)}")
        self._done = max(self._done, count)

    def safe(self) -> ExtendedSequenceNumber | None:
        """Return the furthest position with everything before it done; None if there is none."""
        return self._positions[self._done - 1] if self._done else None
