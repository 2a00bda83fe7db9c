"""
Where every lease was last known to be, since when, and why.

A turn's entries are kept for some days; a lease may stay with one worker for months. So the
reason of its present place is kept for as long as the lease is there. What changed by no decision
of the manager's is found by comparing these places with the leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardfleet.domain.explain.turn_log import Entry, Happening, entry_of_row
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    AskedToEnd,
    EndedInOrder,
    FollowedBy,
    FollowsParents,
    GaveBack,
    MadeByOthers,
    NoWorkerOfOurs,
    OfAnotherApplication,
    PutBack,
    Reason,
    ThereAlready,
    TookItself,
    WentOnWithChild,
)
from shardfleet.domain.slots.slot import Slot, SlotState

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


@dataclass(frozen=True, slots=True)
class Place:
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
    by_key = {lease.lease_key: lease for lease in sorted(leases, key=lambda le: le.lease_key)}
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
    found += [
        Entry(what=Happening.VANISHED, subject=key, before=place.entry.worker_id)
        for key, place in sorted(places.items())
        if key not in by_key and at_ms - place.since_ms >= STALE_MS
    ]
    return found


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
