"""
Documents of the fleet-state table that cannot be read: shown, mended or dropped by a person.

A document is mended from what is readable of it, field by field; where nothing may be lost of it
by that, and nothing needs to be known, it is dropped, and whoever keeps it writes another one. What
is written or deleted is the document as it was read, and no later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ports import Document, Written
from shardfleet.engine.state.documents import (
    DocumentKind,
    Documents,
    UnreadableDocument,
    out_of_range,
    read_as,
)
from shardfleet.engine.state.kinds import (
    CONFIG,
    FINISHED,
    FOREIGN,
    GENERATION,
    GLANCES,
    GONE,
    HANDOVERS,
    HOST,
    LANES,
    LEDGER,
    LOADS,
    LOCK,
    NAP,
    NOTE,
    OFFER,
    PACE,
    PAUSE,
    PIN,
    PLACES,
    PLAN,
    PROMPT,
    SIGHTINGS,
    SLOT,
    STOP,
    STREAM,
    SUSPECTS,
    TIP,
    TURN,
    WINDOW,
    kind_of,
)
from shardfleet.errors import OutcomeUnknown, ProtocolError


class MendingFacts(Struct, frozen=True, kw_only=True):
    """
    What a document may be mended by.

    Attributes:
        config: of the fleet.
        stream: as it is now; None unless :func:`wants_stream` says that one needs it.
        now_ms: epoch milliseconds.
        person: who mends.

    """

    config: FleetConfig
    stream: StreamIncarnation | None
    now_ms: int
    person: str


PAGES_MOST = 10_000  # 10 GB
_Body = dict[str, Any]
_Mending = Callable[[str, _Body, MendingFacts], _Body]


class _Care(Struct, frozen=True):
    """
    What is known of a kind.

    Attributes:
        meanwhile: what holds while one of it cannot be read.
        mended: what comes of mending it.
        mend: makes a body of the fields that could be read; None: it is dropped.
        only_dropped: it is never mended, for something is lost by that.

    """

    meanwhile: str
    mended: str
    mend: _Mending | None = None
    only_dropped: bool = False


def _slot(name: str, kept: _Body, facts: MendingFacts) -> _Body:
    """
    End a slot of which nobody knows what runs; its numbers rise beyond any that there were.

    Milliseconds since the epoch are more than all starts and invocations that a slot can have had,
    those since it was last mended too, so whoever still runs by the old record finds itself
    outdated (H1, H3).
    """
    beyond = 1 + max(facts.now_ms, kept.get("start_epoch", 0), kept.get("epoch", 0))
    is_known = {"state", "name", "start_epoch", "generation", "epoch"} <= kept.keys()
    seq = max(kept.get("assign_seq", 0), kept.get("served_seq", 0))
    body = {"start_epoch": beyond, "epoch": beyond, "generation": 0, "name": "", **kept}
    if not is_known:
        body |= {"state": "ENDED"}
    if not {"assign_seq", "served_seq", "assigned"} <= kept.keys():
        body |= {"assign_seq": seq, "served_seq": seq, "assigned": []}
    return body | {"slot_id": name, "worker_id": f"{facts.config.fleet}-{name}"}


def _stop(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    body: _Body = {
        "position": "",
        "error": f"what it said could not be read; mended by {facts.person}",
        "attempts": 1,
        "worker_id": "",
        "at_ms": facts.now_ms,
        "retry_ms": 0,
    }
    return body | kept


def _pin(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    assert facts.stream is not None
    created_ms = facts.stream.created_ms
    return {"instant_ms": created_ms, "created_ms": created_ms, **kept}


def _pauses(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    if {"fleet", "leases"} <= kept.keys():
        return kept
    reason = "what was paused could not be read"
    return kept | {"fleet": {"by": facts.person, "since_ms": facts.now_ms, "reason": reason}}


def _stream(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    del kept
    assert facts.stream is not None
    return {"arn": facts.stream.stream_arn, "created_ms": facts.stream.created_ms}


def _generation(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    return {"at_ms": facts.now_ms, **kept}


def _as_kept(_: str, kept: _Body, facts: MendingFacts) -> _Body:
    del facts
    return kept


_MADE_ANEW = "it is dropped, and the manager makes another one"
_NOTE_FOR_A_PERSON = "commands show less; nothing is decided by it"
_OF_A_TURN = "the manager goes by what it sees itself; what it waits for begins anew"
CARE: Mapping[str, _Care] = {
    SLOT: _Care(
        "the slot is not started again; its worker keeps its leases to the end of its turn",
        "what is readable stays; if what runs is not, the slot ends and starts with new numbers",
        _slot,
    ),
    STOP: _Care("the shard stays stopped", "the shard stays stopped, until it is resumed", _stop),
    PAUSE: _Care(
        "what somebody reads is read on; what nobody has is given to nobody",
        "what is readable stays; if what is paused is not, the whole fleet is paused",
        _pauses,
    ),
    PIN: _Care(
        "the shard waits, as no record is passed over",
        "without its instant the shard begins at the oldest record",
        _pin,
    ),
    GENERATION: _Care(
        "what is noted beside the checkpoint counts as before; what a rewind promised is not known",
        "it is written anew, also by --drop, and what was noted counts for nothing any more",
        _generation,
    ),
    STREAM: _Care(
        "a stream that was replaced would not be noticed",
        "the stream as it is now is the one on record",
        _stream,
    ),
    GONE: _Care("the shard waits for longer", "what is readable stays", _as_kept),
    WINDOW: _Care(
        "the shard waits, as its window would be lost",
        "only --drop: what the window had is lost, and it begins anew behind the checkpoint",
        only_dropped=True,
    ),
    LANES: _Care(
        "what lanes did ahead of the checkpoint comes again",
        "it is dropped: what lanes did ahead of the checkpoint comes again",
    ),
    NOTE: _Care("no crash is charged to the shard", "it is dropped: crashes are counted anew"),
    TIP: _Care(
        "a loss that cannot be ruled out is told",
        "it is dropped, and the worker writes another one",
    ),
    NAP: _Care("the shard is awake", "it is dropped: the shard is awake until it is idle again"),
    FOREIGN: _Care("another application counts only as long as it holds leases", _MADE_ANEW),
    LOCK: _Care("the manager's turn is free", _MADE_ANEW),
    PROMPT: _Care("the manager is prompted as ever", _MADE_ANEW),
    LEDGER: _Care(
        "the cost of that day and writer is not counted", "it is dropped, and counted anew"
    ),
    SIGHTINGS: _Care(_OF_A_TURN, _MADE_ANEW),
    HANDOVERS: _Care(_OF_A_TURN, _MADE_ANEW),
    SUSPECTS: _Care(_OF_A_TURN, _MADE_ANEW),
    GLANCES: _Care(_OF_A_TURN, _MADE_ANEW),
    FINISHED: _Care(
        "what is done with is read off the leases; some of it may come again", _MADE_ANEW
    ),
    LOADS: _Care(_OF_A_TURN, _MADE_ANEW),
    OFFER: _Care("the slot is offered anew", "it is dropped: the slot is offered anew"),
    HOST: _Care("the process counts as none", "it is dropped, and the process writes another one"),
    CONFIG: _Care("--application does not find the fleet of processes", _MADE_ANEW),
    PACE: _Care(_OF_A_TURN, _MADE_ANEW),
    PLAN: _Care(_NOTE_FOR_A_PERSON, _MADE_ANEW),
    PLACES: _Care(_NOTE_FOR_A_PERSON, _MADE_ANEW),
    TURN: _Care(_NOTE_FOR_A_PERSON, "it is dropped"),
}


class DocumentRow(Struct, frozen=True):
    """
    A document that cannot be read, for a person.

    Attributes:
        name: ``kind/id``.
        reason: why not.
        meanwhile: what holds as long as it is like that.
        mended: what comes of mending it.

    """

    name: str
    reason: str
    meanwhile: str
    mended: str


def row_of(document: UnreadableDocument) -> DocumentRow:
    """Return what a person is told of a document that cannot be read."""
    care = _care(document.kind)
    return DocumentRow(document.name, document.reason, care.meanwhile, care.mended)


def wants_stream(document: UnreadableDocument) -> bool:
    """Return whether mending needs to know the stream as it is now."""
    return document.kind in (PIN, STREAM)


def may_be_mended(document: UnreadableDocument) -> bool:
    """Return whether mending loses nothing that a person should decide about."""
    return not _care(document.kind).only_dropped


def _care(kind: str) -> _Care:
    return CARE[kind.partition(" ")[0]]


class DocumentWard:
    """The documents of a fleet that cannot be read."""

    def __init__(self, documents: Documents) -> None:
        """Nothing is read yet."""
        self._documents = documents

    async def unreadable(self, *, pages_most: int = PAGES_MOST) -> list[UnreadableDocument]:
        """
        Read the table; return what cannot be read of the kinds that are known, by name.

        Args:
            pages_most: of 1 MB, at most.

        Raises:
            Throttled: try again later.

        """
        found: list[UnreadableDocument] = []
        after: tuple[str, str] | None = None
        for _ in range(pages_most):
            page = await self._documents.raw.page(after)
            for document in page.documents:
                kind = kind_of(document.kind)
                if kind is not None and (reason := read_as(kind, document).reason):
                    found.append(
                        UnreadableDocument(document.kind, document.id, document.version, reason)
                    )
            if (after := page.after) is None:
                break
        return sorted(found, key=lambda each: each.name)

    async def drop(self, document: UnreadableDocument) -> bool:
        """
        Delete a document as it was read; False: it is another one by now, or no answer came.

        A generation is written anew: without it, what was noted before the first one would count.
        """
        kind, name, version = document.kind, document.id, document.version
        with suppress(OutcomeUnknown):
            if kind == GENERATION:
                body = {"at_ms": 0}
                anew = await self._documents.raw.write(kind, name, body, expected_version=version)
                return isinstance(anew, Written)
            return await self._documents.raw.delete(kind, name, expected_version=version)
        return False

    async def mend(self, document: UnreadableDocument, facts: MendingFacts) -> bool:
        """
        Mend a document as it was read; False: it is another one by now, or no answer came.

        Raises:
            ProtocolError: it is only dropped, or nothing that could be read comes of it.

        """
        care = _care(document.kind)
        if care.only_dropped:
            raise ProtocolError("cannot be mended; --drop loses what it had")
        if care.mend is None:
            return await self.drop(document)
        current = await self._documents.raw.read(document.kind, document.id)
        kind = kind_of(document.kind)
        if current is None or kind is None or current.version != document.version:
            return False
        body = care.mend(document.id, readable_part(kind, current), facts)
        again = read_as(kind, msgspec.structs.replace(current, body=body, damage=""))
        if again.reason:
            raise ProtocolError(f"cannot be mended: {again.reason}; --drop deletes it")
        with suppress(OutcomeUnknown):
            written = await self._documents.raw.write(
                document.kind, document.id, body, expected_version=document.version
            )
            return isinstance(written, Written)
        return False


def readable_part(kind: DocumentKind[Any], document: Document) -> _Body:
    """Return those fields of a body that can be read, each by itself."""
    found: _Body = {}
    for field in msgspec.structs.fields(kind.body):
        name = field.encode_name
        if name == kind.id_field or name not in document.body:
            continue
        value = document.body[name]
        with suppress(msgspec.ValidationError, RecursionError):
            msgspec.convert(value, field.type)
            if not out_of_range(value):
                found[name] = value
    return found
