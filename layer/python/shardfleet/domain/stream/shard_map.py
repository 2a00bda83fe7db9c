"""
Which open shard a record goes to, as far as one listing tells.

A listing may be read in the middle of a reshard: a parent still open beside its children, or only
one of the two children of a split. The children then count and the parent does not, so that no
hash key has two owners; a key without an owner is answered by None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX
from shardfleet.domain.stream.shards import Shard, ShardGraph

_DIGEST_BYTES = 16


class ShardMap:
    """
    The shards of one listing.

    Attributes:
        shards: shard id to shard, closed ones included.
        owners: the open shards that take records, in the order of their hash keys; no two overlap.
        whole: the shard that takes all records; None if there are several, or none of all.

    """

    __slots__ = ("_digests", "_has_gaps", "_starts", "owners", "shards", "whole")

    def __init__(self, listing: Iterable[Shard] = ()) -> None:
        """Index a listing."""
        graph = ShardGraph(listing)
        self.shards: Mapping[str, Shard] = graph.shards
        childless = (
            s for s in graph.shards.values() if s.is_open and not graph.children(s.shard_id)
        )
        owners: list[Shard] = []
        for shard in sorted(childless, key=_start):
            if owners and shard.hash_key_range.start <= owners[-1].hash_key_range.end:
                # Nonsense: the younger counts.
                owners.append(max(owners.pop(), shard, key=lambda each: each.creation_order))
            else:
                owners.append(shard)
        self.owners = tuple(owners)
        self._starts = [_start(shard) for shard in owners]
        self._digests = [start.to_bytes(_DIGEST_BYTES, "big") for start in self._starts]
        covered = sum(shard.hash_key_range.end - _start(shard) + 1 for shard in owners)
        self._has_gaps = covered <= HASH_KEY_MAX
        self.whole = owners[0] if len(owners) == 1 and not self._has_gaps else None

    def owner(self, hash_key: int) -> Shard | None:
        """Return the shard that takes records of a hash key; None if the listing shows none."""
        place = bisect_right(self._starts, hash_key) - 1
        shard = self.owners[place] if place >= 0 else None
        return shard if shard is not None and shard.hash_key_range.contains(hash_key) else None

    def owners_of_digests(self, digests: Iterable[bytes]) -> list[Shard | None]:
        """Return the ``owner`` of each hash key; they are given as 16 bytes, the highest first."""
        if self._has_gaps:
            return [self.owner(int.from_bytes(digest, "big")) for digest in digests]
        owners, starts = self.owners, self._digests
        return [owners[bisect_right(starts, digest) - 1] for digest in digests]

    def owns(self, shard_id: str, hash_key: int) -> bool:
        """Return whether a shard, open or closed, is known and the hash key lies in its range."""
        shard = self.shards.get(shard_id)
        return shard is not None and shard.hash_key_range.contains(hash_key)

    def takes_records(self, shard_id: str) -> bool:
        """Return whether a shard is one of the owners."""
        shard = self.shards.get(shard_id)
        return shard is not None and self.owner(_start(shard)) is shard


def _start(shard: Shard) -> int:
    return shard.hash_key_range.start
