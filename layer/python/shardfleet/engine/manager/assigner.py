"""
Assigning leases to slots: announce on the slot, then write the lease (hazards H2, H15).

The slot learns of an assignment before the lease says so, and a slot that ended in between is
found by reading it again; what it was given is released at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from shardfleet.domain.balance.by_count import Assignment, AssignmentKind
from shardfleet.domain.balance.strategy import change_of
from shardfleet.domain.explain.turn_log import Happening
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.reasons import LeaseChanged, SlotEnds
from shardfleet.domain.slots.slot import Slot, SlotState, announce_assignment
from shardfleet.engine.ports import EventSink, LeaseStore
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.manager import AssignmentLost, LeaseAssigned


class Assigner:
    """Carries assignments out."""

    def __init__(self, *, leases: LeaseStore, state: FleetState, events: EventSink) -> None:
        """Keep the ports."""
        self._leases = leases
        self._state = state
        self._events = events

    async def carry_out(
        self,
        assignments: Sequence[Assignment],
        slots: Iterable[Slot],
        *,
        graceful: Collection[str],
    ) -> None:
        """
        Announce and write assignments; losing a race is told.

        Args:
            assignments: of leases as read.
            slots: those of all who take leases are among them.
            graceful: ids of workers that hand over when asked; from others a lease is stolen.

        """
        by_worker: dict[str, list[Assignment]] = defaultdict(list)
        for assignment in assignments:
            by_worker[assignment.worker_id].append(assignment)
        takers = [slot for slot in slots if slot.worker_id in by_worker]
        await each_of(
            sorted(takers, key=lambda slot: slot.worker_id),
            lambda slot: self._give(slot, by_worker[slot.worker_id], graceful=graceful),
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
        key, worker_id = assignment.lease.lease_key, assignment.worker_id
        moves = assignment.kind is AssignmentKind.STEAL
        current = await self._leases.get(key) if moves else None
        change = change_of(assignment, current, graceful=graceful)
        result = None if change is None else await self._leases.apply(change)
        if isinstance(result, Applied):
            self._events.emit(
                LeaseAssigned(
                    lease_key=key,
                    worker_id=worker_id,
                    kind=assignment.kind.value
                    if result.lease.checkpoint_owner is None
                    else Happening.HANDOVER.value,
                    reason=assignment.reason,
                )
            )
            return result.lease
        self._events.emit(AssignmentLost(lease_key=key, worker_id=worker_id, reason=LeaseChanged()))
        return None
