"""
A stream in memory: shards, splits, merges, retention, and every way in which reads go wrong.

The ``StreamDirectory``, ``ShardCalls`` and ``StreamWriter`` ports on any ``Clock``; what a test
asks for happens:
throttles, expired iterators, lost answers, false shard ends, empty answers with lag. Sequence
numbers are decimal strings that grow by one over the whole stream, so that they differ in length
(protocol.md §8 row 22).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from shardfleet.domain.reading.pages import RecordsPage, StartingPosition, StartKind
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import ChildShard, Shard
from shardfleet.engine.ports import Clock, ListingFilter, PutOutcome
from shardfleet.errors import (
    ConfigurationError,
    ForeignPosition,
    IteratorExpired,
    OutcomeUnknown,
    ShardGone,
    StreamGone,
    Throttled,
)
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.records import StreamRecord

MEMORY_STREAM_ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/memory"
# Kinesis quota: an iterator lives 5 minutes.
ITERATOR_LIFE_MS = 300_000
DAY_MS = 24 * 3_600_000


@dataclass(slots=True)
class _Log:
    shard: Shard
    opened_ms: int
    closed_ms: int | None = None
    records: list[StreamRecord] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Iterator:
    shard_id: str
    after: int  # records with greater sequence numbers follow
    instant_ms: int
    made_ms: int


@dataclass(slots=True, kw_only=True)
class ReadCall:
    """
    One call as the stream saw it; a fault may look at it.

    Attributes:
        operation: ``incarnation``, ``list_shards``, ``shard_iterator`` or ``get_records``.
        shard_id: None for calls about the whole stream.
        at_ms: monotonic milliseconds.
        start: of ``shard_iterator``.

    """

    operation: str
    shard_id: str | None
    at_ms: int
    start: StartingPosition | None = None


def _number_of(record: StreamRecord) -> int:
    return int(record.sequence_number)


def _arrival_of(record: StreamRecord) -> int:
    return record.approximate_arrival_ms


class Polled:
    """The ``ShardCalls`` port on GetShardIterator and GetRecords, as `KinesisPolling` has it."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._unread: dict[tuple[str, StartingPosition], str] = {}

    async def shard_iterator(self, shard_id: str, start: StartingPosition) -> str:
        """Get an iterator."""
        raise NotImplementedError

    async def get_records(self, iterator: str, *, shard_id: str, limit: int) -> RecordsPage:
        """Read one page."""
        raise NotImplementedError

    async def page(
        self, shard_id: str, start: StartingPosition, *, resume_token: str | None, limit: int
    ) -> RecordsPage:
        """Read one page; an iterator whose first read was refused is kept for the next try."""
        iterator = resume_token or self._unread.pop((shard_id, start), None)
        if iterator is None:
            iterator = await self.shard_iterator(shard_id, start)
        try:
            page = await self.get_records(iterator, shard_id=shard_id, limit=limit)
        except (Throttled, OutcomeUnknown, ShardGone):
            if resume_token is None:
                self._unread[shard_id, start] = iterator
            raise
        return page if page.page_token == iterator else replace(page, page_token=iterator)


class MemoryStream(Polled):
    """
    A stream; reader and writer in one.

    Attributes:
        calls: every read call, in order.
        fault: called before each read call; raises what the call is to raise.
        alter: called with each page before it is handed out; returns what is handed out.

    """

    def __init__(
        self, clock: Clock, *, shards: int = 1, retention_ms: int = DAY_MS, first_sequence: int = 1
    ) -> None:
        """
        Create the stream now.

        Args:
            clock: for arrivals, retention and iterators.
            shards: how many, tiling all hash keys.
            retention_ms: older records are gone.
            first_sequence: the first record's sequence number.

        """
        super().__init__()
        self.calls: list[ReadCall] = []
        self.fault: Callable[[ReadCall], None] = lambda _call: None
        self.alter: Callable[[str, RecordsPage], RecordsPage] = lambda _shard_id, page: page
        self._clock = clock
        self._retention_ms = retention_ms
        self._sequence = first_sequence - 1
        self._logs: dict[str, _Log] = {}
        self._iterators: dict[str, _Iterator] = {}
        self._shards_ever = 0
        self._incarnation: StreamIncarnation | None = StreamIncarnation(
            MEMORY_STREAM_ARN, clock.now_ms(), retention_ms
        )
        for index in range(shards):
            start = index * (HASH_KEY_MAX + 1) // shards
            end = (index + 1) * (HASH_KEY_MAX + 1) // shards - 1
            self._open(HashKeyRange(start, end), ())

    # --- what a test does to it

    @property
    def open_shard_ids(self) -> list[str]:
        """Return the shards that take records, by id."""
        return [key for key, log in sorted(self._logs.items()) if log.shard.is_open]

    def put(self, data: bytes, *, key: str = "k", shard_id: str | None = None) -> str:
        """Put one record, by its key or straight to an open shard; return the sequence number."""
        if shard_id is None:
            shard_id = self._route(effective_hash(key))
        log = self._logs[shard_id]
        if not log.shard.is_open:
            message = f"{shard_id} is closed"
            raise ValueError(message)
        record = StreamRecord(
            data=data,
            partition_key=key,
            sequence_number=self._next_sequence(),
            approximate_arrival_ms=self._clock.now_ms(),
        )
        log.records.append(record)
        return record.sequence_number

    @property
    def sequence(self) -> int:
        """Return the number of the latest record, or of what a reshard took."""
        return self._sequence

    def skip_to(self, sequence: int) -> None:
        """Let no sequence number from here on be less than this one."""
        self._sequence = max(self._sequence, sequence - 1)

    def split(self, shard_id: str) -> tuple[str, str]:
        """Split a shard in the middle; return the children."""
        low, high = self._logs[shard_id].shard.hash_key_range.halves
        self._close(shard_id)
        return self._open(low, (shard_id,)), self._open(high, (shard_id,))

    def merge(self, shard_id: str, adjacent_id: str) -> str:
        """Merge two shards; return the child."""
        ranges = [self._logs[key].shard.hash_key_range for key in (shard_id, adjacent_id)]
        self._close(shard_id)
        self._close(adjacent_id)
        whole = HashKeyRange(min(r.start for r in ranges), max(r.end for r in ranges))
        return self._open(whole, (shard_id, adjacent_id))

    def expire_iterators(self) -> None:
        """Let every iterator be too old."""
        self._iterators.clear()

    def trim(self, shard_id: str, keep: int = 0) -> None:
        """Forget all but the last ``keep`` records of a shard."""
        records = self._logs[shard_id].records
        del records[: max(0, len(records) - keep)]

    def forget_shard(self, shard_id: str) -> None:
        """Let a closed shard leave the stream, as retention does."""
        del self._logs[shard_id]

    def describe(self, *, retention_ms: int) -> None:
        """Change how long the stream says that it keeps records; what it holds stays."""
        assert self._incarnation is not None
        self._incarnation = replace(self._incarnation, retention_ms=retention_ms)

    def delete(self) -> None:
        """Delete the stream."""
        self._incarnation = None
        self._logs.clear()
        self._iterators.clear()

    def create_again(self, shards: int = 1) -> None:
        """Create a deleted stream again: the shard ids repeat (hazard H12)."""
        self.delete()
        self._shards_ever = 0
        self._incarnation = StreamIncarnation(
            MEMORY_STREAM_ARN, self._clock.now_ms(), self._retention_ms
        )
        for index in range(shards):
            start = index * (HASH_KEY_MAX + 1) // shards
            end = (index + 1) * (HASH_KEY_MAX + 1) // shards - 1
            self._open(HashKeyRange(start, end), ())

    def shard(self, shard_id: str) -> Shard:
        """Return one shard as listed."""
        return self._logs[shard_id].shard

    def sequence_numbers(self, shard_id: str) -> list[str]:
        """Return the sequence numbers that a shard still holds."""
        return [record.sequence_number for record in self._logs[shard_id].records]

    # --- StreamDirectory

    async def incarnation(self) -> StreamIncarnation:
        """Describe the stream."""
        await self._called("incarnation")
        if self._incarnation is None:
            message = "no such stream"
            raise StreamGone(message)
        return replace(self._incarnation, service_ms=self._clock.now_ms())

    async def list_shards(
        self, listing: ListingFilter = ListingFilter.NONE, *, instant_ms: int | None = None
    ) -> Sequence[Shard]:
        """List shards, filtered as Kinesis does."""
        await self._called("list_shards")
        if self._incarnation is None:
            message = "no such stream"
            raise StreamGone(message)
        logs = [log for _, log in sorted(self._logs.items())]
        if listing is ListingFilter.AT_LATEST:
            logs = [log for log in logs if log.closed_ms is None]
        elif listing is not ListingFilter.NONE:
            at_ms = instant_ms if instant_ms is not None else self._horizon_ms()
            at_ms = max(at_ms, min((log.opened_ms for log in logs), default=0))
            logs = [
                log
                for log in logs
                if log.opened_ms <= at_ms and (log.closed_ms is None or log.closed_ms >= at_ms)
            ]
        return [log.shard for log in logs]

    # --- ShardCalls

    async def shard_iterator(self, shard_id: str, start: StartingPosition) -> str:
        """Get an iterator; a number beyond what the shard has had is refused, and the future."""
        await self._called("shard_iterator", shard_id, start=start)
        log = self._log(shard_id)
        after, instant_ms = -1, 0
        number = int(start.sequence_number or 0)
        if start.kind is StartKind.AT_SEQUENCE_NUMBER:
            after = number - 1
        elif start.kind is StartKind.AFTER_SEQUENCE_NUMBER:
            after = number
        elif start.kind is StartKind.AT_TIMESTAMP:
            instant_ms = start.instant_ms or 0
            if instant_ms > self._clock.now_ms():
                message = f"the instant {instant_ms} is in the future"  # fact K71
                raise ConfigurationError(message)
        if number and number < int(log.shard.starting_sequence_number):
            message = f"sequence number {number} is another shard's, used on {shard_id}"
            raise ForeignPosition(message)
        return self._issue(_Iterator(shard_id, after, instant_ms, self._clock.monotonic_ms()))

    async def get_records(self, iterator: str, *, shard_id: str, limit: int) -> RecordsPage:
        """Read one page; the iterator stays valid until it is too old."""
        await self._called("get_records", shard_id)
        log = self._log(shard_id)
        found = self._iterators.get(iterator)
        now_ms = self._clock.monotonic_ms()
        if found is None or now_ms - found.made_ms > ITERATOR_LIFE_MS:
            message = f"iterator {iterator} is older than 5 minutes"
            raise IteratorExpired(message)
        self._expire(log)
        begin = bisect_right(log.records, found.after, key=_number_of)
        begin = bisect_left(log.records, found.instant_ms, lo=begin, key=_arrival_of)
        read = log.records[begin : begin + limit + 1]
        return self.alter(shard_id, self._page(log, iterator, read, limit=limit))

    def continuation(self, shard_id: str, iterator: str) -> str:
        """Return the sequence number behind which an iterator goes on, as a subscription has it."""
        at, log = self._iterators[iterator], self._logs[shard_id]
        before = [
            each.sequence_number
            for each in log.records
            if _number_of(each) <= at.after or _arrival_of(each) < at.instant_ms
        ]
        first = max(int(log.shard.starting_sequence_number), at.after)
        return before[-1] if before else str(first)

    def _page(
        self, log: _Log, iterator: str, found: list[StreamRecord], *, limit: int
    ) -> RecordsPage:
        at, page, rest = self._iterators[iterator], found[:limit], found[limit:]
        last = int(page[-1].sequence_number) if page else at.after
        following = _Iterator(at.shard_id, last, at.instant_ms, self._clock.monotonic_ms())
        is_over = not rest and not log.shard.is_open
        lag_ms = self._clock.now_ms() - rest[0].approximate_arrival_ms if rest else 0
        return RecordsPage(
            records=page,
            resume_token=None if is_over else self._issue(following),
            millis_behind_latest=max(lag_ms, 1) if rest else 0,
            child_shards=[self._child(key) for key in log.children] if is_over else (),
            page_token=iterator,
        )

    # --- StreamWriter

    async def put_records(self, entries: Sequence[OutgoingRecord]) -> Sequence[PutOutcome]:
        """Put records by their keys."""
        await asyncio.sleep(0)
        outcomes = []
        for entry in entries:
            shard_id = self._route(effective_hash(entry.partition_key, entry.explicit_hash_key))
            number = self.put(entry.data, key=entry.partition_key, shard_id=shard_id)
            outcomes.append(PutOutcome(shard_id=shard_id, sequence_number=number))
        return outcomes

    # --- inside

    async def _called(
        self, operation: str, shard_id: str | None = None, *, start: StartingPosition | None = None
    ) -> None:
        call = ReadCall(
            operation=operation,
            shard_id=shard_id,
            at_ms=self._clock.monotonic_ms(),
            start=start,
        )
        self.calls.append(call)
        await asyncio.sleep(0)
        self.fault(call)

    def _log(self, shard_id: str) -> _Log:
        if shard_id not in self._logs:
            message = f"no such shard: {shard_id}"
            raise ShardGone(message)
        return self._logs[shard_id]

    def _child(self, shard_id: str) -> ChildShard:
        shard = self._logs[shard_id].shard
        return ChildShard(
            shard_id=shard_id,
            parent_shard_ids=shard.parent_shard_ids,
            hash_key_range=shard.hash_key_range,
        )

    def _issue(self, iterator: _Iterator) -> str:
        name = f"{iterator.shard_id}/{iterator.after}/{iterator.instant_ms}/{iterator.made_ms}"
        self._iterators[name] = iterator
        return name

    def _route(self, hash_key: int) -> str:
        for key, log in self._logs.items():
            if log.shard.is_open and log.shard.hash_key_range.contains(hash_key):
                return key
        message = "no open shard covers this key"
        raise StreamGone(message)

    def _horizon_ms(self) -> int:
        return self._clock.now_ms() - self._retention_ms

    def _expire(self, log: _Log) -> None:
        horizon_ms = self._horizon_ms()
        del log.records[: bisect_left(log.records, horizon_ms, key=_arrival_of)]

    def _next_sequence(self) -> str:
        self._sequence += 1
        return str(self._sequence)

    def _open(self, hashes: HashKeyRange, parents: tuple[str, ...]) -> str:
        shard_id = f"shardId-{self._shards_ever:012d}"
        self._shards_ever += 1
        shard = Shard(
            shard_id=shard_id,
            hash_key_range=hashes,
            starting_sequence_number=self._next_sequence(),
            parent_shard_id=parents[0] if parents else None,
            adjacent_parent_shard_id=parents[1] if len(parents) > 1 else None,
        )
        self._logs[shard_id] = _Log(shard, self._clock.now_ms())
        for parent in parents:
            self._logs[parent].children.append(shard_id)
        return shard_id

    def _close(self, shard_id: str) -> None:
        log = self._logs[shard_id]
        log.shard = replace(log.shard, ending_sequence_number=self._next_sequence())
        log.closed_ms = self._clock.now_ms()
