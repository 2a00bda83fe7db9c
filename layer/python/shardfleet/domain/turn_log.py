"""
What a manager turn decided and what it found changed, one entry each, with the reason.

Only differences are told: a lease that waits for the same parent as in the turn before is no
news. What the manager did itself it knows from its own events; what others did (a worker that
ends a shard, gives leases back, or belongs to another application) it finds by comparing the
leases with where it last knew them to be. A turn's entries are kept for some days, and a lease may
stay with one worker for months: so the reason of its present place is kept as long as the lease is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    AskedToEnd,
    ClosedBeforeHeartbeat,
    EndedInOrder,
    ExecutionOver,
    FollowedBy,
    FollowsParents,
    GaveBack,
    MadeByOthers,
    NotLetGo,
    NoWorkerOfOurs,
    OfAnotherApplication,
    PutBack,
    Reason,
    ThereAlready,
    TookItself,
    UpkeepFailed,
    WentOnWithChild,
    reason_json,
    reason_of_json,
)
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotTask
from shardfleet.events.base import Event
from shardfleet.events.manager import (
    AssignmentLost,
    HandoverForced,
    LeaseAssigned,
    LeaseCreated,
    LeaseDeleted,
    LeaseWoken,
    SlotStarted,
    SlotUpkeepFailed,
)

FLEET = "fleet"  # the subject of what concerns no single lease or slot


class Happening(StrEnum):
    """What happened to a lease, a worker slot or the fleet."""

    # The manager did it.
    CREATED = "CREATED"  # a lease was made
    DELETED = "DELETED"  # a finished lease was deleted
    ASSIGNED = "ASSIGNED"  # a lease that nobody had was given to a worker
    TAKEN_OVER = "TAKEN_OVER"  # a lease whose owner is lost was given to another worker
    MOVED = "MOVED"  # a lease was taken from one worker for another
    HANDOVER = "HANDOVER"  # its worker was asked to hand a lease over to another
    FORCED = "FORCED"  # it did not in time, and the next one has it
    WOKEN = "WOKEN"  # a sleeping shard is to be read again
    REFUSED = "REFUSED"  # a planned assignment came too late
    SLOT_STARTED = "SLOT_STARTED"
    SLOT_RESTARTED = "SLOT_RESTARTED"
    SLOT_DRAINED = "SLOT_DRAINED"  # asked to hand over and end
    SLOT_FAILED = "SLOT_FAILED"  # could not be started or examined
    # The manager found it so.
    APPEARED = "APPEARED"  # a lease that the manager did not make
    TAKEN = "TAKEN"  # another owner, by no decision of the manager's
    RELEASED = "RELEASED"  # no owner any more
    FINISHED = "FINISHED"  # the shard is read to its end
    VANISHED = "VANISHED"  # somebody else deleted the lease
    # How things stand; told when it changes.
    WAITS = "WAITS"  # nobody has the lease, and why
    STAYS = "STAYS"  # why a lease that is not needed is still there
    LISTING = "LISTING"  # why no lease was made from the list of shards
    SIZED = "SIZED"  # how many worker slots are wanted
    SLOT_SILENT = "SLOT_SILENT"  # no sign of life


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """
    One thing that happened.

    Attributes:
        what: see :class:`Happening`.
        subject: the lease key, the slot id, or ``fleet``.
        worker_id: who has the lease now, or whose slot it is; empty for nobody.
        before: who had the lease before, empty for nobody.
        reason: None when there is nothing left to say.

    """

    what: Happening
    subject: str
    worker_id: str = ""
    before: str = ""
    reason: Reason | None = None

    def row(self) -> list[Any]:
        """Return the entry as a row of a document."""
        return [
            self.what.value,
            self.subject,
            self.worker_id,
            self.before,
            reason_json(self.reason) if self.reason else None,
        ]


def entry_of_row(row: Sequence[Any]) -> Entry | None:
    """Read a row back; None for what a later version has written."""
    if len(row) < len(Entry.__struct_fields__) or row[0] not in Happening.__members__:
        return None
    what, subject, worker_id, before, reason, *_ = row
    return Entry(
        what=Happening(what),
        subject=subject,
        worker_id=worker_id,
        before=before,
        reason=reason_of_json(reason) if reason else None,
    )


_ASSIGNED = {
    AssignmentKind.UNOWNED.value: Happening.ASSIGNED,
    AssignmentKind.EXPIRED.value: Happening.TAKEN_OVER,
    AssignmentKind.STEAL.value: Happening.MOVED,
}

# What the manager's events tell that `entry_of_event` knows.
TELLING = (
    LeaseCreated,
    LeaseDeleted,
    LeaseAssigned,
    HandoverForced,
    LeaseWoken,
    AssignmentLost,
    SlotStarted,
    SlotUpkeepFailed,
)


def entry_of_event(event: Event, *, owners: Mapping[str, str]) -> Entry | None:
    """
    Return what an event of the manager's says, None when it is no decision.

    Args:
        event: as emitted.
        owners: lease key to owner before this turn.

    """
    match event:
        case LeaseCreated(lease_key=key, reason=reason):
            return Entry(what=Happening.CREATED, subject=key, reason=reason)
        case LeaseDeleted(lease_key=key, reason=reason):
            return Entry(
                what=Happening.DELETED, subject=key, before=owners.get(key, ""), reason=reason
            )
        case LeaseAssigned(lease_key=key, worker_id=worker_id, kind=kind, reason=reason):
            return Entry(
                what=_ASSIGNED.get(kind, Happening.HANDOVER),
                subject=key,
                worker_id=worker_id or "",
                before=owners.get(key, ""),
                reason=reason,
            )
        case HandoverForced(lease_key=key, worker_id=worker_id, old_owner=before):
            return Entry(
                what=Happening.FORCED,
                subject=key,
                worker_id=worker_id or "",
                before=before,
                reason=NotLetGo(before, event.waited_ms),
            )
        case LeaseWoken(lease_key=key, reason=reason) if not owners.get(key):
            return Entry(what=Happening.WOKEN, subject=key, reason=reason)
        case AssignmentLost(lease_key=key, worker_id=worker_id, reason=reason):
            return Entry(
                what=Happening.REFUSED, subject=key, worker_id=worker_id or "", reason=reason
            )
        case _:
            return _entry_of_slot(event)


def _entry_of_slot(event: Event) -> Entry | None:
    match event:
        case SlotStarted(slot_id=slot_id, worker_id=worker_id, reason=reason):
            is_again = isinstance(reason, ClosedBeforeHeartbeat | ExecutionOver)
            what = Happening.SLOT_RESTARTED if is_again else Happening.SLOT_STARTED
            return Entry(what=what, subject=slot_id, worker_id=worker_id, reason=reason)
        case SlotUpkeepFailed(slot_id=slot_id, task=task, error=error):
            return Entry(
                what=Happening.SLOT_FAILED, subject=slot_id, reason=UpkeepFailed(task, error)
            )
        case _:
            return None


def standing(plan: Mapping[str, Any]) -> list[Entry]:
    """
    Return how things stood by a plan as it is kept; see ``engine.manager.report.plan_body``.

    Args:
        plan: the document's body; empty before the first turn.

    """
    parts = (("left", Happening.WAITS), ("kept", Happening.STAYS))
    rows = [(what, key, why) for part, what in parts for key, why in plan.get(part, ())]
    rows += [(Happening.LISTING, FLEET, why) for why in plan.get("problems", ())]
    if plan:
        rows.append((Happening.SIZED, FLEET, plan.get("slots_why")))
    # How long a slot has been silent changes with each turn, and would be news each time.
    told = {SlotTask.EXAMINE: Happening.SLOT_SILENT, SlotTask.LEAVE: Happening.SLOT_DRAINED}
    rows += [
        (told[task], slot_id, why if task == SlotTask.LEAVE else None)
        for slot_id, task, why in plan.get("slots", ())
        if task in told
    ]
    return [
        Entry(what=what, subject=subject, reason=reason_of_json(why) if why else None)
        for what, subject, why in rows
    ]


def news(previous: Mapping[str, Any], plan: Mapping[str, Any]) -> list[Entry]:
    """Return what stands otherwise than in the plan before."""
    known = set(standing(previous))
    return [entry for entry in standing(plan) if entry not in known]


_TEMPLATES = {
    Happening.CREATED: "The manager made a lease for it{reason}.",
    Happening.APPEARED: "A lease for it was found{reason}.",
    Happening.ASSIGNED: "Nobody had it, so {worker} was given it{reason}.",
    Happening.TAKEN_OVER: "{before} was lost (it had stopped renewing), so {worker} was given it"
    "{reason}.",
    Happening.MOVED: "It was taken from {before} and given to {worker}{reason}.",
    Happening.HANDOVER: "{before} was asked to finish its batch and hand it over to {worker}"
    "{reason}.",
    Happening.FORCED: "{worker} has it without waiting any longer{reason}.",
    Happening.WOKEN: "It slept and is to be read again{reason}.",
    Happening.REFUSED: "{worker} was to be given it, but it was too late{reason}.",
    Happening.TAKEN: "{worker} has it now, before {before}{reason}.",
    Happening.RELEASED: "Nobody has it any more{reason}.",
    Happening.FINISHED: "{worker} read it to its end{reason}.",
    Happening.DELETED: "Its lease was deleted{reason}.",
    Happening.VANISHED: "Its lease is gone, and the manager did not delete it{reason}.",
    Happening.WAITS: "Nobody has it{reason}.",
    Happening.STAYS: "Its lease is kept although the shard is read to its end{reason}.",
    Happening.LISTING: "No lease could be made from the list of shards{reason}.",
    Happening.SIZED: "The fleet was sized{reason}.",
    Happening.SLOT_STARTED: "{worker} was started{reason}.",
    Happening.SLOT_RESTARTED: "{worker} was started again{reason}.",
    Happening.SLOT_DRAINED: "{worker} was asked to hand over its shards and end{reason}.",
    Happening.SLOT_SILENT: "{worker} gave no sign of life, so its execution was examined{reason}.",
    Happening.SLOT_FAILED: "{worker} could not be looked after{reason}.",
}


def sentence(entry: Entry) -> str:
    """Return what happened as a sentence about the entry's subject, which is called "it"."""
    template = _TEMPLATES[entry.what]
    if entry.what is Happening.APPEARED and entry.worker_id:
        template = "{worker} has it, with a new lease{reason}."
    is_slot = entry.what.startswith("SLOT_")
    text = template.format(
        worker=entry.worker_id or (f"Slot {entry.subject}" if is_slot else "Somebody"),
        before=entry.before or ("nobody" if entry.what is Happening.TAKEN else "another worker"),
        reason=f": {entry.reason}" if entry.reason else "",
    )
    return text if entry.worker_id or entry.before else f"{text[0].upper()}{text[1:]}"


def about(entry: Entry) -> str:
    """Return the sentence with the name of its subject, for a story of several."""
    if entry.subject in (FLEET, entry.worker_id) or entry.what.startswith("SLOT_"):
        return sentence(entry)
    return f"{entry.subject}: {sentence(entry)}"


# A scan is eventually consistent: what was changed so lately may be read as it was before.
STALE_MS = 5_000
_COMES = frozenset(
    {
        Happening.CREATED,
        Happening.APPEARED,
        Happening.ASSIGNED,
        Happening.TAKEN_OVER,
        Happening.MOVED,
        Happening.HANDOVER,
        Happening.FORCED,
        Happening.TAKEN,
        Happening.RELEASED,
        Happening.FINISHED,
    }
)
_GOES = frozenset({Happening.DELETED, Happening.VANISHED})


class Place(Struct, frozen=True, gc=False):
    """
    Where a lease is: since when as far as the manager saw, epoch milliseconds, and how it came.

    The entry's worker has it, or has finished it; in a handover it is the next one.
    """

    since_ms: int
    entry: Entry

    def row(self) -> list[Any]:
        """Return the place as a row of a document."""
        return [self.since_ms, *self.entry.row()]


def place_of_row(row: Sequence[Any]) -> Place | None:
    """Read a row back; None for what a later version has written: it is found anew."""
    entry = entry_of_row(row[1:])
    return None if entry is None else Place(int(row[0]), entry)


def places_after(
    places: Mapping[str, Place], entries: Iterable[Entry], *, at_ms: int
) -> dict[str, Place]:
    """Return the places once these things have happened."""
    found = dict(places)
    for entry in entries:
        if entry.what in _GOES:
            found.pop(entry.subject, None)
        elif entry.what in _COMES:
            found[entry.subject] = Place(at_ms, entry)
    return found


def observed(
    places: Mapping[str, Place], leases: Iterable[Lease], slots: Iterable[Slot], *, at_ms: int
) -> list[Entry]:
    """
    Return what others did: the leases as read against the places as known, ordered by key.

    Args:
        places: from the turn before.
        leases: as read in this turn, before anything was changed.
        slots: all slot records.
        at_ms: when the leases were read, epoch milliseconds.

    """
    by_key = {lease.lease_key: lease for lease in leases}
    by_worker = {slot.worker_id: slot for slot in slots}
    found: list[Entry] = []
    for key, lease in by_key.items():
        place = places.get(key)
        if place is None:
            found.append(_appeared(lease, by_key, is_first=not places))
        elif lease.is_finished:
            if place.entry.what is not Happening.FINISHED:
                found.append(_finished(lease, place))
        elif _moved(lease, place, at_ms=at_ms):
            found.append(_changed(lease, place, by_key=by_key, by_worker=by_worker))
    return [
        *sorted(found, key=lambda entry: entry.subject),
        *(
            Entry(what=Happening.VANISHED, subject=key, before=place.entry.worker_id)
            for key, place in sorted(places.items())
            if key not in by_key and at_ms - place.since_ms >= STALE_MS
        ),
    ]


def _moved(lease: Lease, place: Place, *, at_ms: int) -> bool:
    owner = lease.lease_owner or ""
    if place.entry.what is Happening.FINISHED:
        return at_ms - place.since_ms >= STALE_MS
    is_stale = owner == place.entry.before and at_ms - place.since_ms < STALE_MS
    return owner != place.entry.worker_id and not is_stale


def _appeared(lease: Lease, by_key: Mapping[str, Lease], *, is_first: bool) -> Entry:
    ended = _ended_parents(lease, by_key)
    owner = lease.lease_owner
    if is_first:
        reason: Reason = ThereAlready()
    elif ended and owner and owner in {by_key[key].lease_owner for key in ended}:
        reason = WentOnWithChild(ended)
    else:
        reason = FollowsParents(ended) if ended else MadeByOthers()
    return Entry(
        what=Happening.FINISHED if lease.is_finished else Happening.APPEARED,
        subject=lease.lease_key,
        worker_id=owner or "",
        reason=reason,
    )


def _finished(lease: Lease, place: Place) -> Entry:
    return Entry(
        what=Happening.FINISHED,
        subject=lease.lease_key,
        worker_id=lease.lease_owner or place.entry.worker_id,
        before=place.entry.worker_id if place.entry.worker_id != lease.lease_owner else "",
        reason=FollowedBy(lease.child_shard_ids) if lease.child_shard_ids else None,
    )


def _changed(
    lease: Lease, place: Place, *, by_key: Mapping[str, Lease], by_worker: Mapping[str, Slot]
) -> Entry:
    owner = lease.lease_owner or ""
    parents = _ended_parents(lease, by_key)
    ended = tuple(key for key in parents if by_key[key].lease_owner == owner)
    if place.entry.what is Happening.FINISHED:
        reason: Reason = PutBack()
    elif not owner:
        reason = _why_released(place.entry.worker_id, by_worker.get(place.entry.worker_id))
    elif owner not in by_worker:
        reason = OfAnotherApplication()
    else:
        reason = WentOnWithChild(ended) if ended else TookItself()
    return Entry(
        what=Happening.TAKEN if owner else Happening.RELEASED,
        subject=lease.lease_key,
        worker_id=owner,
        before=place.entry.worker_id,
        reason=reason,
    )


def _why_released(worker_id: str, slot: Slot | None) -> Reason:
    if slot is None:
        return NoWorkerOfOurs(worker_id)
    if slot.drain or slot.state is SlotState.ENDING:
        return AskedToEnd(worker_id)
    return (EndedInOrder if slot.state is SlotState.ENDED else GaveBack)(worker_id)


def _ended_parents(lease: Lease, by_key: Mapping[str, Lease]) -> tuple[str, ...]:
    parents = (by_key.get(parent) for parent in lease.parent_shard_ids)
    return tuple(p.lease_key for p in parents if p is not None and p.is_finished)
