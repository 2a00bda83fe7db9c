"""
Lease sync with a memory: what was lost at LATEST is made again once that is certain.

A lease that somebody deleted cannot be made at LATEST again, or what came meanwhile is skipped.
So suspects are counted over the manager's turns, and then begin at TRIM_HORIZON: some records come
twice, none is lost (protocol.md §4.4). Shards that were closed before the fleet began are left
alone, as far as the pins tell when that was. What the fleet's first turn failed to create is made
with all that came since, for the same pins tell where it was to begin (hazard H7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardfleet.domain.leases.holes import Suspicion, suspicions
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import Audit, InitialPosition, LeaseSyncPlan, plan_lease_sync
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.engine.ports import Clock, ListingFilter, StateStore, StreamReader
from shardfleet.engine.state.fleet_state import PIN, FleetState

AUDIT = "audit"
SUSPECTS = "suspects"
# Kinesis quota: no stream retains records for less; a listing reaches as far back at least.
_RETAINED_MS = 24 * 3_600_000


class HoleAudit:
    """Plans which leases to create, across invocations."""

    def __init__(self, *, state: FleetState, stream: StreamReader, clock: Clock) -> None:
        """Keep the ports; without suspects none of them is asked."""
        self._store = state.store
        self._stream = stream
        self._clock = clock

    async def plan(
        self,
        shards: Sequence[Shard],
        leases: Sequence[Lease],
        *,
        initial: InitialPosition,
        listed_at_initial: Sequence[Shard] | None,
        created_ms: int,
    ) -> LeaseSyncPlan:
        """
        Decide which leases to create; see :func:`shardfleet.domain.leases.sync.plan_lease_sync`.

        ``created_ms`` is when the stream was created.

        Raises:
            Throttled, OutcomeUnknown: try again.

        """
        plan = plan_lease_sync(shards, leases, initial=initial, listed_at_initial=listed_at_initial)
        if not plan.suspects and not plan.begins_late:
            return plan
        audit = Audit(readable=await self._readable(shards, created_ms))
        plan = plan_lease_sync(shards, leases, initial=initial, listed_at_initial=None, audit=audit)
        lost = await self._certain(plan.suspects)
        if not lost:
            return plan
        audit = Audit(readable=audit.readable, lost=lost)
        return plan_lease_sync(shards, leases, initial=initial, listed_at_initial=None, audit=audit)

    async def _certain(self, suspects: Sequence[str]) -> frozenset[str]:
        """Count a sighting of each; return those that were seen often enough."""
        document = await self._store.read(AUDIT, SUSPECTS)
        rows = document.body["shards"] if document else {}
        before = {key: Suspicion(count, last_ms) for key, (count, last_ms) in rows.items()}
        now = suspicions(before, suspects, now_ms=self._clock.now_ms())
        if now != before:
            await self._store.write(
                AUDIT,
                SUSPECTS,
                {"shards": {key: [found.count, found.last_ms] for key, found in now.items()}},
                expected_version=document.version if document else None,
            )
        return frozenset(key for key, found in now.items() if found.is_proof)

    async def _readable(self, shards: Sequence[Shard], created_ms: int) -> frozenset[str] | None:
        """Return the shards that were open when the fleet began or came later; None unknown."""
        then_ms = await began_ms(self._store, created_ms)
        if then_ms is None or self._clock.now_ms() - then_ms >= _RETAINED_MS:
            return None
        then = await self._stream.list_shards(ListingFilter.AT_TIMESTAMP, instant_ms=then_ms)
        return later_than({shard.shard_id for shard in then}, ShardGraph(shards))


async def began_ms(store: StateStore, created_ms: int) -> int | None:
    """
    Return the earliest instant to which a LATEST lease is pinned: when the fleet began.

    Args:
        store: of the pins.
        created_ms: creation time of the stream; pins of an earlier incarnation tell nothing.

    """
    pins = [pin.body for pin in await store.list(PIN)]
    found = (int(pin["instant_ms"]) for pin in pins if pin["created_ms"] == created_ms)
    return min(found, default=None)


def later_than(open_then: Collection[str], graph: ShardGraph) -> frozenset[str]:
    """
    Return the listed shards that were open then or came later.

    What descends from a shard that has left the listing may have come later.
    """
    found: set[str] = set()
    for shard in sorted(graph.shards.values(), key=lambda each: each.creation_order):
        parents = shard.parent_shard_ids
        came_later = any(p in found or p not in graph.shards for p in parents)
        if shard.shard_id in open_then or came_later:
            found.add(shard.shard_id)
    return frozenset(found)
