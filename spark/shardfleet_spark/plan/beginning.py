"""Where a query without a checkpoint begins: from the user's start position to stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardfleet.domain.leases.sync import PIN_BACK_MS
from shardfleet.domain.stream.sequence import (
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.engine.ports import ListingFilter
from shardfleet.errors import ConfigurationError
from shardfleet_spark.offsets.lineage import Family, finished, first_family
from shardfleet_spark.offsets.plan_token import Stand
from shardfleet_spark.options.starting import AFTER, ENDED, INSTANT, SHARDS, Start

_ENDED = Start(ENDED)


@dataclass(frozen=True, slots=True)
class Opening:
    """
    The listing that a start position asks for, besides the whole one.

    Attributes:
        listing: which shards were open at the position.
        instant_ms: of ``AT_TIMESTAMP``, else None.

    """

    listing: ListingFilter
    instant_ms: int | None = None


def opening_of(start: Start | None) -> Opening:
    """Return the listing that says which shards were open at a start position."""
    if start is None or start.kind == TRIM_HORIZON:
        return Opening(ListingFilter.AT_TRIM_HORIZON)
    if start.kind == INSTANT:
        return Opening(ListingFilter.AT_TIMESTAMP, start.instant_ms)
    return Opening(ListingFilter.AT_LATEST)


def common_start(start: Start) -> Start | None:
    """Return the start of all shards that are not named; None when all must be named."""
    return start.default if start.kind == SHARDS else start


def begin(
    start: Start,
    graph: ShardGraph,
    begun: Sequence[str],
    *,
    now_ms: int,
    incarnation: StreamIncarnation,
) -> Family:
    """
    Return where a query begins.

    Args:
        start: the user's.
        graph: the whole listing.
        begun: shards of the listing that :func:`opening_of` asks for.
        now_ms: epoch milliseconds; LATEST is pinned a little before it, once and for all.
        incarnation: the stream's.

    Raises:
        ConfigurationError: an instant in the future, shards that are not there, or shards
            without a position.

    """
    rest = common_start(start)
    named = start.shards if start.kind == SHARDS else {}
    # What is done and has aged out needs no position any more.
    named = {each: at for each, at in named.items() if at != _ENDED or each in graph.shards}
    _check_named(named, graph)
    related = set(named)
    for shard_id in named:
        related |= graph.ancestors(shard_id)
    related |= {each for each in graph.shards if graph.ancestors(each) & set(named)}
    free = [shard_id for shard_id in begun if shard_id not in related]
    if free and rest is None:
        raise ConfigurationError(
            f"option startingPosition names no position for {', '.join(sorted(free))}: name "
            "each, or add a default to the JSON object"
        )
    kind, instant_ms = _point(rest, now_ms)
    family = first_family(graph, free, start=kind, instant_ms=instant_ms, incarnation=incarnation)
    if not named:
        return family
    return _with_named(family, graph, named, now_ms=now_ms, incarnation=incarnation)


def _with_named(
    family: Family,
    graph: ShardGraph,
    named: Mapping[str, Start],
    *,
    now_ms: int,
    incarnation: StreamIncarnation,
) -> Family:
    stands, waiting = dict(family.stands), dict(family.waiting)
    for shard_id, start in named.items():
        unread = [a for a in graph.ancestors(shard_id) if a in named and named[a] != _ENDED]
        if start.kind == TRIM_HORIZON and unread:
            # A fleet leases a child early sometimes; it does not read it early, nor do we.
            stands.pop(shard_id, None)
            waiting[shard_id] = graph.shards[shard_id].parent_shard_ids
            continue
        stands[shard_id] = stand_of(start, shard_id, now_ms=now_ms, incarnation=incarnation)
        waiting.pop(shard_id, None)
        for ancestor in graph.ancestors(shard_id) - set(named):
            stands[ancestor] = finished(incarnation, ancestor)
            waiting.pop(ancestor, None)
    for shard_id, shard in graph.shards.items():
        if shard_id not in named and graph.ancestors(shard_id) & set(named):
            stands.pop(shard_id, None)
            waiting[shard_id] = shard.parent_shard_ids
    return Family(stands, waiting)


def stand_of(start: Start, shard_id: str, *, now_ms: int, incarnation: StreamIncarnation) -> Stand:
    """Return where one shard stands that is given a start of its own."""
    if start == _ENDED:
        return finished(incarnation, shard_id)
    if start.kind == AFTER and start.done is not None:
        done: ExtendedSequenceNumber = start.done
        return Stand(Position(incarnation, shard_id, PointKind.SEQUENCE, done=done))
    kind, instant_ms = _point(start, now_ms)
    return Stand(Position(incarnation, shard_id, kind, instant_ms=instant_ms), instant_ms)


def ended_start() -> Start:
    """Return the start of a shard that is done to its end (from a lease at SHARD_END)."""
    return _ENDED


def _point(start: Start | None, now_ms: int) -> tuple[PointKind, int]:
    if start is not None and start.kind == LATEST:
        return PointKind.INSTANT, max(0, now_ms - PIN_BACK_MS)
    if start is not None and start.kind == INSTANT:
        if start.instant_ms > now_ms:
            raise ConfigurationError(
                f"option startingPosition = {start.instant_ms} ms lies in the future; it is "
                f"{now_ms} ms now: take an instant that has passed, or LATEST"
            )
        return PointKind.INSTANT, start.instant_ms
    return PointKind.TRIM_HORIZON, 0


def _check_named(named: Mapping[str, Start], graph: ShardGraph) -> None:
    strange = sorted(set(named) - set(graph.shards))
    if strange:
        raise ConfigurationError(
            f"option startingPosition names {', '.join(strange)}; the stream has "
            f"{', '.join(graph.shards)}"
        )
