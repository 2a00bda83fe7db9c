"""
What goes into one request: of each ready lane so much as its flow, its pace and the quotas allow.

A key stands in one entry of a request only, because entries are refused one by one: the second
would pass the first. Inside an aggregate a key may stand any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain

from shardfleet.engine.ports import PutEntry
from shardfleet.engine.producer.lanes import Item, Lane, Lanes, size_of
from shardfleet.engine.producer.settings import ENTRIES_MOST, ProducerSettings
from shardfleet.kpl.aggregate import AggregateBuilder
from shardfleet.kpl.packing import OutgoingRecord

# So many records of keys that are already in the request are passed over, then it is full: a hot
# key must not make every request look at all that waits.
_PASSED_OVER_MOST = 4 * ENTRIES_MOST


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
    put: PutEntry
    size: int


@dataclass(slots=True)
class Portion:
    """What one lane sends in a request."""

    lane: Lane
    entries: list[RequestEntry] = field(default_factory=list)

    @property
    def items(self) -> Iterable[Item]:
        """Return all its records in their order."""
        return chain.from_iterable(entry.items for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Request:
    """One PutRecords call: the portions of several lanes."""

    portions: Sequence[Portion]

    @property
    def puts(self) -> list[PutEntry]:
        """Return what is sent."""
        return [entry.put for portion in self.portions for entry in portion.entries]


def next_request(lanes: Lanes, settings: ProducerSettings, *, now_ms: int) -> Request | None:
    """Take the next request out of the lanes that are ready; None if there is nothing to send."""
    portions: list[Portion] = []
    entries, size = ENTRIES_MOST, settings.request_bytes
    for lane in lanes.ready(now_ms):
        room = lanes.room(lane, now_ms)
        most = _Room(min(entries, room[0]), pace_bytes=room[1], request_bytes=size)
        portion = _Filler(settings, lane, most).fill(alone=not portions)
        if portion.entries:
            taken = sum(entry.size for entry in portion.entries)
            lanes.depart(lane, entries=len(portion.entries), size=taken, now_ms=now_ms)
            portions.append(portion)
            entries, size = entries - len(portion.entries), size - taken
        if entries <= 0 or size <= 0:
            break
    return Request(portions) if portions else None


@dataclass(frozen=True, slots=True)
class _Room:
    """What a lane may add: entries; bytes after which its pace ends it; bytes of the request."""

    entries: int
    _: KW_ONLY
    pace_bytes: int
    request_bytes: int


class _Filler:
    """Takes records from the front of a lane; what it passes over stays in front."""

    def __init__(self, settings: ProducerSettings, lane: Lane, room: _Room) -> None:
        self._settings = settings
        self._lane = lane
        self._room = room
        self._portion = Portion(lane)
        self._keys: set[str] = set()
        self._passed_over: list[Item] = []
        self._size = 0

    def fill(self, *, alone: bool) -> Portion:
        """Return the portion; in a request of its own, a lane may send one entry of any size."""
        queue, entries, room = self._lane.queue, self._portion.entries, self._room
        while len(entries) < room.entries and (not entries or self._size < room.pace_bytes):
            item = self._next()
            if item is None:
                break
            record, delivery, _ = item
            more = self._settings.aggregate_bytes if delivery.aggregate else size_of(record)
            if self._size + more > room.request_bytes and (entries or not alone):
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
        record = item[0]
        put = PutEntry(
            data=record.data,
            partition_key=record.partition_key,
            explicit_hash_key=record.explicit_hash_key,
        )
        self._add(RequestEntry([item], put, size_of(record)))
        self._keys.add(record.partition_key)

    def _add_aggregate(self, first: Item) -> None:
        """Pack the record and those behind it, as many as fit."""
        builder = AggregateBuilder(
            max_bytes=self._settings.aggregate_bytes, max_records=self._settings.aggregate_records
        )
        run = self._run(first)
        records: list[OutgoingRecord] = [item[0] for item in run]
        count = builder.fill(records)
        self._lane.queue.extendleft(reversed(run[max(1, count) :]))
        if count <= 1:  # Alone, or too large for an aggregate: no wrapping.
            self._add_plain(first)
            return
        built = builder.build()
        put = PutEntry(
            data=built.data,
            partition_key=built.partition_key,
            explicit_hash_key=built.explicit_hash_key,
        )
        self._keys.update(builder.partition_keys)
        self._add(
            RequestEntry(run[:count], put, len(built.data) + len(built.partition_key.encode()))
        )

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

    def _add(self, entry: RequestEntry) -> None:
        self._portion.entries.append(entry)
        self._size += entry.size
