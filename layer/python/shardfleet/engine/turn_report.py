"""What a manager turn tells: metrics over all unfinished leases, and reasons (hazard H18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardfleet.domain.slots import SlotState
from shardfleet.engine.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.ports import EventSink
from shardfleet.events import ManagerTurnDone

if TYPE_CHECKING:
    from shardfleet.engine.lease_manager import TurnReport

# An item of DynamoDB holds 400 KB; a reason is some 150 bytes.
REASONS_MOST = 1_000


async def report_turn(state: FleetState, events: EventSink, report: TurnReport) -> None:
    """Emit the turn's event and keep its plan for ``explain``."""
    unfinished = report.unfinished
    lags = _lags(report.slots_seen)
    known = [lags[key] for lease in unfinished if (key := lease.lease_key) in lags]
    running = sum(found.slot.state is SlotState.RUNNING for found in report.slots_seen)
    stopped = {stop.lease_key for stop in await state.stops()}
    owned = {lease.lease_key for lease in unfinished if lease.effective_owner is not None}
    events.emit(
        ManagerTurnDone(
            total_leases=len(report.leases),
            total_shards=len(report.shards),
            unclaimed_leases=len(unfinished) - len(owned - report.expired),
            expired_leases=len(report.expired),
            stopped_shards=len(stopped & {lease.lease_key for lease in unfinished}),
            millis_behind_latest_max=max(known, default=0),
            leases_of_unknown_lag=len(unfinished) - len(known),
            slots_wanted=report.slots.wanted,
            slots_running=running,
        )
    )
    await state.write_plan(plan_body(report))


def plan_body(report: TurnReport) -> Mapping[str, Any]:
    """Return the plan as a document body: every decision with its reason, bounded in size."""
    return {
        "at_ms": report.at_ms,
        "created": [[w.lease.lease_key, str(w.reason)] for w in report.sync.create][:REASONS_MOST],
        "problems": list(report.sync.problems)[:REASONS_MOST],
        "deleted": [[d.lease.lease_key, str(d.reason)] for d in report.cleanup.delete][
            :REASONS_MOST
        ],
        "kept": [[key, str(why)] for key, why in report.cleanup.kept][:REASONS_MOST],
        "assigned": [
            [a.lease.lease_key, a.worker_id, a.kind.value, str(a.reason)]
            for a in report.assignment.assignments
        ][:REASONS_MOST],
        "left": [[key, str(why)] for key, why in report.assignment.left][:REASONS_MOST],
        "slots_wanted": report.slots.wanted,
        "slots": [[d.slot_id, d.task.value, d.reason] for d in report.slots.decisions],
    }


def _lags(slots: Sequence[VersionedSlot]) -> dict[str, int]:
    """Return the lag per lease as the running slots last told; negative means unknown."""
    return {
        key: lag_ms
        for found in slots
        if found.slot.state is SlotState.RUNNING
        for key, lag_ms in found.slot.lags_ms.items()
        if lag_ms >= 0
    }
