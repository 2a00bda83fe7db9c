"""
When a shard that the service does not know is over, though its end was never read (hazard H12).

A closed page that names children is the only end that needs nothing else (protocol.md §4.5). One
answer "not found" proves nothing, nor does one listing: ListShards is not atomic with a reshard
(awslabs/amazon-kinesis-client issue 164), and a shard leaves its stream only when its last record
is older than the retention (DescribeStreamSummary's ``RetentionPeriodHours``). So until then the
shard waits; what is remembered meanwhile is a :class:`GoneNote`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.reasons import (
    ListedStill,
    ListingIncomplete,
    MayHaveRecords,
    MissedForRetention,
    NeverListed,
    OlderThanRetention,
    PersonDecided,
    Reason,
    SecondListingAwaited,
)
from shardfleet.domain.stream.hash_ranges import tiles_exactly
from shardfleet.domain.stream.shards import ChildShard, Shard, ShardGraph


class GoneNote(Struct, frozen=True, kw_only=True):
    """
    What is remembered of a shard that the service does not know; instants are epoch milliseconds.

    Attributes:
        lease_key: the lease.
        first_ms: the first answer "not found" since the shard last answered; 0: it answers.
        unlisted_ms: the first complete listing without the shard since then, 0: none.
        known_ms: up to when the shard is known to have had records or to have been open, 0 unknown.
        checkpoint: of the lease, for a person.
        reason: why it waits; None before that is known.
        ended_by: who decided that it is over (``shardfleet release --ended``), "" nobody.

    """

    lease_key: str
    first_ms: int = 0
    unlisted_ms: int = 0
    known_ms: int = 0
    checkpoint: str = ""
    reason: Reason | None = None
    ended_by: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether the shard is being missed."""
        return self.first_ms > 0

    def lasts(self, now_ms: int, *, failover_ms: int) -> bool:
        """Return whether it has been missed for so long that a person should know."""
        return self.is_open and now_ms - self.first_ms >= failover_ms


class GoneVerdict(Struct, frozen=True, kw_only=True):
    """
    What to make of a shard that is not found.

    Attributes:
        is_over: it may end.
        reason: why it may, or what it waits for.
        note: what to remember.
        children: that the listing names, by id.

    """

    is_over: bool
    reason: Reason
    note: GoneNote
    children: tuple[ChildShard, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Return whether the stream never had it: no retry can make it readable."""
        return isinstance(self.reason, NeverListed)


def judge_gone(
    note: GoneNote,
    listing: Sequence[Shard],
    *,
    shard_id: str,
    retention_ms: int,
    failover_ms: int,
    listed_ms: tuple[int, int],
) -> GoneVerdict:
    """
    Decide whether a shard that is not found again is over.

    Two complete listings without it, a failover time apart, are needed in any case but a person's
    decision, which needs one. Then it is over if all that is known of it is older than the
    retention; or, as a loss, if it has not been found for one retention. What two listings show
    that the stream never had does not end: its lease is given back, whoever decides what.

    Args:
        note: what is remembered, ``first_ms`` included.
        listing: the unfiltered one of now.
        shard_id: the shard that the note's lease is of.
        retention_ms: of the stream, as it is now.
        failover_ms: of the fleet.
        listed_ms: before and after the listing was asked for, epoch milliseconds.

    """
    before_ms, after_ms = listed_ms
    graph = ShardGraph(listing)
    if shard_id in graph.shards:
        return _waits(replace(note, unlisted_ms=0), ListedStill())
    if not _is_complete(graph):
        return _waits(note, ListingIncomplete())
    seen = replace(note, unlisted_ms=note.unlisted_ms or after_ms)
    is_beyond = graph.is_beyond(shard_id)
    children = children_named(graph, shard_id)
    if note.ended_by and not is_beyond:
        return _over(seen, children, PersonDecided(note.ended_by))
    if before_ms - seen.unlisted_ms < failover_ms:
        return _waits(seen, SecondListingAwaited())
    if is_beyond:
        return _waits(seen, NeverListed())
    if note.known_ms and before_ms - note.known_ms > retention_ms:
        return _over(seen, children, OlderThanRetention())
    if before_ms - note.first_ms > retention_ms:
        return _over(seen, children, MissedForRetention())
    return _waits(seen, MayHaveRecords())


def children_named(graph: ShardGraph, shard_id: str) -> tuple[ChildShard, ...]:
    """Return the children of a shard that a listing names, by id."""
    found = (graph.shards[child] for child in graph.children(shard_id))
    return tuple(
        ChildShard(
            shard_id=child.shard_id,
            parent_shard_ids=child.parent_shard_ids,
            hash_key_range=child.hash_key_range,
        )
        for child in found
    )


def _is_complete(graph: ShardGraph) -> bool:
    """Return whether the open shards tile the hash space, and none is a child of another."""
    is_tiled = tiles_exactly(s.hash_key_range for s in graph.shards.values() if s.is_open)
    return is_tiled and not graph.inconsistent


def _waits(note: GoneNote, reason: Reason) -> GoneVerdict:
    return GoneVerdict(is_over=False, reason=reason, note=replace(note, reason=reason))


def _over(note: GoneNote, children: tuple[ChildShard, ...], reason: Reason) -> GoneVerdict:
    note = replace(note, reason=reason)
    return GoneVerdict(is_over=True, reason=reason, note=note, children=children)
