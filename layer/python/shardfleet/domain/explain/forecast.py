"""What is asked of `shardfleet what-if`, the answer, and what a plan of the manager's changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.explain.turn_log import Entry, Happening, entry_of_event
from shardfleet.domain.reasons import ExecutionOver, Reason, SlotEnds
from shardfleet.domain.slots.upkeep import SlotTask
from shardfleet.domain.turn import TurnPlan
from shardfleet.events.base import Event
from shardfleet.events.manager import (
    AssignmentLost,
    LeaseAssigned,
    LeaseCreated,
    LeaseWoken,
    SlotStarted,
)

HANDOVER = "HANDOVER"  # how a move is told that was begun gracefully


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    What is supposed; with nothing supposed: what happens as things are.

    Attributes:
        workers: the fleet has exactly so many slots.
        lose: this worker, or slot, is lost.
        split: this shard is split in its middle and has been read to its end.

    """

    workers: int | None = None
    lose: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """
    What would come of it.

    Attributes:
        turns: manager turns until nothing more happens.
        settled: whether that was reached within the most turns that are played.
        steps: turn (from 1) and what would happen in it, in order.
        before: worker to the shards it has now.
        after: worker to the shards it would have at the end.
        left: lease key to why nobody would have it at the end.

    """

    turns: int
    settled: bool
    steps: tuple[tuple[int, Entry], ...]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    left: Mapping[str, Reason]


def changes_of(plan: TurnPlan, *, fleet: str) -> list[Entry]:
    """
    Return what a plan changes once it is carried out, as the manager's own log tells it.

    No race is lost, and the execution of a silent slot is over.

    Args:
        plan: of one turn.
        fleet: its name, of which that of a new slot's worker is made.

    """
    decisions = plan.slots.decisions
    owners = {lease.lease_key: lease.lease_owner or "" for lease in plan.leases}
    events: list[Event | None] = [
        *(
            LeaseCreated(lease_key=wanted.lease.lease_key, reason=wanted.reason)
            for wanted in plan.sync.create
        ),
        *(event for _, event in plan.lease_changes),
        *(
            LeaseWoken(lease_key=key, reason=why, slept_ms=0)
            for key, why in plan.sleepers.woken.items()
        ),
        *_changes_of_slots(plan, fleet),
        *_assigned(plan),
    ]
    told = (entry_of_event(each, owners=owners) for each in events if each)
    leaves = (
        Entry(
            what=Happening.SLOT_DRAINED,
            subject=each.slot_id,
            worker_id=f"{fleet}-{each.slot_id}",
            reason=each.reason,
        )
        for each in decisions
        if each.task is SlotTask.LEAVE
    )
    return [*(entry for entry in told if entry is not None), *leaves]


def _changes_of_slots(plan: TurnPlan, fleet: str) -> list[Event]:
    return [
        SlotStarted(
            slot_id=each.slot_id,
            worker_id=f"{fleet}-{each.slot_id}",
            start_epoch=0,
            reason=each.reason if each.task is SlotTask.START else ExecutionOver(),
        )
        for each in plan.slots.decisions
        if each.task is SlotTask.START or each.slot_id in plan.restarts
    ]


def _assigned(plan: TurnPlan) -> list[Event]:
    """Return them worker by worker; a slot that was examined just before takes none (H2)."""
    examined = {d.slot_id for d in plan.slots.decisions if d.task is SlotTask.EXAMINE}
    refuse = {slot.worker_id for slot in plan.snapshot.slots if slot.slot_id in examined}
    return [
        AssignmentLost(lease_key=each.lease.lease_key, worker_id=each.worker_id, reason=SlotEnds())
        if each.worker_id in refuse
        else LeaseAssigned(
            lease_key=each.lease.lease_key,
            worker_id=each.worker_id,
            kind=HANDOVER
            if each.kind is AssignmentKind.STEAL and each.lease.lease_owner in plan.graceful
            else each.kind.value,
            reason=each.reason,
        )
        for each in sorted(plan.assignment.assignments, key=lambda each: each.worker_id)
    ]
