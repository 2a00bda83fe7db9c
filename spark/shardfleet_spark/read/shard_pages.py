"""
One shard, page by page: a task's drive of the cursor, never silent about a loss.

What is asked when, what counts as a gap and as the end: :mod:`shardfleet.domain.reading.cursor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from shardfleet.domain.delivery.attempts import back_off_ms
from shardfleet.domain.positions.positions import position_text
from shardfleet.domain.reading.cursor import (
    Ask,
    End,
    Moment,
    ReadFrom,
    ReadLimits,
    ShardCursor,
    is_retained,
)
from shardfleet.domain.reading.pacing import PolledShard, PollPace
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.gone_shards import GoneNote, judge_gone
from shardfleet.domain.stream.sequence import PointKind
from shardfleet.engine.ports import Clock, Entropy, ShardCalls, StreamDirectory
from shardfleet.errors import (
    OutcomeUnknown,
    PositionTrimmed,
    ShardfleetError,
    ShardGone,
    Throttled,
    settled,
)
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.plan_token import Stand

# Kinesis: an iterator lives 5 minutes; an older one than this is not worth the risk of clocks
# that differ.
ITERATOR_LIFE_MS = 240_000
# After a 10 MiB answer Kinesis refuses a shard for 5 s: no hint is worth waiting longer.
_LONGEST_HINTED_WAIT_MS = 10_000
# A missing shard needs two listings that lack it, as far apart as a fleet's failover time; a batch
# does not wait longer for what else may be missing (hazard H12).
_LISTINGS_APART_MS = 10_000
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
        max_retry_pause_ms: longest back-off.
        retry_attempts: attempts before a batch fails; 0: without end.
        fail_on_data_loss: whether a loss stops the query.

    """

    poll_interval_ms: int = 200
    bytes_per_s: int = 2 * 1024 * 1024
    records_per_read: int = 10_000
    concurrency: int = 16
    retry_first_ms: int = 100
    max_retry_pause_ms: int = 3_000
    retry_attempts: int = 0
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPorts:
    """What reading asks of the world."""

    stream: StreamDirectory
    source: ShardCalls
    clock: Clock
    entropy: Entropy
    policy: ReadPolicy

    def back_off_ms(self, failures: int) -> int:
        """Return how long to wait after so many failures in a row."""
        return back_off_ms(
            failures,
            first_ms=self.policy.retry_first_ms,
            most_ms=self.policy.max_retry_pause_ms,
            jitter=self.entropy.uniform(0.0, 1.0),
        )

    @property
    def pace(self) -> PollPace:
        """Return how often a shard is asked."""
        policy = self.policy
        return PollPace(
            call_ms=policy.poll_interval_ms,
            bytes_per_s=policy.bytes_per_s,
            idle_most_ms=policy.poll_interval_ms,
        )

    @property
    def limits(self) -> ReadLimits:
        """Return how much a shard is asked for, and how often in vain."""
        return ReadLimits(
            back_off_ms=self.back_off_ms,
            records_most=self.policy.records_per_read,
            attempts_most=self.policy.retry_attempts,
        )

    @property
    def now(self) -> Moment:
        """Return what both clocks say."""
        return Moment(self.clock.now_ms(), self.clock.monotonic_ms())

    def may_retry(self, failures: int) -> bool:
        """Return whether a call that failed so often may be made again."""
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


def origin_of(reading: ShardRange, now: Moment) -> ReadFrom:
    """Return where a shard is read from; an iterator that was left behind is used while young."""
    hint, stand = reading.hint, reading.stand
    is_young = now.wall_ms - hint.iterator_ms < ITERATOR_LIFE_MS
    return ReadFrom.position(
        stand.position,
        complete_before_ms=max(stand.arrived_ms, stand.tip_ms),
        resume_token=hint.iterator if is_young else None,
    )


class ShardPages:
    """
    The pages of one shard, from where it stands.

    Attributes:
        cursor: where it is read.
        iterator: continues behind the last page; None at the shard's end, or when there is none.
        iterator_ms: wall clock at which it was issued.
        lost: what was lost, for a person; empty for nothing.
        throttles: calls that were refused or failed.
        calls: calls that were answered.
        paused_ms: how long it waited, beyond the pause between any two calls: for what Kinesis
            allows a second, and after failures.

    """

    def __init__(self, reading: ShardRange, ports: FetchPorts) -> None:
        """Stand there; nothing is read yet."""
        now, hint, stand = ports.now, reading.hint, reading.stand
        origin = origin_of(reading, now)
        self._shard_id = reading.shard_id
        self._stand = stand
        self._ports = ports
        self.cursor = ShardCursor(reading.shard_id, origin, limits=ports.limits, now=now)
        free_ms = max(0, min(hint.free_ms - now.wall_ms, _LONGEST_HINTED_WAIT_MS))
        self._polled = PolledShard(ports.pace, now_ms=now.steady_ms + free_ms)
        self.iterator = origin.resume_token
        self.iterator_ms = hint.iterator_ms if self.iterator else 0
        known_ms = max(stand.arrived_ms, stand.tip_ms, stand.position.instant_ms)
        # Of a shard that nothing is known of, all may be older than the retention.
        self._missing = GoneNote(lease_key=reading.shard_id, known_ms=known_ms or 1)
        self._looks = 0
        self._is_refused = False
        self.lost = ""
        self.throttles = 0
        self.calls = 0
        self.paused_ms = 0

    @property
    def next_call_ms(self) -> int:
        """Return when the shard may be asked, on the steady clock."""
        return max(self.cursor.due_ms, self._polled.next_call_ms)

    async def wait(self) -> None:
        """Sleep until the shard may be asked."""
        await self._sleep(self.next_call_ms - self._ports.clock.monotonic_ms())

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
            ShardGone: it is missing, and not for so long that it is known to be over.
            Throttled, OutcomeUnknown: more failures in a row than the policy allows.

        """
        while True:
            match self.cursor.next():
                case Ask() as ask:
                    if self._is_refused and give_up():
                        return None
                    await self.wait()
                    await self._ask(ask, limit)
                case RecordsPage() as page:
                    if not self.calls and is_beginning_in_doubt(self._stand, self._ports.now):
                        self._tell_loss(
                            "nothing of it was read yet, and its first records may be older than "
                            "what the stream retains: they may be lost"
                        )
                    self.calls += 1
                    self.iterator, self.iterator_ms = page.resume_token, self._ports.clock.now_ms()
                    return page
                case PositionTrimmed() as gap:
                    self._tell_loss(str(gap))
                    self.cursor.accept_gap()
                case ShardGone() as error:
                    await self._look(error)
                case End():
                    at = position_text(self._stand.position)
                    self._tell_loss(
                        f"it expired before it was read to its end (it stood at {at}): "
                        f"{self._missing.reason}"
                    )
                    return RecordsPage(records=(), resume_token=None, millis_behind_latest=0)

    async def _ask(self, ask: Ask, limit: int) -> None:
        now = self._ports.now
        self.cursor.asked(now)
        self._polled.asked(now.steady_ms)
        self._is_refused = False
        try:
            page = await self._ports.source.page(
                self._shard_id,
                ask.start,
                resume_token=ask.resume_token,
                limit=min(ask.limit, max(1, limit)),
            )
            now = self._ports.now
            self._polled.answered(page, now.steady_ms)
            self.cursor.answered(page, now)
            self._looks = 0
        except ShardfleetError as error:
            self._is_refused = isinstance(error, Throttled | OutcomeUnknown)
            self.throttles += self._is_refused
            if not self.cursor.failed(error, self._ports.now):
                raise settled(error) from error

    async def _look(self, error: ShardGone) -> None:
        """Judge a shard that is not found, as a fleet does."""
        ports, before_ms = self._ports, self._ports.clock.now_ms()
        self._looks += 1
        if self._looks == 1:
            self._missing = replace(self._missing, first_ms=before_ms, unlisted_ms=0)
        wait_ms = ports.back_off_ms(self._looks)
        try:
            stream = await ports.stream.incarnation()
            listing = await ports.stream.list_shards()
        except (Throttled, OutcomeUnknown):
            self.throttles += 1
            await self._sleep(wait_ms)
            self.cursor.failed(error, ports.now)
            return
        verdict = judge_gone(
            self._missing,
            listing,
            shard_id=self._shard_id,
            retention_ms=stream.retention_ms,
            failover_ms=_LISTINGS_APART_MS,
            listed_ms=(before_ms, ports.clock.now_ms()),
        )
        self._missing = verdict.note
        if not verdict.is_over and before_ms - self._missing.first_ms > 2 * _LISTINGS_APART_MS:
            raise error
        self.cursor.judged(verdict, wait_ms=wait_ms, now=ports.now)

    async def _sleep(self, duration_ms: int) -> None:
        self.paused_ms += max(0, duration_ms - self._ports.policy.poll_interval_ms)
        await self._ports.clock.sleep_ms(max(0, duration_ms))

    def _tell_loss(self, text: str) -> None:
        self.lost = f"{self._shard_id}: {text}"
        if self._ports.policy.fail_on_data_loss:
            raise DataLost(f"{self.lost}. To go on with what is there, set failOnDataLoss=false")


def is_beginning_in_doubt(stand: Stand, now: Moment) -> bool:
    """
    Return whether the first records of a shard may be gone, where none was read that would show it.

    A child is known to hold nothing older than its parents' last records (:func:`admit` in
    :mod:`shardfleet_spark.offsets.lineage`), and a shard nothing older than its tip. What a new
    query finds gone at the beginning that it asked for was not its own to lose.
    """
    if stand.position.done is not None:
        return False
    is_child = stand.position.kind is PointKind.TRIM_HORIZON
    since_ms = max(stand.arrived_ms, stand.tip_ms) if is_child else stand.tip_ms
    return since_ms > 0 and not is_retained(since_ms, now_ms=now.wall_ms)


def is_done(stand: Stand, record: StreamRecord) -> bool:
    """Return whether nothing of a stream record is left to read, for a shard that stands there."""
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


def not_done(stand: Stand, records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
    """Return what is left to read of records in shard order: behind one that is not done, all."""
    for index, record in enumerate(records):
        if not is_done(stand, record):
            return records[index:]
    return records[:0]
