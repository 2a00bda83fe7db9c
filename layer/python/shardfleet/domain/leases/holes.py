"""
Shards that nobody reads: how often they were found so, and the holes in the hash space.

Rules: docs/protocol.md S10 (§4.4; Java's ``LeaseReader``/``HashRangeHoleTracker``). A shard is
given up for lost when it was found without a lease three times, apart enough that a stale scan of
the lease table and a listing in the middle of a reshard are over in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HashKeyRange, hash_range_holes
from shardfleet.domain.stream.shards import Shard, ShardGraph

SIGHTINGS = 3  # Java: leasesRecoveryAuditorInconsistencyConfidenceThreshold
# An eventually consistent scan is behind by a second or two; managers may look each second.
APART_MS = 5_000
# Turns are a minute apart at most; sightings further apart are of two different holes.
FORGET_MS = 90_000


class Suspicion(Struct, frozen=True, array_like=True):
    """
    How often a shard was found without a lease; a row of the manager's documents.

    Attributes:
        count: sightings in a row.
        last_ms: the last one that counted, epoch milliseconds.

    """

    count: int
    last_ms: int

    @property
    def is_proof(self) -> bool:
        """Return whether that is often enough."""
        return self.count >= SIGHTINGS


class Evidence(Struct, frozen=True, kw_only=True):
    """
    What is known of shards that have no lease.

    Attributes:
        began_ms: when the fleet began, epoch milliseconds; None: nobody knows.
        suspicions: shard id to how often it was found so.

    """

    began_ms: int | None
    suspicions: Mapping[str, Suspicion]


def suspicions(
    previous: Mapping[str, Suspicion], suspects: Iterable[str], *, now_ms: int
) -> dict[str, Suspicion]:
    """
    Return what is held against each suspect; who is none any more is forgotten.

    Args:
        previous: what was remembered.
        suspects: shard ids, as found now.
        now_ms: epoch milliseconds; a sighting that lies after it is forgotten.

    """
    found: dict[str, Suspicion] = {}
    for shard_id in sorted(suspects):
        before = previous.get(shard_id)
        if before is None or not 0 <= now_ms - before.last_ms <= FORGET_MS:
            found[shard_id] = Suspicion(1, now_ms)
        elif now_ms - before.last_ms < APART_MS:
            found[shard_id] = before
        else:
            found[shard_id] = Suspicion(before.count + 1, now_ms)
    return found


def unread_ranges(leases: Iterable[Lease], shards: Iterable[Shard]) -> tuple[HashKeyRange, ...]:
    """
    Return the hash ranges that no unfinished lease covers, in ascending order.

    Old rows have no range; it is taken from the listing. Where that does not have it either,
    nothing is concluded.

    Args:
        leases: all leases, those just created included.
        shards: the unfiltered listing.

    """
    listed = ShardGraph.of(shards).shards
    covered: list[HashKeyRange] = []
    for lease in leases:
        if lease.is_finished:
            continue
        if lease.hash_key_range is not None:
            covered.append(lease.hash_key_range)
        elif lease.lease_key in listed:
            covered.append(listed[lease.lease_key].hash_key_range)
        else:
            return ()
    return hash_range_holes(covered) if listed else ()
