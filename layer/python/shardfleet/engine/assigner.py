"""
Assigning leases to slots: announce on the slot, then write the lease (hazards H2, H15).

The slot learns of an assignment before the lease says so, and a slot that ended in between is
found by reading it again; what it was given is released at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from shardfleet.config import FleetConfig
from shardfleet.domain import lease_changes
from shardfleet.domain.assignment import (
    Assignment,
    AssignmentKind,
    AssignmentPlan,
    WorkerView,
    plan_balanced,
    plan_greedy,
)
from shardfleet.domain.leases import Applied, Lease, LeaseChange
from shardfleet.domain.load_balance import BalanceLimits, plan_by_load
from shardfleet.domain.slots import Slot, SlotState, announce_assignment
from shardfleet.engine.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.patience import each_of
from shardfleet.engine.ports import Entropy, EventSink, LeaseStore
from shardfleet.events import AssignmentLost, LeaseAssigned

HANDOVER = "HANDOVER"  # how a move is told that was begun gracefully


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What a turn knows of its leases beside what is written in them.

    Attributes:
        expired: keys of leases whose owner is lost.
        idle: keys of leases that only wait; they take no place (``merge_wait``).
        paused: key and reason of leases that nobody is to have.

    """

    expired: frozenset[str]
    idle: frozenset[str] = frozenset()
    paused: Mapping[str, str]


class Assigner:
    """Plans assignments by the configured strategy and carries them out."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        leases: LeaseStore,
        state: FleetState,
        entropy: Entropy,
        events: EventSink,
    ) -> None:
        """Keep the ports."""
        self._config = config
        self._leases = leases
        self._state = state
        self._entropy = entropy
        self._events = events
        self._limits = BalanceLimits(
            threshold=config.rebalance_percent / 100, dampening=config.dampening_percent / 100
        )

    async def assign(
        self,
        leases: Sequence[Lease],
        slots: Sequence[VersionedSlot],
        *,
        standing: Standing,
        now_ms: int,
        rebalance: bool = False,
    ) -> AssignmentPlan:
        """
        Plan and carry out one turn's assignments.

        Args:
            leases: all leases, the ones created in this turn included.
            slots: all slots as read in this turn.
            standing: which of them are expired, idle, paused.
            now_ms: epoch milliseconds.
            rebalance: load is evened out in this turn.

        """
        able = {
            found.slot.worker_id: found.slot
            for found in slots
            if _takes_leases(found.slot, now_ms=now_ms, silent_ms=2 * self._config.failover_ms)
        }
        # Who let a lease expire is probably gone, whatever its last heartbeat says; it is given
        # leases only when nobody else is left.
        losers = {le.effective_owner for le in leases if le.lease_key in standing.expired}
        able = {w: slot for w, slot in able.items() if w not in losers} or able
        views = self._views(able, leases, standing.idle)
        plan = self._plan(leases, views, standing, rebalance=rebalance)
        by_worker: dict[str, list[Assignment]] = defaultdict(list)
        for assignment in plan.assignments:
            by_worker[assignment.worker_id].append(assignment)
        await each_of(
            sorted(by_worker),
            lambda w: self._give(able[w], by_worker[w], graceful=able.keys()),
        )
        return plan

    def _plan(
        self,
        leases: Sequence[Lease],
        views: Sequence[WorkerView],
        standing: Standing,
        *,
        rebalance: bool,
    ) -> AssignmentPlan:
        expired, paused = standing.expired, standing.paused
        if self._config.assignment == "balanced":
            return plan_by_load(
                leases,
                expired=expired,
                workers=views,
                limits=self._limits,
                rebalance=rebalance,
                paused=paused,
            )
        if self._config.assignment == "count":
            return plan_balanced(leases, expired=expired, workers=views, paused=paused)
        taken: list[Assignment] = []
        left = plan_balanced(leases, expired=expired, workers=(), paused=paused).left
        current = list(leases)
        for view in views:
            plan = plan_greedy(
                current,
                expired=expired - {a.lease.lease_key for a in taken},
                worker=view,
                leases_to_acquire=self._config.leases_to_acquire,
                order=self._shuffled,
                paused=paused,
            )
            taken += plan.assignments
            owners = {a.lease.lease_key: a.worker_id for a in plan.assignments}
            current = [
                replace(lease, lease_owner=owners[lease.lease_key])
                if lease.lease_key in owners
                else lease
                for lease in current
            ]
            left = plan.left
        return AssignmentPlan(assignments=tuple(taken), left=left)

    def _views(
        self, able: Mapping[str, Slot], leases: Sequence[Lease], idle: frozenset[str]
    ) -> list[WorkerView]:
        """Finished leases keep their owner: their children are best read where they ended."""
        ended: dict[str | None, set[str]] = defaultdict(set)
        for lease in leases:
            if lease.is_finished:
                ended[lease.lease_owner].add(lease.lease_key)
        waiting = Counter(le.lease_owner for le in leases if le.lease_key in idle)
        return [
            WorkerView(
                worker_id=worker_id,
                leases_most=self._config.leases_per_worker + waiting[worker_id],
                recently_ended=frozenset(ended.get(worker_id, ())),
                utilisation=slot.usage.utilisation(),
            )
            for worker_id, slot in sorted(able.items())
        ]

    def _shuffled(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        drawn = [(self._entropy.uniform(0, 1), lease.lease_key, lease) for lease in leases]
        return [lease for _, _, lease in sorted(drawn, key=lambda row: row[:2])]

    async def _give(
        self, slot: Slot, assignments: Sequence[Assignment], *, graceful: Collection[str]
    ) -> None:
        keys = [a.lease.lease_key for a in assignments]
        announced = await self._state.update_slot(
            slot.slot_id, lambda current: announce_assignment(current, keys)
        )
        if announced is None:
            for key in keys:
                self._events.emit(
                    AssignmentLost(
                        lease_key=key, worker_id=slot.worker_id, reason="slot takes no leases"
                    )
                )
            return
        given = [
            lease for a in assignments if (lease := await self._write(a, graceful)) is not None
        ]
        after = await self._state.slot(slot.slot_id)
        if after is not None and after.slot.state is SlotState.ENDED:
            for lease in given:
                # What is being handed over goes on being read; then it is free without waiting.
                if lease.checkpoint_owner is None:
                    await self._leases.apply(lease_changes.evict(lease))

    async def _write(self, assignment: Assignment, graceful: Collection[str]) -> Lease | None:
        change = await self._change(assignment, graceful)
        result = None if change is None else await self._leases.apply(change)
        key, worker_id = assignment.lease.lease_key, assignment.worker_id
        if isinstance(result, Applied):
            self._events.emit(
                LeaseAssigned(
                    lease_key=key,
                    worker_id=worker_id,
                    kind=assignment.kind.value
                    if result.lease.checkpoint_owner is None
                    else HANDOVER,
                    reason=assignment.reason,
                )
            )
            return result.lease
        self._events.emit(
            AssignmentLost(lease_key=key, worker_id=worker_id, reason="the lease changed meanwhile")
        )
        return None

    async def _change(
        self, assignment: Assignment, graceful: Collection[str]
    ) -> LeaseChange | None:
        """
        Move by what the table says now (KCL 2.3.10, #886); everything else by what was planned.

        Args:
            assignment: as planned.
            graceful: owners that hand over; from others a lease is stolen.

        """
        lease, worker_id = assignment.lease, assignment.worker_id
        match assignment.kind:
            case AssignmentKind.STEAL:
                current = await self._leases.get(lease.lease_key)
                if current is None or current.effective_owner != lease.effective_owner:
                    return None
                if current.is_finished or current.checkpoint_owner is not None:
                    return None
                if self._config.graceful_handover and current.lease_owner in graceful:
                    return lease_changes.initiate_handover(current, worker_id, as_read=True)
                return lease_changes.take(current, worker_id)
            case AssignmentKind.EXPIRED:
                return lease_changes.assign(lease, worker_id, expired=True)
            case AssignmentKind.UNOWNED:
                return lease_changes.assign(lease, worker_id)


def _takes_leases(slot: Slot, *, now_ms: int, silent_ms: int) -> bool:
    """Only a running slot that was heard of lately gets leases (H2)."""
    is_running = slot.state is SlotState.RUNNING and not slot.drain
    return is_running and now_ms - slot.heartbeat_ms <= silent_ms
