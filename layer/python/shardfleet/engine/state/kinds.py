"""
The kinds of documents of the fleet-state table: their names, ids and bodies, and nowhere else.

Nothing of ours is ever put into the lease table (protocol.md §0.8). What is
not known of a body is passed over, what is missing has its default or makes it unreadable; what
holds while a document is unreadable says the module that reads it, and docs/operating.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.balance.loads import WorkerUse
from shardfleet.domain.cost.usage import Consumption, LedgerPage
from shardfleet.domain.delivery.lanes import DoneAhead, LanesNote
from shardfleet.domain.delivery.progress import read_position
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.delivery.windows import WindowNote, read_state
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.domain.leases.handovers import Handover
from shardfleet.domain.leases.holes import Suspicion
from shardfleet.domain.leases.stamps import Stamp
from shardfleet.domain.reasons import reason_of_json
from shardfleet.domain.sleep.pauses import DIRECTIONS, Pauses
from shardfleet.domain.sleep.sleep import Glance, Nap
from shardfleet.domain.slots.offers import Host, Offer
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber, StreamIncarnation
from shardfleet.engine.state.documents import DocumentKind, Keeping, Lifetime
from shardfleet.engine.state.rows import rows_kind
from shardfleet.errors import ProtocolError

JsonReason = Mapping[str, Any]  # domain.reasons.reason_json


class ChargedRecords(Struct, frozen=True, kw_only=True):
    """
    Records that the process died over, and that are not done yet.

    Attributes:
        first: position of the first one, ``sequence:sub``.
        last: position of the last one.
        crashes: process deaths charged to them so far.

    """

    first: str
    last: str
    crashes: int


class CrashNote(Struct, frozen=True, kw_only=True):
    """
    Which call of a lease was being made while crashes are suspected (hazards H9, H21).

    Attributes:
        lease_key: the lease.
        first: position of its first record, ``sequence:sub``; without records, how far it is.
        last: position of its last record.
        count: records in the call.
        crashes: process deaths charged to this call so far.
        is_open: the call has not returned yet.
        kind: see :class:`~shardfleet.domain.delivery.calls.CallKind`.
        charged: records that this call comes before; None: it is itself of them, or there are none.
        stamp: whose lease it was then; None: not kept.

    """

    lease_key: str
    first: str
    last: str
    count: int
    crashes: int
    is_open: bool
    kind: str = "records"
    charged: ChargedRecords | None = None
    stamp: Stamp | None = None


# --- bodies that are nothing else


class Pin(msgspec.Struct, frozen=True):
    """Where a LATEST lease begins: an instant, of the incarnation that was created then (H7)."""

    instant_ms: int
    created_ms: int


class TipMark(msgspec.Struct, frozen=True):
    """When a shard was last read to its tip; see :mod:`shardfleet.engine.shard.start`."""

    at_ms: int
    done: str = ""
    told: str = ""
    stamp: Stamp | None = None


class SetBack(msgspec.Struct, frozen=True):
    """
    A lease was set back by us.

    See :class:`shardfleet.domain.leases.stamps.Generation`; number 0: the document's version is it.
    """

    at_ms: int
    number: int = 0
    to: str = ""
    made: str = ""
    first: str = ""
    before: tuple[int, ...] = ()


class Lock(msgspec.Struct, frozen=True):
    """
    Who has the manager's turn (hazard H13).

    Attributes:
        holder: an invocation, or a process.
        until_ms: epoch milliseconds; 0: it has left in good order.
        function: by which a manager is called; empty: one stands by, and nobody calls.

    """

    holder: str
    until_ms: int
    function: str = ""


class Prompt(msgspec.Struct, frozen=True):
    """What a prompt says besides that there was one: after which hold of the lock it called."""

    hold: int = 0


class KeptConfig(msgspec.Struct, frozen=True):
    """The configuration of a fleet of processes, as variables: no function has it."""

    env: Mapping[str, str]


class EntryRow(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a turn, as :meth:`shardfleet.domain.turn_log.Entry.row` writes it."""

    what: str
    subject: str
    worker_id: str
    before: str
    reason: JsonReason | None


class PlaceRow(msgspec.Struct, frozen=True, array_like=True):
    """A lease's place: since when, epoch milliseconds, and its entry."""

    since_ms: int
    what: str
    subject: str
    worker_id: str
    before: str
    reason: JsonReason | None


class Turn(msgspec.Struct, frozen=True):
    """What happened in one turn of the manager; see :mod:`shardfleet.engine.manager.history`."""

    at_ms: int
    entries: list[EntryRow]
    left_out: int = 0


class Places(msgspec.Struct, frozen=True):
    """Where leases are."""

    leases: list[PlaceRow]


class _KeyAndWhy(msgspec.Struct, frozen=True, array_like=True):
    key: str
    reason: JsonReason


class _SlotAndWhy(msgspec.Struct, frozen=True, array_like=True):
    slot_id: str
    task: str
    reason: JsonReason | None


class LastPlan(msgspec.Struct, frozen=True):
    """The last plan; written by ``engine.manager.report.plan_body``, which has more parts."""

    at_ms: int
    slots_why: JsonReason | None = None
    slots_wanted: int = 0
    sleep_off: JsonReason | None = None
    problems: list[JsonReason] = []
    left: list[_KeyAndWhy] = []
    slots: list[_SlotAndWhy] = []
    kept: list[_KeyAndWhy] = []


class _GoneBody(msgspec.Struct, frozen=True):
    lease_key: str
    first_ms: int = 0
    unlisted_ms: int = 0
    known_ms: int = 0
    checkpoint: str = ""
    reason: JsonReason | None = None
    ended_by: str = ""


class _NapBody(msgspec.Struct, frozen=True):
    lease_key: str
    worker_id: str
    since_ms: int
    done: tuple[str, int]
    after: str = ""
    iterator: str = ""
    made_ms: int = 0


class _LedgerBody(msgspec.Struct, frozen=True):
    writer: str
    day: str = ""
    used: Consumption = Consumption()
    metrics: frozenset[str] = frozenset()
    began_ms: int = 0
    until_ms: int = 0


class _Identity(msgspec.Struct, frozen=True):
    arn: str
    created_ms: int


# --- rows of what the manager keeps by key; see engine/state/rows.py


class LoadRows(msgspec.Struct, frozen=True):
    """Bytes per second by lease, and what each worker uses."""

    leases: Mapping[str, int]
    workers: Mapping[str, WorkerUse]


_LEASE, _WORKER = "lease ", "worker "


def rows_of_loads(leases: Mapping[str, int], workers: Mapping[str, Any]) -> dict[str, Any]:
    """Return loads as rows by key, which :func:`loads_body` takes apart again."""
    return {_LEASE + key: rate for key, rate in leases.items()} | {
        _WORKER + worker_id: use for worker_id, use in workers.items()
    }


def loads_body(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a document of loads."""
    return {
        part: {k.removeprefix(begins): v for k, v in rows.items() if k.startswith(begins)}
        for part, begins in (("leases", _LEASE), ("workers", _WORKER))
    }


# --- what bodies are made into


def _crash_note(note: CrashNote) -> CrashNote:
    _positions(note.first, note.last)
    if note.charged is not None:
        _positions(note.charged.first, note.charged.last)
    return note


def _lanes(note: LanesNote) -> LanesNote:
    _positions(note.since, note.through)
    DoneAhead.of(note.ahead)
    return note


def _window(note: WindowNote) -> WindowNote:
    _positions(note.since, note.through)
    if not note.kept_at:
        read_state(note.state)
    return note


def _positions(*texts: str) -> None:
    for text in texts:
        read_position(text)


def _pauses(pauses: Pauses) -> Pauses:
    if pauses.migration is not None and pauses.migration.direction not in DIRECTIONS:
        raise ProtocolError("a migration in no direction")
    return replace(pauses, is_unknown=False)


def _gone(body: _GoneBody) -> GoneNote:
    return GoneNote(
        lease_key=body.lease_key,
        first_ms=body.first_ms,
        unlisted_ms=body.unlisted_ms,
        known_ms=body.known_ms,
        checkpoint=body.checkpoint,
        reason=reason_of_json(body.reason) if body.reason else None,
        ended_by=body.ended_by,
    )


def _nap(body: _NapBody) -> Nap:
    return Nap(
        lease_key=body.lease_key,
        worker_id=body.worker_id,
        since_ms=body.since_ms,
        done=ExtendedSequenceNumber(*body.done),
        after=body.after,
        iterator=body.iterator,
        made_ms=body.made_ms,
    )


def _page(body: _LedgerBody) -> LedgerPage:
    return LedgerPage(**msgspec.structs.asdict(body))


def _incarnation(body: _Identity) -> StreamIncarnation:
    if not body.arn.startswith("arn:"):
        raise ProtocolError("no ARN")
    return StreamIncarnation(body.arn, body.created_ms)


# --- the kinds: what a worker writes, what the manager or a person writes

_WORKERS = Keeping(is_workers=True)
_WORKERS_BY_LEASE = Keeping(Lifetime.LEASE, is_workers=True)

# Of what only rises, nothing is as good as zero (H1 to H3).
SLOT: DocumentKind[Slot] = DocumentKind(
    "slot",
    Slot,
    id_field="slot_id",
    required=("generation", "epoch", "assign_seq", "served_seq", "assigned"),
    kept=_WORKERS,
)
NOTE: DocumentKind[CrashNote] = DocumentKind(
    "note",
    CrashNote,
    id_field="lease_key",
    made=_crash_note,
    kept=_WORKERS_BY_LEASE,
)
STOP: DocumentKind[StopNote] = DocumentKind(
    "stop", StopNote, id_field="lease_key", kept=_WORKERS_BY_LEASE
)
# How far a shard is done beyond its checkpoint; see domain/delivery/lanes.py.
LANES: DocumentKind[LanesNote] = DocumentKind(
    "lanes",
    LanesNote,
    id_field="lease_key",
    made=_lanes,
    kept=_WORKERS_BY_LEASE,
)
# The state of a shard's tumbling window; see domain/delivery/windows.py. Its defaults are of none.
WINDOW: DocumentKind[WindowNote] = DocumentKind(
    "window",
    WindowNote,
    id_field="lease_key",
    made=_window,
    required=("start_ms", "state", "kept_at"),
    kept=_WORKERS_BY_LEASE,
)
TIP: DocumentKind[TipMark] = DocumentKind("tip", TipMark, kept=_WORKERS_BY_LEASE)
NAP: DocumentKind[Nap] = DocumentKind(
    "nap", _NapBody, id_field="lease_key", made=_nap, kept=_WORKERS_BY_LEASE
)
GONE: DocumentKind[GoneNote] = DocumentKind(
    "gone", _GoneBody, id_field="lease_key", made=_gone, kept=_WORKERS_BY_LEASE
)
# Its lease's, but the earliest one says when the fleet began.
PIN: DocumentKind[Pin] = DocumentKind("pin", Pin, kept=_WORKERS)
STREAM: DocumentKind[StreamIncarnation] = DocumentKind(
    "stream", _Identity, made=_incarnation, kept=_WORKERS
)
PROMPT: DocumentKind[Prompt] = DocumentKind("prompt", Prompt, kept=_WORKERS)
LEDGER: DocumentKind[LedgerPage] = DocumentKind(
    "ledger",
    _LedgerBody,
    id_field="writer",
    made=_page,
    kept=Keeping(Lifetime.DAY, is_workers=True),
)
GENERATION: DocumentKind[SetBack] = DocumentKind(
    "generation", SetBack, kept=Keeping(Lifetime.LEASE)
)
PAUSE: DocumentKind[Pauses] = DocumentKind("pause", Pauses, made=_pauses)
LOCK: DocumentKind[Lock] = DocumentKind("lock", Lock)
# Slots that processes carry, and the processes; see domain/slots/offers.py.
OFFER: DocumentKind[Offer] = DocumentKind("offer", Offer, id_field="name")
HOST: DocumentKind[Host] = DocumentKind("host", Host, id_field="name")
CONFIG: DocumentKind[KeptConfig] = DocumentKind("config", KeptConfig)
PACE: DocumentKind[Pace] = DocumentKind("pace", Pace)
FOREIGN: DocumentKind[Foreign] = DocumentKind("foreign", Foreign)
PLAN: DocumentKind[LastPlan] = DocumentKind("plan", LastPlan)
TURN: DocumentKind[Turn] = DocumentKind("turn", Turn)
PLACES: DocumentKind[Places] = DocumentKind("places", Places)
# Smoothed throughput by lease, utilisation by worker.
LOADS: DocumentKind[LoadRows] = DocumentKind("loads", LoadRows)
SIGHTINGS = rows_kind("sightings", Sighting)
HANDOVERS = rows_kind("handovers", Handover)
SUSPECTS = rows_kind("suspects", Suspicion)
GLANCES = rows_kind("glances", Glance)
FINISHED = rows_kind("finished", int)

KINDS: tuple[DocumentKind[Any], ...] = tuple(
    each for each in list(vars().values()) if isinstance(each, DocumentKind)
)
_BY_NAME = {str(kind): kind for kind in KINDS}
OF_A_LEASE = frozenset(kind for kind in KINDS if kind.kept.lifetime is Lifetime.LEASE)
# What a worker's role allows it to write, as patterns of keys.
WORKER_KINDS = sorted(
    f"{kind} *" if kind.kept.lifetime is Lifetime.DAY else str(kind)
    for kind in KINDS
    if kind.kept.is_workers
)


def kind_of(name: str) -> DocumentKind[Any] | None:
    """Return the kind of a document by its name in the table; None: no kind of this release's."""
    begins, space, day = name.partition(" ")
    kind = _BY_NAME.get(begins)
    if kind is None or bool(space) != (kind.kept.lifetime is Lifetime.DAY):
        return None
    return kind.of_day(day) if space else kind
