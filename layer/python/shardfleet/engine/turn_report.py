"""What a manager turn tells: metrics over all unfinished leases, and reasons (hazard H18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardfleet.domain.lags import lags_of, unread_shards
from shardfleet.domain.slots import SlotState
from shardfleet.engine.fleet_state import FleetState
from shardfleet.engine.ports import EventSink
from shardfleet.events import LeaseBehind, ManagerTurnDone

if TYPE_CHECKING:
    from shardfleet.engine.lease_manager import TurnReport

# An item of DynamoDB holds 400 KB; a reason is some 150 bytes.
REASONS_MOST = 1_000
# The dashboard's table: so many leases at most, from this lag on.
BEHIND_MOST = 10
BEHIND_MS = 60_000


async def report_turn(
    state: FleetState, events: EventSink, report: TurnReport, *, still_ms: int
) -> None:
    """
    Emit the turn's event; its plan is kept by :mod:`shardfleet.engine.turn_history`.

    Args:
        state: the fleet's.
        events: where to tell.
        report: of the turn.
        still_ms: how old a worker's heartbeat may be and still be news.

    """
    unfinished = report.unfinished
    slots = [found.slot for found in report.slots_seen]
    keys = {lease.lease_key for lease in unfinished}
    stops = {stop.lease_key: stop.at_ms for stop in await state.stops() if stop.lease_key in keys}
    paused = {key: pause.since_ms for key, pause in report.paused.items() if key in keys}
    # What is paused waits, like what is stopped: its records will expire, too.
    waiting_ms = paused | stops
    lags = lags_of(
        unfinished, slots, stopped_since_ms=waiting_ms, now_ms=report.at_ms, still_ms=still_ms
    )
    for key in sorted(lags, key=lambda key: (-lags[key], key))[:BEHIND_MOST]:
        if lags[key] >= BEHIND_MS:
            events.emit(LeaseBehind(lease_key=key, lag_ms=lags[key]))
    running = sum(slot.state is SlotState.RUNNING for slot in slots)
    owned = {lease.lease_key for lease in unfinished if lease.effective_owner is not None}
    unclaimed = keys - (owned - report.expired) - paused.keys()
    events.emit(
        ManagerTurnDone(
            total_leases=len(report.leases),
            total_shards=len(report.shards),
            unclaimed_leases=len(unclaimed),
            expired_leases=len(report.expired),
            stopped_shards=len(stops),
            paused_leases=len(paused),
            unread_shards=len(unread_shards(report.shards, report.leases)),
            millis_behind_latest_max=max(lags.values(), default=0),
            millis_behind_latest_min=min(
                (lag for key, lag in lags.items() if key not in paused), default=0
            ),
            leases_of_unknown_lag=len(unfinished) - len(lags),
            slots_wanted=report.slots.wanted,
            slots_running=running,
            slots_missing=max(0, report.slots.wanted - running),
            duration_ms=report.at_ms - report.began_ms,
        )
    )


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
