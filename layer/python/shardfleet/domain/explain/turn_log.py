"""
What a manager turn decided and what it found changed, one entry each, with the reason.

Only differences are told: a lease that waits for the same parent as in the turn before is no
news. What the manager did itself it knows from its own events; what others did (a worker that
ends a shard, gives leases back, or belongs to another application) it finds by comparing the
leases with where it last knew them to be: :mod:`shardfleet.domain.explain.last_seen`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.slots.upkeep import SlotTask
from shardfleet.events import (
    AssignmentLost,
    Event,
    HandoverForced,
    LeaseAssigned,
    LeaseCreated,
    LeaseDeleted,
    LeaseWoken,
    RegimeChosen,
    SlotRestarted,
    SlotStarted,
    SlotUpkeepFailed,
)

FLEET = "fleet"  # the subject of what concerns no single lease or slot
REASON_MOST = 300  # characters: an error of the SDK may be a page


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
    REGIME = "REGIME"  # how eager the fleet is, for lag and money
    SLOT_SILENT = "SLOT_SILENT"  # no sign of life


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    One thing that happened.

    Attributes:
        what: see :class:`Happening`.
        subject: the lease key, the slot id, or ``fleet``.
        worker_id: who has the lease now, or whose slot it is; empty for nobody.
        before: who had the lease before, empty for nobody.
        reason: for a person.

    """

    what: Happening
    subject: str
    worker_id: str = ""
    before: str = ""
    reason: str = ""

    def row(self) -> list[str]:
        """Return the entry as a row of a document."""
        return [
            self.what.value,
            self.subject,
            self.worker_id,
            self.before,
            self.reason[:REASON_MOST],
        ]


def entry_of_row(row: Sequence[str]) -> Entry | None:
    """Read a row back; None for what a later version has written."""
    if len(row) < len(Entry.__dataclass_fields__) or row[0] not in Happening.__members__:
        return None
    what, subject, worker_id, before, reason, *_ = row
    return Entry(
        what=Happening(what), subject=subject, worker_id=worker_id, before=before, reason=reason
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
    SlotRestarted,
    SlotUpkeepFailed,
    RegimeChosen,
)


def entry_of_event(
    event: Event, *, owners: Mapping[str, str], starts: Mapping[str, str]
) -> Entry | None:
    """
    Return what an event of the manager's says, None when it is no decision.

    Args:
        event: as emitted.
        owners: lease key to owner before this turn.
        starts: slot id to why it was to be started.

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
                reason=f"{before} had not let go after {event.waited_ms / 1000:.0f} s",
            )
        case LeaseWoken(lease_key=key, reason=reason) if not owners.get(key):
            return Entry(what=Happening.WOKEN, subject=key, reason=reason)
        case AssignmentLost(lease_key=key, worker_id=worker_id, reason=reason):
            return Entry(
                what=Happening.REFUSED, subject=key, worker_id=worker_id or "", reason=reason
            )
        case _:
            return _entry_of_slot(event, starts)


def _entry_of_slot(event: Event, starts: Mapping[str, str]) -> Entry | None:
    match event:
        case SlotStarted(slot_id=slot_id, worker_id=worker_id) if slot_id in starts:
            return Entry(
                what=Happening.SLOT_STARTED,
                subject=slot_id,
                worker_id=worker_id,
                reason=starts[slot_id],
            )
        case SlotRestarted(slot_id=slot_id, worker_id=worker_id, reason=reason):
            return Entry(
                what=Happening.SLOT_RESTARTED, subject=slot_id, worker_id=worker_id, reason=reason
            )
        case RegimeChosen(regime=regime, reason=reason):
            return Entry(what=Happening.REGIME, subject=FLEET, reason=f"{regime.lower()}, {reason}")
        case SlotUpkeepFailed(slot_id=slot_id, task=task, error=error):
            return Entry(what=Happening.SLOT_FAILED, subject=slot_id, reason=f"{task}: {error}")
        case _:
            return None


def standing(plan: Mapping[str, Any]) -> list[Entry]:
    """
    Return how things stood by a plan as it is kept; see ``engine.manager.report.plan_body``.

    Args:
        plan: the document's body; empty before the first turn.

    """
    found = [
        Entry(what=Happening.WAITS, subject=key, reason=why) for key, why in plan.get("left", ())
    ]
    found += [
        Entry(what=Happening.STAYS, subject=key, reason=why) for key, why in plan.get("kept", ())
    ]
    found += [
        Entry(what=Happening.LISTING, subject=FLEET, reason=why) for why in plan.get("problems", ())
    ]
    if "slots_wanted" in plan:
        found.append(
            Entry(
                what=Happening.SIZED,
                subject=FLEET,
                reason=plan.get("slots_why") or f"{plan['slots_wanted']} worker slots wanted",
            )
        )
    # How long a slot has been silent changes with each turn, and would be news each time.
    silent, drained = Happening.SLOT_SILENT, Happening.SLOT_DRAINED
    for slot_id, task, why in plan.get("slots", ()):
        if task == SlotTask.EXAMINE:
            found.append(Entry(what=silent, subject=slot_id))
        elif task == SlotTask.LEAVE:
            found.append(Entry(what=drained, subject=slot_id, reason=why))
    return found


def news(previous: Mapping[str, Any], plan: Mapping[str, Any]) -> list[Entry]:
    """Return what stands otherwise than in the plan before."""
    known = set(standing(previous))
    return [entry for entry in standing(plan) if entry not in known]
