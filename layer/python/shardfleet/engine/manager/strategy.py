"""
Which strategy plans, for whom, and with what: the part of assigning that writes nothing.

The manager carries its plans out (:mod:`shardfleet.engine.manager.assigner`); `shardfleet what-if`
shows them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import (
    Assignment,
    AssignmentPlan,
    WorkerView,
    plan_balanced,
    plan_greedy,
)
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import Reason
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.ports import Entropy
from shardfleet.engine.state.fleet_state import VersionedSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What a turn knows of its leases beside what is written in them.

    Attributes:
        expired: keys of leases whose owner is lost.
        idle: keys of leases that only wait; they take no place (``merge_wait``).
        paused: key and reason of leases that nobody is to have.
        leaving: ids of workers whose leases are to be handed over to others.

    """

    expired: frozenset[str]
    idle: frozenset[str] = frozenset()
    paused: Mapping[str, Reason]
    leaving: frozenset[str] = frozenset()


class AssignmentPlanner:
    """Plans assignments by the configured strategy."""

    def __init__(self, config: FleetConfig, entropy: Entropy) -> None:
        """Take the limits from the configuration; the greedy strategy draws by ``entropy``."""
        self._config = config
        self._entropy = entropy
        self._limits = BalanceLimits(
            threshold=config.rebalance_percent / 100, dampening=config.dampening_percent / 100
        )

    def able(
        self,
        leases: Sequence[Lease],
        slots: Sequence[VersionedSlot],
        standing: Standing,
        *,
        now_ms: int,
    ) -> dict[str, Slot]:
        """Return the slots that can be given leases, by worker id."""
        well = self._well(slots, now_ms=now_ms)
        able = {w: slot for w, slot in well.items() if w not in standing.leaving}
        # Who let a lease expire is probably gone, whatever its last heartbeat says; it is given
        # leases only when nobody else is left.
        losers = {le.effective_owner for le in leases if le.lease_key in standing.expired}
        return {w: slot for w, slot in able.items() if w not in losers} or able

    def graceful(
        self,
        leases: Sequence[Lease],
        slots: Sequence[VersionedSlot],
        standing: Standing,
        *,
        now_ms: int,
    ) -> frozenset[str]:
        """Return the ids of workers that hand over when asked: those that leave are among them."""
        losers = {le.effective_owner for le in leases if le.lease_key in standing.expired}
        return frozenset(w for w in self._well(slots, now_ms=now_ms) if w not in losers)

    def _well(self, slots: Sequence[VersionedSlot], *, now_ms: int) -> dict[str, Slot]:
        """Return the running slots that were heard of lately and do not drain (H2)."""
        silent_ms = 2 * self._config.failover_ms
        return {
            found.slot.worker_id: found.slot
            for found in slots
            if found.slot.state is SlotState.RUNNING
            and not found.slot.drain
            and now_ms - found.slot.heartbeat_ms <= silent_ms
        }

    def plan(
        self,
        leases: Sequence[Lease],
        able: Mapping[str, Slot],
        standing: Standing,
        *,
        rebalance: bool,
    ) -> AssignmentPlan:
        """
        Plan one turn's assignments.

        Args:
            leases: all leases.
            able: the slots that can be given leases, by worker id.
            standing: which leases are expired, idle, paused.
            rebalance: load is evened out in this turn; it is also when a worker has nothing yet.

        """
        views = self._views(able, leases, standing)
        expired, paused = standing.expired, standing.paused
        owners = {lease.lease_owner for lease in leases if not lease.is_finished}
        rebalance = rebalance or any(worker_id not in owners for worker_id in able)
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
        return self._plan_greedily(leases, views, standing)

    def _plan_greedily(
        self, leases: Sequence[Lease], views: Sequence[WorkerView], standing: Standing
    ) -> AssignmentPlan:
        """Let one worker after the other take what is free."""
        expired, paused = standing.expired, standing.paused
        taken: list[Assignment] = []
        left = plan_balanced(leases, expired=expired, workers=(), paused=paused).left
        current = list(leases)
        for view in views:
            if view.leaves:
                continue
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
        if standing.leaving:
            given = plan_balanced(current, expired=expired, workers=views, paused=paused)
            taken += [a for a in given.assignments if a.lease.lease_owner in standing.leaving]
        return AssignmentPlan(assignments=tuple(taken), left=left)

    def _views(
        self, able: Mapping[str, Slot], leases: Sequence[Lease], standing: Standing
    ) -> list[WorkerView]:
        """Finished leases keep their owner: their children are best read where they ended."""
        ended: dict[str | None, set[str]] = defaultdict(set)
        for lease in leases:
            if lease.is_finished:
                ended[lease.lease_owner].add(lease.lease_key)
        waiting = Counter(le.lease_owner for le in leases if le.lease_key in standing.idle)
        leaving = [
            WorkerView(worker_id=worker_id, leases_most=0, leaves=True)
            for worker_id in sorted(standing.leaving)
        ]
        return leaving + [
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
