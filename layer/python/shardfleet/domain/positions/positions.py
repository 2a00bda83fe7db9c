"""
Positions as text, as checkpoints of leases, and as a document from one reader to the next.

A fleet, a Spark query and a person with a file all mean the same by a position (hazard H4):
everything up to and including one user record is done. In a lease it is a checkpoint with its
sub-sequence number; in JSON it is one of four texts, see :func:`position_text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

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
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.values import dataclass

FORMAT = "shardfleet.positions"
VERSION = 1
_TEXTS = "TRIM_HORIZON, AT:<epoch ms>, AFTER:<sequence number>:<sub-sequence number>, END"


def position_text(position: Position) -> str:
    """
    Return a position as text: ``TRIM_HORIZON``, ``AT:<ms>``, ``AFTER:<seq>:<sub>`` or ``END``.

    ``AFTER`` means that everything up to and including this user record is done (hazard H4).
    """
    match position.kind:
        case PointKind.INSTANT:
            return f"AT:{position.instant_ms}"
        case PointKind.SEQUENCE if position.done is not None:
            return f"AFTER:{position.done.sequence_number}:{position.done.sub_sequence_number}"
        case _:
            return position.kind.value


def position_of(text: str, incarnation: StreamIncarnation, shard_id: str) -> Position:
    """
    Read a position from its text.

    Raises:
        ConfigurationError: the text is none of the four forms.

    """
    kind, _, rest = text.partition(":")
    if text in (PointKind.TRIM_HORIZON, PointKind.END):
        return Position(incarnation, shard_id, PointKind(text))
    if kind == "AT" and rest.isdecimal():
        return Position(incarnation, shard_id, PointKind.INSTANT, instant_ms=int(rest))
    number, _, sub = rest.partition(":")
    if kind == "AFTER" and number.isdecimal() and (sub or "0").isdecimal():
        done = ExtendedSequenceNumber(number, int(sub or "0"))
        return Position(incarnation, shard_id, PointKind.SEQUENCE, done=done)
    raise ConfigurationError(f"position {text!r} of {shard_id}: allowed are {_TEXTS}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
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
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"positions: this is no JSON: {error}") from error
    form = (found.get("format"), found.get("version")) if isinstance(found, dict) else None
    if form != (FORMAT, VERSION):
        raise ConfigurationError(
            f"positions: format and version are {form}; {(FORMAT, VERSION)} is read: take a file "
            "that `shardfleet position export` of this version wrote"
        )
    try:
        incarnation = StreamIncarnation(str(found["stream"]), int(found["created_ms"]))
        return Positions(
            incarnation=incarnation,
            shards={
                shard_id: position_of(each, incarnation, shard_id)
                for shard_id, each in found["shards"].items()
            },
            waiting={child: tuple(parents) for child, parents in found["waiting"].items()},
            origin=str(found["origin"]),
            at_ms=int(found["at_ms"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ShardfleetError) as error:
        raise ConfigurationError(
            f"positions: the document is damaged: {type(error).__name__}: {error}"
        ) from error


def option_text(positions: Positions) -> str:
    """Return the positions as the option ``startingPosition`` of a Spark query takes them."""
    shards = {shard_id: position_text(position) for shard_id, position in positions.shards.items()}
    # A shard that neither stands nor descends from one that does was read by nobody.
    return json.dumps({**dict(sorted(shards.items())), "default": TRIM_HORIZON})
