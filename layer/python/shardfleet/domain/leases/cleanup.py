"""
Which leases are no longer needed: lease cleanup.

Rules: docs/protocol.md C1-C6 (§4.8). Behaves like Java's ``LeaseCleanupManager``, but
a lease is never deleted because its shard is gone while it is unfinished: only the owner, which
sees the service's answer, may conclude that.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease, LeaseAndWhy
from shardfleet.domain.reasons import (
    AgedOut,
    ChildNotStarted,
    ChildrenStarted,
    ChildrenUnknown,
    ChildWithoutLease,
    ParentStays,
    Reason,
    Unlisted,
)
from shardfleet.domain.stream.hash_ranges import hash_range_holes
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard, ShardGraph, shard_number


class CleanupPlan(Struct, frozen=True):
    """
    What to delete, ordered by lease key throughout.

    Attributes:
        delete: leases to delete.
        kept: lease key and reason, for every finished lease that stays and every unfinished one
            whose shard is no longer listed.
        learn_children: kept leases that lack child ids, with the ids from the listing and from
            leases that name it as their parent.

    """

    delete: tuple[LeaseAndWhy, ...]
    kept: tuple[tuple[str, Reason], ...]
    learn_children: tuple[tuple[Lease, tuple[str, ...]], ...]


def plan_lease_cleanup(
    shards: Iterable[Shard], leases: Sequence[Lease], *, finished: Collection[str] = ()
) -> CleanupPlan:
    """
    Decide which leases to delete.

    Args:
        shards: the unfiltered listing; an empty one proves nothing about any shard.
        leases: all leases of the table.
        finished: ids of shards that are done with, and need no lease again.

    """
    graph = ShardGraph.of(shards)
    listed = graph.shards
    if not any(le.is_finished or (listed and le.lease_key not in listed) for le in leases):
        return CleanupPlan((), (), ())
    table = _Table(graph, leases, finished)
    delete: list[LeaseAndWhy] = []
    kept: list[tuple[str, Reason]] = []
    learn: list[tuple[Lease, tuple[str, ...]]] = []
    for key, lease in table.leases.items():
        if not lease.is_finished:
            if table.graph.shards and key not in table.graph.shards:
                kept.append((key, Unlisted()))
            continue
        found = table.complete_children(lease)
        children = lease.child_shard_ids or found
        obstacle = table.obstacle(lease, children)
        if obstacle is None:
            why = ChildrenStarted(children) if children else AgedOut()
            delete.append(LeaseAndWhy(lease, why))
            continue
        kept.append((key, obstacle))
        if found and not lease.child_shard_ids:
            learn.append((lease, found))
    return CleanupPlan(tuple(delete), tuple(kept), tuple(learn))


def is_over(
    shard_id: str, *, leases: Container[str], graph: ShardGraph, finished: Collection[str]
) -> bool:
    """
    Return whether a shard has no lease and needs none again: it is done with, or has aged out.

    Args:
        shard_id: the shard; of a name that Kinesis does not give, only one that is listed is over.
        leases: keys of all there are, and of those to be created.
        graph: of the listing; a child that it does not show yet is beyond it.
        finished: ids of listed shards that are done with.

    """
    if shard_id in leases:
        return False
    if shard_id in graph.shards:
        return shard_id in finished
    is_known = shard_number(shard_id) is not None and bool(graph.shards)
    return is_known and not graph.holes and not graph.is_beyond(shard_id)


class _Table:
    """The leases by key, beside the listing."""

    def __init__(
        self, graph: ShardGraph, leases: Sequence[Lease], finished: Collection[str]
    ) -> None:
        self._finished = finished
        self.graph = graph
        self.leases = {
            lease.lease_key: lease for lease in sorted(leases, key=lambda le: le.lease_key)
        }
        self._leased_children: dict[str, list[Lease]] = {}
        for lease in self.leases.values():
            for parent in lease.parent_shard_ids:
                self._leased_children.setdefault(parent, []).append(lease)
        self._listing_is_complete = not graph.holes

    def obstacle(self, lease: Lease, children: tuple[str, ...]) -> Reason | None:
        """Return why a finished lease must stay, None if it need not (C2, C4, C5)."""
        for parent in lease.parent_shard_ids:
            if parent in self.leases:
                return ParentStays(parent)
        if not children and not self._aged_out(lease):
            return ChildrenUnknown()
        for child in children:
            if child not in self.leases:
                if child not in self._finished:
                    return ChildWithoutLease(child)
            elif self.leases[child].checkpoint.sequence_number in (TRIM_HORIZON, AT_TIMESTAMP):
                return ChildNotStarted(child)
        return None

    def complete_children(self, lease: Lease) -> tuple[str, ...]:
        """
        Return the children by listing and leases, if they cover the parent's hash range (C3).

        Nothing is returned when a range is unknown: a child that is not counted would be lost.
        """
        ranges = {
            other.lease_key: other.hash_key_range
            for other in self._leased_children.get(lease.lease_key, ())
        }
        for child in self.graph.children(lease.lease_key):
            ranges[child] = self.graph.shards[child].hash_key_range
        listed = self.graph.shards.get(lease.lease_key)
        whole = lease.hash_key_range or (listed.hash_key_range if listed else None)
        known = [covered for covered in ranges.values() if covered is not None]
        if whole is None or hash_range_holes(known, whole):
            return ()
        return tuple(sorted(ranges))

    def _aged_out(self, lease: Lease) -> bool:
        """Return whether a complete listing shows neither the shard nor a child of it (C5)."""
        key = lease.lease_key
        if key in self.graph.shards or self.graph.children(key) or key in self._leased_children:
            return False
        return self._listing_is_complete
