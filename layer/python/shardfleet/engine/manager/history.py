"""
What the manager did and why, kept for `shardfleet explain` (documents of the fleet-state table).

Three kinds: each turn's entries with a time-to-live, none for a turn in which nothing changed;
every lease's place with its reason, for as long as there is the lease; and the last plan in full.
All are bounded in size. They are notes for a person: nothing is decided by them, and a turn does
not fail because they could not be written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from shardfleet.domain.item_size import fitting
from shardfleet.domain.reasons import ThereAlready
from shardfleet.domain.turn_log import (
    TELLING,
    Entry,
    Happening,
    Place,
    entry_of_event,
    entry_of_row,
    news,
    observed,
    place_of_row,
    places_after,
)
from shardfleet.engine.manager.report import TurnReport, plan_body
from shardfleet.engine.ports import EventSink, StateStore, Written
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import PLACES, TURN
from shardfleet.errors import OutcomeUnknown, Throttled, Unsettled
from shardfleet.events.base import Event

KEPT_MS = 7 * 24 * 3_600_000
# An item of DynamoDB holds 400 KB; a row is some 150 bytes, and 1,400 at most.
ROWS_PER_DOCUMENT = 250
DOCUMENTS_MOST = 16
# Fixed, so that a lease stays in its document; 1,000 leases in each are some 200 KB, and what does
# not fit is left out and counted.
PLACE_DOCUMENTS = 16
PLACES_PER_DOCUMENT = 1_000
# Beyond so many leases only the manager's own decisions are kept, and the latest places.
LEASES_MOST = 12_000
_TOLD_MOST = 100_000  # of one turn that assigns as many leases


class KeptTurn(Struct, frozen=True):
    """
    What happened in one turn.

    Attributes:
        at_ms: when it ended, epoch milliseconds.
        entries: what happened, in order.
        left_out: how many entries more there were.

    """

    at_ms: int
    entries: tuple[Entry, ...]
    left_out: int = 0


class History:
    """The kept turns and places, as documents."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Nothing is read yet."""
        self._store = Documents.of(store)

    async def turns(self, *, since_ms: int) -> list[KeptTurn]:
        """Read the turns in which something happened since then, oldest first (CLI only)."""
        found: list[KeptTurn] = []
        for turn in await self._store.bodies(TURN):
            if turn.at_ms >= since_ms:
                entries = (entry_of_row(msgspec.structs.astuple(row)) for row in turn.entries)
                known = tuple(entry for entry in entries if entry is not None)
                found.append(KeptTurn(turn.at_ms, known, turn.left_out))
        return found

    async def places(self) -> dict[str, Place]:
        """Read where every lease was last known to be (manager and CLI only)."""
        found: dict[str, Place] = {}
        for kept in await self._store.bodies(PLACES):
            places = (place_of_row(msgspec.structs.astuple(row)) for row in kept.leases)
            found |= {place.entry.subject: place for place in places if place is not None}
        return found

    async def write_turn(self, at_ms: int, entries: Sequence[Entry]) -> None:
        """Keep a turn's entries, in as many documents as they need, for a week."""
        most = ROWS_PER_DOCUMENT * DOCUMENTS_MOST
        left_out = max(0, len(entries) - most)
        for begin in range(0, len(entries) - left_out, ROWS_PER_DOCUMENT):
            part = entries[begin : min(most, begin + ROWS_PER_DOCUMENT)]
            body = {
                "at_ms": at_ms,
                "entries": [entry.row() for entry in part],
                "left_out": left_out if begin + ROWS_PER_DOCUMENT >= most else 0,
            }
            await self._put_new(f"{at_ms:015d}", body, expires_ms=at_ms + KEPT_MS)

    async def _put_new(self, name: str, body: Mapping[str, Any], *, expires_ms: int) -> None:
        """Write a document that nobody has written yet; turns may end in the same millisecond."""
        for number in range(DOCUMENTS_MOST * 4):
            with_number = f"{name}-{number:02d}"
            result = await self._store.raw.write(
                TURN, with_number, body, expected_version=None, expires_ms=expires_ms
            )
            if isinstance(result, Written):
                return

    async def write_places(self, before: Mapping[str, Place], after: Mapping[str, Place]) -> None:
        """Keep the places that have changed; of more than fit, the latest."""
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        touched = {_document_of(key) for key in changed}
        parts: defaultdict[str, list[Place]] = defaultdict(list)
        for key in sorted(after):
            parts[_document_of(key)].append(after[key])
        for name in sorted(touched):
            latest = sorted(parts[name], key=lambda place: -place.since_ms)
            rows = fitting([place.row() for place in latest[:PLACES_PER_DOCUMENT]])
            # Whatever is there is overwritten: the turn lock makes this a single writer.
            current = await self._store.raw.read(PLACES, name)
            version = current.version if current else None
            body = {"leases": rows, "left_out": len(latest) - len(rows)}
            await self._store.raw.write(PLACES, name, body, expected_version=version)


def _document_of(lease_key: str) -> str:
    return f"{crc32(lease_key.encode()) % PLACE_DOCUMENTS:02d}"


@contextmanager
def _putting_off() -> Iterator[None]:
    try:
        yield
    except Unsettled:
        raise
    except (Throttled, OutcomeUnknown):
        pass  # The next turn writes it.


class TurnHistory:
    """Listens to what a manager does, and keeps it at the end of each turn."""

    def __init__(self, state: FleetState, events: EventSink) -> None:
        """Stand between the manager and its events."""
        self._state = state
        self._history = History(state.store)
        self._events = events
        self._told: list[Event] = []
        self._entries: list[Entry] = []
        self._places: dict[str, Place] | None = None
        self._plan: Mapping[str, Any] | None = None

    def emit(self, event: Event) -> None:
        """Pass an event on, and remember it for this turn."""
        if isinstance(event, TELLING) and len(self._told) < _TOLD_MOST:
            self._told.append(event)
        self._events.emit(event)

    async def keep(self, report: TurnReport) -> None:
        """
        Keep a turn; what cannot be written now is written with the next one.

        Args:
            report: of the turn.

        Raises:
            Unsettled: it is refused for what may be a person's to mend, which is to be told.

        """
        with _putting_off():
            if self._places is None:
                self._places = await self._history.places()
                self._plan = await self._state.plan() or {}
        told, self._told = self._told, []
        if self._places is None or self._plan is None:
            return
        body = plan_body(report)
        places = self._places
        entries = self._happened(report, told, body)
        after = places_after(places, entries, at_ms=report.at_ms)
        self._entries += [entry for entry in entries if not isinstance(entry.reason, ThereAlready)]
        self._plan = body
        with _putting_off():
            if after != places:
                await self._history.write_places(places, after)
                self._places = after
            if self._entries:
                await self._history.write_turn(report.at_ms, self._entries)
                self._entries = []
            await self._state.write_plan(body)

    def _happened(
        self, report: TurnReport, told: Iterable[Event], body: Mapping[str, Any]
    ) -> list[Entry]:
        """Return what others did, then what the manager did, then how things stand now."""
        assert self._places is not None
        assert self._plan is not None
        plan = report.plan
        owners = {le.lease_key: le.lease_owner or "" for le in plan.leases} if told else {}
        done = [
            entry for event in told if (entry := entry_of_event(event, owners=owners)) is not None
        ]
        seen: list[Entry] = []
        if len(plan.leases) <= LEASES_MOST:
            made = {entry.subject for entry in done if entry.what is Happening.CREATED}
            as_read = [lease for lease in plan.leases if lease.lease_key not in made]
            slots, began_ms = plan.snapshot.slots, plan.snapshot.began_ms
            # What cannot be read has not gone.
            places = self._places
            if unreadable := plan.unreadable.reasons:
                places = {key: place for key, place in places.items() if key not in unreadable}
            seen = observed(places, as_read, slots, at_ms=began_ms)
        return [*seen, *done, *news(self._plan, body)]
