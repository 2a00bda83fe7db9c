"""What a worker tells about its turns and about the leases in its hands."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from shardfleet.domain.reasons import Reason
from shardfleet.events.base import Event, LeaseEvent, Level


class TurnBegun(Event, frozen=True, kw_only=True):
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


class TurnRefused(Event, frozen=True, kw_only=True):
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


class TurnEnded(Event, frozen=True, kw_only=True):
    """A worker invocation ended in good order, or because another one took over."""

    slot_id: str
    worker_id: str
    outcome: str
    reason: TurnEnding
    held_leases: int
    duration_ms: int


class TurnFailed(Event, frozen=True, kw_only=True):
    """A worker invocation ends because of an error; the state machine tries again."""

    slot_id: str
    worker_id: str
    error: str

    level: ClassVar[Level] = Level.ERROR


class SlotDelayed(Event, frozen=True, kw_only=True):
    """The slot record, the index or a lease could not be read; the next tick tries again."""

    slot_id: str
    worker_id: str
    error: str

    level: ClassVar[Level] = Level.WARNING


class ManagerCalled(Event, frozen=True, kw_only=True):
    """
    A worker has called the manager, which nobody had called.

    Attributes:
        waiting: leases of children that found no room with the worker.
        died: the manager before has let its hold of the turn lock run out.
        error: why it was not called; empty: it was.

    """

    waiting: int
    died: bool
    error: str = ""


class WorkerBeat(Event, frozen=True, kw_only=True):
    """A worker has told that it lives: also when nothing else happens, so that metrics flow."""

    slot_id: str
    worker_id: str
    held_leases: int

    level: ClassVar[Level] = Level.DEBUG  # several a minute


class LeaseAdopted(LeaseEvent, frozen=True, kw_only=True):
    """A worker has a lease in its hands, renewed."""

    counter: int
    checkpoint: str


class LeaseLost(LeaseEvent, frozen=True, kw_only=True):
    """A worker no longer has a lease."""

    reason: str

    level: ClassVar[Level] = Level.WARNING


class LeaseUnreadable(LeaseEvent, frozen=True, kw_only=True):
    """
    A lease item cannot be read, so it is left alone, and so is what descends from it.

    ``reason`` names the attribute, what was found and what is allowed.
    """

    reason: str

    level: ClassVar[Level] = Level.ERROR


class DocumentUnreadable(Event, frozen=True, kw_only=True):
    """
    A document of the fleet-state table cannot be read; nothing beside it is harmed.

    Attributes:
        document: its kind and id, as `shardfleet documents` takes them.
        reason: what of it was found otherwise than it is written; quotes nothing.

    """

    document: str
    reason: str

    level: ClassVar[Level] = Level.ERROR


class LeaseAsleep(LeaseEvent, frozen=True, kw_only=True):
    """A shard has had nothing to read for so long that its lease is given up."""

    idle_ms: int


class LeaseReleased(LeaseEvent, frozen=True, kw_only=True):
    """A worker gave a lease back: to its next owner, or to nobody."""

    checkpoint: str
    next_owner: str | None


class HandoverNoticed(LeaseEvent, frozen=True, kw_only=True):
    """Another worker is to have a lease; the running batch is finished first."""

    next_owner: str


class HandoverUnclaimed(LeaseEvent, frozen=True, kw_only=True):
    """The slot that was to have a lease next gives no sign of life: its owner keeps it."""

    next_owner: str


class OwnWriteRecognised(LeaseEvent, frozen=True, kw_only=True):
    """A write whose answer never came had landed (hazard H1)."""

    counter: int


class BackwardCheckpoint(LeaseEvent, frozen=True, kw_only=True):
    """A checkpoint lay behind the stored one and was refused: a bug (hazard H8)."""

    stored: str
    refused: str

    level: ClassVar[Level] = Level.ERROR


class WriteDelayed(LeaseEvent, frozen=True, kw_only=True):
    """A lease could not be written; it is tried again while the lease lasts."""

    error: str
    age_ms: int

    level: ClassVar[Level] = Level.WARNING


class ShardEnded(LeaseEvent, frozen=True, kw_only=True):
    """A shard is done to its end, and its children have leases."""

    children: tuple[str, ...]


class ShardMissing(LeaseEvent, frozen=True, kw_only=True):
    """The service does not know a shard that has not ended: it waits, and is looked at again."""

    checkpoint: str
    since_ms: int
    reason: Reason

    level: ClassVar[Level] = Level.WARNING


class ShardExpired(LeaseEvent, frozen=True, kw_only=True):
    """A shard left the stream before it was read to its end: records may be lost."""

    checkpoint: str
    reason: Reason

    level: ClassVar[Level] = Level.ERROR


class ParentsAwaited(LeaseEvent, frozen=True, kw_only=True):
    """A shard is not read before its parents are done (protocol.md §4.7)."""

    parents: tuple[str, ...]
