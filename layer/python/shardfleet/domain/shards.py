"""
Shards and their lineage: parents, adjacent parents, children, hash ranges, holes.

Rules: protocol.md §4.2-4.4 and §4.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardfleet.domain.leases import HashKeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """
    One shard as ListShards describes it.

    Attributes:
        shard_id: e.g. ``"shardId-000000000007"``.
        hash_key_range: inclusive.
        parent_shard_id: None for an original shard.
        adjacent_parent_shard_id: the second parent of a merge.
        starting_sequence_number: decimal string.
        ending_sequence_number: None while the shard is open.

    """

    shard_id: str
    hash_key_range: HashKeyRange
    starting_sequence_number: str = "0"
    ending_sequence_number: str | None = None
    parent_shard_id: str | None = None
    adjacent_parent_shard_id: str | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether records can still be put to it."""
        return self.ending_sequence_number is None

    @property
    def parent_shard_ids(self) -> tuple[str, ...]:
        """Return the ids of the parents, sorted; the parents themselves may have expired."""
        parents = (self.parent_shard_id, self.adjacent_parent_shard_id)
        return tuple(sorted(p for p in parents if p is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildShard:
    """One child as GetRecords names it at the end of a closed shard."""

    shard_id: str
    parent_shard_ids: tuple[str, ...]
    hash_key_range: HashKeyRange
