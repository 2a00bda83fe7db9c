"""
Which shards a plan may read: the start of a query, and the admission of children.

A child is admitted only when every parent is done to its end by a batch that was executed, or is
unknown to a listing that knows the child: then it has aged out (protocol.md §4.7). Spark executes
a plan only after the batch before it, sink included, is committed; so parents come before their
children through the whole pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shardfleet.domain.stream.sequence import PointKind, Position, StreamIncarnation
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet_spark.offsets.plan_token import Stand

# How far the clocks of driver and executors may differ, and a listing may lag behind.
_CLOCKS_DIFFER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Family:
    """
    What is known of the shards of a stream.

    Attributes:
        stands: where each admitted shard stands.
        waiting: shards that are not admitted yet, and their parents.

    """

    stands: Mapping[str, Stand]
    waiting: Mapping[str, tuple[str, ...]]

    @property
    def live(self) -> tuple[str, ...]:
        """Return the admitted shards that are not done to their end, by id."""
        return tuple(sorted(s for s, stand in self.stands.items() if not stand.is_finished))


@dataclass(frozen=True, slots=True)
class Listing:
    """
    A list of shards, and when it was read.

    Attributes:
        graph: the shards.
        at_ms: wall clock before the reading.

    """

    graph: ShardGraph
    at_ms: int


@dataclass(frozen=True, slots=True)
class CommittedStanding:
    """
    What Spark has committed.

    Attributes:
        sid: of the query.
        family: where the shards stand, and which ones wait.
        listing: the newest one that makes sense, None before the first.

    """

    sid: str
    family: Family
    listing: Listing | None

    @property
    def graph(self) -> ShardGraph | None:
        """Return the shards of the listing."""
        return None if self.listing is None else self.listing.graph


def first_family(
    graph: ShardGraph,
    begun: Collection[str],
    *,
    start: PointKind,
    instant_ms: int,
    incarnation: StreamIncarnation,
) -> Family:
    """
    Return where a query that has read nothing yet begins.

    Args:
        graph: the whole listing.
        begun: the shards that were open at the start position, as the service filters them.
        start: ``TRIM_HORIZON``, ``INSTANT`` or ``END`` of all that is there, for the ``begun``.
        instant_ms: of ``INSTANT``.
        incarnation: the stream's.

    Descendants of the begun wait and start at their beginning, whatever the start position is;
    what else is listed had ended before it and counts as done.

    """
    stands: dict[str, Stand] = {}
    waiting: dict[str, tuple[str, ...]] = {}
    # At the moment of a reshard the service may count parent and child as open: the child waits.
    started = {shard_id for shard_id in begun if not graph.ancestors(shard_id) & set(begun)}
    for shard_id, shard in graph.shards.items():
        if shard_id in started:
            at = instant_ms if start is PointKind.INSTANT else 0
            stands[shard_id] = Stand(Position(incarnation, shard_id, start, instant_ms=at), at)
        elif graph.ancestors(shard_id) & started:
            waiting[shard_id] = shard.parent_shard_ids
        else:
            stands[shard_id] = finished(incarnation, shard_id)
    return Family(stands, waiting)


def finished(incarnation: StreamIncarnation, shard_id: str) -> Stand:
    """Return the stand of a shard that is done, or none of the query's business."""
    return Stand(Position(incarnation, shard_id, PointKind.END))


def admit(family: Family, listing: Listing | None, incarnation: StreamIncarnation) -> Family:
    """
    Let in every shard whose parents are done; forget finished shards that nobody lists any more.

    Args:
        family: after the seals of the plan before.
        listing: the newest one that makes sense, None if there is none.
        incarnation: the stream's.

    """
    stands, waiting = dict(family.stands), dict(family.waiting)
    listed = {} if listing is None else listing.graph.shards
    for shard_id, shard in listed.items():
        if shard_id not in stands:
            waiting[shard_id] = shard.parent_shard_ids
    while True:
        ready = [
            child
            for child, parents in sorted(waiting.items())
            if all(
                # A child that only GetRecords named may have a parent younger than the list.
                _is_done(p, (stands, waiting), child in listed and p not in listed)
                for p in parents
            )
        ]
        if not ready:
            break
        for child in ready:
            arrived_ms = max(
                (stands[p].arrived_ms for p in waiting[child] if p in stands), default=0
            )
            position = Position(incarnation, child, PointKind.TRIM_HORIZON)
            stands[child] = Stand(position, arrived_ms)
            del waiting[child]
    if listing is not None:
        named = {parent for parents in waiting.values() for parent in parents}
        stands = {
            shard_id: stand
            for shard_id, stand in stands.items()
            if not stand.is_finished
            or shard_id in listed
            or shard_id in named
            or is_younger(stand, listing)
        }
    return Family(stands, waiting)


def is_younger(stand: Stand, listing: Listing) -> bool:
    """
    Return whether a finished shard may have ended after a listing was read.

    Such a listing may lack the shard, and the next one would bring it back.
    """
    return stand.tip_ms >= listing.at_ms - _CLOCKS_DIFFER_MS


def _is_done(
    parent: str,
    known: tuple[Mapping[str, Stand], Mapping[str, tuple[str, ...]]],
    aged_out: bool,  # noqa: FBT001 - private, and named where it is called
) -> bool:
    stands, waiting = known
    if parent in stands:
        return stands[parent].is_finished
    return parent not in waiting and aged_out


def needs_listing(family: Family) -> bool:
    """Return whether a shard waits for a parent that is neither admitted nor waiting itself."""
    return any(
        parent not in family.stands and parent not in family.waiting
        for parents in family.waiting.values()
        for parent in parents
    )
