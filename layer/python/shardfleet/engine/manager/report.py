"""What a manager turn tells: metrics over all unfinished leases, and reasons (hazard H18)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import AssignmentPlan
from shardfleet.domain.item_size import ITEM_BYTES_MOST, value_bytes
from shardfleet.domain.leases.cleanup import CleanupPlan
from shardfleet.domain.leases.holes import unread_ranges
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import LeaseSyncPlan
from shardfleet.domain.leases.unreadable import Unreadable
from shardfleet.domain.reasons import Pause, reason_json
from shardfleet.domain.slots.lags import lag_now, lags_of, unread_shards
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotPlan, SlotTask
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.manager.prober import NOBODY, Sleepers
from shardfleet.engine.ports import EventSink
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.events import LeaseBehind, LeaseUnreadable, ManagerTurnDone

# Of each kind; a reason is some 150 bytes, and all of them together must fit into an item.
REASONS_MOST = 1_000
PLAN_BYTES_MOST = ITEM_BYTES_MOST - 10 * 1024  # the rest: keys, names and single values
# The dashboard's table: so many leases at most, from this lag on.
BEHIND_MOST = 10
BEHIND_MS = 60_000
# Told in each turn; how many there are is a metric.
UNREADABLE_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """
    What one turn saw and decided.

    Attributes:
        began_ms: when it began to read, epoch milliseconds.
        at_ms: when it ended.
        leases: all leases, those created in this turn included.
        shards: as listed.
        slots_seen: slot records as read.
        expired: keys of leases whose owner is lost.
        sync: leases to create, and problems of the listing.
        cleanup: leases to delete.
        slots: decisions about slots.
        assignment: who gets which lease.
        paused: leases that nobody is to have.
        sleepers: leases that nobody has because there is nothing to read.
        unreadable: lease items that nobody can read, and what waits for them.

    """

    began_ms: int
    at_ms: int
    leases: tuple[Lease, ...]
    shards: tuple[Shard, ...]
    slots_seen: tuple[VersionedSlot, ...]
    expired: frozenset[str]
    sync: LeaseSyncPlan
    cleanup: CleanupPlan
    slots: SlotPlan
    assignment: AssignmentPlan
    paused: Mapping[str, Pause]
    sleepers: Sleepers = NOBODY
    unreadable: Unreadable = field(default_factory=Unreadable)

    @property
    def unfinished(self) -> tuple[Lease, ...]:
        """Return the leases that are not at SHARD_END."""
        return tuple(lease for lease in self.leases if not lease.is_finished)

    @property
    def is_awake(self) -> bool:
        """
        Tell whether there is anything to do before the next scheduled invocation.

        That includes shards without leases because the listing made no sense: it is looked at
        again soon. Those asleep are only looked at.
        """
        awake = len(self.unfinished) - len(self.sleepers.reasons)
        return bool(awake or (self.shards and self.sync.problems))

    @property
    def is_calm(self) -> bool:
        """Tell whether nothing was to be done in this turn, and no slot is missing or too many."""
        alive = (SlotState.STARTING, SlotState.RUNNING)
        slots = sum(found.slot.state in alive for found in self.slots_seen)
        decided = self.assignment.assignments or self.sync.create or self.sync.suspects
        idle = all(each.task is SlotTask.NOTHING for each in self.slots.decisions)
        return not self.expired and not decided and idle and slots == self.slots.wanted


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
    unfinished = report.unfinished
    slots = [found.slot for found in report.slots_seen]
    keys = {lease.lease_key for lease in unfinished}
    stops = await _stopped_ms(state, keys, report.at_ms, failover_ms=config.failover_ms)
    paused = {key: pause.since_ms for key, pause in report.paused.items() if key in keys}
    # What is paused waits, like what is stopped: its records will expire, too.
    lags = _lags(report, paused | stops, config=config)
    _tell_of_leases(events, lags=lags, unreadable=report.unreadable.reasons)
    # What cannot be read is there: of its shard is not to be told that it has no lease.
    known = [*report.leases, *report.unreadable.stand_ins]
    running = _running(slots, heard_ms=report.at_ms - 2 * config.failover_ms)
    owned = {lease.lease_key for lease in unfinished if lease.effective_owner is not None}
    unclaimed = keys - (owned - report.expired) - paused.keys() - report.sleepers.reasons.keys()
    done = ManagerTurnDone(
        total_leases=len(report.leases),
        total_shards=len(report.shards),
        unclaimed_leases=len(unclaimed),
        expired_leases=len(report.expired),
        stopped_shards=len(stops),
        unreadable_leases=len(report.unreadable.reasons),
        paused_leases=len(paused),
        sleeping_leases=len(report.sleepers.reasons),
        sleep_off=int(bool(report.sleepers.off)),
        unread_shards=len(unread_shards(report.shards, known)),
        hash_range_holes=len(unread_ranges(known, report.shards)),
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
    events.emit(done)
    return done


async def _stopped_ms(
    state: FleetState, keys: Collection[str], at_ms: int, *, failover_ms: int
) -> dict[str, int]:
    """Return since when shards stand still: by policy, or because the service misses them."""
    missed = await GoneRecord(state.store).missed()
    since_ms = {n.lease_key: n.first_ms for n in missed if n.lasts(at_ms, failover_ms=failover_ms)}
    since_ms |= {stop.lease_key: stop.at_ms for stop in await state.stops()}
    return {key: ms for key, ms in since_ms.items() if key in keys}


def _tell_of_leases(
    events: EventSink, *, lags: Mapping[str, int], unreadable: Mapping[str, str]
) -> None:
    for key in sorted(lags, key=lambda key: (-lags[key], key))[:BEHIND_MOST]:
        if lags[key] >= BEHIND_MS:
            events.emit(LeaseBehind(lease_key=key, lag_ms=lags[key]))
    for key in sorted(unreadable)[:UNREADABLE_MOST]:
        events.emit(LeaseUnreadable(lease_key=key, reason=unreadable[key]))


def _running(slots: Sequence[Slot], *, heard_ms: int) -> int:
    """Count workers: a slot that is silent since then is none, whatever its record says."""
    return sum(slot.state is SlotState.RUNNING and slot.heartbeat_ms >= heard_ms for slot in slots)


def _lags(
    report: TurnReport, waiting_ms: Mapping[str, int], *, config: FleetConfig
) -> dict[str, int]:
    """Return how far behind each lease is of which anything is known."""
    lags = lags_of(
        report.unfinished,
        [found.slot for found in report.slots_seen],
        stopped_since_ms=waiting_ms,
        now_ms=report.at_ms,
        still_ms=2 * config.failover_ms,
    )
    # Nothing to read when last looked at; who is not looked at any more falls behind.
    return lags | {
        key: lag_now(0, report.at_ms - quiet_ms, still_ms=2 * config.probe_ms)
        for key, quiet_ms in report.sleepers.quiet_ms.items()
    }


def plan_body(report: TurnReport) -> Mapping[str, Any]:
    """
    Return the plan as a document body: every decision with its reason, bounded in size.

    What does not fit is left out, why shards are read by nobody last of all.
    """
    most, assigned = REASONS_MOST, report.assignment.assignments[:REASONS_MOST]
    created, deleted = report.sync.create[:most], report.cleanup.delete[:most]
    by_weight: Mapping[str, Sequence[Any]] = {
        "problems": [reason_json(why) for why in report.sync.problems[:most]],
        "left": [[key, reason_json(why)] for key, why in report.assignment.left[:most]],
        "slots": [[d.slot_id, d.task.value, reason_json(d.reason)] for d in report.slots.decisions],
        "created": [[w.lease.lease_key, reason_json(w.reason)] for w in created],
        "assigned": [
            [a.lease.lease_key, a.worker_id, a.kind.value, reason_json(a.reason)] for a in assigned
        ],
        "deleted": [[d.lease.lease_key, reason_json(d.reason)] for d in deleted],
        "kept": [[key, reason_json(why)] for key, why in report.cleanup.kept[:most]],
    }
    return {
        "at_ms": report.at_ms,
        "sleep_off": reason_json(report.sleepers.off) if report.sleepers.off else None,
        "slots_wanted": report.slots.wanted,
        "slots_why": reason_json(report.slots.reason),
        **_that_fit(by_weight),
    }


def _that_fit(parts: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the first rows of each part, the first parts first, until the document is full."""
    left = PLAN_BYTES_MOST
    found: dict[str, list[Any]] = {}
    for name, rows in parts.items():
        found[name] = []
        for row in rows:
            left -= value_bytes(row) + 1
            if left < 0:
                break
            found[name].append(row)
    return found
