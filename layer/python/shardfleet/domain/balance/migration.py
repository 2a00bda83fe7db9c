"""
From a Java KCL to a fleet and back, while records flow: what is to be done next.

All that there is to know is in the tables, so that a migration can be left at any step and gone on
with, or turned round, by anybody: the next step is planned from what is found. While one is under
way no slot is shown to Java: its leader moves leases between workers that it sees, and would take
back what it has just handed over (protocol.md §2.6, §3.2). Each lease moves once, by a graceful
handover (§3.5); what a KCL 2 holds is taken, as its own workers take from each other (§1.8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import Assignment, AssignmentKind
from shardfleet.domain.balance.kcl3 import CRASHES_MOST, ROLLED_BACK, UPGRADING, Direction, Kcl3
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import HoldsFewest, OwnerEnds
from shardfleet.domain.slots.slot import Slot, SlotState


class MigrationTask(StrEnum):
    """What is next. What begins with "await" is somebody else's to do."""

    MAKE_INDEX = "make the index"
    AWAIT_INDEX = "await the index"
    RESUME = "resume the fleet"
    HIDE = "hide the fleet from Java's leader"
    AWAIT_HIDDEN = "await that the fleet's rows are gone"
    AWAIT_SLOTS = "await slots with room"
    AWAIT_LIFE = "await a sign of life of Java's workers"
    MOVE = "hand leases over"
    AWAIT_HANDOVERS = "await handovers"
    AWAIT_EXPIRY = "await leases of lost owners"
    AWAIT_JAVAS_END = "await the end of Java's workers"
    DRAIN = "drain the fleet"
    AWAIT_JAVA = "await Java's workers"
    SHOW = "end the hiding"
    DONE = "done"


class IndexStatus(StrEnum):
    """Of `LeaseOwnerToLeaseKeyIndex`, as DynamoDB says it; empty: there is none."""

    MISSING = ""
    CREATING = "CREATING"
    UPDATING = "UPDATING"
    DELETING = "DELETING"
    ACTIVE = "ACTIVE"


class MigrationSnapshot(Struct, frozen=True, kw_only=True):
    """
    What a step is planned by.

    Attributes:
        at_ms: when it was read, epoch milliseconds.
        leases: all leases.
        slots: all slots.
        kcl3: what a KCL 3 keeps beside the leases.
        is_paused: a person has paused the whole fleet.
        is_hidden: no slot is shown to Java, in whichever direction.
        expired: keys of leases that nobody renews.
        index: of the lease table.
        unproven: ids of workers whose row is all that was seen of them: it was not written anew,
            and no lease of theirs was renewed, since this person looks.

    """

    at_ms: int
    leases: Sequence[Lease]
    slots: Sequence[Slot]
    kcl3: Kcl3
    is_paused: bool = False
    is_hidden: bool = False
    expired: Collection[str] = ()
    index: IndexStatus = IndexStatus.ACTIVE
    unproven: Collection[str] = ()

    @property
    def ours(self) -> frozenset[str]:
        """Return the worker ids of all slots."""
        return frozenset(slot.worker_id for slot in self.slots)

    @property
    def unfinished(self) -> Sequence[Lease]:
        """Return the leases that are not at SHARD_END."""
        return [lease for lease in self.leases if not lease.is_finished]

    @property
    def java(self) -> frozenset[str]:
        """Return the ids of KCL 3 workers that show themselves, less those that lost a lease."""
        lost = {le.effective_owner for le in self.unfinished if le.lease_key in self.expired}
        return frozenset(
            row.worker_id
            for row in self.kcl3.rows
            if row.is_fresh(self.at_ms) and row.worker_id not in self.ours | lost
        )

    @property
    def hands_over(self) -> bool:
        """Return whether Java's workers hand leases over when asked (§2.3)."""
        return bool(self.java) and self.kcl3.version not in (UPGRADING, ROLLED_BACK)

    @property
    def of_java(self) -> Sequence[Lease]:
        """Return the unfinished leases that others have, or are to get."""
        return [lease for lease in self.unfinished if owners_of(lease) - self.ours]

    @property
    def of_fleet(self) -> Sequence[Lease]:
        """Return the unfinished leases that slots have, or are to get."""
        return [lease for lease in self.unfinished if owners_of(lease) & self.ours]

    @property
    def alive(self) -> Sequence[Slot]:
        """Return the slots that have not ended, in order."""
        alive = (slot for slot in self.slots if slot.state is not SlotState.ENDED)
        return sorted(alive, key=lambda slot: slot.slot_id)

    @property
    def is_shown(self) -> bool:
        """Return whether Java's leader sees a slot: a row that is too old tells it nothing."""
        fresh = {row.worker_id for row in self.kcl3.rows if row.is_fresh(self.at_ms)}
        return not fresh.isdisjoint(self.ours)


class MigrationStep(Struct, frozen=True, kw_only=True):
    """
    What is next.

    Attributes:
        step: which.
        moves: which leases go to whom, to be written now.
        leases: keys of the leases that it is about.
        workers: ids of the workers that it is about.

    """

    step: MigrationTask
    moves: Sequence[Assignment] = ()
    leases: Sequence[str] = ()
    workers: Sequence[str] = ()


def owners_of(lease: Lease) -> frozenset[str]:
    """Return who has a lease and who is to get it."""
    return frozenset(o for o in (lease.lease_owner, lease.checkpoint_owner) if o is not None)


def plan_migration(
    direction: Direction, config: FleetConfig, snapshot: MigrationSnapshot
) -> MigrationStep:
    """Return the next step in a direction; the last one is `MigrationTask.DONE`."""
    if direction is Direction.FROM_JAVA:
        return _from_java(config, snapshot)
    return _to_java(snapshot)


def _from_java(config: FleetConfig, found: MigrationSnapshot) -> MigrationStep:
    if found.index is IndexStatus.MISSING:
        return MigrationStep(step=MigrationTask.MAKE_INDEX)
    if found.index not in (IndexStatus.ACTIVE, IndexStatus.UPDATING):
        return MigrationStep(step=MigrationTask.AWAIT_INDEX)
    if found.is_paused:
        return MigrationStep(step=MigrationTask.RESUME)
    if not found.of_java and not found.java:
        return _ended(found)
    if not found.is_hidden:
        return MigrationStep(step=MigrationTask.HIDE)
    if found.is_shown:
        return MigrationStep(step=MigrationTask.AWAIT_HIDDEN)
    movable = [le for le in found.of_java if _is_movable(le, found)]
    if moves := _given(_rooms(config, found), movable):
        return _moving(moves)
    if movable:
        return MigrationStep(step=MigrationTask.AWAIT_SLOTS, leases=_keys(movable))
    if waiting := _waiting(found, found.of_java):
        return waiting
    return MigrationStep(step=MigrationTask.AWAIT_JAVAS_END, workers=sorted(found.java))


def _to_java(found: MigrationSnapshot) -> MigrationStep:
    if found.hands_over and found.of_fleet:
        # The row of one that was killed is fresh for a minute.
        takers = found.java.difference(found.unproven)
        if not takers:
            return MigrationStep(step=MigrationTask.AWAIT_LIFE, workers=sorted(found.java))
        if not found.is_hidden:
            return MigrationStep(step=MigrationTask.HIDE)
        if found.is_shown:
            return MigrationStep(step=MigrationTask.AWAIT_HIDDEN)
        held = Counter(o for le in found.unfinished for o in owners_of(le) if o in found.java)
        movable = [le for le in found.of_fleet if _is_movable(le, found)]
        most = len(found.unfinished)
        if moves := _given({worker: most - held[worker] for worker in takers}, movable):
            return _moving(moves)
        if waiting := _waiting(found, found.of_fleet):
            return waiting
    if found.alive or not found.is_paused:
        slots = [slot.slot_id for slot in found.alive]
        return MigrationStep(step=MigrationTask.DRAIN, workers=slots, leases=_keys(found.of_fleet))
    if left := [le for le in found.unfinished if not owners_of(le) - found.ours]:
        return MigrationStep(
            step=MigrationTask.AWAIT_JAVA, leases=_keys(left), workers=sorted(found.java)
        )
    return _ended(found)


def _ended(found: MigrationSnapshot) -> MigrationStep:
    return MigrationStep(step=MigrationTask.SHOW if found.is_hidden else MigrationTask.DONE)


def _moving(moves: Sequence[Assignment]) -> MigrationStep:
    return MigrationStep(
        step=MigrationTask.MOVE,
        moves=moves,
        leases=[move.lease.lease_key for move in moves],
        workers=sorted({move.worker_id for move in moves}),
    )


def _waiting(found: MigrationSnapshot, leases: Sequence[Lease]) -> MigrationStep | None:
    pending = [le for le in leases if le.checkpoint_owner is not None]
    if pending:
        return MigrationStep(step=MigrationTask.AWAIT_HANDOVERS, leases=_keys(pending))
    lost = [le for le in leases if le.lease_key in found.expired]
    return MigrationStep(step=MigrationTask.AWAIT_EXPIRY, leases=_keys(lost)) if lost else None


def _is_movable(lease: Lease, found: MigrationSnapshot) -> bool:
    return lease.checkpoint_owner is None and lease.lease_key not in found.expired


def _rooms(config: FleetConfig, found: MigrationSnapshot) -> dict[str, int]:
    """Return worker id to how many more leases it may have; slots that crash have no room."""
    held = Counter(owner for lease in found.unfinished for owner in owners_of(lease))
    return {
        slot.worker_id: config.leases_per_worker - held[slot.worker_id]
        for slot in found.alive
        if slot.state is SlotState.RUNNING
        and not (slot.drain or slot.leaving_ms)
        and slot.open_turns <= CRASHES_MOST
        and found.at_ms - slot.heartbeat_ms <= 2 * config.failover_ms
    }


def _given(rooms: Mapping[str, int], leases: Sequence[Lease]) -> list[Assignment]:
    """Give each lease, in order of keys, to who has most room; without room nothing is given."""
    left, had = dict(rooms), Counter[str]()
    given: list[Assignment] = []
    for lease in sorted(leases, key=lambda each: each.lease_key):
        worker = max(sorted(left), key=lambda each: left[each], default="")
        if left.get(worker, 0) <= 0:
            break
        why = OwnerEnds(lease.lease_owner or "", HoldsFewest(had[worker]))
        given.append(Assignment(lease, worker, AssignmentKind.STEAL, why))
        left[worker] -= 1
        had[worker] += 1
    return given


def _keys(leases: Sequence[Lease]) -> list[str]:
    return sorted(lease.lease_key for lease in leases)
