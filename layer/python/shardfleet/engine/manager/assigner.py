"""
Assigning leases to slots: announce on the slot, then write the lease (hazards H2, H15).

The slot learns of an assignment before the lease says so, and a slot that ended in between is
found by reading it again; what it was given is released at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import ParamSpec, TypeVar

from shardfleet.domain.balance.by_count import Assignment, AssignmentKind
from shardfleet.domain.balance.strategy import change_of
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.reasons import ExchangedToEvenOut, LeaseChanged, SlotEnds
from shardfleet.domain.slots.slot import Slot, SlotState, announce_assignment
from shardfleet.domain.turn_log import Happening
from shardfleet.engine.ports import EventSink, LeaseStore
from shardfleet.engine.retry import Box, each_of
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import ShardfleetError
from shardfleet.events.manager import AssignmentLost, LeaseAssigned

P = ParamSpec("P")
T = TypeVar("T")


class Assigner:
    """Carries assignments out."""

    def __init__(self, *, leases: LeaseStore, state: FleetState, events: EventSink) -> None:
        """Keep the ports."""
        self._leases = leases
        self._state = state
        self._events = events
        self._refusal: ShardfleetError | None = None

    async def carry_out(
        self,
        assignments: Sequence[Assignment],
        slots: Iterable[Slot],
        *,
        graceful: Collection[str],
        box: Box,
    ) -> None:
        """
        Announce and write assignments, those of lost owners first; losing a race is told.

        Args:
            assignments: of leases as read.
            slots: those of all who take leases are among them.
            graceful: ids of workers that hand over when asked; from others a lease is stolen.
            box: in which it is to be done.

        Raises:
            BoxSpent: the rest is planned anew by the next turn.
            ShardfleetError: so is what had no answer, or was refused.

        """
        self._refusal = None
        keys: dict[str, list[str]] = {}
        for assignment in assignments:
            keys.setdefault(assignment.worker_id, []).append(assignment.lease.lease_key)
        takers = sorted((s for s in slots if s.worker_id in keys), key=lambda slot: slot.slot_id)
        announced = await each_of(
            takers,
            lambda slot: self._try(self._announce, slot, keys[slot.worker_id]),
            box=box,
        )
        able = {s.worker_id: s for s, is_able in zip(takers, announced, strict=True) if is_able}
        wanted = sorted(
            (each for each in assignments if each.worker_id in able),
            key=lambda each: each.kind is not AssignmentKind.EXPIRED,
        )
        begun, ends = _exchanges_last(wanted)
        written = await each_of(begun, lambda each: self._try(self._write, each, graceful), box=box)
        moved = {lease.lease_key for lease in written if lease is not None}
        for each in (end for end, other in ends if other not in moved):
            # Without the greater lease's move the lesser one's would be to the more loaded worker.
            self._tell_lost(each)
        back = [each for each, other in ends if other in moved]
        written += await each_of(back, lambda each: self._try(self._write, each, graceful), box=box)
        given = [lease for lease in written if lease is not None]
        await each_of(able.values(), lambda slot: self._release_if_ended(slot, given))
        if self._refusal is not None:
            raise self._refusal

    async def _try(
        self, call: Callable[P, Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T | None:
        """Make a call; what one slot or lease is refused is kept, and the others go on (H22)."""
        try:
            return await call(*args, **kw)
        except ShardfleetError as error:
            self._refusal = self._refusal or error
            return None

    async def _announce(self, slot: Slot, keys: Sequence[str]) -> bool:
        """Write into a slot which leases it is to have; False if it ends."""
        written = await self._state.update_slot(
            slot.slot_id, lambda current: announce_assignment(current, keys)
        )
        if written is None:
            for key in keys:
                self._events.emit(
                    AssignmentLost(lease_key=key, worker_id=slot.worker_id, reason=SlotEnds())
                )
        return written is not None

    async def _release_if_ended(self, slot: Slot, given: Iterable[Lease]) -> None:
        """Release what a slot was given that ended meanwhile."""
        after = await self._state.slot(slot.slot_id)
        if after is not None and after.slot.state is SlotState.ENDED:
            for lease in given:
                # What is being handed over goes on being read; then it is free without waiting.
                if lease.lease_owner == slot.worker_id and lease.checkpoint_owner is None:
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
        self._tell_lost(assignment)
        return None

    def _tell_lost(self, assignment: Assignment) -> None:
        self._events.emit(
            AssignmentLost(
                lease_key=assignment.lease.lease_key,
                worker_id=assignment.worker_id,
                reason=LeaseChanged(),
            )
        )


def _exchanges_last(
    assignments: Iterable[Assignment],
) -> tuple[list[Assignment], list[tuple[Assignment, str]]]:
    """Set apart what comes back in an exchange, each with the key of the lease it is for."""
    begun: list[Assignment] = []
    ends: list[tuple[Assignment, str]] = []
    for each in assignments:
        other = each.reason.other if isinstance(each.reason, ExchangedToEvenOut) else ""
        if other in {before.lease.lease_key for before in begun}:
            ends.append((each, other))
        else:
            begun.append(each)
    return begun, ends
