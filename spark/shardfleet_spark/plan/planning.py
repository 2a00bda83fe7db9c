"""
From one plan to the next: token, seals, shard list and clock give a token. Pure.

* :func:`advance` takes what the seals of an executed plan say.
* :func:`shardfleet_spark.offsets.lineage.admit` lets children in.
* :func:`decide` says whether there is work, and :func:`next_token` makes the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber, PointKind, Position
from shardfleet_spark.offsets.lineage import Family, finished
from shardfleet_spark.offsets.plan_token import PlanToken, Quota, Stand
from shardfleet_spark.offsets.seals import Seal, ShardSeal, check_layout, is_unread
from shardfleet_spark.plan.rhythm import LEAST_MS
from shardfleet_spark.plan.shares import (
    Inflow,
    Waiting,
    done_until_ms,
    plan_shares,
    waiting_in,
)

# With a skew limit, while no arrival is known of a shard: each looks at one record and takes none.
# One that is far ahead would come before all that the others still have.
_SOUNDING_RECORDS, _SOUNDING_UNTIL_MS = 1, 1
# So long a shard that was read to its tip counts as read up to now: a query whose batches are
# further apart than its skew limit would fall behind for ever.
_TIP_HOLDS_MS = 60_000
# Without a seal store: what the driver reads for one batch and hands to its tasks. The message of
# a task may have 128 MiB (spark.rpc.message.maxSize), and a driver has 1 GiB (spark.driver.memory)
# for the copies that Spark makes. A shard takes 60 MiB a minute (fact K74: 1 MiB a second).
DRIVER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """
    What is known after a plan was executed.

    Attributes:
        family: where the shards stand.
        busy: live shards that certainly have more to read.
        seals: the last word of each shard of the plan.
        stats: figures for a person.
        unread: groups of which nobody asked for the rows; their shards keep their stands.
        inflows: of each live shard that was ever read, as far as this process knows.

    """

    family: Family
    busy: frozenset[str]
    seals: Mapping[str, ShardSeal] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[int, ...] = ()
    inflows: Mapping[str, Inflow] = field(default_factory=dict)


def advance(
    token: PlanToken, seals: Mapping[int, Seal], inflows: Mapping[str, Inflow] | None = None
) -> Advanced:
    """
    Return where the shards stand after a plan.

    Args:
        token: the plan, executed and committed.
        seals: by number; the shards of one that is missing were not read and keep their stands.
        inflows: before the plan, as far as they are known.

    Raises:
        SealOfAnotherLayout: a seal does not belong to this plan.

    """
    stands, waiting = dict(token.stands), dict(token.waiting)
    by_shard: dict[str, ShardSeal] = {}
    unread = []
    for number, shards in enumerate(token.groups):
        seal = seals.get(number)
        if seal is None or is_unread(seal):
            unread.append(number)
            continue
        check_layout(seal, shards, number=number)
        for sealed in seal.shards:
            by_shard[sealed.shard_id] = sealed
            stands[sealed.shard_id] = _stand_after(stands[sealed.shard_id], sealed)
            for child, parents in sealed.children.items():
                if child not in stands:
                    waiting.setdefault(child, parents)
    family = Family(stands, waiting)
    busy = frozenset(
        shard_id
        for shard_id in family.live
        if shard_id in by_shard and _has_more(by_shard[shard_id])
    )
    stats = stats_of(token, seals, family)
    if token.target_ms and unread and not by_shard:
        stats["lost"].append(
            f"nobody asked for any row of plan {token.number}: the run ends before the "
            f"{len(family.live)} shards that are left were read to their ends"
        )
    return Advanced(
        family=family,
        busy=busy,
        seals=by_shard,
        stats=stats,
        unread=tuple(unread),
        inflows=_inflows_after(token, family, by_shard, before=inflows or {}),
    )


def _inflows_after(
    token: PlanToken,
    family: Family,
    seals: Mapping[str, ShardSeal],
    *,
    before: Mapping[str, Inflow],
) -> dict[str, Inflow]:
    found, live = dict(before), set(family.live)
    for shard_id, sealed in seals.items():
        since_ms = done_until_ms(token.stands[shard_id])
        over_ms = done_until_ms(family.stands[shard_id]) - since_ms if since_ms else 0
        known = before.get(shard_id, Inflow())
        found[shard_id] = known.then(sealed.count, sealed.size_bytes, over_ms)
    return {shard_id: inflow for shard_id, inflow in found.items() if shard_id in live}


def _stand_after(before: Stand, sealed: ShardSeal) -> Stand:
    where = before.position
    if sealed.ended:
        return replace(
            finished(where.incarnation, where.shard_id),
            # At its tip it was open, so its children hold nothing older.
            arrived_ms=max(before.arrived_ms, before.tip_ms, sealed.arrived_ms),
            tip_ms=max(before.tip_ms, sealed.tip_ms),
        )
    if sealed.last is not None:
        done = ExtendedSequenceNumber(sealed.last, sealed.last_sub)
        where = Position(where.incarnation, where.shard_id, PointKind.SEQUENCE, done=done)
    arrived_ms = max(before.arrived_ms, sealed.arrived_ms)
    return Stand(where, arrived_ms, max(before.tip_ms, sealed.tip_ms))


def _has_more(sealed: ShardSeal) -> bool:
    # An empty answer with lag is no work yet: a probe follows it (hazard H6).
    return sealed.is_cut or (sealed.count > 0 and sealed.lag_ms != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """
    What the options and Spark allow for one batch.

    Attributes:
        records: stream records of the whole batch, 0 for no limit.
        total_bytes: data and keys of the whole batch, 0 for no limit.
        records_per_shard: 0 for no limit.
        bytes_per_partition: what one task may buffer.
        fetch_ms: how long a task goes on reading while there is more; None: as long as the
            trigger leaves time for.
        skew_ms: how far a shard may be ahead of the slowest one, 0 for no limit.
        partitions: how many tasks.
        partitions_most: how many while more waits than those may read; 0: no more.
        shards_per_partition: if not 0, decides how many tasks instead.

    """

    records: int = 0
    total_bytes: int = 0
    records_per_shard: int = 0
    bytes_per_partition: int = 64 * 1024 * 1024
    fetch_ms: int | None = None
    skew_ms: int = 0
    partitions: int = 1
    partitions_most: int = 0
    shards_per_partition: int = 0


def carried_by_driver(limits: BatchLimits) -> BatchLimits:
    """
    Lower limits to what the driver can hand to its tasks.

    Without a seal store the records travel inside the tasks, and several copies of them are in
    Spark's driver at a time: :data:`DRIVER_BYTES` are for all tasks of a batch.

    Args:
        limits: of the options and of Spark.

    """
    return replace(
        limits,
        bytes_per_partition=min(limits.bytes_per_partition, DRIVER_BYTES),
        partitions_most=0,
    )


def driver_notice(shards: int) -> str:
    """Return what that may come to, with so many open shards."""
    return (
        f"no seal store is named, so the driver itself reads: {DRIVER_BYTES >> 20} MiB a batch "
        f"at most, which is {DRIVER_BYTES / 60e6:.1f} MB/s at a trigger of 60 s and "
        f"{DRIVER_BYTES / 10e6:.1f} MB/s at 10 s. The {shards} open shards may take "
        f"{shards} MiB/s: for as much, set sealStore (or a shorter trigger)"
    )


def is_converged(token: PlanToken, after: Advanced, target_ms: int) -> frozenset[str]:
    """
    Return the live shards that have given all that had arrived by ``target_ms`` (AvailableNow).

    A shard has, when a plan made for this target read it to its tip, or read a record that
    arrived later. A shard that such a plan left out is told by its stand: the process that knew
    may be gone (Spark 4.0 and 4.1 have a new one for each batch). Where nobody asks for any row of
    a plan, all that is left counts as given: the query would never end.
    """
    if token.target_ms != target_ms:
        return frozenset()
    if token.layout and len(after.unread) == len(token.groups):
        return frozenset(after.family.live)
    stands = {shard_id: after.family.stands[shard_id] for shard_id in after.family.live}
    return frozenset(
        shard_id
        for shard_id, stand in stands.items()
        if (shard_id in after.seals and after.seals[shard_id].tip_ms)
        or stand.tip_ms >= target_ms
        or stand.arrived_ms > target_ms
    )


def next_token(
    token: PlanToken,
    after: Advanced,
    *,
    limits: BatchLimits,
    now_ms: int,
    target_ms: int = 0,
    leave_out: frozenset[str] = frozenset(),
) -> PlanToken | None:
    """
    Make the next plan; None when no shard is left to read.

    Args:
        token: the plan before.
        after: what is known after it, children admitted.
        limits: of the batch.
        now_ms: epoch milliseconds.
        target_ms: of AvailableNow, else 0.
        leave_out: shards that the plan is not to read.

    """
    shards = [shard_id for shard_id in after.family.live if shard_id not in leave_out]
    if not shards:
        return None
    number = token.number + 1
    stands = {shard_id: after.family.stands[shard_id] for shard_id in shards}
    waiting = waiting_in(stands, after.inflows, now_ms=now_ms)
    shares = _shares(limits, waiting, turn=number)
    # Those that get no record now do in another plan.
    shards = [shard_id for shard_id in shards if not limits.records or shares.records[shard_id]]
    weights = {
        shard_id: after.seals[shard_id].size_bytes if shard_id in after.seals else 0
        for shard_id in shards
    }
    count = _partitions(limits, _gives(limits, shares, waiting), shards)
    layout = lay_out(weights, partitions=count, turn=number)
    return replace(
        token,
        number=number,
        stands=after.family.stands,
        waiting=after.family.waiting,
        layout=layout,
        quotas=_quotas(limits, shares, layout, family=after.family, now_ms=now_ms),
        hashes={key: value for key, value in token.hashes.items() if key in after.family.stands},
        target_ms=target_ms,
        sealed=None,
        stats=after.stats,
    )


def _partitions(limits: BatchLimits, gives: Mapping[str, float], shards: list[str]) -> int:
    if limits.shards_per_partition:
        return -(-len(shards) // limits.shards_per_partition)
    needed = -(-int(sum(map(gives.__getitem__, shards))) // limits.bytes_per_partition)
    wanted = max(limits.partitions, min(needed, limits.partitions_most))
    return max(1, min(wanted, len(shards)))


def _gives(
    limits: BatchLimits, shares: _Shares, waiting: Mapping[str, Waiting]
) -> dict[str, float]:
    """Return the bytes that each shard gives in a batch (Kinesis quota: 2 MiB a second)."""
    fetch_ms = LEAST_MS if limits.fetch_ms is None else limits.fetch_ms
    quota = max(fetch_ms, 1_000) * 2 * 1024 * 1024 // 1_000
    found = {}
    for shard_id, waits in waiting.items():
        size = min(waits.size_bytes, quota, shares.total_bytes.get(shard_id, quota))
        records = shares.records.get(shard_id) or waits.records
        records = min(records, limits.records_per_shard or records)
        allowed = waits.size_bytes * records / waits.records if waits.records else size
        found[shard_id] = min(size, allowed)
    return found


def lay_out(
    weights: Mapping[str, int], *, partitions: int, turn: int
) -> tuple[tuple[str, ...], ...]:
    """
    Put shards into partitions of equal weight: the heaviest first, each where the least is.

    Args:
        weights: shard to bytes of the last batch.
        partitions: at most so many come out; none is empty.
        turn: moves the beginning of each partition on, so that no shard is always the last to
            be read when a limit cuts a batch short.

    """
    bins: list[list[str]] = [[] for _ in range(max(1, min(partitions, len(weights))))]
    loads = [0] * len(bins)
    for shard_id in sorted(weights, key=lambda each: (-weights[each], each)):
        # A shard without a measure still costs its calls: counting it keeps idle ones apart.
        lightest = min(range(len(bins)), key=lambda index: (loads[index], len(bins[index]), index))
        bins[lightest].append(shard_id)
        loads[lightest] += weights[shard_id] + 1
    return tuple(tuple(_rotated(sorted(shards), turn)) for shards in bins if shards)


def _rotated(shards: list[str], turn: int) -> list[str]:
    first = turn % len(shards)
    return shards[first:] + shards[:first]


class _Shares(NamedTuple):
    """What each shard gets of the limits of a batch; empty where there is no limit."""

    records: Mapping[str, int]
    total_bytes: Mapping[str, int]


def _shares(limits: BatchLimits, waiting: Mapping[str, Waiting], *, turn: int) -> _Shares:
    records = {shard_id: each.records for shard_id, each in waiting.items()}
    sizes = {shard_id: each.size_bytes for shard_id, each in waiting.items()}
    return _Shares(
        plan_shares(records, total=limits.records, turn=turn) if limits.records else {},
        plan_shares(sizes, total=limits.total_bytes, turn=turn) if limits.total_bytes else {},
    )


def _quotas(
    limits: BatchLimits,
    shares: _Shares,
    layout: tuple[tuple[str, ...], ...],
    *,
    family: Family,
    now_ms: int,
) -> tuple[Quota, ...]:
    of_all = [limits.records_per_shard] if limits.records_per_shard else []
    until_ms = 0
    if limits.skew_ms:
        stands = map(family.stands.__getitem__, family.live)
        ages = [_age(stand, now_ms, skew_ms=limits.skew_ms) for stand in stands]
        if 0 in ages:
            of_all.append(_SOUNDING_RECORDS)
            until_ms = _SOUNDING_UNTIL_MS
        else:
            until_ms = min(ages) + limits.skew_ms
    found = []
    for shards in layout:
        total_bytes = limits.bytes_per_partition
        if limits.total_bytes:
            total_bytes = min(total_bytes, sum(shares.total_bytes[each] for each in shards))
        records = tuple(
            min([*of_all, *([shares.records[each]] if limits.records else [])], default=0)
            for each in shards
        )
        found.append(
            Quota(
                total_bytes=max(1, total_bytes),
                fetch_ms=LEAST_MS if limits.fetch_ms is None else limits.fetch_ms,
                until_ms=until_ms,
                records=records if any(records) else (),
            )
        )
    return tuple(found)


def _age(stand: Stand, now_ms: int, *, skew_ms: int) -> int:
    """Return up to when everything of a shard is done; an idle one holds up nobody (H11)."""
    at_tip = stand.tip_ms >= max(stand.arrived_ms, 1)
    if at_tip and now_ms - stand.tip_ms <= _TIP_HOLDS_MS:
        return max(stand.tip_ms, now_ms - skew_ms)
    return stand.tip_ms if at_tip else stand.arrived_ms


def stats_of(token: PlanToken, seals: Mapping[int, Seal], family: Family) -> dict[str, Any]:
    """Return the figures of an executed plan, for Spark's query progress."""
    shards = [sealed for seal in seals.values() for sealed in seal.shards]
    lags = [sealed.lag_ms for sealed in shards if not sealed.ended]
    return {
        "plan": token.number,
        "left_behind_ms": max([0, *lags]),
        "shards": len(family.live),
        "finished_shards": sum(1 for sealed in shards if sealed.ended),
        "waiting_shards": len(family.waiting),
        "stream_records": sum(sealed.count for sealed in shards),
        "bytes": sum(sealed.size_bytes for sealed in shards),
        "calls": sum(seal.calls for seal in seals.values()),
        "throttles": sum(seal.throttles for seal in seals.values()),
        "paused_ms": sum(seal.paused_ms for seal in seals.values()),
        "lost": lost_of(shards),
    }


def lost_of(shards: Iterable[ShardSeal]) -> list[str]:
    """Return what was lost, stated per shard."""
    return [sealed.lost for sealed in shards if sealed.lost]
