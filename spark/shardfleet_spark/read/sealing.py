"""
Fetch, seal, emit: the same records however often and wherever a partition is read.

1. If the shards of a partition have a seal, read exactly what it says.
2. Else read within the plan's limits, and put a seal unless somebody has put one meanwhile.
3. Conform to the seal that stands: drop what lies beyond it, read what is missing.

Nothing leaves before a seal stands, so a reader that dies before has emitted nothing, and one that
dies later is repeated to the record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from shardfleet.domain.stream.sequence import (
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.errors import OutcomeUnknown, ShardGone, Throttled, Unsettled
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.plan_token import Quota, Stand
from shardfleet_spark.offsets.seals import (
    Seal,
    SealKey,
    SealStore,
    ShardSeal,
    check_layout,
    digest_of,
    loss_note,
    seal_from_bytes,
    seal_to_bytes,
)
from shardfleet_spark.read.fetching import Fetched, fetch, together
from shardfleet_spark.read.records import sequence_numbers_of
from shardfleet_spark.read.shard_pages import DataLost, FetchPorts, ShardPages, ShardRange

T = TypeVar("T")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealedRecords:
    """
    What one shard contributes: its part of the seal, and exactly these records.

    Attributes:
        sealed: its part of the seal.
        records: the sealed ones, but for those that are gone, where that may be.
        lost: what is gone of them, for a person; empty for nothing.

    """

    sealed: ShardSeal
    # asyncio.run, when it puts back the signal handler, makes a repr of what its task returned.
    records: Sequence[StreamRecord] = field(repr=False)
    lost: str = ""


@dataclass(frozen=True, slots=True)
class SealRange:
    """
    What one seal covers.

    Attributes:
        key: of the seal.
        ranges: its shards, in the order of the layout.

    """

    key: SealKey
    ranges: tuple[ShardRange, ...]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """
    What one partition of a plan is to read.

    Attributes:
        parts: its shards, by seal.
        quota: limits for the one who reads first.

    """

    parts: tuple[SealRange, ...]
    quota: Quota

    @property
    def ranges(self) -> tuple[ShardRange, ...]:
        """Return the shards, in the order of the layout."""
        return tuple(each for part in self.parts for each in part.ranges)


async def read_sealed(
    partition: PartitionRange,
    store: SealStore,
    ports: FetchPorts,
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
    stored = {
        part.key: await insist(partial(store.get, part.key), ports) for part in partition.parts
    }
    missing = [part for part in partition.parts if stored[part.key] is None]
    fetched = await _fetch(partition, missing, ports, writer=writer)
    seals = dict(zip((part.key for part in missing), split(fetched.seal, missing), strict=True))
    found: list[SealedRecords] = []
    for part in partition.parts:
        mine = seals.get(part.key)
        body = stored[part.key]
        if mine is not None:
            candidate = seal_to_bytes(mine)
            body = await insist(partial(store.put_if_absent, part.key, candidate), ports)
            if body == candidate:
                found += [SealedRecords(e, fetched.records[e.shard_id]) for e in mine.shards]
                continue
        assert body is not None
        seal = seal_from_bytes(body)
        again = await conform(part, seal, ports, buffers=fetched.records)
        if lost := [each.lost for each in again if each.lost]:
            await insist(partial(store.put_if_absent, *loss_note(part.key, lost)), ports)
        found += again
    return found


async def _fetch(
    partition: PartitionRange,
    missing: Sequence[SealRange],
    ports: FetchPorts,
    *,
    writer: Mapping[str, str],
) -> Fetched:
    """Read the shards that nobody has sealed."""
    quota, ranges = partition.quota, [each for part in missing for each in part.ranges]
    if not ranges:
        return Fetched(Seal(shards=()), {})
    if quota.records:
        shards = (each.shard_id for each in partition.ranges)
        most = dict(zip(shards, quota.records, strict=True))
        quota = replace(quota, records=tuple(most[each.shard_id] for each in ranges))
    return await fetch(ranges, quota, ports, writer=writer)


def split(seal: Seal, parts: Sequence[SealRange]) -> list[Seal]:
    """Return what was read as a seal for each part; calls and pauses are in the first."""
    found: list[Seal] = []
    first = 0
    for part in parts:
        shards = seal.shards[first : first + len(part.ranges)]
        each = seal if not found else Seal(shards=(), writer=seal.writer)
        found.append(replace(each, shards=shards))
        first += len(part.ranges)
    return found


async def conform(
    part: SealRange,
    seal: Seal,
    ports: FetchPorts,
    *,
    buffers: Mapping[str, Sequence[StreamRecord]],
) -> list[SealedRecords]:
    """
    Return exactly the sealed records; with failOnDataLoss=false those that are left, and say so.

    Args:
        part: what the plan says.
        seal: what was read by whoever was first.
        ports: the stream and the rest.
        buffers: what this reader happens to have, by shard.

    Raises:
        DataLost: they cannot be had any more.
        SealOfAnotherLayout: the seal is of another plan.

    """
    check_layout(seal, [each.shard_id for each in part.ranges], number=part.key.partition)
    gate = asyncio.Semaphore(ports.policy.concurrency)
    incarnation = part.ranges[0].stand.position.incarnation

    async def one(sealed: ShardSeal) -> SealedRecords:
        kept, lost = within_seal(sealed, buffers.get(sealed.shard_id, ())), ""
        if not is_complete(sealed, kept):
            async with gate:
                kept = await _read_again(sealed, incarnation, ports, most=sealed.count)
            lost = "" if is_complete(sealed, kept) else _told(sealed, f"has {len(kept)}")
        if lost and ports.policy.fail_on_data_loss:
            raise DataLost(f"{lost}. To go on with what is there, set failOnDataLoss=false")
        if lost:
            LOG.warning("data loss: %s", lost)
        return SealedRecords(sealed, kept, lost)

    return await together(map(one, seal.shards))


def within_seal(sealed: ShardSeal, records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
    """Return those of some records, in shard order, that a seal covers."""
    if sealed.first is None or sealed.last is None:
        return ()
    first, last = int(sealed.first), int(sealed.last)
    if not records or (
        first <= int(records[0].sequence_number) and int(records[-1].sequence_number) <= last
    ):
        return records
    return [record for record in records if first <= int(record.sequence_number) <= last]


def is_complete(sealed: ShardSeal, records: Sequence[StreamRecord]) -> bool:
    """Return whether records are exactly the sealed ones, by count and digest."""
    if len(records) != sealed.count:
        return False
    return not sealed.count or (digest_of(sequence_numbers_of(records)) == sealed.digest)


async def lost_since(seal: Seal, stands: Mapping[str, Stand], ports: FetchPorts) -> list[str]:
    """
    Return what may be lost of a batch that tasks have read again, for a person.

    A record goes before those behind it, so nothing is where the first one still stands.

    Args:
        seal: what the batch was to be.
        stands: of its shards.
        ports: the stream and the rest.

    """

    async def one(sealed: ShardSeal) -> str:
        incarnation = stands[sealed.shard_id].position.incarnation
        found = await _read_again(sealed, incarnation, ports, most=1)
        is_there = bool(found) and found[0].sequence_number == sealed.first
        return "" if is_there else _told(sealed, "may have fewer")

    told = await together(one(sealed) for sealed in seal.shards if sealed.count)
    return [text for text in told if text]


def _told(sealed: ShardSeal, has: str) -> str:
    return (
        f"{sealed.shard_id}: the batch was read again, but of the {sealed.count} records from "
        f"{sealed.first} to {sealed.last} the stream {has}: the others are older than it retains"
    )


async def _read_again(
    sealed: ShardSeal, incarnation: StreamIncarnation, ports: FetchPorts, *, most: int
) -> Sequence[StreamRecord]:
    """Read a sealed range from the stream, or no more than the first records of it."""
    assert sealed.first is not None
    assert sealed.last is not None
    # At the first record, which is not done: behind it, anything may have been trimmed.
    at_first = ExtendedSequenceNumber(sealed.first)
    position = Position(incarnation, sealed.shard_id, PointKind.SEQUENCE, done=at_first)
    now_ms = ports.clock.now_ms()
    pages = ShardPages(ShardRange(sealed.shard_id, Stand(position, tip_ms=now_ms)), ports)
    found: list[StreamRecord] = []
    while len(found) < most:
        await pages.wait()
        limit = min(ports.policy.records_per_read, most - len(found))
        try:
            page = await pages.next(limit=limit)
        except ShardGone:
            break  # The sealed records are gone with it.
        assert page is not None
        found += within_seal(sealed, page.records)
        beyond = page.records and int(page.records[-1].sequence_number) >= int(sealed.last)
        at_tip = not page.records and page.millis_behind_latest == 0
        if beyond or at_tip or page.resume_token is None:
            break
    return found


async def insist(call: Callable[[], T], ports: FetchPorts) -> T:
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


async def persist(call: Callable[[], Awaitable[T]], ports: FetchPorts) -> T:
    """
    Await a call, again and again while it is refused or unanswered.

    Raises:
        Throttled, OutcomeUnknown: more often than the policy allows.

    """
    failures = 0
    while True:
        try:
            return await call()
        except (Throttled, OutcomeUnknown) as error:
            failures += 1
            await pause(ports, failures, error)


async def pause(ports: FetchPorts, failures: int, error: Exception) -> None:
    """
    Wait after a failure, longer each time.

    Raises:
        Exception: the error, when the policy allows no further attempt.

    """
    if not ports.may_retry(failures):
        raise error.verdict if isinstance(error, Unsettled) else error
    await ports.clock.sleep_ms(ports.back_off_ms(failures))
