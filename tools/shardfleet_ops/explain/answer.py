"""
Why a lease is where it is and why it moved; the same for a worker; and where a record is.

Pure: from a reading of both tables, the kept places and the kept turns to the sentences of
`shardfleet explain`. Each stands on something that was read: the manager's notes, or the tables.
Where a record is, is told by the lease table alone: a checkpoint covers only what the handler has
finished, so ``PROCESSED`` is certain; ``PENDING`` may include records that
are handled but not checkpointed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.lease import Lease, keys_by_owner
from shardfleet.domain.reasons import Reason, ThereAlready
from shardfleet.domain.slots.failure import LastFailure
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.sequence import LATEST, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.domain.turn_log import FLEET, Entry, Happening, Place, about, sentence
from shardfleet_ops.explain.fleet_view import (
    FleetReading,
    FleetSummary,
    LeaseRow,
    LeaseState,
    in_words,
    lease_rows,
    said_of,
    said_of_way,
    slot_rows,
    summary,
)

UP_TO_DATE_MS = 2_000


class StoryLine(Struct, frozen=True, kw_only=True):
    """
    One line of the story.

    Attributes:
        at_ms: when the manager noted it, epoch milliseconds.
        what: a word, see :class:`shardfleet.domain.turn_log.Happening`.
        lease_key: which lease it was about, None for the slot itself.
        worker_id: who has the lease afterwards, None for nobody.
        text: in a sentence.

    """

    at_ms: int
    what: Happening
    lease_key: str | None
    worker_id: str | None
    text: str


class Explanation(Struct, frozen=True, kw_only=True):
    """
    The answer.

    Attributes:
        subject: the shard, the worker, or ``fleet``.
        kind: ``shard``, ``worker`` or ``fleet``.
        state: of the lease or of the slot, ``NO_LEASE`` without one.
        owner: who has the shard; None for nobody and for workers.
        since_ms: since when it is where it is, epoch milliseconds; None unknown.
        now: where it is and how it does.
        why: why it is there.
        leases: of a worker, what it has.
        story: what happened, oldest first.

    """

    subject: str
    kind: str
    state: str
    owner: str | None
    since_ms: int | None
    now: str
    why: str
    leases: tuple[str, ...]
    story: tuple[StoryLine, ...]


class Known(Struct, frozen=True, kw_only=True):
    """
    What there is to explain from.

    Attributes:
        reading: of both tables.
        places: the manager's, by lease key.
        turns: when each kept turn ended, and what happened in it, oldest first.
        waits: lease key to why nobody was given it, by the manager's last plan.
        shards: the unfiltered listing.

    """

    reading: FleetReading
    places: Mapping[str, Place]
    turns: Sequence[tuple[int, Sequence[Entry]]]
    waits: Mapping[str, Reason]
    shards: Sequence[Shard]

    @property
    def workers(self) -> tuple[str, ...]:
        """Return all workers: those of slots, and others that own leases."""
        slots = {slot.worker_id for slot in self.reading.slots}
        return tuple(sorted(slots | keys_by_owner(self.reading.leases).keys()))


def explain_shard(known: Known, shard_id: str) -> Explanation | None:
    """Return why a shard is where it is; None when nothing is known of such a shard."""
    row = next((row for row in lease_rows(known.reading) if row.lease_key == shard_id), None)
    story = tuple(story_of(known, lambda entry: entry.subject == shard_id, sentence))
    if row is None and not story and shard_id not in {s.shard_id for s in known.shards}:
        return None
    if row is None:
        table = {lease.lease_key: lease for lease in known.reading.leases}
        _, text = without_lease(shard_id, table, known.shards)
        return Explanation(
            subject=shard_id,
            kind="shard",
            state="NO_LEASE",
            owner=None,
            since_ms=None,
            now="It has no lease, so nobody reads it.",
            why=f"{text[0].upper()}{text[1:]}.",
            leases=(),
            story=story,
        )
    place = known.places.get(shard_id)
    if place is not None and not _fits(place, row):
        place = None  # It has changed since the manager last looked.
    return Explanation(
        subject=shard_id,
        kind="shard",
        state=row.state,
        owner=row.owner,
        since_ms=place.since_ms if place else None,
        now=_now(known, row),
        why=_why(place),
        leases=(),
        story=story,
    )


def explain_worker(known: Known, name: str) -> Explanation | None:
    """Return what a worker has and why; None when there is no such worker or slot."""
    slots = known.reading.slots
    slot = next((slot for slot in slots if name in (slot.slot_id, slot.worker_id)), None)
    worker_id = slot.worker_id if slot else name
    if worker_id not in known.workers:
        return None
    held = keys_by_owner(known.reading.leases).get(worker_id, [])
    slot_id = slot.slot_id if slot else ""
    story = tuple(
        story_of(
            known,
            lambda entry: entry.subject == slot_id or worker_id in (entry.worker_id, entry.before),
            about,
        )
    )
    return Explanation(
        subject=worker_id,
        kind="worker",
        state=slot.state if slot else "FOREIGN",
        owner=None,
        since_ms=slot.started_ms or None if slot else None,
        now=_now_of_worker(known, slot, worker_id, count=len(held)),
        why=" ".join(f"{key}: {e.why}" for key in held if (e := explain_shard(known, key))),
        leases=tuple(held),
        story=story,
    )


def explain_fleet(known: Known) -> Explanation:
    """Return how the fleet is, and what was decided about all of it and about its workers."""
    found = summary(known.reading)
    others = ""
    if found.workers:
        others = f" Others that share the lease table: {', '.join(found.workers)}."
    waits = "; ".join(sorted({str(why) for why in known.waits.values()}))
    story = story_of(known, lambda e: e.subject == FLEET or e.what.startswith("SLOT_"), sentence)
    return Explanation(
        subject=FLEET,
        kind="fleet",
        state="FLEET",
        owner=None,
        since_ms=None,
        now=f"Leases: {in_words(found.leases)}. Workers: {in_words(found.slots)}.{others}"
        f"{_failing(found)}",
        why=f"What waits: {waits}." if waits else "",
        leases=(),
        story=tuple(story),
    )


def _fits(place: Place, row: LeaseRow) -> bool:
    """Return whether the manager's note is about the lease as it is."""
    what = place.entry.what
    if row.state is LeaseState.FINISHED or what is Happening.FINISHED:
        return row.state is LeaseState.FINISHED and what is Happening.FINISHED
    in_handover = row.state is LeaseState.HANDOVER and what is Happening.HANDOVER
    return in_handover or place.entry.worker_id == (row.owner or "")


def story_of(
    known: Known, wanted: Callable[[Entry], bool], told: Callable[[Entry], str]
) -> Iterable[StoryLine]:
    """Return what happened, as far as it is wanted, each in the words of ``told``."""
    for at_ms, entries in known.turns:
        for entry in entries:
            if wanted(entry):
                is_slot = entry.what.startswith("SLOT_")
                yield StoryLine(
                    at_ms=at_ms,
                    what=entry.what,
                    lease_key=None if is_slot else entry.subject,
                    worker_id=entry.worker_id or None,
                    text=told(entry),
                )


_RESTING = {
    LeaseState.ASLEEP: "It is {why}. A worker reads it from its next record on.",
    LeaseState.PAUSED: "It is {why}. Nobody is to read it until `shardfleet resume` is run.",
    LeaseState.UNREADABLE: "Nobody can read its lease, so nobody reads the shard: {why}.",
}


def _now(known: Known, row: LeaseRow) -> str:
    match row.state:
        case LeaseState.READING:
            way = f" ({said_of_way(row.way)})" if row.way else ""
            return f"{row.owner} reads it{way}. {_lag(row)}"
        case LeaseState.FINISHED:
            return "It is read to its end; nothing more comes from it."
        case LeaseState.UNOWNED:
            return _now_of_free(known, row)
        case LeaseState.FAILING:
            return f"{row.owner} has it but does not read it: {row.why}."
        case LeaseState.EXPIRED:
            return (
                f"{row.owner} has it but has {row.why}, so it is taken for lost; the manager gives "
                "the shard to another worker at its next look."
            )
        case LeaseState.WAITING:
            return (
                f"{row.owner} has it but does not read it yet ({row.why}): a shard begins only "
                "when those before it are read to their end, so that a key's records stay in order."
            )
        case LeaseState.HANDOVER:
            leases = known.reading.leases
            after = next(le.lease_owner for le in leases if le.lease_key == row.lease_key)
            return f"{row.owner} finishes its batch; then {after} reads it. {_lag(row)}"
        case LeaseState.STOPPED:
            return f"It is stopped {row.why}. {known.reading.stops[row.lease_key].outlook}"
        case _:
            return _RESTING[row.state].format(why=row.why)


def _now_of_free(known: Known, row: LeaseRow) -> str:
    failing = _failing(summary(known.reading))
    reason = known.waits.get(row.lease_key)
    if reason is not None:
        return f"Nobody reads it: {reason}.{failing}"
    if failing:
        return f"Nobody reads it.{failing}"
    return "Nobody reads it; the manager gives it to a worker at its next look."


def _failing(found: FleetSummary) -> str:
    return "".join(f" {row.said}. To do: {row.remedy}." for row in found.failures)


def _lag(row: LeaseRow) -> str:
    if row.lag_ms is None:
        return "How far behind it is has not been told yet."
    if row.lag_ms < UP_TO_DATE_MS:
        return "It is up to date."
    return f"It is {row.lag_ms / 1000:.0f} s behind."


def _why(place: Place | None) -> str:
    if place is None:
        return (
            "The manager has not noted yet how it came there: it changed after the manager's last "
            "look, or before the manager began to keep notes."
        )
    if isinstance(place.entry.reason, ThereAlready):
        return "It was so already when the manager began to keep notes."
    return sentence(place.entry)


def _now_of_worker(known: Known, slot: Slot | None, worker_id: str, *, count: int) -> str:
    shards = f"{count} shard{'' if count == 1 else 's'}"
    if slot is None:
        return (
            f"{worker_id} is no worker of this fleet: another application shares the lease table. "
            f"It has {shards}, which this fleet leaves alone while it renews them."
        )
    (row,) = (row for row in slot_rows(known.reading) if row.slot_id == slot.slot_id)
    states = {
        SlotState.STARTING: "is being started",
        SlotState.RUNNING: "is running",
        SlotState.ENDING: "hands over its shards and ends",
        SlotState.ENDED: "has ended, because there was nothing for it to do",
    }
    beat = ""
    if row.heartbeat_ms is not None and slot.state is not SlotState.ENDED:
        beat = f", last sign of life {row.heartbeat_ms / 1000:.0f} s ago"
    failure = ""
    if row.failure is not None:
        remedy = row.failure.remedy.format(worker=slot.slot_id)
        said = said_of(row.failure, now_ms=known.reading.at_ms)
        failure = f" It fails: {said}. To do: {remedy}."
    return (
        f"{worker_id} (slot {slot.slot_id}) {states[slot.state]}{beat}. It has {shards}.{failure}"
    )


class Whereabouts(StrEnum):
    """
    What became of a record.

    ``PROCESSED``: its shard's checkpoint has passed it. ``PENDING``: its shard is leased and the
    checkpoint lies before it. ``STOPPED``: as pending, and the shard is stopped. ``WAITING``: its
    shard begins when its parents are finished. ``PAST``: its shard has no lease any more, but a
    descendant has: the shard was finished, or the fleet began after it. ``UNREAD``: no lease
    leads to its shard.
    """

    PROCESSED = "PROCESSED"
    PENDING = "PENDING"
    STOPPED = "STOPPED"
    WAITING = "WAITING"
    PAST = "PAST"
    UNREAD = "UNREAD"


class Answer(Struct, frozen=True, kw_only=True):
    """
    The answer to "where is my record?".

    Attributes:
        state: in a word.
        owner: who renews the lease, None when nobody does or there is none.
        checkpoint: of the shard's lease, None when there is none.
        why: in a sentence.

    """

    state: Whereabouts
    owner: str | None
    checkpoint: str | None
    why: str


def whereabouts(
    position: ExtendedSequenceNumber,
    shard_id: str,
    *,
    leases: Iterable[Lease],
    shards: Sequence[Shard],
    stops: Mapping[str, StopNote],
    failing: Mapping[str, LastFailure],
) -> Answer:
    """
    Return what became of a record.

    Args:
        position: of the record, a number.
        shard_id: where it lies.
        leases: all of the table.
        shards: the unfiltered listing.
        stops: by lease key.
        failing: by worker id, why a worker does not work.

    """
    table = {lease.lease_key: lease for lease in leases}
    lease = table.get(shard_id)
    if lease is None:
        state, why = without_lease(shard_id, table, shards)
        return Answer(state=state, owner=None, checkpoint=None, why=why)
    state, why = _of_lease(lease, position, table=table, stop=stops.get(shard_id), failing=failing)
    owner = None if lease.is_finished else lease.effective_owner
    return Answer(state=state, owner=owner, checkpoint=str(lease.checkpoint), why=why)


def _of_lease(
    lease: Lease,
    position: ExtendedSequenceNumber,
    *,
    table: Mapping[str, Lease],
    stop: StopNote | None,
    failing: Mapping[str, LastFailure],
) -> tuple[Whereabouts, str]:
    if lease.is_finished:
        return Whereabouts.PROCESSED, "its shard is finished"
    if not lease.checkpoint.is_sentinel and lease.checkpoint >= position:
        return Whereabouts.PROCESSED, "the shard's checkpoint has passed it"
    if stop is not None:
        return Whereabouts.STOPPED, f"its shard is stopped at {stop.position}: {stop.error}"
    parents = [p for p in lease.parent_shard_ids if p in table and not table[p].is_finished]
    if parents:
        return Whereabouts.WAITING, f"its shard begins after {' and '.join(parents)}"
    if lease.checkpoint.sequence_number == LATEST:
        return Whereabouts.PENDING, "unless it is older than the fleet, which began at LATEST"
    reader = _reader(lease.effective_owner, failing)
    return Whereabouts.PENDING, f"the shard's checkpoint lies before it; {reader}"


def _reader(owner: str | None, failing: Mapping[str, LastFailure]) -> str:
    if owner is None:
        first = min(failing, default=None)
        return f"nobody owns it, and {first} fails: {failing[first]}" if first else "nobody owns it"
    if owner in failing:
        return f"{owner} has it but does not read it: {failing[owner]}"
    return f"{owner} reads it"


def without_lease(
    shard_id: str, table: Mapping[str, Lease], shards: Sequence[Shard]
) -> tuple[Whereabouts, str]:
    """Return what becomes of a shard that has no lease, and why, without a full stop."""
    graph = ShardGraph(shards)
    later = sorted(key for key in table if shard_id in _line(graph, table[key]))
    if later:
        return Whereabouts.PAST, (
            f"the shard is done with and has no lease any more: its descendant {later[0]} has one"
        )
    ancestors = graph.ancestors(shard_id)
    first = sorted(key for key in ancestors if key in table and not table[key].is_finished)
    if first:
        why = f"the shard begins after {' and '.join(first)}, and gets its lease then"
        return Whereabouts.WAITING, why
    return Whereabouts.UNREAD, "no lease leads to the shard; the manager makes one"


def _line(graph: ShardGraph, lease: Lease) -> set[str]:
    return {*graph.ancestors(lease.lease_key), *lease.parent_shard_ids}
