"""What a worker tells about records: read, handled, failed, given up."""

from __future__ import annotations

from typing import ClassVar

from shardfleet.events.base import LeaseEvent, Level
from shardfleet.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead(LeaseEvent):
    """One GetRecords that brought records; ``brings`` says that one or more is delivered."""

    stream_records: int
    brings: bool
    size_bytes: int
    millis_behind_latest: int

    level: ClassVar[Level] = Level.DEBUG  # one per call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDelayed(LeaseEvent):
    """A read was throttled or got no answer; ``failures`` in a row."""

    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IteratorRenewed(LeaseEvent):
    """An iterator had expired; reading goes on behind the last accepted record."""

    accepted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseShardEnd(LeaseEvent):
    """An answer contradicted itself about the shard's end and was thrown away."""

    reason: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatesNotExpanded(LeaseEvent):
    """Aggregates delivered raw (malformed) or discarded with all their records (misrouted)."""

    verdict: str
    count: int
    records_dropped: int

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsFiltered(LeaseEvent):
    """Records that match none of ``filters``: they are done, and no handler gets them."""

    count: int

    level: ClassVar[Level] = Level.DEBUG  # one per batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLost(LeaseEvent):
    """A position is older than what the stream retains: records may be lost."""

    done: str
    policy: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionOutlived(LeaseEvent):
    """
    A shard that was left at its tip for longer than the retention has no record now.

    Nothing tells of a loss; what came and went meanwhile, only ``IncomingRecords`` of CloudWatch
    would tell.
    """

    done: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHandled(LeaseEvent):
    """One handler call; ``done`` of its records count as handled."""

    records: int
    done: int
    attempt: int
    duration_ms: int
    millis_behind_latest: int

    level: ClassVar[Level] = Level.DEBUG  # one per call


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed(LeaseEvent):
    """A handler call failed; ``position`` is the first record not handled."""

    position: str
    attempt: int
    reason: str
    error: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAwaited(LeaseEvent):
    """With manual checkpoints: nothing goes on before some of so many records are no more open."""

    records: int
    reason: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSkipped(LeaseEvent):
    """A record was given up, kept in full elsewhere, and skipped."""

    position: str
    attempts: int
    kept_at: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSkipped(LeaseEvent):
    """
    The last call of a window failed too often and is skipped: its result is told nowhere.

    Attributes:
        start_ms: of the window, epoch milliseconds.
        end_ms: of the window.
        attempts: how often it was tried.

    """

    start_ms: int
    end_ms: int
    attempts: int

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordNotKept(LeaseEvent):
    """A record to be given up could not be kept elsewhere; it is not skipped."""

    position: str
    error: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStopped(LeaseEvent):
    """A shard is stopped by policy until it is resumed."""

    position: str
    error: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFailed(LeaseEvent):
    """
    Reading a shard raised what nobody foresaw: it alone rests, then it is tried again.

    Attributes:
        error: what kind, and file, line and function that raised.
        attempts: failures in a row.
        back_off_ms: how long it rests.

    """

    error: str
    attempts: int
    back_off_ms: int

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashCharged(LeaseEvent):
    """
    The process died in this call (hazards H9, H21).

    Attributes:
        call: its kind, ``records`` or what it was for without them.
        first: position of its first record; without records, how far the shard was.
        count: its records.
        crashes: deaths on its account.

    """

    call: str
    first: str
    count: int
    crashes: int

    level: ClassVar[Level] = Level.WARNING
