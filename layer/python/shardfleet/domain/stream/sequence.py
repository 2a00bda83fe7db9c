"""
Sequence numbers, their order, and the one position type of the project.

Order as in Java's ``ExtendedSequenceNumber`` (protocol.md §1.5): ``SHARD_END`` is greater than
everything, whatever its sub-sequence number; the other sentinels count as ``AT_TIMESTAMP`` -3 <
``TRIM_HORIZON`` -2 < ``LATEST`` -1 < any number; numbers are compared as integers of any size,
never as strings; ties go to the sub-sequence number.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from shardfleet.errors import ProtocolError

TRIM_HORIZON = "TRIM_HORIZON"
LATEST = "LATEST"
AT_TIMESTAMP = "AT_TIMESTAMP"
SHARD_END = "SHARD_END"

# The integers that Java's ExtendedSequenceNumber gives to the sentinels (protocol.md §1.5).
_SENTINEL_VALUE = {AT_TIMESTAMP: -3, TRIM_HORIZON: -2, LATEST: -1}
# AWS: a stream keeps records for 24 to 8,760 hours (IncreaseStreamRetentionPeriod).
LONGEST_RETENTION_MS = 8_760 * 3_600_000
# Real numbers have at most 56 digits; the bound only keeps hostile items from being parsed.
_DIGITS_MOST = 129


class ExtendedSequenceNumber(Struct, frozen=True, gc=False):
    """
    A checkpoint: a sequence number or sentinel, and the index inside an aggregated record.

    Attributes:
        sequence_number: decimal digits without leading zeros, or one of ``TRIM_HORIZON``,
            ``LATEST``, ``AT_TIMESTAMP``, ``SHARD_END``.
        sub_sequence_number: index (0...n-1) of the user record inside its aggregate, else 0.

    Raises:
        ProtocolError: the text is neither digits nor a sentinel, or the index is negative.

    """

    sequence_number: str
    sub_sequence_number: int = 0

    def __post_init__(self) -> None:
        """Refuse what Java's parser would refuse."""
        number = self.sequence_number
        # By a pattern it would take twice as long, and a manager asks it of each lease it reads.
        is_number = (
            number.isdigit()
            and number.isascii()
            and len(number) <= _DIGITS_MOST
            and (number[0] != "0" or number == "0")
        )
        if not (is_number or number in _SENTINEL_VALUE or number == SHARD_END):
            message = (
                f"sequence number {number[:80]!r}: expected decimal digits or one of "
                f"{', '.join([*_SENTINEL_VALUE, SHARD_END])}"
            )
            raise ProtocolError(message)
        if self.sub_sequence_number < 0:
            message = f"sub-sequence number {self.sub_sequence_number}: expected 0 or more"
            raise ProtocolError(message)

    @property
    def is_sentinel(self) -> bool:
        """Return whether this is one of the four words rather than a number."""
        return not self.sequence_number.isdigit()

    @property
    def is_shard_end(self) -> bool:
        """Return whether the shard is finished."""
        return self.sequence_number == SHARD_END

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """Return a key whose order is the protocol's order, and equal only for equal numbers."""
        if self.is_shard_end:
            return (1, 0, self.sub_sequence_number)
        value = _SENTINEL_VALUE.get(self.sequence_number)
        number = int(self.sequence_number) if value is None else value
        return (0, number, self.sub_sequence_number)

    def __lt__(self, other: object) -> bool:
        """Order by the protocol, not by text."""
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self.sort_key < other.sort_key

    def __gt__(self, other: object) -> bool:
        """Order by the protocol, not by text."""
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self.sort_key > other.sort_key

    def __le__(self, other: object) -> bool:
        """Order by the protocol, not by text."""
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self.sort_key <= other.sort_key

    def __ge__(self, other: object) -> bool:
        """Order by the protocol, not by text."""
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self.sort_key >= other.sort_key

    def __str__(self) -> str:
        """Render as ``number`` or ``number:sub``."""
        if self.is_sentinel or not self.sub_sequence_number:
            return self.sequence_number
        return f"{self.sequence_number}:{self.sub_sequence_number}"


AT_TRIM_HORIZON = ExtendedSequenceNumber(TRIM_HORIZON)
AT_LATEST = ExtendedSequenceNumber(LATEST)
AT_SHARD_END = ExtendedSequenceNumber(SHARD_END)


class PointKind(StrEnum):
    """What a position points at."""

    TRIM_HORIZON = "TRIM_HORIZON"
    INSTANT = "INSTANT"
    SEQUENCE = "SEQUENCE"
    END = "END"


class StreamIncarnation(Struct, frozen=True):
    """
    One life of a stream: a deleted and re-created stream is another one (hazard H12).

    Attributes:
        stream_arn: the stream's ARN.
        created_ms: creation time, epoch milliseconds.
        retention_ms: how long records are kept, as last described; it may change within a life.
            Where nobody has said, the longest that AWS allows: whoever waits for it waits too long
            rather than not long enough.
        service_ms: the time by the service's clock when it described the stream, epoch
            milliseconds; None: it did not say.

    """

    stream_arn: str
    created_ms: int
    retention_ms: int = LONGEST_RETENTION_MS
    service_ms: int | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same life, whatever was told of it."""
        if not isinstance(other, StreamIncarnation):
            return NotImplemented
        return (self.stream_arn, self.created_ms) == (other.stream_arn, other.created_ms)

    def __hash__(self) -> int:
        """Hash what makes it the same."""
        return hash((self.stream_arn, self.created_ms))


class Position(Struct, frozen=True):
    """
    Where a reader stands: the one position type of fleet, probe and Spark (hazard H4).

    ``SEQUENCE`` means *everything up to and including* (sequence, sub-sequence) is done.

    Attributes:
        incarnation: which life of which stream.
        shard_id: the shard.
        kind: what is pointed at.
        instant_ms: epoch milliseconds for ``INSTANT``, else 0.
        done: the last finished user record for ``SEQUENCE``, else None.

    """

    incarnation: StreamIncarnation
    shard_id: str
    kind: PointKind
    instant_ms: int = 0
    done: ExtendedSequenceNumber | None = None

    def __post_init__(self) -> None:
        """Refuse a position whose parts contradict each other."""
        has_number = self.done is not None and not self.done.is_sentinel
        if has_number != (self.kind is PointKind.SEQUENCE) or (self.done and not has_number):
            message = (
                f"position {self.kind} of {self.shard_id}: {self.done} found; SEQUENCE has a "
                "sequence number, nothing else has"
            )
            raise ProtocolError(message)
        if self.instant_ms < 0 or (self.instant_ms and self.kind is not PointKind.INSTANT):
            message = (
                f"position {self.kind} of {self.shard_id}: instant {self.instant_ms} ms found; "
                "INSTANT has one of 0 or more, nothing else has"
            )
            raise ProtocolError(message)
