"""
How far behind every unfinished lease is, also when nobody reads it: silence is no health (H18).

A worker tells MillisBehindLatest of its last read. When no read follows, because the worker is
lost or its handler hangs, the lag grows with the time since. A stopped shard's lag is at least
the age of its stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.shards import Shard, ShardGraph

UNKNOWN_MS = -1


def lag_now(lag_ms: int, age_ms: int, *, still_ms: int) -> int:
    """
    Return a lag that was told ``age_ms`` ago; unknown stays unknown.

    Up to ``still_ms`` it counts as news: idle shards would otherwise never be at zero.
    """
    return lag_ms + age_ms if lag_ms > UNKNOWN_MS and age_ms > still_ms else lag_ms


def lags_of(
    leases: Iterable[Lease],
    slots: Iterable[Slot],
    *,
    stopped_since_ms: Mapping[str, int],
    now_ms: int,
    still_ms: int,
) -> dict[str, int]:
    """
    Return the lag of each lease of which anything is known, in milliseconds.

    Args:
        leases: the unfinished ones.
        slots: all slot records; a running one tells the lags as of its last heartbeat.
        stopped_since_ms: lease key to when it was stopped, epoch milliseconds.
        now_ms: epoch milliseconds.
        still_ms: how old a heartbeat may be and still be news.

    """
    told: dict[str, int] = {}
    for slot in slots:
        if slot.state is not SlotState.RUNNING:
            continue
        age_ms = now_ms - slot.heartbeat_ms
        grown_ms = lag_now(0, age_ms, still_ms=still_ms)
        for key, lag_ms in slot.lags_ms.items():
            lag = lag_ms + grown_ms if lag_ms > UNKNOWN_MS else lag_ms
            if lag > told.get(key, UNKNOWN_MS):
                told[key] = lag
    for key, since_ms in stopped_since_ms.items():
        if now_ms - since_ms > told.get(key, UNKNOWN_MS):
            told[key] = now_ms - since_ms
    keys = {lease.lease_key for lease in leases}
    return {key: lag_ms for key, lag_ms in told.items() if key in keys}


def unread_shards(shards: Iterable[Shard], leases: Iterable[Lease]) -> tuple[str, ...]:
    """
    Return the open shards that no unfinished lease leads to, sorted.

    It leads to its shard and to all descendants, whose leases are made when it ends. Leases are
    read before shards are listed, so a finished lease of an open shard is a mistake too. A closed
    shard without a lease was left out on purpose, or aged out.
    """
    graph = ShardGraph.of(shards)
    pending = {lease.lease_key for lease in leases if not lease.is_finished}
    return tuple(
        shard_id
        for shard_id, shard in graph.shards.items()
        if shard.is_open and shard_id not in pending and not pending & _line(graph, shard_id)
    )


def _line(graph: ShardGraph, shard_id: str) -> set[str]:
    """Return a shard and its ancestors, those that have aged out of the listing too."""
    listed = graph.ancestors(shard_id)
    parents = {p for s in (shard_id, *listed) for p in graph.shards[s].parent_shard_ids}
    return {shard_id, *listed, *parents}
