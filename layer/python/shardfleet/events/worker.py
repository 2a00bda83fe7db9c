"""What a worker tells about its turns and about the leases in its hands."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from shardfleet.domain.reasons import Reason
from shardfleet.events.base import Event, LeaseEvent, Level
from shardfleet.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegun(Event):
    """
    A worker invocation has claimed its slot.

    Attributes:
        slot_id: the slot.
        worker_id: its ``leaseOwner``.
        epoch: of this invocation.
        suspicious: the invocation before it did not end in order.
        recovery_ms: then the time since its last sign of life, else None.

    """

    slot_id: str
    worker_id: str
    epoch: int
    suspicious: bool
    recovery_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRefused(Event):
    """A worker invocation is outdated and did nothing (hazard H3)."""

    slot_id: str
    reason: str


class TurnEnding(StrEnum):
    """Why a worker invocation ended."""

    TIME = "time is over"
    HALTED = "no answer in time"
    IDLE = "nothing held, nothing assigned"
    DRAINED = "asked to drain"
    STALE = "another invocation has taken over"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(Event):
    """A worker invocation ended in good order, or because another one took over."""

    slot_id: str
    worker_id: str
    outcome: str
    reason: TurnEnding
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
    """The slot record, the index or a lease could not be read; the next tick tries again."""

    slot_id: str
    worker_id: str
    error: str

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat(Event):
    """A worker has told that it lives: also when nothing else happens, so that metrics flow."""

    slot_id: str
    worker_id: str
    held_leases: int

    level: ClassVar[Level] = Level.DEBUG  # several a minute


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
class LeaseUnreadable(LeaseEvent):
    """
    A lease item cannot be read, so it is left alone, and so is what descends from it.

    ``reason`` names the attribute, what was found and what is allowed.
    """

    reason: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentUnreadable(Event):
    """
    A document of the fleet-state table cannot be read; nothing beside it is harmed.

    Attributes:
        document: its kind and id, as `shardfleet documents` takes them.
        reason: what of it was found otherwise than it is written; quotes nothing.

    """

    document: str
    reason: str

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAsleep(LeaseEvent):
    """A shard has had nothing to read for so long that its lease is given up."""

    idle_ms: int


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
class ShardMissing(LeaseEvent):
    """The service does not know a shard that has not ended: it waits, and is looked at again."""

    checkpoint: str
    since_ms: int
    reason: Reason

    level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardExpired(LeaseEvent):
    """A shard left the stream before it was read to its end: records may be lost."""

    checkpoint: str
    reason: Reason

    level: ClassVar[Level] = Level.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentsAwaited(LeaseEvent):
    """A shard is not read before its parents are done (protocol.md §4.7)."""

    parents: tuple[str, ...]
