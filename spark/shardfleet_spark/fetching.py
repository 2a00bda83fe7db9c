"""
Reading the shards of one partition, all at once, within the limits of a plan.

Positions are those of the token; an iterator that a former batch left behind is used while it is
young. Otherwise reading begins *at* the last record that is done: that it is still there proves
that nothing behind it was lost, and the rest of an aggregate comes with it (hazard H4).
What was read is cut at stream records only, so an aggregate is never torn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardfleet.domain.failures import back_off_ms
from shardfleet.domain.pacing import Rate, full_bucket, spend
from shardfleet.domain.sequence import PointKind
from shardfleet.domain.shards import end_contradiction
from shardfleet.engine.ports import (
    Clock,
    Entropy,
    IteratorKind,
    IteratorStart,
    RecordsPage,
    StreamReader,
    StreamRecord,
)
from shardfleet.errors import (
    IteratorExpired,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    Throttled,
)
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet_spark.plan_token import Quota, Stand, position_text
from shardfleet_spark.seals import Seal, ShardSeal, digest_of

# Kinesis: an iterator lives 5 minutes; a younger one is not worth the risk of clocks that differ.
ITERATOR_LIFE_MS = 240_000
# Kinesis quota: no stream retains records for less than 24 hours.
SHORTEST_RETENTION_MS = 24 * 3_600_000
_EXPANSION = ExpansionLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """
    How the stream is asked.

    Attributes:
        poll_interval_ms: least time between two calls to a shard.
        bytes_per_s: of a shard (Kinesis quota: 2 MiB).
        records_per_read: ``Limit`` of GetRecords.
        concurrency: shards asked at the same time by one task.
        retry_first_ms: back-off after a first failure.
        retry_most_ms: longest back-off.
        retry_attempts: attempts before a batch fails; 0: without end.
        fail_on_data_loss: whether a loss stops the query.

    """

    poll_interval_ms: int = 200
    bytes_per_s: int = 2 * 1024 * 1024
    records_per_read: int = 10_000
    concurrency: int = 32
    retry_first_ms: int = 100
    retry_most_ms: int = 3_000
    retry_attempts: int = 0
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """
    What a former batch knows beside the position; a batch without it reads the same.

    Attributes:
        iterator: continues at the position.
        iterator_ms: wall clock at which it was issued.
        free_ms: wall clock before which the shard is not to be asked.
        is_proven: whether nothing is lost between the position and the iterator.

    """

    iterator: str | None = None
    iterator_ms: int = 0
    free_ms: int = 0
    is_proven: bool = True


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A shard to read: where it stands, and what a former batch left."""

    shard_id: str
    stand: Stand
    hint: Hint = Hint()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPorts:
    """What reading asks of the world."""

    stream: StreamReader
    clock: Clock
    entropy: Entropy
    policy: ReadPolicy


class DataLost(PositionTrimmed):
    """Records are gone that the query has not read; ``failOnDataLoss`` decides."""


@dataclass(slots=True)
class Fetched:
    """What was read of a partition: a candidate for its seal, and the records by shard."""

    seal: Seal
    records: Mapping[str, Sequence[StreamRecord]]


@dataclass(slots=True)
class _Common:
    """What the shards of a partition share."""

    ports: ReadPorts
    quota: Quota
    deadline_ms: int
    gate: asyncio.Semaphore
    bytes_left: int
    answered: int = 0
    throttles: int = 0
    # Set by the first answer of any shard: then a shard that is refused no longer holds the rest.
    answered_at_all: bool = False


@dataclass(slots=True)
class _Reading:
    """One shard while it is read."""

    common: _Common
    range: ShardRange
    iterator: str | None = None
    iterator_ms: int = 0
    records: list[StreamRecord] = field(default_factory=list)
    sealed: ShardSeal = field(default_factory=lambda: ShardSeal(shard_id=""))
    next_call_ms: int = 0
    calls: int = 0
    proven: bool = False
    lost: str = ""

    async def run(self) -> None:
        """Read until a limit, the tip or the end of the shard."""
        self.sealed = ShardSeal(shard_id=self.range.shard_id, is_cut=True)
        clock, hint = self.common.ports.clock, self.range.hint
        now_ms = clock.now_ms()
        if hint.iterator is not None and now_ms - hint.iterator_ms < ITERATOR_LIFE_MS:
            self.iterator, self.iterator_ms = hint.iterator, hint.iterator_ms
            self.proven = hint.is_proven
        self.next_call_ms = clock.monotonic_ms() + max(0, min(hint.free_ms - now_ms, 10_000))
        bucket_rate = Rate(
            per_s=self.common.ports.policy.bytes_per_s, burst=self.common.ports.policy.bytes_per_s
        )
        bucket = full_bucket(bucket_rate, now_ms=clock.monotonic_ms())
        while self._may_go_on():
            await clock.sleep_ms(max(0, self.next_call_ms - clock.monotonic_ms()))
            async with self.common.gate:
                if not self._may_go_on():
                    break
                asked_ms = clock.now_ms()
                page = await self._ask()
            if page is None:
                break
            size = sum(len(record.data) + len(record.partition_key) for record in page.records)
            now = clock.monotonic_ms()
            bucket, debt_ms = spend(bucket, bucket_rate, amount=size, now_ms=now)
            interval_ms = self.common.ports.policy.poll_interval_ms
            self.next_call_ms = now + max(debt_ms, interval_ms)
            if not self._take(page, asked_ms):
                break
        self._finish()

    def _may_go_on(self) -> bool:
        """Each shard is asked once whatever the time; then until the batch is full or late."""
        if not self.calls:
            return self.common.bytes_left > 0
        late = self.next_call_ms > self.common.deadline_ms
        return not late and self.common.bytes_left > 0 and self._records_left() > 0

    def _records_left(self) -> int:
        most = self.common.ports.policy.records_per_read
        quota = self.common.quota.records_per_shard
        return min(most, quota - len(self.records)) if quota else most

    async def _ask(self) -> RecordsPage | None:
        """Return an answer, or None when the shard is to be left for the next batch."""
        ports, failures = self.common.ports, 0
        while True:
            try:
                page = await self._attempt()
            except (Throttled, OutcomeUnknown) as error:
                failures += 1
                self.common.throttles += 1
                if ports.policy.retry_attempts and failures >= ports.policy.retry_attempts:
                    raise
                # Others have answered: an outage of everything is waited for, one shard is not.
                spent = ports.clock.monotonic_ms() > self.common.deadline_ms
                if spent and self.common.answered_at_all:
                    del error
                    return None
            except IteratorExpired:
                self.iterator, failures = None, failures + 1
                if failures > 1:
                    self.common.throttles += 1
            except ShardGone as error:
                return self._shard_gone(str(error))
            else:
                contradiction = end_contradiction(
                    page.child_shards,
                    ended=page.next_iterator is None,
                    shard_id=self.range.shard_id,
                )
                if not contradiction:
                    self.common.answered += 1
                    self.common.answered_at_all = True
                    return page
                failures += 1
            pause_ms = back_off_ms(
                failures,
                first_ms=ports.policy.retry_first_ms,
                most_ms=ports.policy.retry_most_ms,
                jitter=ports.entropy.uniform(0.0, 1.0),
            )
            await ports.clock.sleep_ms(pause_ms)

    async def _attempt(self) -> RecordsPage:
        stream, shard_id = self.common.ports.stream, self.range.shard_id
        if self.iterator is None:
            try:
                self.iterator = await stream.shard_iterator(shard_id, self._where())
            except PositionTrimmed as error:
                # The service refuses the number as older than anything it has.
                self._tell_loss(f"{shard_id}: {error}")
                oldest = IteratorStart(IteratorKind.TRIM_HORIZON)
                self.iterator = await stream.shard_iterator(shard_id, oldest)
                self.proven = True
            self.iterator_ms = self.common.ports.clock.now_ms()
        return await stream.get_records(
            self.iterator, shard_id=shard_id, limit=max(1, self._records_left())
        )

    def _where(self) -> IteratorStart:
        if self.records:
            number = self.records[-1].sequence_number
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, number)
        return where(self.range.stand)

    def _take(self, page: RecordsPage, asked_ms: int) -> bool:
        """Take an answer; return whether to go on."""
        self.calls += 1
        self._check_gap(page)
        taken, held_back = self._within(page.records)
        fresh = [record for record in taken if not is_done(self.range.stand, record)]
        self.records += fresh
        size = sum(len(record.data) + len(record.partition_key) for record in fresh)
        self.common.bytes_left -= size
        lag_ms = -1 if page.millis_behind_latest is None else page.millis_behind_latest
        before = self.sealed
        self.sealed = replace(
            before,
            size_bytes=before.size_bytes + size,
            lag_ms=max(lag_ms, 1) if held_back is not None else lag_ms,
            arrived_ms=held_back
            if held_back is not None
            else max((r.approximate_arrival_ms for r in taken), default=before.arrived_ms),
            tip_ms=asked_ms if lag_ms == 0 and held_back is None else 0,
            is_cut=held_back is not None,
            ended=page.next_iterator is None and held_back is None,
            children={
                child.shard_id: child.parent_shard_ids
                for child in (page.child_shards if held_back is None else ())
            },
        )
        if held_back is not None:
            self.iterator = None
            return False
        self.iterator, self.iterator_ms = page.next_iterator, self.common.ports.clock.now_ms()
        return page.next_iterator is not None and lag_ms != 0

    def _within(self, records: Sequence[StreamRecord]) -> tuple[Sequence[StreamRecord], int | None]:
        """Return the records up to the skew limit, and the arrival of the first one beyond."""
        until_ms = self.common.quota.until_ms
        if until_ms:
            for index, record in enumerate(records):
                if record.approximate_arrival_ms > until_ms and not is_done(
                    self.range.stand, record
                ):
                    return records[:index], record.approximate_arrival_ms
        return records, None

    def _check_gap(self, page: RecordsPage) -> None:
        done = self.range.stand.position.done
        if self.proven or done is None or self.records:
            return
        if not page.records and page.millis_behind_latest and page.next_iterator is not None:
            return  # An empty answer with lag says nothing yet (hazard H6).
        self.proven = True
        if page.records and page.records[0].sequence_number == done.sequence_number:
            return
        now_ms = self.common.ports.clock.now_ms()
        if now_ms - self.range.stand.tip_ms < SHORTEST_RETENTION_MS:
            return  # Read to its tip within the shortest retention: what came since is there.
        first = page.records[0].sequence_number if page.records else "none"
        self._tell_loss(
            f"{self.range.shard_id}: the last record read, {done}, is older than what the stream "
            f"retains (the oldest now is {first}): records behind it may be lost"
        )

    def _shard_gone(self, text: str) -> RecordsPage:
        at = position_text(self.range.stand.position)
        self._tell_loss(
            f"{self.range.shard_id}: expired before it was read to its end ({at}): {text}"
        )
        return RecordsPage(records=(), next_iterator=None, millis_behind_latest=0)

    def _tell_loss(self, text: str) -> None:
        if self.common.ports.policy.fail_on_data_loss:
            raise DataLost(f"{text}. To go on with what is there, set failOnDataLoss=false")
        self.lost = text

    def _finish(self) -> None:
        now_ms = self.common.ports.clock.now_ms()
        wait_ms = self.next_call_ms - self.common.ports.clock.monotonic_ms()
        is_cut = self.sealed.is_cut or (
            bool(self.records) and self.sealed.lag_ms != 0 and not self.sealed.ended
        )
        last = self.records[-1] if self.records else None
        self.sealed = replace(
            self.sealed,
            first=self.records[0].sequence_number if self.records else None,
            last=last.sequence_number if last else None,
            last_sub=last_sub_of(last) if last else 0,
            count=len(self.records),
            digest=digest_of(record.sequence_number for record in self.records),
            is_cut=is_cut and not self.sealed.ended,
            iterator=self.iterator if not self.sealed.ended else None,
            iterator_ms=self.iterator_ms,
            free_ms=now_ms + max(0, wait_ms),
            lost=self.lost,
        )


def where(stand: Stand) -> IteratorStart:
    """Return where an iterator of a shard begins: at what is done, never behind it."""
    position = stand.position
    match position.kind:
        case PointKind.SEQUENCE if position.done is not None:
            number = position.done.sequence_number
            return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, number)
        case PointKind.INSTANT:
            return IteratorStart(IteratorKind.AT_TIMESTAMP, instant_ms=position.instant_ms)
        case _:
            return IteratorStart(IteratorKind.TRIM_HORIZON)


def is_done(stand: Stand, record: StreamRecord) -> bool:
    """Tell whether nothing of a stream record is left to read, for a shard that stands there."""
    done = stand.position.done
    if done is None or int(record.sequence_number) > int(done.sequence_number):
        return False
    if int(record.sequence_number) < int(done.sequence_number):
        return True
    return last_sub_of(record) <= done.sub_sequence_number


def last_sub_of(record: StreamRecord) -> int:
    """Return the index of the last user record inside a stream record, 0 for a plain one."""
    found = deaggregate(
        record.data,
        partition_key=record.partition_key,
        limits=_EXPANSION,
        hash_range=None,
        policy="deliver",
    )
    return found.last_sub_sequence


async def fetch(
    ranges: Sequence[ShardRange], quota: Quota, ports: ReadPorts, *, writer: Mapping[str, str]
) -> Fetched:
    """
    Read the shards of one partition.

    Args:
        ranges: in the order of the layout.
        quota: limits; the bytes may be overshot by what ``concurrency`` answers bring (10 MiB
            each at most).
        ports: the stream and the rest.
        writer: for the seal.

    Raises:
        DataLost: records are gone and ``fail_on_data_loss`` is set.
        Throttled, OutcomeUnknown: more failures in a row than ``retry_attempts``.

    """
    common = _Common(
        ports=ports,
        quota=quota,
        deadline_ms=ports.clock.monotonic_ms() + quota.fetch_ms,
        gate=asyncio.Semaphore(ports.policy.concurrency),
        bytes_left=quota.bytes_per_partition,
    )
    readings = [_Reading(common, each) for each in ranges]
    outcomes = await asyncio.gather(*(each.run() for each in readings), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    seal = Seal(
        shards=tuple(each.sealed for each in readings),
        calls=common.answered,
        throttles=common.throttles,
        writer=writer,
    )
    return Fetched(seal, {each.range.shard_id: each.records for each in readings})
