"""
Positions of another reader as checkpoints of a lease table: what would be written, and what not.

Only forwards (L13), only leases that nobody holds, and children have leases before their parent's
says ``SHARD_END`` (protocol.md §4.6), so that an import that is cut off is completed by the next.

The child of a merge has its lease as soon as one parent is done, and a parent without a lease is
not waited for (§4.7). So the other parent gets one, too, with all that lies between it and what is
still read: nobody has begun these, and they wait for their own parents. Of one that descends from
nothing that is still read it is not known whether it was done: then nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.leases.changes import checkpoint, create
from shardfleet.domain.leases.lease import Lease, LeaseChange, keys_by_owner
from shardfleet.domain.positions.positions import Positions, checkpoint_of, checkpoint_text
from shardfleet.domain.stream.sequence import (
    AT_SHARD_END,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph


class ImportAction(StrEnum):
    """What an import does to a lease."""

    CREATE = "CREATE"
    ADVANCE = "ADVANCE"
    END = "END"
    SAME = "SAME"


class ImportStep(Struct, frozen=True, kw_only=True):
    """
    One lease.

    Attributes:
        lease_key: the shard's id.
        action: what is done to it.
        before: its checkpoint as it is, empty for no lease.
        after: as it will be.
        change: the conditional write; None for ``SAME``.

    """

    lease_key: str
    action: ImportAction
    before: str
    after: str
    change: LeaseChange | None


class ImportPlan(Struct, frozen=True, kw_only=True):
    """
    What an import would do.

    Attributes:
        steps: in the order in which they are to be written.
        obstacles: why nothing may be written; empty: it may.
        notes: what a person should know.

    """

    steps: tuple[ImportStep, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]


def plan_import(
    positions: Positions,
    leases: Sequence[Lease],
    graph: ShardGraph,
    *,
    gone: frozenset[str] = frozenset(),
) -> ImportPlan:
    """
    Decide what an import writes.

    Args:
        positions: of the reader that stopped.
        leases: of the application that goes on.
        graph: the stream's shards, all of them.
        gone: leases whose owner was seen to renew them no more.

    """
    found = _Import(positions, {lease.lease_key: lease for lease in leases}, graph)
    steps = found.steps()
    obstacles = [*found.owned(gone), *found.backwards(), *found.lost(), *found.unknown()]
    notes = list(found.unread())
    if any(each.after.startswith(AT_TIMESTAMP) for each in steps if each.change is not None):
        notes.append(
            "an instant is written as AT_TIMESTAMP with the milliseconds in the sub-sequence "
            "number: workers of shardfleet begin there, a Java worker takes the instant of its "
            "own configuration"
        )
    return ImportPlan(steps=tuple(steps), obstacles=tuple(obstacles), notes=tuple(notes))


class _Import:
    def __init__(
        self, positions: Positions, leases: Mapping[str, Lease], graph: ShardGraph
    ) -> None:
        self._leases = leases
        self._graph = graph
        self._to = {key: checkpoint_of(position) for key, position in positions.shards.items()}
        self._waiting = positions.waiting
        # Parents of which nothing is known, and the child that would not wait for them.
        self._unknown: dict[str, str] = {}
        begun = [
            child
            for child, parents in positions.waiting.items()
            # As at the end of a shard: the child of a merge has a lease when one parent ends.
            if any(map(self._is_done, parents)) and child not in self._to
        ]
        self._to |= dict.fromkeys(begun, AT_TRIM_HORIZON)
        self._lead_to([child for child in begun if child not in leases])

    def _is_done(self, shard_id: str) -> bool:
        return self._to.get(shard_id) == AT_SHARD_END

    def _lead_to(self, made: list[str]) -> None:
        """Make what lies between leases that are to be made and what is still read."""
        while made:
            child = made.pop()
            for parent in self._graph.parents(child):
                if parent in self._leases or parent in self._to:
                    continue
                if parent in self._waiting or any(
                    map(self._is_unfinished, self._graph.ancestors(parent))
                ):
                    self._to[parent] = AT_TRIM_HORIZON
                    made.append(parent)
                else:
                    self._unknown[parent] = child

    def _is_unfinished(self, shard_id: str) -> bool:
        lease = self._leases.get(shard_id)
        is_begun = shard_id in self._to or (lease is not None and not lease.is_finished)
        return is_begun and not self._is_done(shard_id)

    def steps(self) -> list[ImportStep]:
        by_age = sorted(self._to, key=self._age)
        made, missed, leased = [], [], set(self._leases)
        for key in by_age:
            shard = self._graph.shards.get(key)
            if shard is None or key in leased:
                continue
            if not self._is_done(key):
                made.append(self._created(shard))
            elif not leased.isdisjoint(shard.parent_shard_ids):
                # Done, and never leased: lease sync would begin it behind its parent (S8).
                leased.add(key)
                missed.append(self._created(shard))
        known = sorted((key for key in by_age if key in self._leases), key=self._is_done)
        return [*made, *reversed(missed), *map(self._moved, known)]

    def _age(self, key: str) -> tuple[int, str]:
        shard = self._graph.shards.get(key)
        return (0, key) if shard is None else shard.creation_order

    def _created(self, shard: Shard) -> ImportStep:
        key = shard.shard_id
        lease = Lease(
            lease_key=key,
            checkpoint=self._to[key],
            parent_shard_ids=shard.parent_shard_ids,
            child_shard_ids=self._children(key) if self._is_done(key) else (),
            hash_key_range=shard.hash_key_range,
        )
        return ImportStep(
            lease_key=key,
            action=ImportAction.CREATE,
            before="",
            after=checkpoint_text(lease.checkpoint),
            change=create(lease),
        )

    def _moved(self, key: str) -> ImportStep:
        lease, to = self._leases[key], self._to[key]
        change: LeaseChange | None = None
        if to == lease.checkpoint or _is_past(lease.checkpoint, to):
            action, to = ImportAction.SAME, lease.checkpoint
        elif to.is_shard_end:
            known = replace(lease, child_shard_ids=self._children(key))
            action, change = ImportAction.END, checkpoint(known, to)
        else:
            action, change = ImportAction.ADVANCE, checkpoint(lease, to)
        return ImportStep(
            lease_key=key,
            action=action,
            before=str(lease.checkpoint),
            after=checkpoint_text(to),
            change=change,
        )

    def _children(self, key: str) -> tuple[str, ...]:
        waiting = {child for child, parents in self._waiting.items() if key in parents}
        known = self._leases[key].child_shard_ids if key in self._leases else ()
        return tuple(sorted({*known, *self._graph.children(key), *waiting}))

    # --- what stands against it

    def owned(self, gone: frozenset[str]) -> list[str]:
        owners = keys_by_owner(lease for key, lease in self._leases.items() if key not in gone)
        return [
            f"{owner} holds {', '.join(keys)}: pause or drain the fleet, or stop the worker, so "
            "that nobody holds a lease; if it is gone already, give --watch, which looks for a "
            "while whether the leases are still renewed"
            for owner, keys in owners.items()
        ]

    def backwards(self) -> list[str]:
        return [
            f"{key}: the lease is at {lease.checkpoint} already, past the position to import, "
            f"{self._to[key]}: an import goes forwards only"
            for key, lease in sorted(self._leases.items())
            if key in self._to and _is_past(lease.checkpoint, self._to[key])
        ]

    def lost(self) -> list[str]:
        return [
            f"{key}: the stream does not list it any more, so what was not read of it is gone"
            for key in sorted(self._to)
            if key not in self._graph.shards and key not in self._leases and not self._is_done(key)
        ]

    def unknown(self) -> list[str]:
        return [
            f"{key}: there is neither a position nor a lease of it, so {child} would not wait for "
            "it: add its position to the file, or let the fleet's lease sync make its lease first"
            for key, child in sorted(self._unknown.items())
        ]

    def unread(self) -> list[str]:
        reached = {*self._to, *self._leases, *self._waiting}
        return [
            f"{key}: an open shard to which no position and no lease leads; the fleet's lease "
            "sync makes its lease"
            for key, shard in self._graph.shards.items()
            if shard.is_open and not ({key, *self._graph.ancestors(key)} & reached)
        ]


def _is_past(stored: ExtendedSequenceNumber, to: ExtendedSequenceNumber) -> bool:
    """Return whether a lease is further already; one that holds a word never is (L13)."""
    return stored > to and (stored.is_shard_end or not stored.is_sentinel)
