"""How far a query is behind when a batch begins: what Spark's progress says of that batch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median_high
from typing import Any

from shardfleet_spark.offsets.lineage import Family
from shardfleet_spark.plan.shares import Inflow, done_until_ms, waiting_in


def behind_now(
    family: Family, inflows: Mapping[str, Inflow], *, busy: Collection[str], now_ms: int
) -> dict[str, Any]:
    """
    Return the lags of a query that has planned its next batch and not read it yet.

    A shard is behind by the time since everything in it was read, if something waits: that is
    certain, or to be expected of what came before. How far the batch before was behind at *its*
    end says little: with a trigger of 30 s it was at the tip, and is 29 s behind now. Spark asks
    for these figures before it reads a batch, and never after it.

    Of a shard that was never read nothing is known: it is counted, and is in no other figure.
    Where that goes for all of them the figures are null, which is neither zero nor behind.

    Args:
        family: where the shards stand.
        inflows: of those that were read.
        busy: shards in which something certainly waits.
        now_ms: epoch milliseconds.

    """
    stands = {shard_id: family.stands[shard_id] for shard_id in family.live}
    read = {shard_id: stand for shard_id, stand in stands.items() if done_until_ms(stand)}
    measured = {
        shard_id: inflows[shard_id]
        for shard_id in read
        if shard_id in inflows and inflows[shard_id].over_ms
    }
    waiting = waiting_in({s: read[s] for s in measured}, measured, now_ms=now_ms)
    lags = sorted(
        max(0, now_ms - done_until_ms(stand))
        if shard_id in busy or (shard_id in waiting and waiting[shard_id].records >= 1)
        else 0
        for shard_id, stand in read.items()
    )
    is_known = bool(read) or not stands
    return {
        "millis_behind_latest": max(lags, default=0) if is_known else None,
        "median_millis_behind_latest": median_high(lags or [0]) if is_known else None,
        "lagging_shards": sum(1 for lag_ms in lags if lag_ms) if is_known else None,
        "shards_of_unknown_lag": len(stands) - len(read),
        "waiting_records": int(sum(each.records for each in waiting.values()))
        if is_known
        else None,
    }
