"""
A lane per shard: what waits for it, how fast it may go, and what of it goes into the next request.

One request of a lane is in flight at a time, so nothing overtakes a refused record, and a shard
that refuses holds up nobody else's. When the map of shards changes, the waiting records move to
the lanes of their new owners; such a lane begins only when the old lanes it inherits from have
their last answer, because what that answer refuses goes first.

A request takes of each ready lane as much as its flow, its pace and the quotas allow. A key stands
in one entry of it only, because entries are refused one by one: the second would pass the first.
Inside an aggregate a key may stand any number of times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from shardfleet.domain.reading.flow_control import Flow, after_answer, unhindered
from shardfleet.domain.reading.pacing import Bucket, available, full_bucket, spend, wait_ms
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE, HashKeyRange
from shardfleet.domain.stream.shard_map import ShardMap
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.producer.settings import (
    ENTRIES_MOST,
    ProducerSettings,
    Receipt,
    ShardFlow,
)
from shardfleet.kpl.aggregate import AggregateBuilder
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.kpl.packing import OutgoingRecord

_KEYS_REMEMBERED = 50_000  # About 10 MB; a stream of more keys begins anew.
# So many records of keys that are already in the request are passed over, then it is full: a hot
# key must not make every request look at all that waits.
_PASSED_OVER_MOST = 4 * ENTRIES_MOST
_PORTION = 10  # A paced lane waits until a tenth of a second's worth may go, not for each record.


@dataclass(slots=True, eq=False)
class PutCall:
    """
    The records of one call.

    Attributes:
        aggregate: whether they may travel in aggregates.
        until_ms: when to give up what is still refused, monotonic milliseconds.
        receipts: by place in the call; None while not accepted.
        left: how many are not accepted yet.
        on_over: called once, when everything is accepted or the rest is given up.
        error: why the rest is not sent any more.

    """

    aggregate: bool
    until_ms: int
    receipts: list[Receipt | None]
    left: int
    on_over: Callable[[PutCall], None]
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Send nothing more of it; the first error counts."""
        if self.error is None and self.left:
            self.error = error
            self.on_over(self)

    def accept(self, number: int, receipt: Receipt) -> None:
        """Note that the stream has one of the records."""
        if self.receipts[number] is None:
            self.receipts[number] = receipt
            self.left -= 1
            if not self.left and self.error is None:
                self.on_over(self)


Item = tuple[OutgoingRecord, PutCall, int]
"""A waiting record, its call, and its place in the call."""


def size_of(record: OutgoingRecord) -> int:
    """Return bytes of data and key, as the quotas count."""
    key = record.partition_key
    return len(record.data) + (len(key) if key.isascii() else len(key.encode()))


@dataclass(slots=True, eq=False)
class Lane:
    """
    The way to one shard.

    Attributes:
        shard: None for records that no listed shard owns.
        flow: batch size and pause.
        records: pace, in stream records.
        bytes: pace, in bytes.
        queue: what waits, per key in order.
        waiting_bytes: of the queue.
        due_ms: when the oldest has lingered long enough; infinite when nothing waits.
        not_before_ms: end of the pause.
        busy: a request is in flight.
        after: lanes whose answer has to come first.

    """

    shard: Shard | None
    flow: Flow
    records: Bucket
    bytes: Bucket
    queue: deque[Item] = field(default_factory=deque)
    waiting_bytes: int = 0
    due_ms: float = math.inf
    not_before_ms: float = 0
    busy: bool = False
    after: list[Lane] = field(default_factory=list)

    @property
    def shard_id(self) -> str | None:
        """Return the shard's id."""
        return self.shard.shard_id if self.shard else None

    @property
    def bounds(self) -> HashKeyRange:
        """Return the hash keys it may hold."""
        return self.shard.hash_key_range if self.shard else WHOLE_HASH_SPACE

    def last(self, item: Item, *, due_ms: float) -> None:
        """Put an item behind everything that waits; it may linger until ``due_ms``."""
        self.queue.append(item)
        self.waiting_bytes += size_of(item[0])
        self.due_ms = min(self.due_ms, due_ms)

    def first(self, items: Sequence[Item]) -> None:
        """Put items before everything that waits."""
        self.queue.extendleft(reversed(items))
        self.waiting_bytes += sum(size_of(item[0]) for item in items)
        if items:
            self.due_ms = 0


class Lanes:
    """
    All lanes of one producer; no effects, no clock of its own.

    Args:
        settings: paces and limits.

    Attributes:
        map: the shards as far as they are known.

    """

    def __init__(self, settings: ProducerSettings) -> None:
        self.map = ShardMap()
        self._settings = settings
        self._lanes: dict[str | None, Lane] = {}
        self._draining: list[Lane] = []
        self._lane_of_key: dict[str, Lane] = {}

    @property
    def anything_waits(self) -> bool:
        """Tell whether a lane has a record."""
        return any(lane.queue for lane in self._lanes.values())

    def waiting(self) -> list[Item]:
        """Return everything that waits, in no order."""
        return [item for lane in self._lanes.values() for item in lane.queue]

    def owns(self, shard_id: str, record: OutgoingRecord) -> bool:
        """Tell whether a shard is known and the record lies in its range of hash keys."""
        hash_key = effective_hash(record.partition_key, record.explicit_hash_key)
        return self.map.owns(shard_id, hash_key)

    def flows(self) -> list[ShardFlow]:
        """Describe every lane."""
        return [
            ShardFlow(
                shard_id=lane.shard_id,
                batch=lane.flow.batch,
                pause_ms=lane.flow.pause_ms,
                waiting=len(lane.queue),
                waiting_bytes=lane.waiting_bytes,
            )
            for lane in self._lanes.values()
        ]

    def accept(self, items: Iterable[Item], *, due_ms: float, now_ms: int) -> None:
        """Queue records behind what waits; they may linger until ``due_ms``."""
        for item in items:
            self._lane_for(item[0], now_ms=now_ms).last(item, due_ms=due_ms)

    def hurry(self, now_ms: int) -> None:
        """Let nothing linger any longer."""
        for lane in self._lanes.values():
            lane.due_ms = min(lane.due_ms, now_ms) if lane.queue else lane.due_ms

    def learn(self, listing: Iterable[Shard], *, now_ms: int) -> None:
        """Take a new listing; records move to the lanes of their owners."""
        self.map = ShardMap(listing)
        self._lane_of_key.clear()
        owned = {shard.shard_id: shard.hash_key_range for shard in self.map.owners}
        retired = [
            lane
            for lane in self._lanes.values()
            if lane.shard is None or owned.get(lane.shard.shard_id) != lane.bounds
        ]
        for lane in retired:
            del self._lanes[lane.shard_id]
            if lane.busy:
                self._draining.append(lane)
        for lane in retired:
            for item in lane.queue:
                self._lane_for(item[0], now_ms=now_ms).last(item, due_ms=lane.due_ms)
            lane.queue.clear()
            lane.waiting_bytes = 0

    def ready(self, now_ms: int) -> list[Lane]:
        """Return the lanes that may send now, the longest due first."""
        found = [lane for lane in self._lanes.values() if self._ready_at(lane, now_ms) <= now_ms]
        return sorted(found, key=lambda lane: lane.due_ms)

    def next_at_ms(self, now_ms: int) -> float:
        """Return when a lane will be ready; infinite if that depends on answers or new records."""
        return min(
            (self._ready_at(each, now_ms) for each in self._lanes.values()), default=math.inf
        )

    def room(self, lane: Lane, now_ms: int) -> tuple[int, int]:
        """Return how many entries and bytes a lane may send now; at least one entry always."""
        records = available(lane.records, self._settings.record_rate, now_ms=now_ms)
        size = available(lane.bytes, self._settings.byte_rate, now_ms=now_ms)
        return max(1, min(lane.flow.batch, records)), max(1, size)

    def depart(self, lane: Lane, *, entries: int, size: int, now_ms: int) -> None:
        """Note that so much is on its way; the lane is busy until ``arrive``."""
        lane.busy = True
        lane.after.clear()
        rates = self._settings.record_rate, self._settings.byte_rate
        lane.records, _ = spend(lane.records, rates[0], amount=entries, now_ms=now_ms)
        lane.bytes, _ = spend(lane.bytes, rates[1], amount=size, now_ms=now_ms)
        if not lane.queue:
            lane.due_ms = math.inf

    def arrive(self, lane: Lane, refused: Sequence[Item], *, now_ms: int) -> None:
        """Note that the answer came; what it refused goes before everything later."""
        lane.busy = False
        if self._lanes.get(lane.shard_id) is lane:
            lane.first(refused)
            return
        if lane in self._draining:
            self._draining.remove(lane)
        heirs: dict[int, tuple[Lane, list[Item]]] = {}
        for item in refused:
            heir = self._lane_for(item[0], now_ms=now_ms)
            heirs.setdefault(id(heir), (heir, []))[1].append(item)
        for heir, items in heirs.values():
            heir.first(items)

    def judge(self, lane: Lane, *, sent: int, refused: int) -> None:
        """Adapt the flow of a lane to an answer."""
        lane.flow = after_answer(lane.flow, self._settings.flow, sent=sent, refused=refused)

    def _ready_at(self, lane: Lane, now_ms: int) -> float:
        if not lane.queue or lane.busy or any(other.busy for other in lane.after):
            return math.inf
        settings = self._settings
        enough = (
            len(lane.queue) >= lane.flow.batch
            or lane.waiting_bytes * _PORTION >= settings.shard_bytes_per_s
        )
        due_ms = now_ms if enough else lane.due_ms
        records = min(len(lane.queue), -(-settings.shard_records_per_s // _PORTION))
        size = min(lane.waiting_bytes, -(-settings.shard_bytes_per_s // _PORTION))
        pace_ms = max(
            wait_ms(lane.records, settings.record_rate, now_ms=now_ms, needed=records),
            wait_ms(lane.bytes, settings.byte_rate, now_ms=now_ms, needed=size),
        )
        return max(due_ms, lane.not_before_ms, now_ms + pace_ms)

    def _lane_for(self, record: OutgoingRecord, *, now_ms: int) -> Lane:
        explicit = record.explicit_hash_key
        lane = self._lane_of_key.get(record.partition_key) if explicit is None else None
        if lane is None:
            owner = self.map.owner(effective_hash(record.partition_key, explicit))
            lane = self._lanes.get(owner.shard_id if owner else None) or self._open(owner, now_ms)
            if explicit is None:
                if len(self._lane_of_key) >= _KEYS_REMEMBERED:
                    self._lane_of_key.clear()
                self._lane_of_key[record.partition_key] = lane
        return lane

    def _open(self, owner: Shard | None, now_ms: int) -> Lane:
        lane = Lane(
            owner,
            unhindered(self._settings.flow),
            full_bucket(self._settings.record_rate, now_ms=now_ms),
            full_bucket(self._settings.byte_rate, now_ms=now_ms),
        )
        lane.after = [other for other in self._draining if _overlap(other.bounds, lane.bounds)]
        self._lanes[lane.shard_id] = lane
        return lane


def _overlap(one: HashKeyRange, other: HashKeyRange) -> bool:
    return one.start <= other.end and other.start <= one.end


@dataclass(slots=True)
class RequestEntry:
    """
    One entry of a request.

    Attributes:
        items: one, or those of an aggregate in their order.
        put: what is sent.
        size: bytes of data and key.

    """

    items: list[Item]
    put: OutgoingRecord
    size: int


@dataclass(slots=True)
class Portion:
    """
    What one lane sends in a request.

    Attributes:
        lane: whose it is.
        entries: what is sent.
        again: of its records, those that are to be sent again.

    """

    lane: Lane
    entries: list[RequestEntry] = field(default_factory=list)
    again: list[Item] = field(default_factory=list)

    @property
    def items(self) -> Iterable[Item]:
        """Return all its records in their order."""
        return chain.from_iterable(entry.items for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Request:
    """One PutRecords call: the portions of several lanes."""

    portions: Sequence[Portion]

    @property
    def puts(self) -> list[OutgoingRecord]:
        """Return what is sent."""
        return [entry.put for portion in self.portions for entry in portion.entries]


def next_request(lanes: Lanes, settings: ProducerSettings, *, now_ms: int) -> Request | None:
    """Take the next request out of the lanes that are ready; None if there is nothing to send."""
    portions: list[Portion] = []
    entries, size = ENTRIES_MOST, settings.request_bytes
    for lane in lanes.ready(now_ms):
        entries_most, pace_bytes = lanes.room(lane, now_ms)
        filler = _Filler(settings, lane, request_bytes=size, alone=not portions)
        portion = filler.fill(min(entries, entries_most), pace_bytes=pace_bytes)
        if portion.entries:
            taken = sum(entry.size for entry in portion.entries)
            lanes.depart(lane, entries=len(portion.entries), size=taken, now_ms=now_ms)
            portions.append(portion)
            entries, size = entries - len(portion.entries), size - taken
        if entries <= 0 or size <= 0:
            break
    return Request(portions) if portions else None


class _Filler:
    """Takes records from the front of a lane; what it passes over stays in front."""

    def __init__(
        self, settings: ProducerSettings, lane: Lane, *, request_bytes: int, alone: bool
    ) -> None:
        self._settings = settings
        self._lane = lane
        self._request_bytes = request_bytes
        self._alone = alone
        self._portion = Portion(lane)
        self._keys: set[str] = set()
        self._passed_over: list[Item] = []
        self._size = 0

    def fill(self, entries_most: int, *, pace_bytes: int) -> Portion:
        """Return the portion; in a request of its own, a lane may send one entry of any size."""
        queue, entries = self._lane.queue, self._portion.entries
        while len(entries) < entries_most and (not entries or self._size < pace_bytes):
            item = self._next()
            if item is None:
                break
            record, delivery, _ = item
            more = self._settings.aggregate_bytes if delivery.aggregate else size_of(record)
            if self._size + more > self._request_bytes and (entries or not self._alone):
                queue.appendleft(item)
                break
            if delivery.aggregate and self._lane.shard is not None:
                self._add_aggregate(item)
            else:
                self._add_plain(item)
        queue.extendleft(reversed(self._passed_over))
        self._lane.waiting_bytes -= sum(size_of(item[0]) for item in self._portion.items)
        return self._portion

    def _next(self) -> Item | None:
        """Return the next record whose key is not in the request yet, and drop given-up ones."""
        queue, keys = self._lane.queue, self._keys
        while queue and len(self._passed_over) < _PASSED_OVER_MOST:
            item = queue.popleft()
            if item[1].error is not None:
                self._lane.waiting_bytes -= size_of(item[0])
            elif item[0].partition_key in keys:
                self._passed_over.append(item)
            else:
                return item
        return None

    def _add_plain(self, item: Item) -> None:
        self._add([item], item[0])
        self._keys.add(item[0].partition_key)

    def _add_aggregate(self, first: Item) -> None:
        """Pack the record and those behind it, as many as fit."""
        builder = AggregateBuilder(
            max_bytes=self._settings.aggregate_bytes, max_records=self._settings.aggregate_records
        )
        run = self._run(first)
        count = builder.fill([item[0] for item in run])
        self._lane.queue.extendleft(reversed(run[max(1, count) :]))
        if count <= 1:  # Alone, or too large for an aggregate: no wrapping.
            self._add_plain(first)
            return
        self._keys.update(builder.partition_keys)
        self._add(run[:count], builder.build())

    def _run(self, first: Item) -> list[Item]:
        """Return the record and what may share its aggregate, about as much as can fit."""
        run, size = [first], len(first[0].data)
        while len(run) < self._settings.aggregate_records and size < self._settings.aggregate_bytes:
            item = self._next()
            if item is None:
                break
            if not item[1].aggregate:
                self._lane.queue.appendleft(item)
                break
            run.append(item)
            size += len(item[0].data)
        return run

    def _add(self, items: list[Item], put: OutgoingRecord) -> None:
        size = size_of(put)
        self._portion.entries.append(RequestEntry(items, put, size))
        self._size += size
