"""
Which leases must be created so that every shard will be read: lease sync.

Rules: docs/protocol.md S1-S10 (§4.2-4.4). Behaves like Java's
``HierarchicalShardSyncer``, with four repairs that Java lacks: children of a finished lease that
nobody created (§4.6), a hole beside a lease that has been read (§8 row 7), one at LATEST that
nothing explains, which is audited first (§4.4), and what a first sync at LATEST left out begins
where the others did, not at the tip of a later moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    ChildOfFinished,
    EmptyTable,
    HoleBesideSibling,
    LeaseLostUnseen,
    ListedMidReshard,
    ListingUntiled,
    NoLeasedRelative,
    NothingListed,
    OldestOfItsLine,
    OtherParent,
    Reason,
)
from shardfleet.domain.stream.hash_ranges import tiles_exactly
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.errors import ProtocolError

# H7: a pin lies this far before "now", so that a slow clock cannot skip a record.
PIN_BACK_MS = 5_000


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """
    Where the leases of a new application begin.

    Attributes:
        kind: ``TRIM_HORIZON``, ``LATEST`` or ``AT_TIMESTAMP``; the instant of ``AT_TIMESTAMP`` is
            configuration, a lease holds the word only (protocol.md §1.5).

    Raises:
        ProtocolError: another word.

    """

    kind: str

    def __post_init__(self) -> None:
        """Refuse what no lease can begin with."""
        if self.kind not in (TRIM_HORIZON, LATEST, AT_TIMESTAMP):
            raise ProtocolError(
                f"initial position {self.kind!r}: expected {TRIM_HORIZON}, {LATEST} or "
                f"{AT_TIMESTAMP}"
            )

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        """Return the checkpoint of a lease that begins here."""
        return ExtendedSequenceNumber(self.kind)

    @property
    def reads_history(self) -> bool:
        """Tell whether shards that are closed already are wanted too."""
        return self.kind != LATEST


@dataclass(frozen=True, slots=True)
class LeaseToCreate:
    """A lease that should exist, as it should be written, and why."""

    lease: Lease
    reason: Reason


@dataclass(frozen=True, slots=True)
class LeaseSyncPlan:
    """
    What to create.

    Attributes:
        create: in write order (starting sequence number, then shard id), so that a crash midway
            leaves a prefix that the next sync completes.
        problems: why nothing could be concluded from the listing; then ``create`` is empty and
            the listing wants to be read again.
        suspects: shards whose lease seems lost; the audit counts how often (S10), sorted.
        repairs: keys of those to create whose lease was lost, not new.

    """

    create: tuple[LeaseToCreate, ...] = ()
    problems: tuple[Reason, ...] = ()
    suspects: tuple[str, ...] = ()
    repairs: frozenset[str] = frozenset()

    @property
    def begins_late(self) -> bool:
        """Tell whether a lease is to begin at the tip of a fleet that has begun already."""
        return any(
            wanted.lease.checkpoint == AT_LATEST and not isinstance(wanted.reason, EmptyTable)
            for wanted in self.create
        )

    @property
    def wants_evidence(self) -> bool:
        """Tell whether what became of earlier leases has a say in it."""
        return bool(self.suspects) or self.begins_late

    def generations(self) -> Iterator[tuple[LeaseToCreate, ...]]:
        """Return ``create`` in parts, of which no lease is a parent of another in its part."""
        part: dict[str, LeaseToCreate] = {}
        for wanted in self.create:
            if not part.keys().isdisjoint(wanted.lease.parent_shard_ids):
                yield tuple(part.values())
                part = {}
            part[wanted.lease.lease_key] = wanted
        if part:
            yield tuple(part.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """
    What is known of shards that were found without a lease before (S10).

    Attributes:
        lost: suspects that have been so for long enough.
        readable: shards that had records since the fleet began; None: nobody knows, so all may
            have had that are suspects.

    """

    lost: frozenset[str] = frozenset()
    readable: frozenset[str] | None = None


_NO_AUDIT = Audit()


def plan_lease_sync(
    shards: Sequence[Shard],
    leases: Sequence[Lease],
    *,
    initial: InitialPosition,
    listed_at_initial: Sequence[Shard] | None,
    audit: Audit = _NO_AUDIT,
) -> LeaseSyncPlan:
    """
    Decide which leases to create.

    Args:
        shards: the unfiltered listing.
        leases: all leases of the table.
        initial: where a new application begins.
        listed_at_initial: the listing filtered by the initial position, for an empty table; it
            is ignored when there are leases. Without it an empty table is treated as one in
            which everything is missing.
        audit: of suspects.

    """
    if not leases and listed_at_initial is not None:
        return _first_leases(listed_at_initial, initial)
    graph = ShardGraph(shards)
    if not graph.shards:
        return LeaseSyncPlan(problems=(NothingListed(),))
    inconsistent = graph.inconsistent()
    if inconsistent:
        return LeaseSyncPlan(problems=(ListedMidReshard(tuple(inconsistent)),))
    missing = _missing(graph, leases, initial=initial, audit=audit)
    missing |= _abandoned_children(graph, leases)
    suspects = {
        k for k, (_, why) in missing.items() if isinstance(why, LeaseLostUnseen)
    } - audit.lost
    wanted = _in_write_order(graph.shards[key] for key in missing if key not in suspects)
    is_read = any(_was_read(lease) for lease in leases)
    return LeaseSyncPlan(
        create=tuple(
            LeaseToCreate(_new_lease(s, missing[s.shard_id][0]), missing[s.shard_id][1])
            for s in wanted
        ),
        suspects=tuple(sorted(suspects)),
        repairs=frozenset(
            shard.shard_id
            for shard in wanted
            if is_read and not isinstance(missing[shard.shard_id][1], ChildOfFinished)
        ),
    )


def _was_read(lease: Lease) -> bool:
    return lease.is_finished or not lease.checkpoint.is_sentinel


# Shard id to the checkpoint at which its lease must begin, and the reason.
_Missing = dict[str, tuple[ExtendedSequenceNumber, Reason]]
_LOST = (AT_TRIM_HORIZON, LeaseLostUnseen())


def _first_leases(listed: Sequence[Shard], initial: InitialPosition) -> LeaseSyncPlan:
    """S2: an empty table gets a lease for every shard of the filtered listing, if that tiles."""
    graph = ShardGraph(listed)
    if not tiles_exactly(shard.hash_key_range for shard in graph.shards.values()):
        return LeaseSyncPlan(problems=(ListingUntiled(initial.kind, len(graph.shards)),))
    return LeaseSyncPlan(
        create=tuple(
            LeaseToCreate(_new_lease(shard, initial.checkpoint), EmptyTable())
            for shard in _in_write_order(graph.shards.values())
        )
    )


def _missing(
    graph: ShardGraph, leases: Sequence[Lease], *, initial: InitialPosition, audit: Audit
) -> _Missing:
    """S4-S7, S10: what the lines of shards without a lease need, oldest first, one generation."""
    leased = {lease.lease_key for lease in leases}
    # At LATEST a lease that was lost must not be made at LATEST: what came meanwhile would be
    # skipped. Once anything has been read, no shard is new without a parent that has a lease.
    is_audited = not initial.reads_history and any(_was_read(lease) for lease in leases)
    begins = _Beginnings(graph, leases, initial=initial, is_audited=is_audited)
    other_parent = (initial.checkpoint, OtherParent())
    covered = set(leased)  # has a lease, or descends from a shard that has or gets one
    missing: _Missing = {}
    for shard_id in _unleased_lines(graph, leases):
        # A parent that has aged out of the listing still covers its children with its lease.
        parents = graph.shards[shard_id].parent_shard_ids
        if any(p in covered or p in missing for p in parents):
            covered.add(shard_id)
            for other in graph.parents(shard_id):
                if other not in covered and other not in missing:
                    missing[other] = _LOST if is_audited else other_parent
        elif begins.may_begin(shard_id, audit):
            missing[shard_id] = begins.at(shard_id)
    return missing


def _unleased_lines(graph: ShardGraph, leases: Sequence[Lease]) -> list[str]:
    """
    Return the shards whose lines need looking at, parents before their children.

    They are the shards without a lease that are open or whose parent is finished, and their
    ancestors up to the first one with a lease.
    """
    leased = {lease.lease_key for lease in leases}
    # A shard that a lease names as its parent is not open: the listing is older than the lease.
    closed = {parent for lease in leases for parent in lease.parent_shard_ids}
    starts = {key for key, shard in graph.shards.items() if shard.is_open} - closed
    for lease in leases:
        if lease.is_finished:
            starts.update(graph.children(lease.lease_key))
    order: dict[str, None] = {}
    entered = set(leased)
    for start in sorted(starts - leased):
        path = [start]
        while path:
            shard_id = path[-1]
            if shard_id in entered:
                order.setdefault(path.pop())
            else:
                entered.add(shard_id)
                path.extend(p for p in graph.parents(shard_id) if p not in entered)
    return list(order)


class _Beginnings:
    """Where a line without any lease begins, and at which of its shards."""

    def __init__(
        self,
        graph: ShardGraph,
        leases: Sequence[Lease],
        *,
        initial: InitialPosition,
        is_audited: bool,
    ) -> None:
        self._graph = graph
        self._initial = initial
        self._is_audited = is_audited
        # Parents of shards that have been read: what else descends from them was lost, not new.
        self._read = {
            parent
            for lease in leases
            if lease.parent_shard_ids and lease.checkpoint != initial.checkpoint
            for parent in lease.parent_shard_ids
        }
        # What a leased shard descends from has been read to its end, or was never wanted.
        done = {parent for lease in leases for parent in lease.parent_shard_ids}
        self._done = _with_ancestors(graph, done)

    def may_begin(self, shard_id: str, audit: Audit) -> bool:
        """Tell whether the line may begin at this shard, none of whose parents is covered."""
        if self._initial.reads_history or self._graph.shards[shard_id].is_open:
            return True
        if audit.readable is None:
            return self._is_audited and shard_id not in self._done
        return shard_id in audit.readable and shard_id not in self._done

    def at(self, shard_id: str) -> tuple[ExtendedSequenceNumber, Reason]:
        """S4, S7, S10: where it begins."""
        initial, shard = self._initial, self._graph.shards[shard_id]
        if not initial.reads_history:
            if not self._read.isdisjoint(shard.parent_shard_ids):
                return AT_TRIM_HORIZON, HoleBesideSibling()
            if self._is_audited:
                return _LOST
        return initial.checkpoint, NoLeasedRelative() if shard.is_open else OldestOfItsLine()


def _with_ancestors(graph: ShardGraph, shard_ids: Iterable[str]) -> set[str]:
    """Return these shards and all that they descend from."""
    found: set[str] = set()
    waiting = list(shard_ids)
    while waiting:
        shard_id = waiting.pop()
        if shard_id not in found:
            found.add(shard_id)
            waiting.extend(graph.parents(shard_id))
    return found


def _abandoned_children(graph: ShardGraph, leases: Sequence[Lease]) -> _Missing:
    """S8: children of finished leases that nobody created, once their other parent is leased."""
    leased = {lease.lease_key for lease in leases}
    return {
        child: (AT_TRIM_HORIZON, ChildOfFinished())
        for lease in leases
        if lease.is_finished
        for child in graph.children(lease.lease_key)
        if child not in leased and leased.issuperset(graph.parents(child))
    }


def _in_write_order(shards: Iterable[Shard]) -> list[Shard]:
    return sorted(shards, key=lambda shard: shard.creation_order)


def _new_lease(shard: Shard, checkpoint: ExtendedSequenceNumber) -> Lease:
    return Lease(
        lease_key=shard.shard_id,
        checkpoint=checkpoint,
        parent_shard_ids=shard.parent_shard_ids,
        hash_key_range=shard.hash_key_range,
    )
