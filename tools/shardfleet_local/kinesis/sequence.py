"""
Sequence numbers of the current AWS layout: 186 bits, 56 decimal digits.

Rule: protocol.md section 5.4 (KCL's `SequenceNumberValidator`): the bit length is exactly 186, bits
184 and up hold the version 2, bits 4 to 35 the shard number. AWS does not publish the rest; ours
hold the time of the write and a counter, so that numbers grow within a stream and those of a
re-created stream are greater than those of its predecessor (hazard H12).

    185..184  version (2)
    183..136  milliseconds since the epoch, never decreasing within a stream
    135..36   counter within the stream
    35..4     shard number
    3..0      constant 2, as AWS's numbers end

All numbers have 56 digits, so that the order of the strings is the order of the numbers; the
engine stores and compares strings only.
"""

import re

VERSION = 2  # fact K93
_VERSION_SHIFT = 184  # fact K93
_TIME_SHIFT = 136  # ours
_COUNTER_SHIFT = 36  # ours
_SHARD_SHIFT = 4  # fact K93
_TAIL = 2  # fact K93
_FORMAT = re.compile(r"0|[1-9]\d{0,128}")


class SequenceMint:
    """The counter of one stream; every number it mints is greater than all before."""

    __slots__ = ("_base", "_base_ms", "_counter", "last")

    def __init__(self, created_ms: int) -> None:
        self._counter = 0
        self._base_ms = created_ms
        self._base = _base(created_ms)
        self.last = str(self._base)
        """The greatest number minted so far (before the first: a number below all of them)."""

    def mint(self, shard_number: int, at_ms: int) -> str:
        """Return the next number, for a write to that shard at that instant (epoch ms)."""
        if at_ms > self._base_ms:
            self._base_ms = at_ms
            self._base = _base(at_ms)
        self._counter += 1
        number = str(
            self._base + (self._counter << _COUNTER_SHIFT) + (shard_number << _SHARD_SHIFT) + _TAIL
        )
        self.last = number
        return number


def _base(at_ms: int) -> int:
    return (VERSION << _VERSION_SHIFT) | (at_ms << _TIME_SHIFT)


def shard_number_of(number: str) -> int | None:
    """Return the number of the shard that a sequence number encodes, None: of another layout."""
    value = int(number)
    if value.bit_length() != _VERSION_SHIFT + VERSION.bit_length():
        return None
    return value >> _SHARD_SHIFT & 0xFFFF_FFFF


def is_well_formed(number: str) -> bool:
    """Return whether the text satisfies the API's pattern for sequence numbers."""
    return _FORMAT.fullmatch(number) is not None
