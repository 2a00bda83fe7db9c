"""
Start and end positions as a user writes them.

``TRIM_HORIZON``, ``LATEST``, an instant (ISO 8601 with a time zone, or epoch milliseconds),
``fleet:<application>``, or JSON with a position for each shard: a word, an instant, which ``AT:``
may stand before, ``AFTER:<sequence number>[:<sub-sequence number>]``, which means that this user
record is done, or ``END``, which means that all of them are. The JSON key ``default`` is for the
shards that are not named; `shardfleet position export` writes such JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardfleet.domain.instants import instant_ms
from shardfleet.domain.stream.sequence import (
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.errors import ProtocolError
from shardfleet.foreign import read_json
from shardfleet_spark.options.options import Kind

INSTANT = "INSTANT"
FLEET = "fleet"
SHARDS = "shards"
AT = "AT:"
AFTER = "AFTER"
ENDED = "END"
_DEFAULT = "default"
_SUB = re.compile(r"[0-9]{1,18}")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Start:
    """
    A start or end position.

    Attributes:
        kind: ``TRIM_HORIZON``, ``LATEST``, ``INSTANT``, ``AFTER`` and ``END`` (one shard),
            ``fleet`` or ``shards``.
        instant_ms: of ``INSTANT``, epoch milliseconds.
        application: of ``fleet``: whose lease table.
        done: of ``AFTER``: the last user record that is done.
        shards: of ``shards``: position by shard id.
        default: of ``shards``: for those that are not named; None: all must be named.

    """

    kind: str
    instant_ms: int = 0
    application: str = ""
    done: ExtendedSequenceNumber | None = None
    shards: Mapping[str, Start] = field(default_factory=dict)
    default: Start | None = None


def start_of(text: str) -> Start:
    """
    Read a position.

    Raises:
        ValueError: the text is none of the forms.

    """
    if text.startswith("{"):
        return _of_shards(text)
    if text.startswith("fleet:") and len(text) > len("fleet:"):
        return Start(FLEET, application=text.removeprefix("fleet:"))
    return _of_a_shard(text)


def ending_of(text: str) -> Start:
    """
    Read the end of a batch: ``LATEST`` or an instant.

    Raises:
        ValueError: it is something else.

    """
    found = _of_a_shard(text)
    if found.kind not in (LATEST, INSTANT):
        raise ValueError
    return found


def _of_a_shard(text: str) -> Start:
    if text.upper() in (TRIM_HORIZON, LATEST):
        return Start(text.upper())
    if text.upper().startswith(f"{AFTER}:"):
        number, _, sub = text[len(AFTER) + 1 :].partition(":")
        if not _SUB.fullmatch(sub or "0") or not number.isdecimal():
            raise ValueError
        try:
            return Start(AFTER, done=ExtendedSequenceNumber(number, int(sub or "0")))
        except ProtocolError as error:
            raise ValueError(str(error)) from error
    return Start(INSTANT, instant_ms=instant_ms(text))


def _of_shards(text: str) -> Start:
    found = read_json(text)
    starts: dict[str, Start] = {}
    for shard_id, each in found.items():
        if not isinstance(each, str | int) or isinstance(each, bool):
            raise ValueError(f"{shard_id[:_SHOWN]}: {json.dumps(each)[:_SHOWN]}")  # noqa: TRY004 - a wrong text
        try:
            starts[shard_id] = _of_a_named_shard(str(each))
        except ValueError as error:
            raise ValueError(f"{shard_id[:_SHOWN]}: {str(each)[:_SHOWN]!r} {error}") from error
    default = starts.pop(_DEFAULT, None)
    return Start(SHARDS, shards=starts, default=default)


def _of_a_named_shard(text: str) -> Start:
    if text.upper() == ENDED:
        return Start(ENDED)
    if text.upper().startswith(AT):
        return Start(INSTANT, instant_ms=instant_ms(text[len(AT) :]))
    return _of_a_shard(text)


_INSTANT_TEXT = "an instant such as 2026-11-21T06:00:00Z or epoch milliseconds"
STARTING_KIND = Kind(
    start_of,
    f"TRIM_HORIZON, LATEST, {_INSTANT_TEXT}, fleet:<application>, or a JSON object of shard id "
    "(or default) to TRIM_HORIZON, LATEST, an instant, AFTER:<sequence number>[:<sub>] or END",
)
ENDING_KIND = Kind(ending_of, f"LATEST or {_INSTANT_TEXT}")
TARGET_KIND = Kind(lambda text: 0 if text == "0" else instant_ms(text), f"{_INSTANT_TEXT}, or 0")
