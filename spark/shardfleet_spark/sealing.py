"""
Fetch, seal, emit: the same records however often and wherever a partition is read.

1. If the partition has a seal, read exactly what it says.
2. Else read within the plan's limits, and put a seal unless somebody has put one meanwhile.
3. Conform to the seal that stands: drop what lies beyond it, read what is missing.

Nothing leaves before a seal stands, so a reader that dies before has emitted nothing, and one that
dies later is repeated to the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardfleet.domain.failures import back_off_ms
from shardfleet.engine.ports import IteratorKind, IteratorStart, StreamRecord
from shardfleet.errors import IteratorExpired, OutcomeUnknown, ShardGone, Throttled
from shardfleet_spark.fetching import DataLost, ReadPorts, ShardRange, fetch
from shardfleet_spark.plan_token import Quota
from shardfleet_spark.planning import check_layout
from shardfleet_spark.seals import (
    Seal,
    SealKey,
    SealStore,
    ShardSeal,
    digest_of,
    seal_from_bytes,
    seal_to_bytes,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SealedRecords:
    """What one shard contributes: its part of the seal, and exactly these records."""

    sealed: ShardSeal
    records: Sequence[StreamRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """
    What one partition of a plan is to read.

    Attributes:
        key: of its seal.
        ranges: its shards, in the order of the layout.
        quota: limits for the one who reads first.

    """

    key: SealKey
    ranges: tuple[ShardRange, ...]
    quota: Quota


async def read_sealed(
    partition: PartitionRange,
    store: SealStore,
    ports: ReadPorts,
    *,
    writer: Mapping[str, str],
) -> list[SealedRecords]:
    """
    Return what a partition contributes to its batch, the same each time.

    Args:
        partition: what to read.
        store: of seals.
        ports: the stream and the rest.
        writer: for the seal.

    Raises:
        DataLost: sealed records are gone, or the first reading met a loss.
        UnreadableSeal, SealOfAnotherLayout: the seal is none for this plan.
        Throttled, OutcomeUnknown: more failures in a row than the policy allows.

    """
    stored = await insist(lambda: store.get(partition.key), ports)
    if stored is not None:
        return await conform(partition, seal_from_bytes(stored), ports, buffers={})
    fetched = await fetch(partition.ranges, partition.quota, ports, writer=writer)
    mine = seal_to_bytes(fetched.seal)
    stored = await insist(lambda: store.put_if_absent(partition.key, mine), ports)
    seal = fetched.seal if stored == mine else seal_from_bytes(stored)
    return await conform(partition, seal, ports, buffers=fetched.records)


async def conform(
    partition: PartitionRange,
    seal: Seal,
    ports: ReadPorts,
    *,
    buffers: Mapping[str, Sequence[StreamRecord]],
) -> list[SealedRecords]:
    """
    Return exactly the sealed records.

    Args:
        partition: what the plan says.
        seal: what was read by whoever was first.
        ports: the stream and the rest.
        buffers: what this reader happens to have, by shard.

    Raises:
        DataLost: they cannot be had any more.
        SealOfAnotherLayout: the seal is of another plan.

    """
    check_layout(
        seal, [each.shard_id for each in partition.ranges], partition=partition.key.partition
    )
    gate = asyncio.Semaphore(ports.policy.concurrency)

    async def one(sealed: ShardSeal) -> SealedRecords:
        kept = within_seal(sealed, buffers.get(sealed.shard_id, ()))
        if not is_complete(sealed, kept):
            async with gate:
                kept = await _read_again(sealed, ports)
        return SealedRecords(sealed, kept)

    outcomes = await asyncio.gather(*map(one, seal.shards), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, SealedRecords)]


def within_seal(sealed: ShardSeal, records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
    """Return those of some records, in shard order, that a seal covers."""
    if sealed.first is None or sealed.last is None:
        return ()
    first, last = int(sealed.first), int(sealed.last)
    return [record for record in records if first <= int(record.sequence_number) <= last]


def is_complete(sealed: ShardSeal, records: Sequence[StreamRecord]) -> bool:
    """Tell whether records are exactly the sealed ones, by count and digest."""
    if len(records) != sealed.count:
        return False
    return not sealed.count or (
        digest_of(record.sequence_number for record in records) == sealed.digest
    )


async def _read_again(sealed: ShardSeal, ports: ReadPorts) -> Sequence[StreamRecord]:
    """Read a sealed range from the stream."""
    assert sealed.first is not None
    assert sealed.last is not None
    found: list[StreamRecord] = []
    iterator: str | None = None
    failures = 0
    while not found or int(found[-1].sequence_number) < int(sealed.last):
        start = IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sealed.first)
        if found:
            start = IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, found[-1].sequence_number)
        try:
            if iterator is None:
                iterator = await ports.stream.shard_iterator(sealed.shard_id, start)
            limit = min(ports.policy.records_per_read, max(1, sealed.count - len(found)))
            page = await ports.stream.get_records(iterator, shard_id=sealed.shard_id, limit=limit)
        except (Throttled, OutcomeUnknown) as error:
            failures += 1
            await pause(ports, failures, error)
            continue
        except IteratorExpired:
            iterator = None
            continue
        except ShardGone:
            break
        failures = 0
        found += within_seal(sealed, page.records)
        iterator = page.next_iterator
        beyond = page.records and int(page.records[-1].sequence_number) >= int(sealed.last)
        if iterator is None or beyond or (not page.records and not page.millis_behind_latest):
            break
        await ports.clock.sleep_ms(ports.policy.poll_interval_ms)
    if not is_complete(sealed, found) and ports.policy.fail_on_data_loss:
        raise DataLost(
            f"{sealed.shard_id}: the batch is to be read again, but of the {sealed.count} records "
            f"from {sealed.first} to {sealed.last} the stream has {len(found)}: they are older "
            "than it retains. To go on with what is there, set failOnDataLoss=false"
        )
    return found


async def insist(call: Callable[[], T], ports: ReadPorts) -> T:
    """
    Make a blocking call, again and again while it is refused or unanswered.

    Raises:
        Throttled, OutcomeUnknown: more often than the policy allows.

    """
    failures = 0
    while True:
        try:
            return call()
        except (Throttled, OutcomeUnknown) as error:
            failures += 1
            await pause(ports, failures, error)


async def pause(ports: ReadPorts, failures: int, error: Exception) -> None:
    """
    Wait after a failure, longer each time.

    Raises:
        Exception: the error, when the policy allows no further attempt.

    """
    policy = ports.policy
    if policy.retry_attempts and failures >= policy.retry_attempts:
        raise error
    await ports.clock.sleep_ms(
        back_off_ms(
            failures,
            first_ms=policy.retry_first_ms,
            most_ms=policy.retry_most_ms,
            jitter=ports.entropy.uniform(0.0, 1.0),
        )
    )
