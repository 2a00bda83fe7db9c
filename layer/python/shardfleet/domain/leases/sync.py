"""
Which leases must be created so that every shard will be read: lease sync.

Rules: docs/protocol.md S1-S12 (§4.2-4.4). One rule for all initial positions: a shard without a
lease gets one unless its lineage proves that it is done with, or an ancestor is still to be read.
Java's ``HierarchicalShardSyncer`` goes by open shards alone, so what it makes again for one lost
lease is the oldest listed ancestor, whatever of that line has been read; at LATEST the tip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease, LeaseAndWhy
from shardfleet.domain.reasons import (
    AwaitedAtMerge,
    ChildOfFinished,
    EmptyTable,
    HoleBesideSibling,
    LeaseLostUnseen,
    ListedMidReshard,
    ListingUntiled,
    LostAhead,
    NoLeasedRelative,
    NothingListed,
    OldestOfItsLine,
    OtherParent,
    Reason,
)
from shardfleet.domain.stream.hash_ranges import tiles_exactly
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    LATEST,
    ExtendedSequenceNumber,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph

# H7: a pin lies this far before "now", so that a slow clock cannot skip a record.
PIN_BACK_MS = 5_000


class LeaseSyncPlan(Struct, frozen=True):
    """
    What to create.

    Attributes:
        create: in write order (starting sequence number, then shard id), so that a crash midway
            leaves a prefix that the next sync completes.
        problems: why nothing could be concluded from the listing; then ``create`` is empty and
            the listing wants to be read again.
        suspects: shards whose lease seems lost, or that seem to have left the stream (S12); the
            audit counts how often (S10), sorted.
        repairs: keys of those to create whose lease was lost, not new.
        finished: ids of listed shards that are done with, to be kept before anything is created
            or deleted (S11); None: what was kept stays.

    """

    create: tuple[LeaseAndWhy, ...] = ()
    problems: tuple[Reason, ...] = ()
    suspects: tuple[str, ...] = ()
    repairs: frozenset[str] = frozenset()
    finished: frozenset[str] | None = None

    @property
    def begins_late(self) -> bool:
        """Return whether a lease is to begin at the tip of a fleet that has begun already."""
        return any(
            wanted.lease.checkpoint == AT_LATEST and not isinstance(wanted.reason, EmptyTable)
            for wanted in self.create
        )

    @property
    def wants_evidence(self) -> bool:
        """Return whether what became of earlier leases has a say in it."""
        return bool(self.suspects) or self.begins_late

    def generations(self) -> Iterator[tuple[LeaseAndWhy, ...]]:
        """Return ``create`` in parts, of which no lease is a parent of another in its part."""
        part: dict[str, LeaseAndWhy] = {}
        for wanted in self.create:
            if not part.keys().isdisjoint(wanted.lease.parent_shard_ids):
                yield tuple(part.values())
                part = {}
            part[wanted.lease.lease_key] = wanted
        if part:
            yield tuple(part.values())


def start_of_child(parent: ExtendedSequenceNumber) -> ExtendedSequenceNumber:
    """
    Return where a child begins that is created at its parent's end.

    A parent at AT_TIMESTAMP had no record from the instant on, so its child may have older ones
    and inherits it, as in kcl-rust (Java: TRIM_HORIZON); all other children begin at their start.
    So does a lease that was lost: with all that its shard holds, from the instant on.

    Args:
        parent: checkpoint of the parent's lease before it ends; of a lost one, the initial one.

    """
    return parent if parent.sequence_number == AT_TIMESTAMP else AT_TRIM_HORIZON


def plan_lease_sync(
    shards: Iterable[Shard],
    leases: Sequence[Lease],
    *,
    initial: ExtendedSequenceNumber,
    listed_at_initial: Sequence[Shard] | None,
    finished: Collection[str] | None = None,
    lost: Collection[str] = (),
) -> LeaseSyncPlan:
    """
    Decide which leases to create.

    Args:
        shards: the unfiltered listing.
        leases: all leases of the table.
        initial: where a new application begins; of AT_TIMESTAMP the word only (§1.5).
        listed_at_initial: the listing filtered by the initial position, for an empty table; it
            is ignored when there are leases. Without it an empty table is treated as one in
            which everything is missing.
        finished: as kept from the plans before (S11); None: there was none, so what lies before
            the leases found is believed to be done with.
        lost: suspects that have been so for long enough (S10).

    """
    graph = ShardGraph.of(shards)
    if not leases and listed_at_initial is not None:
        return _first_leases(graph, listed_at_initial, initial)
    if not graph.shards:
        return LeaseSyncPlan(problems=(NothingListed(),))
    if graph.inconsistent:
        return LeaseSyncPlan(problems=(ListedMidReshard(graph.inconsistent),))
    lineage = _Lineage(graph, leases, initial=initial, finished=finished)
    missing = _missing(lineage, initial=initial)
    unseen = {key for key, (_, why) in missing.items() if isinstance(why, LeaseLostUnseen)}
    awaited = _awaited_at_merges(lineage)
    suspects = (unseen | awaited.keys() - lineage.done).difference(lost)
    wanted = _in_write_order(graph.shards[key] for key in missing if key not in suspects)
    return LeaseSyncPlan(
        create=(
            *(awaited[key] for key in sorted(awaited.keys() - suspects)),
            *(_beginning_at(shard, *missing[shard.shard_id]) for shard in wanted),
        ),
        suspects=tuple(sorted(suspects)),
        repairs=frozenset(
            shard.shard_id
            for shard in wanted
            if lineage.is_read and not isinstance(missing[shard.shard_id][1], ChildOfFinished)
        ),
        finished=lineage.to_keep(),
    )


# Shard id to the checkpoint at which its lease must begin, and the reason.
_Missing = dict[str, tuple[ExtendedSequenceNumber, Reason]]
_LOST = (AT_TRIM_HORIZON, LeaseLostUnseen())


def _first_leases(
    graph: ShardGraph, listed: Sequence[Shard], initial: ExtendedSequenceNumber
) -> LeaseSyncPlan:
    """S2: an empty table gets a lease for every shard of the filtered listing, if that tiles."""
    first = ShardGraph(listed).shards.values()
    if not tiles_exactly(shard.hash_key_range for shard in first):
        return LeaseSyncPlan(problems=(ListingUntiled(initial.sequence_number, len(first)),))
    leases = [_new_lease(shard, initial) for shard in _in_write_order(first)]
    return LeaseSyncPlan(
        create=tuple(LeaseAndWhy(lease, EmptyTable()) for lease in leases),
        finished=_Lineage(graph, leases, initial=initial).to_keep(),
    )


class _Lineage:
    """
    The leases beside the listing: what their lineage proves.

    Attributes:
        graph: of the listing.
        leases: by key.
        read: keys of leases that have begun.
        parents: shard id to parents, if it has any, by the listing and by parent and child ids of
            leases.
        is_known: what was done with before is known, and not only believed.
        is_read: something has been read.
        begun: parents of shards beyond the initial position; what else descends from them is lost,
            not new.
        ahead: ids of shards from which one with an unfinished lease descends.
        proven: ids of shards of which leases say whether they are done with.
        done: ids of shards without an unfinished lease that are done with (S11).

    """

    def __init__(
        self,
        graph: ShardGraph,
        leases: Sequence[Lease],
        *,
        initial: ExtendedSequenceNumber,
        finished: Collection[str] | None = None,
    ) -> None:
        self.graph = graph
        self.leases = {lease.lease_key: lease for lease in leases}
        self.parents = {key: set(parents) for key, parents in graph.named_parents.items()}
        for lease in leases:
            if lease.parent_shard_ids:
                self.parents.setdefault(lease.lease_key, set()).update(lease.parent_shard_ids)
            for child in lease.child_shard_ids:
                self.parents.setdefault(child, set()).add(lease.lease_key)
        self.is_known = finished is not None
        self.read = {k for k, le in self.leases.items() if _is_read(le.checkpoint)}
        self.is_read = bool(self.read)
        self.begun = {
            parent
            for key, parents in self.parents.items()
            if key in self.leases and self.leases[key].checkpoint != initial
            for parent in parents
        }
        # Whoever has been read has seen its parents finished (§4.7); what waits has not.
        proven = _reached(self.leases.keys() if finished is None else self.read, self.parents)
        unfinished = {key for key, lease in self.leases.items() if not lease.is_finished}
        children: dict[str, set[str]] = {}
        for child, parents in self.parents.items():
            for parent in parents:
                children.setdefault(parent, set()).add(child)
        # What descends from a shard that is read again, after a rewind, is not done with.
        again = unfinished | _reached(unfinished, children)
        self.ahead = _reached(unfinished, self.parents)
        self.proven = proven | self.leases.keys()
        self.done = self.proven | (set(finished or ()) - again)
        self.done -= unfinished

    def to_keep(self) -> frozenset[str]:
        """
        Return what is to be remembered: without it, whoever is lost next proves too little.

        The next listing may be older than this one, or newer: what one lacks, and no lease proves,
        is forgotten only if it is no parent of what there is, nor newer than all that is listed.
        """
        graph = self.graph
        if graph.holes:
            return frozenset(self.done)  # An incomplete listing: nothing is forgotten by it.
        kept = self.done & graph.shards.keys()
        if unlisted := self.done - self.proven - kept:
            named = set[str]().union(*self.parents.values())
            kept |= {key for key in unlisted if key in named or graph.is_beyond(key)}
        return frozenset(kept)


def _is_read(checkpoint: ExtendedSequenceNumber) -> bool:
    # What most are, numbers, need not be compared as such.
    return not checkpoint.is_sentinel or checkpoint > AT_LATEST


def _reached(shard_ids: AbstractSet[str], edges: Mapping[str, Collection[str]]) -> set[str]:
    """Return all that can be reached from these shards; not themselves."""
    found: set[str] = set()
    # What has no edge is most of a table.
    waiting = list(edges.keys() & shard_ids)
    while waiting:
        for each in edges.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _missing(lineage: _Lineage, *, initial: ExtendedSequenceNumber) -> _Missing:
    """S3-S8, S10: what the shards without a lease need, oldest first, one generation."""
    leases, done, missing = lineage.leases, lineage.done, _Missing()
    settled = leases.keys() | done
    unsettled = [shard for shard in lineage.graph if shard.shard_id not in settled]
    if not unsettled:
        return missing
    # A shard that a lease names as its parent is not open: the listing is older than the lease.
    closed = {parent for lease in leases.values() for parent in lease.parent_shard_ids}
    waits = {key for key, lease in leases.items() if not lease.is_finished}
    for shard in _in_write_order(unsettled):
        key, parents = shard.shard_id, shard.parent_shard_ids
        # A worker ends the other parent of a merge only once this child has a lease (§4.6), and
        # whose child has one is to have one: a parent without a lease is not waited for (§4.7).
        is_awaited = key in lineage.ahead or (
            not done.isdisjoint(parents) and settled.issuperset(lineage.graph.parents(key))
        )
        if (shard.is_open and key in closed) or (not waits.isdisjoint(parents) and not is_awaited):
            pass
        elif any(p in leases and leases[p].is_finished for p in parents):
            missing[key] = (start_of_child(initial), ChildOfFinished())
        elif key in lineage.ahead:
            missing[key] = (start_of_child(initial), LostAhead())
        elif initial.sequence_number != LATEST or _is_wanted_at_latest(lineage, shard, waits):
            missing[key] = _beginning(lineage, shard, initial=initial)
        else:
            continue
        waits.add(key)
    return missing


def _awaited_at_merges(lineage: _Lineage) -> dict[str, LeaseAndWhy]:
    """
    S12: leases at their end for parents of which nothing can be read, while the other one is.

    Java's worker of that one waits for a lease of each parent, whether or not the child has one
    (``ShutdownTask.createLeasesForChildShardsIfNotExist``).
    """
    leases, graph = lineage.leases, lineage.graph
    children = {
        child
        for key, theirs in graph.families.items()
        if key in leases and not leases[key].is_finished
        for child in theirs
    } - lineage.read
    parents = {parent for child in children for parent in graph.shards[child].parent_shard_ids}
    readable = graph.shards.keys() - lineage.done
    return {
        parent: LeaseAndWhy(
            Lease(
                lease_key=parent,
                checkpoint=AT_SHARD_END,
                child_shard_ids=graph.children(parent),
            ),
            AwaitedAtMerge(),
        )
        for parent in parents - leases.keys() - readable
    }


def _is_wanted_at_latest(lineage: _Lineage, shard: Shard, waits: Collection[str]) -> bool:
    """S4, S5: what was closed before the fleet began is not, unless a child of it is covered."""
    if shard.is_open or lineage.is_known or lineage.is_read:
        return True
    children = lineage.graph.children(shard.shard_id)
    return any(p in waits for child in children for p in lineage.parents[child])


def _beginning(
    lineage: _Lineage, shard: Shard, *, initial: ExtendedSequenceNumber
) -> tuple[ExtendedSequenceNumber, Reason]:
    """S4, S7, S10: where a line without any lease begins."""
    if not lineage.begun.isdisjoint(shard.parent_shard_ids):
        return start_of_child(initial), HoleBesideSibling()
    if initial.sequence_number != LATEST:
        return initial, NoLeasedRelative() if shard.is_open else OldestOfItsLine()
    # Once anything was read, nothing is new without a parent that has a lease; made at LATEST, what
    # came meanwhile would be skipped.
    if lineage.is_read:
        return _LOST
    return initial, NoLeasedRelative() if shard.is_open else OtherParent()


def _beginning_at(shard: Shard, checkpoint: ExtendedSequenceNumber, why: Reason) -> LeaseAndWhy:
    return LeaseAndWhy(_new_lease(shard, checkpoint), why)


def _in_write_order(shards: Iterable[Shard]) -> list[Shard]:
    return sorted(shards, key=lambda shard: shard.creation_order)


def _new_lease(shard: Shard, checkpoint: ExtendedSequenceNumber) -> Lease:
    return Lease(
        lease_key=shard.shard_id,
        checkpoint=checkpoint,
        parent_shard_ids=shard.parent_shard_ids,
        hash_key_range=shard.hash_key_range,
    )
