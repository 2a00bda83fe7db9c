"""
Assigning leases to slots: announce on the slot, then write the lease (hazards H2, H15).

The slot learns of an assignment before the lease says so, and a slot that ended in between is
found by reading it again; what it was given is released at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import Assignment, AssignmentKind, AssignmentPlan
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease, LeaseChange
from shardfleet.domain.reasons import LeaseChanged, SlotEnds
from shardfleet.domain.slots.slot import Slot, SlotState, announce_assignment
from shardfleet.engine.manager.strategy import AssignmentPlanner, Standing
from shardfleet.engine.ports import Entropy, EventSink, LeaseStore
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.events import AssignmentLost, LeaseAssigned

HANDOVER = "HANDOVER"  # how a move is told that was begun gracefully


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
        self._planner = AssignmentPlanner(config, entropy)
        self._events = events

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
            standing: which of them are expired, idle, paused, and who leaves.
            now_ms: epoch milliseconds.
            rebalance: load is evened out in this turn.

        """
        able = self._planner.able(leases, slots, standing, now_ms=now_ms)
        plan = self._planner.plan(leases, able, standing, rebalance=rebalance)
        graceful = self._planner.graceful(leases, slots, standing, now_ms=now_ms)
        await self.carry_out(plan.assignments, able, graceful=graceful)
        return plan

    async def carry_out(
        self,
        assignments: Sequence[Assignment],
        able: Mapping[str, Slot],
        *,
        graceful: Collection[str],
    ) -> None:
        """
        Announce and write assignments; losing a race is told.

        Args:
            assignments: of leases as read.
            able: worker id to its slot, of all who take leases.
            graceful: ids of workers that hand over when asked; from others a lease is stolen.

        """
        by_worker: dict[str, list[Assignment]] = defaultdict(list)
        for assignment in assignments:
            by_worker[assignment.worker_id].append(assignment)
        await each_of(
            sorted(by_worker),
            lambda w: self._give(able[w], by_worker[w], graceful=graceful),
        )

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
                    AssignmentLost(lease_key=key, worker_id=slot.worker_id, reason=SlotEnds())
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
        self._events.emit(AssignmentLost(lease_key=key, worker_id=worker_id, reason=LeaseChanged()))
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
