"""
Reading one shard by polling: paced, patient, and never behind the last accepted record.

Accepted is what a page brought into memory, whole stream records only. After an expired iterator
reading goes on *after* the last accepted record; before the first one it begins again at the
start position, which is never LATEST (hazards H4, H6, H7; protocol.md §5.1, §8 rows 2, 3, 8a).
Java: ``KinesisDataFetcher`` and ``PrefetchRecordsPublisher``, without the prefetching.

Kinesis skips what it has trimmed without a word, whatever iterator is used. So an answer counts
only if all that arrived before a moment within the shortest retention is accepted, or if the last
accepted record is still there: nothing behind a record goes before it (protocol.md §5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reading.pacing import Rate, full_bucket, idle_pause_ms, spend
from shardfleet.domain.stream.sequence import PointKind, Position
from shardfleet.domain.stream.shards import ChildShard, end_contradiction
from shardfleet.engine.ports import (
    Clock,
    EventSink,
    IteratorKind,
    IteratorStart,
    RecordsPage,
    StreamReader,
)
from shardfleet.engine.retry import Halt, Patience
from shardfleet.engine.shard.deaggregation import Deaggregator, UserRecords
from shardfleet.engine.shard.start import SHORTEST_RETENTION_MS
from shardfleet.errors import IteratorExpired, OutcomeUnknown, PositionTrimmed, Throttled
from shardfleet.events import FalseShardEnd, IteratorRenewed, PageRead, ReadDelayed

# The first pause after an empty read: 5 calls/s are the quota of a shard.
_SHORTEST_PAUSE_MS = 200
# Lags are approximate, and clocks differ: AWS refuses a signature that is 5 minutes off.
_RETENTION_MARGIN_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """
    What one read brought.

    Attributes:
        records: user records, in order.
        lag_ms: MillisBehindLatest, -1 when the service did not say.
        children: None while the shard goes on, else its children: the shard ends behind this page.
        size_bytes: payload and keys, as sent.

    """

    records: UserRecords
    lag_ms: int
    children: Sequence[ChildShard] | None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPorts:
    """What a shard reader asks of the world."""

    stream: StreamReader
    clock: Clock
    events: EventSink
    patience: Patience


class ShardReader:
    """One shard, read forward from a position."""

    def __init__(
        self, lease: Lease, start: Position, *, config: FleetConfig, ports: ReadPorts
    ) -> None:
        """
        Stand at the start position; nothing is read yet.

        Args:
            lease: of the shard; its hash range decides what is misrouted.
            start: where to begin; SEQUENCE means that this user record is done.
            config: pace, limits and policies.
            ports: the stream and the rest.

        """
        self._shard_id = lease.lease_key
        self._start = start
        self._config = config
        self._ports = ports
        self._deaggregator = Deaggregator(
            self._shard_id, lease.hash_key_range, config=config, sink=ports.events
        )
        self._iterator: str | None = None
        self._accepted: str | None = None
        # The iterator began at the last accepted record, which has to come first.
        self._may_have_gap = start.kind is PointKind.SEQUENCE
        self._in_doubt: RecordsPage | None = None
        # All that arrived before is accepted, epoch milliseconds; 0: unknown.
        self._accepted_before_ms = 0
        self._failures = 0
        self._empty_reads = 0
        self._bytes = Rate(per_s=config.read_bytes_per_s, burst=config.read_bytes_per_s)
        self._bucket = full_bucket(self._bytes, now_ms=ports.clock.monotonic_ms())
        self._next_call_ms = ports.clock.monotonic_ms()

    @property
    def start(self) -> Position:
        """Return where reading began."""
        return self._start

    @property
    def next_read(self) -> tuple[str, str]:
        """Return the iterator of the next read, and the last record read before it; "" for none."""
        return self._iterator or "", self._accepted or ""

    def accept_gap(self) -> None:
        """Go on behind a position that the stream no longer has, from its oldest record."""
        self._may_have_gap = False
        if self._iterator is None:
            self._accepted = None
            self._start = Position(self._start.incarnation, self._shard_id, PointKind.TRIM_HORIZON)

    async def next_page(self, halt: Halt) -> Page:
        """
        Read the next page, however long it takes; it may be empty.

        Raises:
            Halted: asked to stop; nothing was accepted.
            ShardGone, StreamGone: the service knows it no longer.
            PositionTrimmed: the last accepted record, or that at the start position, is no longer
                there, so what followed it may be lost, too; :meth:`accept_gap` goes on
                nevertheless.

        """
        while self._in_doubt is None or self._may_have_gap:
            await self._ports.patience.pause(
                self._next_call_ms - self._ports.clock.monotonic_ms(), halt
            )
            page = await self._try()
            if page is not None:
                return await self._accept(page)
        return await self._accept(self._in_doubt)

    async def _try(self) -> RecordsPage | None:
        """Make one attempt; None when it has to be repeated, or while a page is in doubt."""
        self._wait_after(self._config.busy_read_ms)
        sent_ms = self._ports.clock.now_ms()
        try:
            if self._iterator is None:
                self._iterator = await self._ports.stream.shard_iterator(
                    self._shard_id, self._where()
                )
            limit = self._config.records_per_read if self._in_doubt is None else 1
            page = await self._ports.stream.get_records(
                self._iterator, shard_id=self._shard_id, limit=limit
            )
        except (Throttled, OutcomeUnknown) as error:
            self._back_off()
            self._ports.events.emit(
                ReadDelayed(
                    lease_key=self._shard_id,
                    error=type(error).__name__,
                    failures=self._failures,
                )
            )
            return None
        except IteratorExpired:
            self._back_off()
            self._iterator = None
            self._ports.events.emit(
                IteratorRenewed(lease_key=self._shard_id, accepted=self._accepted or "")
            )
            return None
        contradiction = contradiction_of(page, self._shard_id)
        if contradiction:
            self._back_off()
            self._ports.events.emit(FalseShardEnd(lease_key=self._shard_id, reason=contradiction))
            return None
        self._failures = 0
        self._charge(page)
        return self._continuous(page, sent_ms)

    def _where(self) -> IteratorStart:
        if self._accepted is not None:
            if self._in_doubt is not None:
                return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, self._accepted)
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, self._accepted)
        match self._start.kind:
            case PointKind.SEQUENCE if self._start.done is not None:
                # AT, not AFTER: the record may be an aggregate that is done in part (H4), and
                # that it is still there proves that nothing behind it was trimmed.
                number = self._start.done.sequence_number
                return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, number)
            case PointKind.INSTANT:
                return IteratorStart(IteratorKind.AT_TIMESTAMP, instant_ms=self._start.instant_ms)
            case _:
                return IteratorStart(IteratorKind.TRIM_HORIZON)

    def _continuous(self, page: RecordsPage, sent_ms: int) -> RecordsPage | None:
        """Return the page before which nothing is missing, if this answer shows it."""
        self._check_gap(page)
        if self._in_doubt is not None:
            self._iterator = page.next_iterator
            return None if self._may_have_gap else self._in_doubt
        if _says_nothing(page):
            return page
        if self._may_be_trimmed():
            # Kept, and not read anew, while the last accepted record is looked for.
            self._in_doubt, self._iterator, self._may_have_gap = page, None, True
        if page.millis_behind_latest is not None:
            self._accepted_before_ms = sent_ms - page.millis_behind_latest
        return page if self._in_doubt is None else None

    def _may_be_trimmed(self) -> bool:
        """Tell whether what came behind the last accepted record may be gone by now."""
        behind_ms = self._ports.clock.now_ms() - self._accepted_before_ms
        is_retained = behind_ms < SHORTEST_RETENTION_MS - _RETENTION_MARGIN_MS
        return self._accepted is not None and not is_retained

    def _check_gap(self, page: RecordsPage) -> None:
        """Compare an answer with where its iterator began: the service skips what is trimmed."""
        done = self._start.done
        expected = self._accepted or (done and done.sequence_number)
        if not self._may_have_gap or expected is None or _says_nothing(page):
            return
        if page.records and page.records[0].sequence_number == expected:
            self._may_have_gap = False
            return
        message = (
            f"shard {self._shard_id}: record {self._accepted or done} is older than what the "
            "stream retains; records behind it may be lost"
        )
        raise PositionTrimmed(message)

    def _charge(self, page: RecordsPage) -> None:
        """Make the next call no sooner than the shard's bytes a second allow."""
        size, now_ms = _size_of(page), self._ports.clock.monotonic_ms()
        self._bucket, debt_ms = spend(self._bucket, self._bytes, amount=size, now_ms=now_ms)
        self._wait_after(debt_ms)

    async def _accept(self, page: RecordsPage) -> Page:
        size = _size_of(page)
        done = self._start.done if self._accepted is None else None
        found = UserRecords(page.records, done, self._deaggregator)
        is_idle = not page.records and not page.millis_behind_latest
        self._empty_reads = self._empty_reads + 1 if is_idle else 0
        if page.records:
            self._accepted = page.records[-1].sequence_number
            self._ports.events.emit(
                PageRead(
                    lease_key=self._shard_id,
                    stream_records=len(page.records),
                    brings=bool(await found.waiting(1)),
                    size_bytes=size,
                    millis_behind_latest=_lag_ms(page),
                )
            )
        elif is_idle:
            idle_ms = idle_pause_ms(
                self._empty_reads, first_ms=_SHORTEST_PAUSE_MS, most_ms=self._config.idle_read_ms
            )
            self._wait_after(idle_ms)
        self._iterator, self._in_doubt = page.next_iterator, None
        return Page(
            records=found,
            lag_ms=_lag_ms(page),
            children=None if page.next_iterator is not None else page.child_shards,
            size_bytes=size,
        )

    def _back_off(self) -> None:
        self._failures += 1
        self._wait_after(self._ports.patience.back_off_ms(self._failures))

    def _wait_after(self, duration_ms: int) -> None:
        """Make the next call no sooner than that from now (row 8a: no storms of retries)."""
        soonest = self._ports.clock.monotonic_ms() + duration_ms
        self._next_call_ms = max(self._next_call_ms, soonest)


def contradiction_of(page: RecordsPage, shard_id: str) -> str:
    """Return how an answer contradicts itself about the shard's end, "" if it does not."""
    ended = page.next_iterator is None
    return end_contradiction(page.child_shards, ended=ended, shard_id=shard_id)


def _lag_ms(page: RecordsPage) -> int:
    return -1 if page.millis_behind_latest is None else page.millis_behind_latest


def _says_nothing(page: RecordsPage) -> bool:
    """Tell whether an answer is empty although there is more (hazard H6)."""
    return not page.records and page.next_iterator is not None and bool(page.millis_behind_latest)


def _size_of(page: RecordsPage) -> int:
    """Return payload and keys in bytes, as sent."""
    if page.size_bytes is not None:
        return page.size_bytes
    return sum(len(record.data) + len(record.partition_key) for record in page.records)
