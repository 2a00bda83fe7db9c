"""What the lease manager tells: its turns, its decisions about leases, and its slots."""

from __future__ import annotations

from typing import ClassVar

from shardfleet.domain.reasons import Reason
from shardfleet.events.base import Event, LeaseEvent, Level


class ManagerTurnDone(Event, frozen=True, kw_only=True):
    """
    One manager turn, over all unfinished leases (hazard H18).

    Attributes:
        total_leases: finished ones included.
        total_shards: as listed, closed ones included.
        unclaimed_leases: unfinished, neither paused nor asleep, without an owner that is alive.
        expired_leases: whose owner is lost.
        stopped_shards: stopped by policy, or resting after what they raised.
        unreadable_leases: items that claim to be leases and cannot be read.
        paused_leases: unfinished, and paused by a person.
        sleeping_leases: unfinished, and read by nobody because there is nothing to read.
        sleep_off: 1 if nothing may sleep although it is configured, else 0.
        unread_shards: open shards that no lease leads to.
        hash_range_holes: parts of the hash space that no unfinished lease covers.
        millis_behind_latest_max: the greatest lag, of leases that nobody reads too; not of those
            that somebody else reads.
        millis_behind_latest_min: the least, of those that are known; both -1: none is known.
        leases_of_unknown_lag: leases of which nothing is known that would tell; nor of those.
        slots_wanted: worker slots that the leases need.
        slots_running: those that run, and were heard of within two failover times.
        slots_missing: wanted and not running.
        duration_ms: of the turn.

    """

    total_leases: int
    total_shards: int
    unclaimed_leases: int
    expired_leases: int
    stopped_shards: int
    unreadable_leases: int
    paused_leases: int
    sleeping_leases: int
    sleep_off: int
    unread_shards: int
    hash_range_holes: int
    millis_behind_latest_max: int
    millis_behind_latest_min: int
    leases_of_unknown_lag: int
    slots_wanted: int
    slots_running: int
    slots_missing: int
    duration_ms: int


class LeaseBehind(LeaseEvent, frozen=True, kw_only=True):
    """One of the leases that are furthest behind, for the dashboard's table."""

    lag_ms: int


class ManagerTurnFailed(Event, frozen=True, kw_only=True):
    """A manager turn was cut short; the next one begins anew."""

    error: str

    level: ClassVar[Level] = Level.ERROR


class ForeignLeasesFound(Event, frozen=True, kw_only=True):
    """
    The lease table has leases of another stream or mode; nobody touches them (H23).

    Told when a manager first sees them, and when there are others.

    Attributes:
        table: the lease table.
        leases: how many; 0: there are none any more.
        named: some of them, each with what shows that it is not ours.

    """

    table: str
    leases: int
    named: tuple[str, ...]

    level: ClassVar[Level] = Level.WARNING


class ManagerStepCut(Event, frozen=True, kw_only=True):
    """
    A step of a turn ended early; what is left of it is planned anew by the next turn.

    Attributes:
        step: ``losses``, ``assignment``, ``slots``, ``lineage``, ``creation``, ``sleep``,
            ``memory``, ``clean-up`` or ``inspection``.
        reason: its time was over, or a call was refused again and again.

    """

    step: str
    reason: str


class ManagerLockedOut(Event, frozen=True, kw_only=True):
    """
    An invocation of the manager came to no turn (hazard H13).

    Attributes:
        waited_ms: how long it waited for the turn lock.
        reason: who has it, or what the fleet-state table answers.

    """

    waited_ms: int
    reason: str

    level: ClassVar[Level] = Level.WARNING


class LeaseSyncProblem(Event, frozen=True, kw_only=True):
    """The shard list cannot be trusted, so no lease was made from it."""

    problem: Reason

    level: ClassVar[Level] = Level.WARNING


class LeaseCreated(LeaseEvent, frozen=True, kw_only=True):
    """A lease was created."""

    reason: Reason


class LeaseHealed(LeaseEvent, frozen=True, kw_only=True):
    """A lease that others had deleted was made again: nothing is lost, some records come twice."""

    reason: Reason

    level: ClassVar[Level] = Level.WARNING


class LeaseDeleted(LeaseEvent, frozen=True, kw_only=True):
    """A finished lease was deleted."""

    reason: Reason


class LeaseAssigned(LeaseEvent, frozen=True, kw_only=True):
    """A lease was given to a worker."""

    kind: str
    reason: Reason


class LeaseWoken(LeaseEvent, frozen=True, kw_only=True):
    """A sleeping shard is to be read again, or its lease needs no waking any more."""

    reason: Reason
    slept_ms: int


class SleepSwitched(Event, frozen=True, kw_only=True):
    """
    Sleep is off because another application shares the lease table, or on again.

    Attributes:
        is_on: whether idle shards may sleep.
        reason: why not; None if they may.

    """

    is_on: bool
    reason: Reason | None

    level: ClassVar[Level] = Level.WARNING


class HandoverForced(LeaseEvent, frozen=True, kw_only=True):
    """The old owner did not let go in time, so the next owner has the lease now."""

    old_owner: str
    waited_ms: int

    level: ClassVar[Level] = Level.WARNING


class AssignmentLost(LeaseEvent, frozen=True, kw_only=True):
    """A planned assignment lost its race; the next turn plans anew."""

    reason: Reason


class SlotStarted(Event, frozen=True, kw_only=True):
    """A new execution of a slot was intended and started."""

    slot_id: str
    worker_id: str
    start_epoch: int
    reason: Reason


class SlotRestarted(Event, frozen=True, kw_only=True):
    """A slot's execution was over although it held leases."""

    slot_id: str
    worker_id: str
    reason: Reason

    level: ClassVar[Level] = Level.WARNING


class SlotUpkeepFailed(Event, frozen=True, kw_only=True):
    """One slot could not be started or examined; the next turn tries again."""

    slot_id: str
    task: str
    error: str

    level: ClassVar[Level] = Level.ERROR
