"""
One shard, page by page: paced, patient, and never silent about a loss.

Refused and failed calls are repeated with back-off; an expired iterator is renewed behind the last
page; an answer that contradicts itself is asked for again (protocol.md §4.5). Kinesis skips what it
has trimmed without a word, whatever iterator is used. So an answer counts only if all before a
moment within the shortest retention is done, or if the last record read is still there: nothing
behind a record goes before it. Else records may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardfleet.domain.delivery.attempts import back_off_ms
from shardfleet.domain.positions.positions import position_text
from shardfleet.domain.reading.pacing import Rate, full_bucket, spend
from shardfleet.domain.stream.sequence import PointKind
from shardfleet.domain.stream.shards import end_contradiction
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
from shardfleet_spark.offsets.plan_token import Stand

# Kinesis: an iterator lives 5 minutes; an older one than this is not worth the risk of clocks
# that differ.
ITERATOR_LIFE_MS = 240_000
# Kinesis quota: no stream retains records for less than 24 hours.
_SHORTEST_RETENTION_MS = 24 * 3_600_000
# Arrival times are approximate, and clocks differ: AWS refuses a signature that is 5 minutes off.
_RETENTION_MARGIN_MS = 600_000
# After a 10 MiB answer Kinesis refuses a shard for 5 s: no hint is worth waiting longer.
_LONGEST_HINTED_WAIT_MS = 10_000
# In a row: the service may say by mistake that it does not know a shard (hazard H12).
_MISSED_TIMES = 3
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
    concurrency: int = 16
    retry_first_ms: int = 100
    retry_most_ms: int = 3_000
    retry_attempts: int = 0
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPorts:
    """What reading asks of the world."""

    stream: StreamReader
    clock: Clock
    entropy: Entropy
    policy: ReadPolicy

    def back_off_ms(self, failures: int) -> int:
        """Return how long to wait after so many failures in a row."""
        return back_off_ms(
            failures,
            first_ms=self.policy.retry_first_ms,
            most_ms=self.policy.retry_most_ms,
            jitter=self.entropy.uniform(0.0, 1.0),
        )

    def may_retry(self, failures: int) -> bool:
        """Tell whether a call that failed so often may be made again."""
        return not self.policy.retry_attempts or failures < self.policy.retry_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """
    What a former batch knows beside the position; a batch without it reads the same.

    Attributes:
        iterator: continues at the position.
        iterator_ms: wall clock at which it was issued.
        free_ms: wall clock before which the shard is not to be asked.
        record_bytes: how large its stream records are; 0: unknown.

    """

    iterator: str | None = None
    iterator_ms: int = 0
    free_ms: int = 0
    record_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A shard to read: where it stands, and what a former batch left."""

    shard_id: str
    stand: Stand
    hint: Hint = Hint()


class DataLost(PositionTrimmed):
    """Records are gone that the query has not read; ``failOnDataLoss`` decides."""


class ShardPages:
    """
    The pages of one shard, from where it stands.

    Attributes:
        iterator: continues behind the last page; None at the shard's end, or when there is none.
        iterator_ms: wall clock at which it was issued.
        next_call_ms: monotonic time before which the shard is not asked again.
        lost: what was lost, for a person; empty for nothing.
        throttles: calls that were refused or failed.
        calls: calls that were answered.

    """

    def __init__(self, reading: ShardRange, ports: FetchPorts) -> None:
        """Stand there; nothing is read yet."""
        self._shard_id = reading.shard_id
        self._stand = reading.stand
        self._ports = ports
        self._accepted: str | None = None
        now_ms, hint = ports.clock.now_ms(), reading.hint
        young = hint.iterator is not None and now_ms - hint.iterator_ms < ITERATOR_LIFE_MS
        self.iterator = hint.iterator if young else None
        self.iterator_ms = hint.iterator_ms if young else 0
        done = reading.stand.position.done
        # A record that was read: while the stream has it, nothing behind it is lost.
        self._witness = None if done is None else done.sequence_number
        self._done_before_ms = _done_before_ms(reading.stand)
        self._in_doubt: RecordsPage | None = None
        wait_ms = max(0, min(hint.free_ms - now_ms, _LONGEST_HINTED_WAIT_MS))
        self.next_call_ms = ports.clock.monotonic_ms() + wait_ms
        self._rate = Rate(per_s=ports.policy.bytes_per_s, burst=ports.policy.bytes_per_s)
        self._bucket = full_bucket(self._rate, now_ms=ports.clock.monotonic_ms())
        self.lost = ""
        self.throttles = 0
        self.calls = 0

    async def wait(self) -> None:
        """Sleep until the shard may be asked."""
        clock = self._ports.clock
        await clock.sleep_ms(max(0, self.next_call_ms - clock.monotonic_ms()))

    async def next(
        self, *, limit: int, give_up: Callable[[], bool] = lambda: False
    ) -> RecordsPage | None:
        """
        Return the next page.

        Args:
            limit: most stream records.
            give_up: asked after each failure whether to leave it at that.

        Returns:
            None when it was given up.

        Raises:
            DataLost: records are gone, and that stops the query.
            Throttled, OutcomeUnknown: more failures in a row than the policy allows.

        """
        failures = 0
        while True:
            try:
                page = await self._found(limit)
            except (Throttled, OutcomeUnknown):
                failures += 1
                self.throttles += 1
                if not self._ports.may_retry(failures):
                    raise
                if give_up():
                    return None
            except IteratorExpired:
                self.iterator = None
                failures += 1
                if failures == 1:
                    continue
            except ShardGone as error:
                return self._gone(error)
            else:
                ended = page.next_iterator is None
                if not end_contradiction(page.child_shards, ended=ended, shard_id=self._shard_id):
                    self._accept(page)
                    return page
                failures += 1
            await self._ports.clock.sleep_ms(self._ports.back_off_ms(failures))

    async def _found(self, limit: int) -> RecordsPage:
        """Make an attempt; that a shard is not found is believed when it was said several times."""
        for missed in range(1, _MISSED_TIMES):
            try:
                return await self._attempt(limit)
            except ShardGone:
                self.iterator = None
            await self._ports.clock.sleep_ms(self._ports.back_off_ms(missed))
        return await self._attempt(limit)

    async def _attempt(self, limit: int) -> RecordsPage:
        page = self._in_doubt or await self._read(limit)
        if not self._is_proven(page):
            self._in_doubt = page  # Not read anew if the proof is refused for a while.
            await self._look_for_witness()
            self._in_doubt = None
        return page

    async def _read(self, limit: int) -> RecordsPage:
        stream, clock = self._ports.stream, self._ports.clock
        if self.iterator is None:
            try:
                iterator = await stream.shard_iterator(self._shard_id, self._where())
            except PositionTrimmed as error:
                # The service refuses the number as older than anything it has.
                self._tell_loss(str(error))
                oldest = IteratorStart(IteratorKind.TRIM_HORIZON)
                iterator = await stream.shard_iterator(self._shard_id, oldest)
            self.iterator, self.iterator_ms = iterator, clock.now_ms()
        page = await stream.get_records(self.iterator, shard_id=self._shard_id, limit=max(1, limit))
        now_ms = clock.monotonic_ms()
        size = size_of(page.records)
        self._bucket, debt_ms = spend(self._bucket, self._rate, amount=size, now_ms=now_ms)
        self.next_call_ms = now_ms + max(debt_ms, self._ports.policy.poll_interval_ms)
        return page

    def _where(self) -> IteratorStart:
        if self._accepted is not None:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, self._accepted)
        return where(self._stand)

    def _accept(self, page: RecordsPage) -> None:
        self.calls += 1
        self.iterator, self.iterator_ms = page.next_iterator, self._ports.clock.now_ms()
        if page.records:
            self._accepted = self._witness = page.records[-1].sequence_number
            arrivals = [record.approximate_arrival_ms for record in page.records]
            self._done_before_ms = max(self._done_before_ms, *arrivals)

    def _is_proven(self, page: RecordsPage) -> bool:
        """Tell whether nothing can be missing between what was read before and an answer."""
        if self._witness is None or _says_nothing(page):
            return True
        if page.records and page.records[0].sequence_number == self._witness:
            return True
        return _is_retained(self._done_before_ms, self._ports.clock.now_ms())

    async def _look_for_witness(self) -> None:
        """Ask whether the last record read is still there; if not, what came behind may be lost."""
        stream, witness = self._ports.stream, self._witness
        at_witness = IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, witness)
        try:
            iterator: str | None = await stream.shard_iterator(self._shard_id, at_witness)
        except PositionTrimmed as error:
            self._tell_loss(str(error))
            return
        first = "none"
        while iterator is not None:
            await self.wait()
            page = await stream.get_records(iterator, shard_id=self._shard_id, limit=1)
            clock, policy = self._ports.clock, self._ports.policy
            self.next_call_ms = clock.monotonic_ms() + policy.poll_interval_ms
            if page.records:
                first = page.records[0].sequence_number
            if not _says_nothing(page):
                break
            iterator = page.next_iterator
        if first != witness:
            self._tell_loss(
                f"the last record read, {witness}, is older than what the stream retains (the "
                f"oldest now is {first}): records behind it may be lost"
            )

    def _gone(self, error: ShardGone) -> RecordsPage:
        at = position_text(self._stand.position)
        self._tell_loss(f"it expired before it was read to its end (it stood at {at}): {error}")
        return RecordsPage(records=(), next_iterator=None, millis_behind_latest=0)

    def _tell_loss(self, text: str) -> None:
        self._witness = None
        self.lost = f"{self._shard_id}: {text}"
        if self._ports.policy.fail_on_data_loss:
            raise DataLost(f"{self.lost}. To go on with what is there, set failOnDataLoss=false")


def is_retained(stand: Stand, now_ms: int) -> bool:
    """Tell whether the stream surely has all that came behind a position, whatever it retains."""
    return stand.position.done is None or _is_retained(_done_before_ms(stand), now_ms)


def _done_before_ms(stand: Stand) -> int:
    """Return a moment before which everything that arrived is done, epoch milliseconds."""
    return max(stand.arrived_ms, stand.tip_ms)


def _is_retained(done_before_ms: int, now_ms: int) -> bool:
    return now_ms - done_before_ms < _SHORTEST_RETENTION_MS - _RETENTION_MARGIN_MS


def _says_nothing(page: RecordsPage) -> bool:
    """Tell whether an answer is empty although there is more (hazard H6)."""
    return not page.records and bool(page.millis_behind_latest) and page.next_iterator is not None


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


def size_of(records: Sequence[StreamRecord]) -> int:
    """Return the bytes of data and keys of stream records."""
    # Lists: for thousands of records a generator costs half as much again.
    return sum([len(each.data) for each in records]) + sum(
        [len(each.partition_key) for each in records]
    )
