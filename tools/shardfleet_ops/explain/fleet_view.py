"""
What a person sees of a fleet: one row per lease and per slot, and the sums over them.

Pure: from a reading of both tables to rows, with a word for the state of each lease and a
sentence for what it waits for. `shardfleet status`, `leases` and `top` print them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct, field

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.lease import ForeignLease, Lease, keys_by_owner
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.slots.failure import FailureKind, LastFailure
from shardfleet.domain.slots.lags import lag_now, lags_of
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import ShardWay
from shardfleet_ops.explain.handler_cures import cure_of_import

_NOTHING_PAUSED = Pauses()
# Two schedules of the manager, which plans at least once a minute.
PLAN_STILL_MS = 150_000
_MINUTE_S = 60
_State = TypeVar("_State", bound=StrEnum)


class LeaseState(StrEnum):
    """
    What is going on with a lease.

    ``FINISHED``: at SHARD_END. ``STOPPED``: see its note. ``UNREADABLE``: the item is. ``PAUSED``:
    by a person; whoever still has it gives it up. ``FAILING``: its owner fails at each invocation,
    so nobody reads it. ``EXPIRED``: its owner has not renewed it for the failover time.
    ``UNOWNED``: nobody has it. ``WAITING``: owned, but a parent is not finished. ``HANDOVER``: its
    owner finishes a batch for the next one. ``READING``: owned and renewed. ``ASLEEP``: nobody has
    it because there is nothing to read; the manager looks at it.
    """

    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    PAUSED = "PAUSED"
    FAILING = "FAILING"
    EXPIRED = "EXPIRED"
    UNOWNED = "UNOWNED"
    WAITING = "WAITING"
    HANDOVER = "HANDOVER"
    READING = "READING"
    UNREADABLE = "UNREADABLE"
    ASLEEP = "ASLEEP"


_UNREAD = frozenset(
    {LeaseState.STOPPED, LeaseState.UNREADABLE, LeaseState.FAILING, LeaseState.EXPIRED}
)


class FleetReading(Struct, frozen=True, kw_only=True):
    """
    One reading of both tables.

    Attributes:
        at_ms: when it was made, epoch milliseconds.
        leases: of the lease table.
        slots: the slot records.
        sightings: the manager's, by lease key.
        stops: by lease key.
        planned_ms: when the manager last wrote a plan, 0 never.
        failover_ms: of the fleet's configuration.
        pauses: what a person has paused.
        naps: of the shards that sleep, by lease key.
        unreadable: keys of lease items that nobody can read, each with the reason.
        foreign_leases: leases of another stream or mode, which nobody touches.
        unreadable_documents: ``kind/id`` of documents that nobody can read, each with the reason.
        stream_is_gone: whether there is no such stream any more.

    """

    at_ms: int
    leases: Sequence[Lease]
    slots: Sequence[Slot]
    sightings: Mapping[str, Sighting]
    stops: Mapping[str, StopNote]
    planned_ms: int
    failover_ms: int
    pauses: Pauses = _NOTHING_PAUSED
    naps: Mapping[str, Nap] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    foreign_leases: Sequence[ForeignLease] = ()
    unreadable_documents: Mapping[str, str] = field(default_factory=dict)
    stream_is_gone: bool = False

    @property
    def failing(self) -> Mapping[str, LastFailure]:
        """Return by worker id those whose last failure will come again, with it."""
        return {
            slot.worker_id: slot.failure
            for slot in self.slots
            if slot.failure is not None and slot.failure.is_certain
        }

    @property
    def long_calls_ms(self) -> Mapping[str, int]:
        """Return by lease key for how long a call of its handler has been running, if long."""
        return {
            key: self.at_ms - began_ms
            for slot in self.slots
            if slot.state is SlotState.RUNNING and slot.turn_open
            for key, began_ms in slot.signs.calls_ms.items()
        }

    @property
    def ways(self) -> Mapping[str, ShardWay]:
        """Return by lease key how it is read, where records are pushed; their owners say it."""
        held = keys_by_owner(self.leases)
        return {
            key: slot.signs.ways[key]
            for slot in self.slots
            if slot.state is SlotState.RUNNING
            for key in held.get(slot.worker_id, ())
            if key in slot.signs.ways
        }

    @property
    def paused(self) -> Mapping[str, Pause]:
        """Return the unfinished leases that are paused; other applications know of no pause."""
        ours = {None, *(slot.worker_id for slot in self.slots)}
        return self.pauses.among(
            lease.lease_key
            for lease in self.leases
            if not lease.is_finished and lease.effective_owner in ours
        )


class LeaseRow(Struct, frozen=True, kw_only=True):
    """
    One lease, for a person.

    Attributes:
        lease_key: the shard's id.
        state: see :class:`LeaseState`.
        owner: who renews it, None when nobody does.
        checkpoint: ``sequence:sub`` or a sentinel; empty when nobody can read it.
        counter: ``leaseCounter``.
        lag_ms: how far behind the tip, None unknown.
        seen_ms: how long the counter has stood still, as the manager saw it; None unseen.
        why: what it waits for, empty when nothing.
        way: how it is read, where records are pushed.

    """

    lease_key: str
    state: LeaseState
    owner: str | None = None
    checkpoint: str = ""
    counter: int = 0
    lag_ms: int | None = None
    seen_ms: int | None = None
    why: str = ""
    way: ShardWay | None = None


class SlotRow(Struct, frozen=True, kw_only=True):
    """
    One worker slot, for a person.

    Attributes:
        slot_id: the slot.
        worker_id: the owner name of its leases.
        state: of the slot record.
        leases: how many unfinished leases it owns.
        lag_ms: the largest of their lags, None when none is known.
        heartbeat_ms: how long ago it last gave a sign of life, None before the first.
        failure: why its last invocations failed, None since it works.
        draining: it is asked to hand over and end.
        remarks: on what its handler does.

    """

    slot_id: str
    worker_id: str
    state: SlotState
    leases: int
    lag_ms: int | None
    heartbeat_ms: int | None
    failure: LastFailure | None
    draining: bool
    remarks: tuple[str, ...] = ()


class FailureRow(Struct, frozen=True, kw_only=True):
    """
    What some workers fail of, for a person.

    Attributes:
        slots: which.
        kind: see :class:`FailureKind`.
        is_certain: it will come again.
        times: how many invocations in a row have failed, of the slot with most.
        said: who fails of what, how often and since when.
        remedy: what to do.

    """

    slots: tuple[str, ...]
    kind: FailureKind
    is_certain: bool
    times: int
    said: str
    remedy: str


class FleetSummary(Struct, frozen=True, kw_only=True):
    """
    The fleet in a few numbers.

    Attributes:
        leases: number of leases in each state, states without any left out.
        slots: number of slots in each state, likewise.
        workers: distinct owners that are no slot of ours: Java workers sharing the table.
        lag_ms: the largest lag known, None when none is.
        lag_unknown: unfinished leases of which no lag is known.
        plan_age_ms: how long ago the manager last planned, None never.
        failures: what workers fail of.
        foreign_leases: which leases of the table are another stream's or mode's.
        unreadable_documents: ``kind/id`` of documents that nobody can read, each with the reason.
        stream_is_gone: whether there is no such stream any more.
        long_calls_ms: lease key to for how long its handler call has been running, where long.
        remarks: what handlers do that they should not, and the slots of which it is seen.

    """

    leases: Mapping[LeaseState, int]
    slots: Mapping[SlotState, int]
    workers: tuple[str, ...]
    lag_ms: int | None
    lag_unknown: int
    plan_age_ms: int | None
    failures: Sequence[FailureRow]
    foreign_leases: Sequence[ForeignLease] = ()
    unreadable_documents: Mapping[str, str] = field(default_factory=dict)
    stream_is_gone: bool = False
    long_calls_ms: Mapping[str, int] = field(default_factory=dict)
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def lease_rows(reading: FleetReading) -> list[LeaseRow]:
    """Return one row per lease, ordered by lease key."""
    unfinished = {lease.lease_key for lease in reading.leases if not lease.is_finished}
    unfinished |= reading.unreadable.keys()
    lags, paused = _lags(reading), reading.paused
    rows = [
        LeaseRow(lease_key=key, state=LeaseState.UNREADABLE, why=why)
        for key, why in reading.unreadable.items()
    ]
    rows += [
        _row(each, reading, unfinished=unfinished, lags=lags, paused=paused)
        for each in reading.leases
    ]
    return sorted(rows, key=lambda row: row.lease_key)


def is_unread(row: LeaseRow) -> bool:
    """Return whether nobody reads a shard that ought to be read."""
    if row.state is LeaseState.UNOWNED:
        return not row.why
    return row.state in _UNREAD


def worst_first(rows: Iterable[LeaseRow]) -> list[LeaseRow]:
    """Return unfinished leases: those that nobody reads, then the others, furthest behind first."""
    return sorted(
        (row for row in rows if row.state is not LeaseState.FINISHED),
        key=lambda row: (not is_unread(row), -(-1 if row.lag_ms is None else row.lag_ms)),
    )


def slot_rows(reading: FleetReading) -> list[SlotRow]:
    """Return one row per slot, ordered by slot id."""
    lags = _lags(reading)
    held = keys_by_owner(reading.leases)
    return [
        SlotRow(
            slot_id=slot.slot_id,
            worker_id=slot.worker_id,
            state=slot.state,
            leases=len(held.get(slot.worker_id, ())),
            lag_ms=max(
                (lags[key] for key in held.get(slot.worker_id, ()) if key in lags), default=None
            ),
            heartbeat_ms=reading.at_ms - slot.heartbeat_ms if slot.heartbeat_ms else None,
            failure=slot.failure,
            draining=slot.drain,
            remarks=slot.signs.remarks,
        )
        for slot in sorted(reading.slots, key=lambda each: each.slot_id)
    ]


def summary(reading: FleetReading) -> FleetSummary:
    """Return the sums over all rows."""
    rows = lease_rows(reading)
    open_rows = [row for row in rows if row.state is not LeaseState.FINISHED]
    ours = {slot.worker_id for slot in reading.slots}
    return FleetSummary(
        leases=_counted(row.state for row in rows),
        slots=_counted(slot.state for slot in reading.slots),
        workers=tuple(sorted({row.owner for row in open_rows if row.owner} - ours)),
        lag_ms=max((row.lag_ms for row in open_rows if row.lag_ms is not None), default=None),
        lag_unknown=sum(row.lag_ms is None for row in open_rows),
        plan_age_ms=reading.at_ms - reading.planned_ms if reading.planned_ms else None,
        failures=failures(reading.slots, now_ms=reading.at_ms),
        foreign_leases=reading.foreign_leases,
        unreadable_documents=reading.unreadable_documents,
        stream_is_gone=reading.stream_is_gone,
        long_calls_ms=reading.long_calls_ms,
        remarks=remarks(reading.slots),
    )


def remarks(slots: Iterable[Slot]) -> dict[str, tuple[str, ...]]:
    """Return what handlers do that they should not, and the slots of which it is seen."""
    found: dict[str, tuple[str, ...]] = {}
    for slot in sorted(slots, key=lambda each: each.slot_id):
        for remark in slot.signs.remarks if slot.state is SlotState.RUNNING else ():
            found[remark] = (*found.get(remark, ()), slot.slot_id)
    return found


def said_of(failure: LastFailure, *, now_ms: int) -> str:
    """Return what a worker fails of, how often it has in a row, and since when."""
    if failure.times == 1:
        return f"{failure}, {_ago(now_ms - failure.last_ms)} ago"
    since = _ago(now_ms - failure.first_ms)
    return f"{failure}, {failure.times} times in a row since {since} ago"


def _ago(duration_ms: int) -> str:
    seconds = max(0, duration_ms) // 1000
    return f"{seconds} s" if seconds < 2 * _MINUTE_S else f"{seconds // _MINUTE_S} min"


def failures(slots: Iterable[Slot], *, now_ms: int) -> list[FailureRow]:
    """Return what workers fail of, once for all that fail of the same, in the order of slots."""
    alike: dict[tuple[str, str, str], dict[str, LastFailure]] = {}
    for slot in sorted(slots, key=lambda each: each.slot_id):
        if (failure := slot.failure) is not None and slot.state is not SlotState.ENDED:
            cause = (failure.kind, failure.message, failure.where)
            alike.setdefault(cause, {})[slot.slot_id] = failure
    rows = []
    for found in alike.values():
        names, worst = tuple(found), max(found.values(), key=lambda each: each.times)
        fail = "fail" if len(names) > 1 else "fails"
        rows.append(
            FailureRow(
                slots=names,
                kind=worst.kind,
                is_certain=worst.is_certain,
                times=worst.times,
                said=f"{', '.join(names)} {fail}: {said_of(worst, now_ms=now_ms)}",
                remedy=cure_of_import(worst.message) or worst.remedy.format(worker=names[0]),
            )
        )
    return rows


def in_words(counts: Mapping[_State, int]) -> str:
    """Return how many there are in each state: `4 reading, 1 stopped`."""
    return ", ".join(f"{count} {state.lower()}" for state, count in counts.items()) or "none"


def _counted(states: Iterable[_State]) -> dict[_State, int]:
    return dict(sorted(Counter(states).items()))


def _lags(reading: FleetReading) -> dict[str, int]:
    unfinished = [lease for lease in reading.leases if not lease.is_finished]
    paused = reading.paused
    stopped = {key: stop.at_ms for key, stop in reading.stops.items()}
    # The manager looks at those asleep whenever it plans, and keeps them only if they are quiet.
    quiet_ms = lag_now(0, reading.at_ms - reading.planned_ms, still_ms=PLAN_STILL_MS)
    return dict.fromkeys(reading.naps.keys() - paused.keys(), quiet_ms) | lags_of(
        unfinished,
        reading.slots,
        stopped_since_ms={key: pause.since_ms for key, pause in paused.items()} | stopped,
        now_ms=reading.at_ms,
        still_ms=reading.failover_ms,
    )


def _row(
    lease: Lease,
    reading: FleetReading,
    *,
    unfinished: set[str],
    lags: Mapping[str, int],
    paused: Mapping[str, Pause],
) -> LeaseRow:
    sighting = reading.sightings.get(lease.lease_key)
    current = sighting is not None and sighting.counter == lease.lease_counter
    seen_ms = reading.at_ms - sighting.first_seen_ms if sighting and current else None
    state, why = _state(lease, reading, unfinished=unfinished, seen_ms=seen_ms, paused=paused)
    return LeaseRow(
        lease_key=lease.lease_key,
        state=state,
        owner=None if lease.is_finished else lease.effective_owner,
        checkpoint=str(lease.checkpoint),
        counter=lease.lease_counter,
        lag_ms=lags.get(lease.lease_key),
        seen_ms=None if lease.is_finished else seen_ms,
        why=why,
        way=reading.ways.get(lease.lease_key) if state is LeaseState.READING else None,
    )


def _state(
    lease: Lease,
    reading: FleetReading,
    *,
    unfinished: set[str],
    seen_ms: int | None,
    paused: Mapping[str, Pause],
) -> tuple[LeaseState, str]:
    """Return the state and what the lease waits for; the first that holds, most severe first."""
    stop = reading.stops.get(lease.lease_key)
    waits_for = [parent for parent in lease.parent_shard_ids if parent in unfinished]
    if lease.is_finished:
        return LeaseState.FINISHED, ""
    if stop is not None:
        return LeaseState.STOPPED, f"at {stop.position}: {stop.error}"
    if (pause := paused.get(lease.lease_key)) is not None:
        return LeaseState.PAUSED, str(pause)
    if (nap := reading.naps.get(lease.lease_key)) is not None:
        return LeaseState.ASLEEP, str(nap.reason)
    if lease.effective_owner is None:
        return LeaseState.UNOWNED, f"parents: {', '.join(waits_for)}" if waits_for else ""
    if (failure := reading.failing.get(lease.effective_owner)) is not None:
        return LeaseState.FAILING, said_of(failure, now_ms=reading.at_ms)
    if seen_ms is not None and seen_ms >= reading.failover_ms:
        return LeaseState.EXPIRED, f"not renewed for {seen_ms / 1000:.0f} s"
    if waits_for:
        return LeaseState.WAITING, f"parents: {', '.join(waits_for)}"
    if lease.checkpoint_owner is not None:
        return LeaseState.HANDOVER, f"next: {lease.lease_owner}"
    return LeaseState.READING, _reading(lease.lease_key, reading)


def _reading(key: str, reading: FleetReading) -> str:
    running_ms = reading.long_calls_ms.get(key)
    if running_ms is not None:
        return f"a call of its handler has been running for {_ago(running_ms)}"
    way = reading.ways.get(key)
    return said_of_way(way) if way else ""


def said_of_way(way: ShardWay) -> str:
    """Return how a shard is read that may be pushed."""
    if way.polled:
        return f"polled for now, for it could not be pushed: {way.polled}"
    return f"pushed, at most {way.gap_ms / 1_000:.1f} s without an event"
