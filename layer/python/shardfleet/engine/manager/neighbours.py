"""Showing the KCL 3 which of our slots work: the one whose leader gives out the leases (J1)."""

from __future__ import annotations

from shardfleet.domain.balance.kcl3 import WorkerRow
from shardfleet.domain.slots.slot import announce_assignment
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.ports import Kcl3Store
from shardfleet.engine.retry import Box, each_of
from shardfleet.engine.state.fleet_state import FleetState


async def show_workers(plan: TurnPlan, store: Kcl3Store, state: FleetState, *, box: Box) -> None:
    """
    Take away the rows of who is gone, write those of who works.

    Who is shown and has nothing is told so much: a slot that hears nothing ends, and the leader's
    next balancing run may be a minute away.

    Raises:
        BoxSpent, Throttled, OutcomeUnknown: the rest is planned anew by the next turn.

    """

    async def delete(row: WorkerRow) -> None:
        await store.delete(row)

    async def write(row: WorkerRow) -> None:
        await store.write(row)

    async def keep(slot_id: str) -> None:
        await state.update_slot(slot_id, lambda slot: announce_assignment(slot, ()))

    await each_of(plan.kcl3.delete, delete, box=box)
    await each_of(plan.kcl3.write, write, box=box)
    await each_of(plan.kcl3.waiting, keep, box=box)
