"""What a worker tells about records: read, handled, failed, given up."""

from __future__ import annotations

from typing import ClassVar

from shardfleet.events.base import LeaseEvent, Level


class PageRead(LeaseEvent, frozen=True, kw_only=True):
    """One GetRecords that brought records; ``brings`` says that one or more is delivered."""

    stream_records: int
    brings: bool
    size_bytes: int
    millis_behind_latest: int

    level: ClassVar[Level] = Level.DEBUG  # one per call


class ReadDelayed(LeaseEvent, frozen=True, kw_only=True):
    """A read was throttled or got no answer; ``failures`` in a row."""

    error: str
    failures: int


class PushLost(LeaseEvent, frozen=True, kw_only=True):
    """Subscribing to a shard failed again and again: for a while it is polled."""

    error: str
    polled_ms: int

    level: ClassVar[Level] = Level.WARNING


class IteratorRenewed(LeaseEvent, frozen=True, kw_only=True):
    """An iterator had expired; reading goes on behind the last accepted record."""

    accepted: str


class FalseShardEnd(LeaseEvent, frozen=True, kw_only=True):
    """An answer contradicted itself about the shard's end and was thrown away."""

    reason: str

    level: ClassVar[Level] = Level.WARNING


class AggregatesNotExpanded(LeaseEvent, frozen=True, kw_only=True):
    """Aggregates delivered raw (malformed) or discarded with all their records (misrouted)."""

    verdict: str
    count: int
    records_dropped: int

    level: ClassVar[Level] = Level.WARNING


class RecordsFiltered(LeaseEvent, frozen=True, kw_only=True):
    """Records that match none of ``filters``: they are done, and no handler gets them."""

    count: int

    level: ClassVar[Level] = Level.DEBUG  # one per batch


class PositionLost(LeaseEvent, frozen=True, kw_only=True):
    """A position is older than what the stream retains: records may be lost."""

    done: str
    policy: str

    level: ClassVar[Level] = Level.ERROR


class PositionOutlived(LeaseEvent, frozen=True, kw_only=True):
    """
    A shard that was left at its tip for longer than the retention has no record now.

    Nothing tells of a loss; what came and went meanwhile, only ``IncomingRecords`` of CloudWatch
    would tell.
    """

    done: str

    level: ClassVar[Level] = Level.WARNING


class BatchHandled(LeaseEvent, frozen=True, kw_only=True):
    """One handler call; ``done`` of its records count as handled."""

    records: int
    done: int
    attempt: int
    duration_ms: int
    millis_behind_latest: int

    level: ClassVar[Level] = Level.DEBUG  # one per call


class BatchFailed(LeaseEvent, frozen=True, kw_only=True):
    """A handler call failed; ``position`` is the first record not handled."""

    position: str
    attempt: int
    reason: str
    error: str

    level: ClassVar[Level] = Level.WARNING


class CheckpointAwaited(LeaseEvent, frozen=True, kw_only=True):
    """With manual checkpoints: nothing goes on before some of so many records are no more open."""

    records: int
    reason: str

    level: ClassVar[Level] = Level.WARNING


class RecordSkipped(LeaseEvent, frozen=True, kw_only=True):
    """A record was given up, kept in full elsewhere, and skipped."""

    position: str
    attempts: int
    kept_at: str

    level: ClassVar[Level] = Level.ERROR


class WindowSkipped(LeaseEvent, frozen=True, kw_only=True):
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


class RecordNotKept(LeaseEvent, frozen=True, kw_only=True):
    """A record to be given up could not be kept elsewhere; it is not skipped."""

    position: str
    error: str

    level: ClassVar[Level] = Level.ERROR


class ShardStopped(LeaseEvent, frozen=True, kw_only=True):
    """A shard is stopped by policy until it is resumed."""

    position: str
    error: str

    level: ClassVar[Level] = Level.ERROR


class ConsumerFailed(LeaseEvent, frozen=True, kw_only=True):
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


class CrashCharged(LeaseEvent, frozen=True, kw_only=True):
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
