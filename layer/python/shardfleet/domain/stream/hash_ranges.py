"""Ranges of hash keys, and what is missing of a whole; rules: protocol.md §4.2 and §4.7."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from msgspec import Struct

HASH_KEY_MAX = 2**128 - 1  # Kinesis: hash keys are unsigned 128-bit integers


class HashKeyRange(Struct, frozen=True, order=True, gc=False):
    """An inclusive range of hash keys, unsigned 128-bit integers."""

    start: int
    end: int

    def contains(self, hash_key: int) -> bool:
        """Return whether the key lies inside, both ends included."""
        return self.start <= hash_key <= self.end

    @property
    def halves(self) -> tuple[HashKeyRange, HashKeyRange]:
        """Return what a shard's children cover if it is split in the middle (SplitShard)."""
        second = (self.start + self.end + 1) // 2
        return HashKeyRange(self.start, second - 1), HashKeyRange(second, self.end)


_BY_START = attrgetter("start", "end")
WHOLE_HASH_SPACE = HashKeyRange(0, HASH_KEY_MAX)


def hash_range_holes(
    ranges: Iterable[HashKeyRange], whole: HashKeyRange = WHOLE_HASH_SPACE
) -> tuple[HashKeyRange, ...]:
    """
    Return what is missing of ``whole`` after merging the ranges, in ascending order.

    Ranges may overlap, repeat, touch, or reach beyond ``whole``; reversed ones count as empty.
    """
    holes: list[HashKeyRange] = []
    expected = whole.start
    for covered in sorted(ranges, key=_BY_START):
        if covered.start > covered.end or covered.end < expected:
            continue
        if covered.start > whole.end:
            break
        if covered.start > expected:
            holes.append(HashKeyRange(expected, covered.start - 1))
        expected = covered.end + 1
    if expected <= whole.end:
        holes.append(HashKeyRange(expected, whole.end))
    return tuple(holes)


def tiles_exactly(ranges: Iterable[HashKeyRange]) -> bool:
    """Return whether the ranges cover the hash space without hole or overlap (protocol.md §4.2)."""
    expected = 0
    for covered in sorted(ranges):
        if covered.start != expected or covered.end < covered.start:
            return False
        expected = covered.end + 1
    return expected == HASH_KEY_MAX + 1
