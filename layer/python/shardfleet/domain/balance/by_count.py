"""
Who gets which lease: balanced by count (the manager's view), or greedy (one worker's view).

Rules: docs/protocol.md A1-A10 (§1.8, §4.7); by load: :mod:`shardfleet.domain.balance.by_load`. A
lease that somebody healthy holds is moved only to even out numbers, never more than one per plan;
finished leases are no load (amazon-kinesis-client issue 1247).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType

from msgspec import Struct, field

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    ChildOfEnded,
    HoldsFewest,
    HoldsMore,
    NoWorkerHasRoom,
    NoWorkerRuns,
    OwnerEnds,
    Reason,
    TookWhatWasFree,
    WaitsForParents,
    WorkerIsFull,
    WorkerTakesFew,
)

STEAL_DIFFERENCE = 2  # kcl-rust: stealing at a difference of one would go to and fro for ever
NOTHING_PAUSED: Mapping[str, Reason] = MappingProxyType({})


class WorkerView(Struct, frozen=True, kw_only=True):
    """
    A worker that can be given leases.

    Attributes:
        worker_id: its ``leaseOwner``.
        leases_most: how many unfinished leases it may hold.
        recently_ended: shards that it has just finished; it prefers their children.
        utilisation: per cent of what it can do, by the metric's name; without what is unknown.
        leaves: it gets nothing, and what it has is to be handed over to the others.

    """

    worker_id: str
    leases_most: int
    recently_ended: frozenset[str] = field(default_factory=frozenset)
    utilisation: Mapping[str, float] = field(default_factory=dict)
    leaves: bool = False


class AssignmentKind(StrEnum):
    """Why a lease may change its owner; it decides the condition of the write."""

    UNOWNED = "UNOWNED"
    EXPIRED = "EXPIRED"
    STEAL = "STEAL"


class Assignment(Struct, frozen=True):
    """One lease, as read, for one worker."""

    lease: Lease
    worker_id: str
    kind: AssignmentKind
    reason: Reason


class AssignmentPlan(Struct, frozen=True):
    """
    Who gets what.

    Attributes:
        assignments: in the order in which they should be written.
        left: lease key and reason, ordered by key, for every unfinished lease that has no
            healthy owner and is not assigned.

    """

    assignments: tuple[Assignment, ...]
    left: tuple[tuple[str, Reason], ...]


def plan_balanced(
    leases: Sequence[Lease],
    *,
    expired: frozenset[str],
    workers: Sequence[WorkerView],
    paused: Mapping[str, Reason] = NOTHING_PAUSED,
) -> AssignmentPlan:
    """
    Give free leases to the workers with fewest, then even out by at most one steal.

    Args:
        leases: all leases of the table.
        expired: keys of owned leases whose owner is lost.
        workers: who may be given leases; other owners' healthy leases are left alone.
        paused: key and reason of leases that nobody is to have.

    """
    table = LeaseGroups(leases, expired, paused, leaving=leaving_among(workers))
    return plan_by_number(table, workers)


def plan_by_number(
    table: LeaseGroups, workers: Sequence[WorkerView], *, busy: Collection[str] = ()
) -> AssignmentPlan:
    """Do the same with leases in groups; for workers that are ``busy`` nothing is stolen."""
    workers = [worker for worker in workers if not worker.leaves]
    load = Counter({w.worker_id: table.load[w.worker_id] for w in workers})
    by_id = sorted(workers, key=lambda worker: worker.worker_id)
    assignments: list[Assignment] = []
    left = dict(table.waiting)
    most = {w.worker_id: w.leases_most for w in workers}
    # The worker with fewest first: 100,000 leases for 10,000 workers are given in one pass.
    roomy = [(load[w], w) for w in most if load[w] < most[w]]
    heapify(roomy)
    for lease in table.free:
        if not roomy:
            if table.kind(lease) is not AssignmentKind.STEAL:
                left[lease.lease_key] = NoWorkerHasRoom() if workers else NoWorkerRuns()
            continue
        held, chosen = roomy[0]
        assignments.append(table.given(lease, chosen, HoldsFewest(held)))
        load[chosen] = held + 1
        if held + 1 < most[chosen]:
            heapreplace(roomy, (held + 1, chosen))
        else:
            heappop(roomy)
    assignments += _even_out(table, load, workers=by_id, busy=busy)
    return AssignmentPlan(tuple(assignments), in_key_order(left))


def _even_out(
    table: LeaseGroups,
    load: Counter[str],
    *,
    workers: Sequence[WorkerView],
    busy: Collection[str],
) -> list[Assignment]:
    """Plan one steal from the fullest to the emptiest worker, or none (A6)."""
    # By load the next turns would take back what a busy worker is given for its number.
    quiet = [w for w in workers if w.worker_id not in busy or not load[w.worker_id]]
    roomy = [w.worker_id for w in quiet if load[w.worker_id] < w.leases_most]
    if not roomy:
        return []
    return _steal_one(
        table,
        {worker.worker_id: load[worker.worker_id] for worker in workers},
        min(roomy, key=lambda worker_id: load[worker_id]),
        order=lambda movable: sorted(
            movable, key=lambda le: (le.owner_switches_since_checkpoint, le.lease_key)
        ),
    )


def plan_greedy(
    leases: Sequence[Lease],
    *,
    expired: frozenset[str],
    worker: WorkerView,
    leases_to_acquire: int,
    order: Callable[[Sequence[Lease]], Sequence[Lease]],
    paused: Mapping[str, Reason] = NOTHING_PAUSED,
) -> AssignmentPlan:
    """
    Let one worker take what is free, or else one lease from a worker with two more (kcl-rust).

    Args:
        leases: all leases of the table.
        expired: keys of owned leases whose owner is lost.
        worker: who takes.
        leases_to_acquire: most leases taken per turn.
        order: puts equal choices in order, a shuffle in life; it is given them sorted by key.
        paused: key and reason of leases that nobody is to have.

    """
    table = LeaseGroups(leases, expired, paused)
    mine = table.load[worker.worker_id]
    room = max(0, worker.leases_most - mine)
    children = [le for le in table.free if worker.recently_ended & set(le.parent_shard_ids)]
    others = [le for le in table.free if not worker.recently_ended & set(le.parent_shard_ids)]
    wanted: list[tuple[Lease, Reason]] = [(le, ChildOfEnded()) for le in order(children)]
    wanted += [(le, TookWhatWasFree()) for le in order(others)]
    most = min(room, max(0, leases_to_acquire))
    assignments = [table.given(lease, worker.worker_id, reason) for lease, reason in wanted[:most]]
    obstacle: Reason = WorkerTakesFew(worker.worker_id, leases_to_acquire)
    if room <= leases_to_acquire:
        obstacle = WorkerIsFull(worker.worker_id, worker.leases_most)
    left = dict(table.waiting) | {lease.lease_key: obstacle for lease, _ in wanted[most:]}
    if not wanted and most > 0:
        assignments += _steal_one(table, table.load, worker.worker_id, order=order)
    return AssignmentPlan(tuple(assignments), in_key_order(left))


def _steal_one(
    table: LeaseGroups,
    load: Mapping[str, int],
    thief: str,
    *,
    order: Callable[[Sequence[Lease]], Sequence[Lease]],
) -> list[Assignment]:
    """Plan one steal from the fullest worker that has something movable, or none (A6, A9)."""
    mine = load.get(thief, 0)
    for donor in sorted(load, key=lambda w: (-load[w], w)):
        if load[donor] - mine < STEAL_DIFFERENCE:
            break
        if movable := table.movable(donor):
            reason = HoldsMore(donor, load[donor], thief, mine)
            return [Assignment(order(movable)[0], thief, AssignmentKind.STEAL, reason)]
    return []


def in_key_order(left: Mapping[str, Reason]) -> tuple[tuple[str, Reason], ...]:
    """Return what is left to nobody, ordered by key."""
    return tuple((key, left[key]) for key in sorted(left))


def leaving_among(workers: Sequence[WorkerView]) -> frozenset[str]:
    """Return the ids of those that leave."""
    return frozenset(worker.worker_id for worker in workers if worker.leaves)


class LeaseGroups:
    """
    The unfinished leases of a table, sorted into free, waiting and held (A1-A4).

    Attributes:
        free: may be given to somebody, ordered by key; what an owner that leaves has is among it.
        waiting: lease key to why: what must wait for a parent, or is paused.
        load: owner to how many leases it has, a handover counted for the next owner.

    """

    def __init__(
        self,
        leases: Sequence[Lease],
        expired: frozenset[str],
        paused: Mapping[str, Reason] = NOTHING_PAUSED,
        *,
        leaving: Collection[str] = (),
    ) -> None:
        """Sort a table: those in ``expired`` have no owner, those of ``leaving`` are to move."""
        self._paused = paused
        self._leaving = leaving
        self._by_key = {le.lease_key: le for le in sorted(leases, key=lambda le: le.lease_key)}
        self._expired = expired
        self.free: list[Lease] = []
        self.waiting: dict[str, Reason] = {}
        self.load: Counter[str] = Counter()
        self._held: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in self._by_key.values():
            if lease.is_finished:
                continue
            if lease.lease_owner is not None and lease.lease_key not in expired:
                if leaving and self._moves_away(lease):
                    self.free.append(lease)
                    continue
                self.load[lease.lease_owner] += 1
                self._held[lease.lease_owner].append(lease)
            elif lease.lease_key in paused:
                self.waiting[lease.lease_key] = paused[lease.lease_key]
            elif blocking := self._unfinished_parents(lease):
                self.waiting[lease.lease_key] = WaitsForParents(tuple(blocking))
            else:
                self.free.append(lease)

    def kind(self, lease: Lease) -> AssignmentKind:
        """Return how a free lease came to be free."""
        if lease.lease_owner is None:
            return AssignmentKind.UNOWNED
        return AssignmentKind.STEAL if self._moves_away(lease) else AssignmentKind.EXPIRED

    def _moves_away(self, lease: Lease) -> bool:
        """Return whether a healthy owner that is to leave holds a lease that can go (A11)."""
        return (
            lease.lease_owner in self._leaving
            and lease.lease_key not in self._expired
            and lease.checkpoint_owner is None
            and lease.lease_key not in self._paused
            and not self._unfinished_parents(lease)
        )

    def given(self, lease: Lease, worker_id: str, reason: Reason) -> Assignment:
        """Give a free lease away."""
        if self._moves_away(lease):
            reason = OwnerEnds(lease.lease_owner or "", reason)
        return Assignment(lease, worker_id, self.kind(lease), reason)

    def held(self, owner: str) -> Sequence[Lease]:
        """Return what an owner has, also what is being handed over to it, ordered by key."""
        return self._held.get(owner, ())

    def movable(self, owner: str) -> list[Lease]:
        """Return what may be stolen from an owner: startable, in no handover and not paused."""
        return [
            lease
            for lease in self._held.get(owner, ())
            if lease.checkpoint_owner is None
            and lease.lease_key not in self._paused
            and not self._unfinished_parents(lease)
        ]

    def _unfinished_parents(self, lease: Lease) -> list[str]:
        parents = (self._by_key.get(parent) for parent in lease.parent_shard_ids)
        return [p.lease_key for p in parents if p is not None and not p.is_finished]


def count_to_read(
    leases: Sequence[Lease],
    *,
    ours: Collection[str],
    expired: Collection[str],
    resting: Collection[str],
    steals: bool,
) -> int:
    """
    Return how many leases our slots hold or can be given now (Z1).

    Not among them is what healthy others hold, and what waits for its parents without an owner.

    Args:
        leases: of the table; finished ones count for none.
        ours: worker ids of our slots.
        expired: keys of leases whose owner is lost.
        resting: keys of leases that need no slot: paused or asleep.
        steals: others' leases are taken as well, until each of them has one (A9): somebody who
            has none takes from who has two.

    """
    unfinished = {lease.lease_key for lease in leases if not lease.is_finished}
    count = 0
    held: Counter[str] = Counter()
    movable: Counter[str] = Counter()
    for lease in leases:
        key, owner = lease.lease_key, lease.lease_owner
        parents = lease.parent_shard_ids
        if key not in unfinished:
            continue
        waits = bool(parents) and not unfinished.isdisjoint(parents)
        if owner is None or key in expired:
            count += not waits and key not in resting
            continue
        # What is on its way from us to others is still read by us.
        if owner in ours or lease.checkpoint_owner in ours:
            count += key not in resting
        if steals and owner not in ours:
            held[owner] += 1
            movable[owner] += not waits and lease.checkpoint_owner is None and key not in resting
    return count + sum(min(movable[owner], held[owner] - 1) for owner in held)
