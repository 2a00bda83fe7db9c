"""
Shards and their lineage: parents, adjacent parents, children.

Rules: protocol.md §4.2-4.3. Nothing here trusts a listing: a shard listed twice, a parent
that is its own ancestor, or a parent that has aged out must not make anything fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType

from msgspec import Struct

from shardfleet.domain.stream.hash_ranges import HashKeyRange, hash_range_holes

_PARENTS_OF_A_MERGE = 2
# As Kinesis makes them (its API reference, CreateStream: "shardId-000000000000").
_SHARD_ID = re.compile(r"shardId-([0-9]{12})")


# A turn of the manager asks it of each lease, and the next one of the same ones.
@lru_cache(maxsize=16_384)
def shard_number(shard_id: str) -> int | None:
    """Return the number in a shard id of Kinesis, None if it is not one."""
    made = _SHARD_ID.fullmatch(shard_id)
    return None if made is None else int(made[1])


class Shard(Struct, frozen=True, kw_only=True, gc=False):
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
        """Return whether records can still be put to it."""
        return self.ending_sequence_number is None

    @property
    def parent_shard_ids(self) -> tuple[str, ...]:
        """Return the ids of the parents, sorted; the parents themselves may have expired."""
        if self.parent_shard_id is None and self.adjacent_parent_shard_id is None:
            return ()
        parents = {self.parent_shard_id, self.adjacent_parent_shard_id}
        return tuple(sorted(p for p in parents if p is not None))

    @property
    def creation_order(self) -> tuple[int, str]:
        """Return the key that orders shards by age: starting sequence number, then id."""
        text = self.starting_sequence_number
        number = int(text) if text.isascii() and text.isdigit() else 0
        return (number, self.shard_id)


class ChildShard(Struct, frozen=True, kw_only=True):
    """One child as GetRecords names it at the end of a closed shard."""

    shard_id: str
    parent_shard_ids: tuple[str, ...]
    hash_key_range: HashKeyRange


def end_contradiction(children: Sequence[ChildShard], *, ended: bool, shard_id: str) -> str:
    """
    Return how an answer of GetRecords contradicts itself about the shard's end, "" if not.

    Protocol.md §4.5: no next iterator means child shards and the other way round; every child
    names this parent. One child alone is a merge, so it names two parents (§4.6).

    Args:
        children: the answer's child shards.
        ended: whether the answer has no next iterator.
        shard_id: the shard that was read.

    """
    if ended and not children:
        return "no next iterator, but no child shards"
    if children and not ended:
        return "child shards, but a next iterator"
    for child in children:
        if shard_id not in child.parent_shard_ids:
            return f"child {child.shard_id} does not name this shard as a parent"
    if len(children) == 1 and len(children[0].parent_shard_ids) != _PARENTS_OF_A_MERGE:
        return f"child {children[0].shard_id} alone is a merge, but does not name two parents"
    return ""


class ShardGraph:
    """
    The lineage of the shards of one listing.

    A shard that two pages show differently (a reshard in between) counts as closed. A shard that
    has aged out is no member, but its id still finds its listed children.

    Attributes:
        shards: shard id to shard, ordered by id.
        named_parents: shard id to the ids of its parents, of those that name any.
        families: id of each shard that listed ones name as a parent, to theirs, sorted.

    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        """Index a listing; the order of the listing does not matter."""
        found: dict[str, Shard] = {}
        for shard in shards:
            other = found.setdefault(shard.shard_id, shard)
            if other is not shard:
                # Closed rather than open; the text decides among the equally closed.
                found[shard.shard_id] = max(other, shard, key=lambda s: (not s.is_open, repr(s)))
        self.shards: Mapping[str, Shard] = MappingProxyType(dict(sorted(found.items())))
        named = {key: shard.parent_shard_ids for key, shard in self.shards.items()}
        self.named_parents = {key: parents for key, parents in named.items() if parents}
        children: dict[str, list[str]] = {}
        for shard_id, parents in self.named_parents.items():
            for parent_id in parents:
                children.setdefault(parent_id, []).append(shard_id)
        self.families = {parent_id: tuple(ids) for parent_id, ids in children.items()}

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardGraph:
        """Return the graph of a listing: the listing itself if it is one."""
        return shards if isinstance(shards, ShardGraph) else cls(shards)

    def __iter__(self) -> Iterator[Shard]:
        """Return the shards, ordered by id."""
        return iter(self.shards.values())

    def parents(self, shard_id: str) -> tuple[str, ...]:
        """Return the ids of a shard's parents that are in the listing, sorted."""
        shard = self.shards.get(shard_id)
        return tuple(p for p in shard.parent_shard_ids if p in self.shards) if shard else ()

    def children(self, shard_id: str) -> tuple[str, ...]:
        """Return the ids of the listed shards that name this one as a parent, sorted."""
        return self.families.get(shard_id, ())

    def ancestors(self, shard_id: str) -> frozenset[str]:
        """Return the ids of all listed ancestors."""
        found: set[str] = set()
        waiting = list(self.parents(shard_id))
        while waiting:
            ancestor = waiting.pop()
            if ancestor not in found:
                found.add(ancestor)
                waiting.extend(self.parents(ancestor))
        return frozenset(found)

    def roots(self) -> tuple[str, ...]:
        """Return the ids of the shards that have no parent in the listing, sorted."""
        return tuple(shard_id for shard_id in self.shards if not self.parents(shard_id))

    @cached_property
    def _newest(self) -> int | None:
        numbers = (shard_number(shard_id) for shard_id in self.shards)
        return max((number for number in numbers if number is not None), default=None)

    def is_beyond(self, shard_id: str) -> bool:
        """
        Return whether a shard would be newer than all that are listed.

        Numbers only rise, and the newest shard is open until a newer one follows it, so a stream
        never had such a shard, unless the listing is behind.
        """
        if shard_id in self.shards:
            return False
        number = shard_number(shard_id)
        return number is not None and self._newest is not None and number > self._newest

    @cached_property
    def holes(self) -> tuple[HashKeyRange, ...]:
        """Return what open shards leave out of the hash space: nothing, if the listing is whole."""
        return hash_range_holes(shard.hash_key_range for shard in self if shard.is_open)

    @cached_property
    def inconsistent(self) -> tuple[str, ...]:
        """
        Return the open children of open parents, sorted.

        A parent is closed before its children open, so such a listing was read in the middle of
        a reshard and proves nothing (protocol.md §4.3).
        """
        return tuple(
            shard_id
            for shard_id, shard in self.shards.items()
            if shard.is_open
            and shard.parent_shard_ids
            and any(self.shards[p].is_open for p in self.parents(shard_id))
        )
