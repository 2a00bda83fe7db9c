"""
Positions as text, as checkpoints of leases, and as a document from one reader to the next.

A fleet, a Spark query and a person with a file all mean the same by a position (hazard H4):
everything up to and including one user record is done. In a lease it is a checkpoint with its
sub-sequence number; in JSON it is one of four texts, see :func:`position_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from shardfleet.domain.instants import LATEST_MS, instant_ms
from shardfleet.domain.stream.sequence import (
    AT_SHARD_END,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.errors import ConfigurationError, ProtocolError
from shardfleet.foreign import read_json

FORMAT = "shardfleet.positions"
VERSION = 1
_TEXTS = "TRIM_HORIZON, AT:<instant>, AFTER:<sequence number>:<sub-sequence number>, END"
_AT = "AT:"
_AFTER = re.compile(r"AFTER:([0-9]{1,129})(?::([0-9]{1,18}))?")
_SHOWN = 80


def position_text(position: Position) -> str:
    """
    Return a position as text: ``TRIM_HORIZON``, ``AT:<ms>``, ``AFTER:<seq>:<sub>`` or ``END``.

    ``AFTER`` means that everything up to and including this user record is done (hazard H4).
    """
    match position.kind:
        case PointKind.INSTANT:
            return f"{_AT}{position.instant_ms}"
        case PointKind.SEQUENCE if position.done is not None:
            return f"AFTER:{position.done.sequence_number}:{position.done.sub_sequence_number}"
        case _:
            return position.kind.value


def position_of(text: str, incarnation: StreamIncarnation, shard_id: str) -> Position:
    """
    Read a position from its text.

    Raises:
        ConfigurationError: the text is none of the four forms, or an instant that nobody means.

    """
    if text in (PointKind.TRIM_HORIZON, PointKind.END):
        return Position(incarnation, shard_id, PointKind(text))
    where = f"position {text[:_SHOWN]!r} of {shard_id[:_SHOWN]}"
    if text.startswith(_AT):
        try:
            at_ms = instant_ms(text.removeprefix(_AT))
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        return Position(incarnation, shard_id, PointKind.INSTANT, instant_ms=at_ms)
    if after := _AFTER.fullmatch(text):
        try:
            done = ExtendedSequenceNumber(after[1], int(after[2] or "0"))
        except ProtocolError:
            pass  # Zeros in front, which are no number of Kinesis's.
        else:
            return Position(incarnation, shard_id, PointKind.SEQUENCE, done=done)
    raise ConfigurationError(f"{where}: allowed are {_TEXTS}")


def checkpoint_of(position: Position) -> ExtendedSequenceNumber:
    """
    Return a position as a lease says it.

    An instant stands in the sub-sequence number of ``AT_TIMESTAMP``, as kcl-rust keeps it: this
    project's workers read it there, Java has the instant in its configuration (protocol.md §1.5).
    """
    match position.kind:
        case PointKind.END:
            return AT_SHARD_END
        case PointKind.INSTANT:
            return ExtendedSequenceNumber(AT_TIMESTAMP, position.instant_ms)
        case PointKind.SEQUENCE if position.done is not None:
            return position.done
        case _:
            return AT_TRIM_HORIZON


def checkpoint_text(checkpoint: ExtendedSequenceNumber) -> str:
    """Spell a checkpoint; that of an instant has it as its sub-sequence number."""
    instant_ms = checkpoint.sub_sequence_number
    if checkpoint.sequence_number == AT_TIMESTAMP and instant_ms:
        return f"{AT_TIMESTAMP}:{instant_ms}"
    return str(checkpoint)


def position_at(
    checkpoint: ExtendedSequenceNumber, incarnation: StreamIncarnation, shard_id: str
) -> Position | None:
    """Return a checkpoint as a position; None where a lease does not say where to begin."""
    if checkpoint.is_shard_end:
        return Position(incarnation, shard_id, PointKind.END)
    if not checkpoint.is_sentinel:
        return Position(incarnation, shard_id, PointKind.SEQUENCE, done=checkpoint)
    if checkpoint.sequence_number == TRIM_HORIZON:
        return Position(incarnation, shard_id, PointKind.TRIM_HORIZON)
    instant_ms = checkpoint.sub_sequence_number
    if checkpoint.sequence_number == LATEST or not instant_ms:
        return None
    return Position(incarnation, shard_id, PointKind.INSTANT, instant_ms=instant_ms)


class Positions(Struct, frozen=True, kw_only=True):
    """
    Where a reader of a whole stream stands.

    Attributes:
        incarnation: which life of which stream.
        shards: shard to position, finished ones too while they matter.
        waiting: shards that nobody has begun because a parent is unfinished, and their parents.
        origin: who stood there, for a person.
        at_ms: when this was written, epoch milliseconds.

    """

    incarnation: StreamIncarnation
    shards: Mapping[str, Position]
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    origin: str = ""
    at_ms: int = 0


def positions_to_json(positions: Positions) -> dict[str, Any]:
    """Return the document as JSON-like values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "stream": positions.incarnation.stream_arn,
        "created_ms": positions.incarnation.created_ms,
        "origin": positions.origin,
        "at_ms": positions.at_ms,
        "shards": {
            shard_id: position_text(position)
            for shard_id, position in sorted(positions.shards.items())
        },
        "waiting": {child: list(p) for child, p in sorted(positions.waiting.items())},
    }


def positions_from_text(text: str) -> Positions:
    """
    Read a document.

    Raises:
        ConfigurationError: it is no such document, of another version, or damaged.

    """
    try:
        found = read_json(text)
    except ValueError as error:
        raise ConfigurationError(f"positions: {error}") from error
    form = (found.get("format"), found.get("version")) if isinstance(found, dict) else None
    if form != (FORMAT, VERSION):
        raise ConfigurationError(
            f"positions: format and version are {str(form)[:_SHOWN]}; {(FORMAT, VERSION)} is read: "
            "take a file that `shardfleet position export` of this version wrote"
        )
    created_ms, at_ms = _member(found, "created_ms", int), _member(found, "at_ms", int)
    incarnation = StreamIncarnation(_member(found, "stream", str), created_ms)
    shards, waiting = _member(found, "shards", dict), _member(found, "waiting", dict)
    return Positions(
        incarnation=incarnation,
        shards={
            shard_id: position_of(
                _member(shards, shard_id, str, where="shards."), incarnation, shard_id
            )
            for shard_id in shards
        },
        waiting={child: _names(waiting, child) for child in waiting},
        origin=_member(found, "origin", str),
        at_ms=at_ms,
    )


_ALLOWED = {
    int: f"a number of milliseconds, 0 to {LATEST_MS},",
    str: "a text",
    dict: "an object by shard id",
    list: "a list of shard ids",
}


def _member(found: Mapping[str, Any], name: str, kind: type, *, where: str = "") -> Any:
    """Return a member of the document; refuse one that is missing or of another kind."""
    value = found.get(name)
    fits = type(value) is kind and (not isinstance(value, int) or 0 <= value <= LATEST_MS)
    if not fits:
        shown = json.dumps(value)[:_SHOWN] if name in found else "nothing"
        raise ConfigurationError(
            f"positions: {where}{name[:_SHOWN]}: {shown} found, {_ALLOWED[kind]} expected: the "
            "file is damaged, export it anew"
        )
    return value


def _names(waiting: Mapping[str, Any], child: str) -> tuple[str, ...]:
    parents = _member(waiting, child, list, where="waiting.")
    return tuple(
        _member({"parent": parent}, "parent", str, where=f"waiting.{child}.") for parent in parents
    )


def option_text(positions: Positions) -> str:
    """Return the positions as the option ``startingPosition`` of a Spark query takes them."""
    shards = {shard_id: position_text(position) for shard_id, position in positions.shards.items()}
    # A shard that neither stands nor descends from one that does was read by nobody.
    return json.dumps({**dict(sorted(shards.items())), "default": TRIM_HORIZON})
