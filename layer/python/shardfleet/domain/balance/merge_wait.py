"""
Which leases can only wait: closed shards whose merge needs another parent's lease first.

A shard ends only when every other parent of its children has a lease, or has left the stream
(protocol.md §4.6 step 2). Until then its lease is held, but costs next to nothing. If it took a
place nevertheless, a fleet with a place for each open shard could stand still for ever: all places
held by shards that wait for a lease which only the one shard without a place can bring about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard, ShardGraph


def waiting_for_a_merge(shards: Iterable[Shard], leases: Sequence[Lease]) -> frozenset[str]:
    """
    Return the keys of unfinished leases that cannot be ended before another lease is created.

    Not all leases of a table are ever among them: the merge that each waits for is younger than
    the one which the ancestor of the missing parent waits for.

    Args:
        shards: the listing.
        leases: all leases of the table.

    """
    graph = ShardGraph.of(shards)
    missing = graph.shards.keys() - {lease.lease_key for lease in leases}
    if not missing:
        return frozenset()
    return frozenset(
        lease.lease_key
        for lease in leases
        if not lease.is_finished
        and any(
            child in missing and not missing.isdisjoint(graph.shards[child].parent_shard_ids)
            for child in graph.children(lease.lease_key)
        )
    )
