"""What a manager turn tells: metrics over all unfinished leases, and reasons (hazard H18)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from shardfleet.config import FleetConfig
from shardfleet.domain.item_size import DOCUMENT_BYTES_MOST, fitting, value_bytes
from shardfleet.domain.leases.holes import unread_ranges
from shardfleet.domain.reasons import reason_json
from shardfleet.domain.slots.lags import lag_now, lags_of, unread_shards
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.ports import EventSink
from shardfleet.engine.state.documents import UnreadableDocument, event_of
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.manager import LeaseBehind, ManagerTurnDone
from shardfleet.events.worker import LeaseUnreadable

# Of each kind; a reason is some 150 bytes, and all of them together must fit into an item.
REASONS_MOST = 1_000
# The dashboard's table: so many leases at most, from this lag on.
BEHIND_MOST = 10
BEHIND_MS = 60_000
# Of leases and of documents, told in each turn; how many there are is a metric.
UNREADABLE_MOST = 10


class TurnReport(Struct, frozen=True, kw_only=True):
    """
    What came of one turn.

    Attributes:
        plan: what it decided, and by what.
        at_ms: when it ended, epoch milliseconds.
        quiet_ms: lease key to when there was last nothing to read in a sleeping shard.
        unreadable: documents that cannot be read.

    """

    plan: TurnPlan
    at_ms: int
    quiet_ms: Mapping[str, int] = field(default_factory=dict)
    unreadable: Sequence[UnreadableDocument] = ()


async def report_turn(
    state: FleetState, events: EventSink, report: TurnReport, *, config: FleetConfig
) -> ManagerTurnDone:
    """
    Emit and return the turn's event; its plan is kept by :mod:`shardfleet.engine.manager.history`.

    Args:
        state: the fleet's.
        events: where to tell.
        report: of the turn.
        config: tells how old a heartbeat or a look may be and still be news.

    """
    plan, snapshot = report.plan, report.plan.snapshot
    unfinished, expired, asleep = plan.unfinished, plan.losses.expired, plan.sleepers.asleep
    keys = {lease.lease_key for lease in unfinished}
    stops = await _stopped_ms(state, keys, report, failover_ms=config.failover_ms)
    others = plan.read_by_others
    mine = keys - others
    paused = {key: pause.since_ms for key, pause in plan.paused.items() if key in mine}
    # What is paused waits, like what is stopped: its records will expire, too.
    lags = _lags(report, paused | stops, others=others, config=config)
    _tell_of_each(events, report, lags=lags)
    unknown = len(mine - lags.keys())
    untold = -1 if unknown else 0  # Of no lease at all there is nothing to be behind of.
    # What cannot be read is there: of its shard is not to be told that it has no lease.
    known = [*plan.leases, *plan.unreadable.stand_ins]
    running = _running(snapshot.slots, heard_ms=report.at_ms - 2 * config.failover_ms)
    done = ManagerTurnDone(
        total_leases=len(plan.leases),
        total_shards=len(plan.graph.shards),
        unclaimed_leases=len(_unowned(plan) - paused.keys() - asleep.keys()),
        expired_leases=len(expired),
        stopped_shards=len(stops),
        unreadable_leases=len(plan.unreadable.reasons),
        paused_leases=len(paused),
        sleeping_leases=len(asleep),
        sleep_off=int(bool(plan.sleepers.off)),
        unread_shards=len(unread_shards(plan.graph, known)),
        hash_range_holes=len(unread_ranges(known, plan.graph)),
        millis_behind_latest_max=max(lags.values(), default=untold),
        millis_behind_latest_min=min([lags[key] for key in lags.keys() - paused], default=untold),
        leases_of_unknown_lag=unknown,
        slots_wanted=plan.slots.wanted,
        slots_running=running,
        slots_missing=max(0, plan.slots.wanted - running),
        duration_ms=report.at_ms - snapshot.began_ms,
    )
    events.emit(done)
    return done


def _unowned(plan: TurnPlan) -> frozenset[str]:
    """Return the keys of unfinished leases that nobody has, or whose owner is lost."""
    return frozenset(
        lease.lease_key
        for lease in plan.unfinished
        if lease.effective_owner is None or lease.lease_key in plan.losses.expired
    )


async def _stopped_ms(
    state: FleetState, keys: Collection[str], report: TurnReport, *, failover_ms: int
) -> dict[str, int]:
    """Return since when shards stand still: by policy, or because the service misses them."""
    missed, at_ms = report.plan.snapshot.missed, report.at_ms
    since_ms = {n.lease_key: n.first_ms for n in missed if n.lasts(at_ms, failover_ms=failover_ms)}
    since_ms |= {stop.lease_key: stop.at_ms for stop in await state.stops()}
    return {key: ms for key, ms in since_ms.items() if key in keys}


def _tell_of_each(events: EventSink, report: TurnReport, *, lags: Mapping[str, int]) -> None:
    unreadable = report.plan.unreadable.reasons
    for document in report.unreadable[:UNREADABLE_MOST]:
        events.emit(event_of(document))
    for key in sorted(lags, key=lambda key: (-lags[key], key))[:BEHIND_MOST]:
        if lags[key] >= BEHIND_MS:
            events.emit(LeaseBehind(lease_key=key, lag_ms=lags[key]))
    for key in sorted(unreadable)[:UNREADABLE_MOST]:
        events.emit(LeaseUnreadable(lease_key=key, reason=unreadable[key]))


def _running(slots: Sequence[Slot], *, heard_ms: int) -> int:
    """Count workers: a slot that is silent since then is none, whatever its record says."""
    return sum(slot.state is SlotState.RUNNING and slot.heartbeat_ms >= heard_ms for slot in slots)


def _lags(
    report: TurnReport,
    waiting_ms: Mapping[str, int],
    *,
    others: Collection[str],
    config: FleetConfig,
) -> dict[str, int]:
    """Return how far behind each lease is of which anything is known, and which is not others'."""
    lags = lags_of(
        report.plan.unfinished,
        report.plan.snapshot.slots,
        stopped_since_ms=waiting_ms,
        now_ms=report.at_ms,
        still_ms=2 * config.failover_ms,
    )
    # Nothing to read when last looked at; who is not looked at any more falls behind.
    lags |= {
        key: lag_now(0, report.at_ms - quiet_ms, still_ms=2 * config.probe_ms)
        for key, quiet_ms in report.quiet_ms.items()
    }
    return {key: lag_ms for key, lag_ms in lags.items() if key not in others}


def plan_body(report: TurnReport) -> Mapping[str, Any]:
    """
    Return the plan as a document body: every decision with its reason, bounded in size.

    What does not fit is left out and counted, why shards are read by nobody last of all.
    """
    plan = report.plan
    parts: Mapping[str, tuple[Sequence[Any], Callable[[Any], Any]]] = {
        "problems": (plan.sync.problems, reason_json),
        "left": (plan.assignment.left, lambda each: [each[0], reason_json(each[1])]),
        "slots": (
            plan.slots.decisions,
            lambda each: [each.slot_id, each.task.value, reason_json(each.reason)],
        ),
        "created": (
            plan.sync.create,
            lambda each: [each.lease.lease_key, reason_json(each.reason)],
        ),
        "assigned": (
            plan.assignment.assignments,
            lambda a: [a.lease.lease_key, a.worker_id, a.kind.value, reason_json(a.reason)],
        ),
        "deleted": (
            plan.cleanup.delete,
            lambda each: [each.lease.lease_key, reason_json(each.reason)],
        ),
        "kept": (plan.cleanup.kept, lambda each: [each[0], reason_json(each[1])]),
    }
    rows: dict[str, list[Any]] = {}
    left_out: dict[str, int] = {}
    left = DOCUMENT_BYTES_MOST
    for name, (found, row_of) in parts.items():
        rows[name] = fitting([row_of(each) for each in found[:REASONS_MOST]], bytes_most=left)
        left -= value_bytes(rows[name])
        left_out[name] = len(found) - len(rows[name])
    return {
        "at_ms": report.at_ms,
        "sleep_off": reason_json(plan.sleepers.off) if plan.sleepers.off else None,
        "slots_wanted": plan.slots.wanted,
        "slots_why": reason_json(plan.slots.reason),
        "left_out": {name: count for name, count in left_out.items() if count},
        **rows,
    }
