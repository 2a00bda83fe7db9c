"""
What a query publishes: committed positions as checkpoints of a KCL application. Pure.

A query owns every lease of the application that it reads, as ``spark:<sid>``, and writes each one
in every round: a checkpoint where the position has moved, else a renewal (hazard H5). So a fleet,
a KCL worker or a person sees a living consumer, and nobody takes its shards unnoticed.

Order of protocol.md §4.6: children have leases before their parent's says ``SHARD_END``. Positions
never go backwards (L13): a query that reads again what is published already renews, until it is
past it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from shardfleet.domain.leases.changes import (
    checkpoint,
    evict,
    renew,
    set_children,
    set_hash_range,
)
from shardfleet.domain.leases.lease import FieldEquals, Lease, LeaseChange, LeaseField
from shardfleet.domain.positions.positions import checkpoint_of
from shardfleet.domain.stream.sequence import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet_spark.offsets.lineage import CommittedStanding, is_younger


def owner_of(sid: str) -> str:
    """Return the owner's name in the leases of the query with this id."""
    return f"spark:{sid}"


def leases_to_create(
    standing: CommittedStanding, leases: Mapping[str, Lease], *, owner: str
) -> Sequence[Lease]:
    """
    Return the leases that are missing, as they should be written and in that order.

    A live shard has one, and so has a child one of whose parents is done to its end; also one
    that was born and ended between two rounds, or whoever reads after this query would begin it.
    What the query never had to read (closed before its start) gets none. A shard that no listing
    shows yet and nobody has named the parents of waits for the next round: the parents of a lease
    are written once, when it is created.

    Args:
        standing: what is committed.
        leases: those that there are.
        owner: whose they are to be.

    """
    stands, waiting = standing.family.stands, standing.family.waiting
    wanted = {shard_id: checkpoint_of(stands[shard_id].position) for shard_id in live(standing)}
    for child, parents in waiting.items():
        if any(each in stands and stands[each].is_finished for each in parents):
            wanted[child] = AT_TRIM_HORIZON
    # Children before their parents: whoever is at its end leaves no child without a lease.
    wanted |= dict.fromkeys(reversed(_ended_unseen(standing, leases, owner)), AT_SHARD_END)
    found = []
    for shard_id, where in wanted.items():
        listed = None if standing.graph is None else standing.graph.shards.get(shard_id)
        children = children_of(shard_id, standing) if where.is_shard_end else ()
        unknown = children is None or (listed is None and shard_id not in waiting)
        if shard_id in leases or unknown:
            continue
        found.append(
            Lease(
                lease_key=shard_id,
                checkpoint=where,
                lease_owner=owner,
                parent_shard_ids=listed.parent_shard_ids if listed else waiting[shard_id],
                child_shard_ids=children or (),
                hash_key_range=listed.hash_key_range if listed else None,
            )
        )
    return found


def _ended_unseen(
    standing: CommittedStanding, leases: Mapping[str, Lease], owner: str
) -> list[str]:
    """
    Return the finished shards without a lease whose parent has one of the query's, by age.

    Where the parent has none, theirs has been cleaned up (C2), or there never was one.
    """
    if standing.graph is None:
        return []
    stands, found = standing.family.stands, []
    leased = {key for key, lease in leases.items() if lease.lease_owner == owner}
    for key, shard in sorted(
        standing.graph.shards.items(), key=lambda each: each[1].creation_order
    ):
        ended = key in stands and stands[key].is_finished and key not in leases
        if ended and not leased.isdisjoint(shard.parent_shard_ids):
            leased.add(key)
            found.append(key)
    return found


def live(standing: CommittedStanding) -> Sequence[str]:
    """Return the shards that the query reads."""
    return standing.family.live


def needed(standing: CommittedStanding, leases: Mapping[str, Lease]) -> Sequence[Lease]:
    """
    Return the unfinished leases that the query must own: those of its live and next shards.

    And of those that it has read to their end: a former run may have given such a lease up before
    it heard that Spark has committed that end, and nobody else would ever write it.
    """
    stands = standing.family.stands
    read = (key for key, stand in stands.items() if stand.arrived_ms or stand.tip_ms)
    shards = {*live(standing), *standing.family.waiting, *read}
    return [
        lease for key, lease in sorted(leases.items()) if key in shards and not lease.is_finished
    ]


def next_change(lease: Lease, standing: CommittedStanding, *, may_end: bool) -> LeaseChange:
    """
    Return the write of this round for a lease that the query owns and has not finished.

    Args:
        lease: as it is known.
        standing: what is committed.
        may_end: whether its children have leases, see :func:`finishing`.

    """
    key, graph = lease.lease_key, standing.graph
    listed = None if graph is None else graph.shards.get(key)
    if lease.hash_key_range is None and listed is not None:
        return set_hash_range(lease, listed.hash_key_range)
    stand = standing.family.stands.get(key)
    if stand is None or (stand.is_finished and not may_end):
        return renew(lease)
    if stand.is_finished:
        return _ending(lease, standing)
    to = checkpoint_of(stand.position)
    return checkpoint(lease, to) if is_ahead(to, lease) else renew(lease)


def giving_up(lease: Lease) -> LeaseChange:
    """
    Return the write that gives a lease up, unless anybody has written it since.

    A next run of the same query has the same name, and may have taken it already.
    """
    change = evict(lease)
    unwritten = FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter)
    return replace(change, conditions=(*change.conditions, unwritten))


def is_ahead(to: ExtendedSequenceNumber, lease: Lease) -> bool:
    """Return whether a position is to be written: only numbers move a lease, and only forwards."""
    return not to.is_sentinel and to > lease.checkpoint


def _ending(lease: Lease, standing: CommittedStanding) -> LeaseChange:
    children = children_of(lease.lease_key, standing)
    if children is None:
        return renew(lease)
    if children and lease.child_shard_ids != children:
        return set_children(lease, children)
    return checkpoint(lease, checkpoint_of(standing.family.stands[lease.lease_key].position))


def children_of(shard_id: str, standing: CommittedStanding) -> tuple[str, ...] | None:
    """Return the children of a finished shard, () if it left none; None while that is unknown."""
    waiting, graph = standing.family.waiting, standing.graph
    named = {child for child, parents in waiting.items() if shard_id in parents}
    if graph is None or standing.listing is None:
        return None
    named |= set(graph.children(shard_id))
    # A shard has children until it ages out; a list that lacks them is older than they are.
    may_be_younger = is_younger(standing.family.stands[shard_id], standing.listing)
    if not named and (shard_id in graph.shards or may_be_younger):
        return None
    return tuple(sorted(named))


def finishing(standing: CommittedStanding, leases: Mapping[str, Lease]) -> Sequence[Lease]:
    """
    Return the leases that are to be ended now: their shards are done, their children leased.

    Args:
        standing: what is committed.
        leases: those that there are, new ones too.

    """
    stands = standing.family.stands
    return [
        lease
        for key, lease in sorted(leases.items())
        if not lease.is_finished
        and key in stands
        and stands[key].is_finished
        and all(child in leases for child in children_of(key, standing) or ())
    ]
