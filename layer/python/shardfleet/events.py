"""
Diagnostic events: frozen dataclasses, the only thing that metrics, logs and tests see.

An event's log name is its class name; its fields are ids and numbers with units in their names.
No payload and no partition key is ever part of an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class Level(IntEnum):
    """How much a person should care, in the numbers of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    The root of all events.

    Attributes:
        level: how much a person should care.

    """

    level: ClassVar[Level] = Level.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent(Event):
    """Something about one lease, seen by one worker or by the manager."""

    lease_key: str
    worker_id: str | None = None


# --- the lease manager's


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerTurnDone(Event):
    """One manager turn, over all unfinished leases (hazard H18)."""

    total_leases: int
    total_shards: int
    unclaimed_leases: int
    expired_leases: int
    stopped_shards: int
    millis_behind_latest_max: int
    leases_of_unknown_lag: int
    slots_wanted: int
    slots_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerTurnFailed(Event):
    """A manager turn was cut short; the next one begins anew."""

    error: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSyncProblem(Event):
    """The shard list cannot be trusted, so no lease was made from it."""

    problem: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCreated(LeaseEvent):
    """A lease was created."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDeleted(LeaseEvent):
    """A finished lease was deleted."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAssigned(LeaseEvent):
    """A lease was given to a worker."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLost(LeaseEvent):
    """A planned assignment lost its race; the next turn plans anew."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStarted(Event):
    """A new execution of a slot was intended and started."""

    slot_id: str
    worker_id: str
    start_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRestarted(Event):
    """A slot's execution was over although it held leases."""

    slot_id: str
    worker_id: str
    reason: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUpkeepFailed(Event):
    """One slot could not be started or examined; the next turn tries again."""

    slot_id: str
    task: str
    error: str

    level: ClassVar[Level] = Level.ERROR


# --- the worker's


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegun(Event):
    """A worker invocation has claimed its slot."""

    slot_id: str
    worker_id: str
    epoch: int
    suspicious: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRefused(Event):
    """A worker invocation is outdated and did nothing (hazard H3)."""

    slot_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(Event):
    """A worker invocation ended in good order, or because another one took over."""

    slot_id: str
    worker_id: str
    outcome: str
    reason: str
    held_leases: int
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed(Event):
    """A worker invocation ends because of an error; the state machine tries again."""

    slot_id: str
    worker_id: str
    error: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDelayed(Event):
    """The slot record could not be read or written; the next tick tries again."""

    slot_id: str
    worker_id: str
    error: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAdopted(LeaseEvent):
    """A worker has a lease in its hands, renewed."""

    counter: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(LeaseEvent):
    """A worker no longer has a lease."""

    reason: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(LeaseEvent):
    """A worker gave a lease back: to its next owner, or to nobody."""

    checkpoint: str
    next_owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverNoticed(LeaseEvent):
    """Another worker is to have a lease; the running batch is finished first."""

    next_owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWriteRecognised(LeaseEvent):
    """A write whose answer never came had landed (hazard H1)."""

    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardCheckpoint(LeaseEvent):
    """A checkpoint lay behind the stored one and was refused: a bug (hazard H8)."""

    stored: str
    refused: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDelayed(LeaseEvent):
    """A lease could not be written; it is tried again while the lease lasts."""

    error: str
    age_ms: int

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnded(LeaseEvent):
    """A shard is done to its end, and its children have leases."""

    children: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardExpired(LeaseEvent):
    """A shard left the stream before it was read to its end: records may be lost."""

    checkpoint: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentsAwaited(LeaseEvent):
    """A shard is not read before its parents are done (protocol.md §4.7)."""

    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead(LeaseEvent):
    """One GetRecords that brought records; ``user_records`` after deaggregation."""

    stream_records: int
    user_records: int
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
class PositionLost(LeaseEvent):
    """A position is older than what the stream retains: records may be lost."""

    done: str
    policy: str

    level: ClassVar[Level] = Level.ERROR


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
class RecordSkipped(LeaseEvent):
    """A record was given up, kept in full elsewhere, and skipped."""

    position: str
    attempts: int
    kept_at: str

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
class CrashCharged(LeaseEvent):
    """The process died while it handled this range (hazard H9)."""

    first: str
    count: int
    crashes: int

    level: ClassVar[Level] = Level.WARNING
