"""
Reading the shards of one partition, all at once, within the limits of a plan.

Positions are those of the token; an iterator that a former batch left behind is used while it is
young. Otherwise reading begins *at* the last record that is done: that it is still there proves
that nothing behind it was lost, and the rest of an aggregate comes with it (hazard H4).
What was read is cut at stream records only, so an aggregate is never torn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.errors import ShardGone
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.plan_token import Quota
from shardfleet_spark.offsets.seals import Seal, ShardSeal, digest_of
from shardfleet_spark.read.records import (
    joined,
    last_arrival_ms,
    sequence_numbers_of,
    size_of,
)
from shardfleet_spark.read.shard_pages import (
    FetchPorts,
    ShardPages,
    ShardRange,
    is_done,
    last_sub_of,
    not_done,
)

T = TypeVar("T")
# What a record that is handed on inside a task needs beside its data and key, as measured, and how
# large one is taken to be before any was seen (fact K77, but for UpdateMaxRecordSize).
CARRIAGE_BYTES = 150
_UNKNOWN_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was read of a partition: a candidate for its seal, and the records by shard."""

    seal: Seal
    records: Mapping[str, Sequence[StreamRecord]]


@dataclass(slots=True)
class _Common:
    """What the shards of a partition share."""

    ports: FetchPorts
    quota: Quota
    deadline_ms: int
    gate: asyncio.Semaphore
    bytes_left: int
    at_once: int
    # What a record counts beside its data and key.
    extra_bytes: int
    # Set by the first answer of any shard: then one that is refused no longer holds the rest.
    answered: bool = False
    # The largest average of a shard's answer; a shard that was not asked yet has no other measure.
    record_bytes: int = 0

    @property
    def is_late(self) -> bool:
        return self.ports.clock.monotonic_ms() > self.deadline_ms


class _Reading:
    """One shard while it is read."""

    def __init__(self, common: _Common, reading: ShardRange, most: int) -> None:
        self._common = common
        self._most = most
        self._stand = reading.stand
        self._record_bytes = reading.hint.record_bytes
        self.pages = ShardPages(reading, common.ports)
        self._pieces: list[Sequence[StreamRecord]] = []
        self._count = 0
        # Until it was looked at, nobody can say that there is nothing.
        self.sealed = ShardSeal(shard_id=reading.shard_id, is_cut=True)

    async def run(self) -> None:
        """Read until a limit, the tip or the end of the shard."""
        common = self._common
        while self._may_go_on():
            await self.pages.wait()
            async with common.gate:
                if not self._may_go_on():
                    break
                asked_ms = common.ports.clock.now_ms()
                try:
                    page = await self.pages.next(
                        limit=self._records_left(),
                        give_up=lambda: common.is_late and common.answered,
                    )
                except ShardGone:
                    break  # Missing, which proves nothing: a later batch asks again.
            if page is None:
                break
            common.answered = True
            if not self._take(page, asked_ms):
                break
        self._finish()

    def _may_go_on(self) -> bool:
        """Each shard is asked once whatever the time; then until the batch is full or late."""
        if not self.pages.calls:
            return self._common.bytes_left > 0
        in_time = self.pages.next_call_ms <= self._common.deadline_ms
        return in_time and self._common.bytes_left > 0 and self._records_left() > 0

    def _records_left(self) -> int:
        """Return the most records of the next answer: a share of the room, if sizes are known."""
        common, most = self._common, self._common.ports.policy.records_per_read
        if size := self._record_bytes or common.record_bytes:
            most = min(most, max(1, common.bytes_left // common.at_once // size))
        return min(most, self._most - self._count) if self._most else most

    def _take(self, page: RecordsPage, asked_ms: int) -> bool:
        """Take an answer; return whether to go on."""
        taken, held_back_ms = self._within(page.records)
        fresh = not_done(self._stand, taken)
        if fresh:
            self._pieces.append(fresh)
            self._count += len(fresh)
        size = size_of(fresh)
        counted = size + self._common.extra_bytes * len(fresh)
        self._common.bytes_left -= counted
        if fresh:
            self._record_bytes = counted // len(fresh)
            self._common.record_bytes = max(self._common.record_bytes, self._record_bytes)
        lag_ms = -1 if page.millis_behind_latest is None else page.millis_behind_latest
        self.sealed = replace(
            self.sealed, size_bytes=self.sealed.size_bytes + size, is_cut=False, tip_ms=0
        )
        if held_back_ms:
            self.pages.iterator = None
            self.sealed = replace(
                self.sealed, is_cut=True, lag_ms=max(lag_ms, 1), arrived_ms=held_back_ms
            )
            return False
        ended = page.resume_token is None
        self.sealed = replace(
            self.sealed,
            lag_ms=lag_ms,
            arrived_ms=last_arrival_ms(taken) if taken else self.sealed.arrived_ms,
            tip_ms=asked_ms if lag_ms == 0 else 0,
            ended=ended,
            children={child.shard_id: child.parent_shard_ids for child in page.child_shards},
        )
        return not ended and lag_ms != 0

    def _within(self, records: Sequence[StreamRecord]) -> tuple[Sequence[StreamRecord], int]:
        """Return the records up to the skew limit, and the arrival of the first one beyond."""
        until_ms = self._common.quota.until_ms
        if until_ms:
            for index, record in enumerate(records):
                late = record.approximate_arrival_ms > until_ms
                if late and not is_done(self._stand, record):
                    return records[:index], record.approximate_arrival_ms
        return records, 0

    def _finish(self) -> None:
        clock, sealed = self._common.ports.clock, self.sealed
        wait_ms = max(0, self.pages.next_call_ms - clock.monotonic_ms())
        records = self.records = joined(self._pieces)
        last = records[-1] if records else None
        has_more = sealed.is_cut or (last is not None and sealed.lag_ms != 0)
        self.sealed = replace(
            sealed,
            first=records[0].sequence_number if records else None,
            last=last.sequence_number if last else None,
            last_sub=last_sub_of(last) if last else 0,
            count=len(records),
            digest=digest_of(sequence_numbers_of(records)),
            is_cut=has_more and not sealed.ended,
            iterator=None if sealed.ended else self.pages.iterator,
            iterator_ms=self.pages.iterator_ms,
            free_ms=clock.now_ms() + wait_ms,
            lost=self.pages.lost,
        )


async def fetch(
    ranges: Sequence[ShardRange],
    quota: Quota,
    ports: FetchPorts,
    *,
    writer: Mapping[str, str],
    is_carried: bool = False,
) -> Fetched:
    """
    Read the shards of one partition.

    Args:
        ranges: in the order of the layout.
        quota: limits; the bytes may be overshot by what ``concurrency`` answers bring (10 MiB
            each at most) of shards of which nobody knows yet how large their records are.
        ports: the stream and the rest.
        writer: for the seal.
        is_carried: the records are handed on inside tasks, which is not to be overshot: then a
            record counts with what that needs, and is taken to be large until one was seen.

    Raises:
        DataLost: records are gone, and that stops the query.
        Throttled, OutcomeUnknown: more failures in a row than ``retry_attempts``.

    """
    common = _Common(
        ports=ports,
        quota=quota,
        deadline_ms=ports.clock.monotonic_ms() + quota.fetch_ms,
        gate=asyncio.Semaphore(ports.policy.concurrency),
        bytes_left=quota.total_bytes,
        at_once=max(1, min(ports.policy.concurrency, len(ranges))),
        extra_bytes=CARRIAGE_BYTES if is_carried else 0,
        record_bytes=_UNKNOWN_BYTES if is_carried else 0,
    )
    records = quota.records or (0,) * len(ranges)
    readings = [_Reading(common, *each) for each in zip(ranges, records, strict=True)]
    await together(each.run() for each in readings)
    seal = Seal(
        shards=tuple(each.sealed for each in readings),
        calls=sum(each.pages.calls for each in readings),
        throttles=sum(each.pages.throttles for each in readings),
        paused_ms=sum(each.pages.paused_ms for each in readings),
        writer=writer,
    )
    return Fetched(seal, {each.sealed.shard_id: each.records for each in readings})


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """
    Await everything at once, and let everything end before a failure is raised.

    Raises:
        BaseException: the first one, in the order of the calls.

    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
