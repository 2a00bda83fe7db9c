"""
What goes into the next PutRecords request.

A request takes of each ready lane as much as its flow, its pace and the quotas allow. A key stands
in one entry of it only, because entries are refused one by one: the second would pass the first.
Inside an aggregate a key may stand any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, groupby
from operator import itemgetter, not_

from msgspec import Struct, field

from shardfleet.kpl.envelope import ENVELOPE_BYTES
from shardfleet.kpl.packing import OutgoingRecord, PlainColumns
from shardfleet.producer.aggregate import LEAST_BYTES, AggregateBuilder
from shardfleet.producer.calls import Part, PutCall, all_records, size_of
from shardfleet.producer.division import divided, is_recurring
from shardfleet.producer.lanes import Lane, Lanes
from shardfleet.producer.settings import ENTRIES_MOST, ProducerSettings

# So many records of keys that are already in the request are passed over, then it is full: a hot
# key must not make every request look at all that waits. An aggregate takes all records of a key
# that it meets, so what is behind it are mostly keys that it has: fewer are passed over then.
_PASSED_OVER_MOST = 4 * ENTRIES_MOST
_PASSED_OVER_BY_AGGREGATES = ENTRIES_MOST // 4
# Where the same keys come again, and more waits than so many aggregates take (at this lane's mean
# size), up to so many aggregates' worth are divided: a hot key must not have all that waits divided
# time and again.
_AGGREGATES_LEAST, _AGGREGATES_LOOKED_AT = 3, 8
# To divide costs 0.3 us a record, a request 0.3 ms: where an aggregate has more records than this,
# two requests cost no more than one that is divided.
_DIVIDED_MOST = 256
# To take out of the queue what fits after all costs less than to put back what does not.
_LIKELY_PERCENT = 99


class RequestEntry(Struct):
    """
    One entry of a request.

    Attributes:
        parts: one record, or those of an aggregate in their order.
        put: what is sent.
        size: bytes of data and key.
        aggregated: whether it is an aggregate.

    """

    parts: list[Part]
    put: OutgoingRecord
    size: int
    aggregated: bool

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody still waits for one of its records."""
        return not all(part.call.is_stopped for part in self.parts)

    def apart(self) -> list[Part]:
        """
        Return what somebody still waits for, to be sent in aggregates of half as many records.

        In the end that is one by one.
        """
        most = sum(map(len, self.parts)) // 2
        for part in self.parts:
            part.company_most = most
        return [part for part in self.parts if not part.call.is_stopped]


class Portion(Struct):
    """
    What one lane sends in a request.

    Attributes:
        lane: whose it is.
        entries: what is sent.

    """

    lane: Lane
    entries: list[RequestEntry] = field(default_factory=list)

    @property
    def parts(self) -> Iterable[Part]:
        """Return all its records in their order."""
        return chain.from_iterable(entry.parts for entry in self.entries)


class Request(Struct, frozen=True):
    """One PutRecords call: the portions of several lanes."""

    portions: Sequence[Portion]

    @property
    def puts(self) -> list[OutgoingRecord]:
        """Return what is sent."""
        return [entry.put for _, entry in self._entries()]

    @property
    def is_divisible(self) -> bool:
        """Return whether it has more than one record."""
        return sum(len(part) for each in self.portions for part in each.parts) > 1

    def has(self, call: PutCall) -> bool:
        """Return whether records of a call are in it."""
        return any(part.call is call for each in self.portions for part in each.parts)

    def halves(self) -> list[Request]:
        """Return two requests of what somebody still waits for, or what is left of them."""
        wanted = [(lane, entry) for lane, entry in self._entries() if entry.is_wanted]
        middle = len(wanted) // 2
        return [_request(half) for half in (wanted[:middle], wanted[middle:]) if half]

    def _entries(self) -> Iterable[tuple[Lane, RequestEntry]]:
        return ((each.lane, entry) for each in self.portions for entry in each.entries)


def _request(entries: Iterable[tuple[Lane, RequestEntry]]) -> Request:
    """Return the request with entries of lanes, those of a lane one after the other."""
    by_lane = groupby(entries, key=itemgetter(0))
    return Request([Portion(lane, [entry for _, entry in its]) for lane, its in by_lane])


def next_request(lanes: Lanes, settings: ProducerSettings, *, now_ms: int) -> Request | None:
    """Take the next request out of the lanes that are ready; None if there is nothing to send."""
    portions: list[Portion] = []
    entries, size = ENTRIES_MOST, settings.request_bytes
    for lane in lanes.ready(now_ms):
        max_entries, pace_bytes = lanes.room(lane, now_ms)
        filler = _Filler(settings, lane, request_bytes=size, alone=not portions)
        portion = filler.fill(min(entries, max_entries), pace_bytes=pace_bytes)
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
        self._latest_keys: Collection[str] = ()
        self._passed_over: list[Part] = []
        self._passed = 0
        self._size = 0
        self._full = False

    def fill(self, max_entries: int, *, pace_bytes: int) -> Portion:
        """Return the portion; in a request of its own, a lane may send one entry of any size."""
        lane, entries = self._lane, self._portion.entries
        while lane.queue and not self._full:
            if len(entries) >= max_entries or (entries and self._size >= pace_bytes):
                break
            call = lane.queue[0].call
            if call.is_stopped:
                lane.left([lane.queue.popleft()])
            elif call.aggregate and lane.shard is not None:
                self._add_aggregates(max_entries, pace_bytes)
            else:
                self._add_plain(max_entries - len(entries), pace_bytes)
        lane.queue.extendleft(reversed(self._passed_over))
        lane.left(self._portion.parts)
        return self._portion

    def _taken(self) -> set[str]:
        """Return the keys that the request has; of its last aggregate nobody asks for them."""
        self._keys.update(self._latest_keys)
        self._latest_keys = ()
        return self._keys

    def _has_room(self, size: int) -> bool:
        """Return whether an entry of a size fits into the request."""
        fits = self._size + size <= self._request_bytes
        return fits or (self._alone and not self._portion.entries)

    def _add_plain(self, most: int, pace_bytes: int) -> None:
        """Send the records of the first part one by one, as many as may go."""
        part = self._lane.queue.popleft()
        head = part.cut(most)
        self._put_back(part)
        passed = []
        keys, columns = self._taken(), head.columns
        for number, record in enumerate(columns.records()):
            if record.partition_key in keys:
                passed.append(number)
                continue
            size = size_of(record)
            is_late = bool(self._portion.entries) and self._size >= pace_bytes
            if is_late or not self._has_room(size):
                self._full = True
                self._put_back(head.of(columns.behind(number)))
                break
            keys.add(record.partition_key)
            self._add([head.of(columns.at([number]), size)], record, size)
        if passed:
            self._pass_over(head.at(passed), most=_PASSED_OVER_MOST)

    def _add_aggregates(self, max_entries: int, pace_bytes: int) -> None:
        """Pack what waits first, of keys that are not in the request yet, into one or several."""
        size = self._settings.aggregate_bytes
        if not self._has_room(size):
            self._full = True
            return
        entries = max_entries - len(self._portion.entries)
        in_request, in_pace = self._request_bytes - self._size, pace_bytes - self._size
        most = max(1, min(entries, in_request // size, -(-in_pace // size)))
        for number, group in enumerate(self._groups(most)):
            if not number or (number < most and self._has_room(size)):
                self._add_aggregate(group)
            else:
                self._put_back(*reversed(group))

    def _groups(self, most: int) -> list[list[Part]]:
        """Take out of the queue what aggregates are made of, not many more of them than may go."""
        lane, room = self._lane, self._likely_room()
        each = min(room * lane.waiting // lane.waiting_bytes, self._settings.aggregate_records)
        several, is_first = 1, not self._portion.entries
        if is_first and 1 < each <= _DIVIDED_MOST and lane.waiting > _AGGREGATES_LEAST * each:
            several = min(most, _AGGREGATES_LOOKED_AT)
        parts = self._gather(several)
        if is_first and parts and is_recurring(parts):
            self._full = True  # Whatever waits behind these is mostly of their keys.
            return divided(parts, records=each) if several > 1 else [parts]
        if several > 1:
            self._put_back(*reversed(parts))
            parts = self._gather()
        return [parts] if parts else []

    def _add_aggregate(self, parts: list[Part]) -> None:
        """Pack the first of some records, as many as fit; the others stay in front."""
        settings, key = self._settings, parts[0].columns.keys[0]
        # An aggregate has the first record's key, which counts as the data does.
        room = min(settings.aggregate_bytes, settings.record_bytes - len(key.encode()))
        builder = AggregateBuilder(
            max_bytes=max(room, LEAST_BYTES), max_records=settings.aggregate_records
        )
        if room < LEAST_BYTES:
            count = 0
        elif any(part.columns.hash_keys for part in parts):
            count = builder.fill(list(all_records(parts)))
        else:
            count = builder.fill_plain(_plain(parts))
        sent = self._first_of(parts, max(1, count))
        if count <= 1:  # Alone, or too large for an aggregate: no wrapping.
            self._add_alone(sent[0])
            return
        put = builder.build()
        if not self._has_room(size_of(put)):
            self._full = True
            self._put_back(*reversed(sent))
            return
        self._latest_keys = builder.partition_keys
        inside = sum([part.size for part in sent])
        self._lane.packed = inside, builder.size_bytes - ENVELOPE_BYTES
        self._add(sent, put, size_of(put), aggregated=True)

    def _add_alone(self, part: Part) -> None:
        (record,) = part.columns.records()
        size = size_of(record)
        if self._has_room(size):
            self._keys.add(record.partition_key)
            self._add([part], record, size)
        else:
            self._full = True
            self._put_back(part)

    def _gather(self, aggregates: int = 1) -> list[Part]:
        """Take what may be in aggregates out of the queue, about as much as fits into so many."""
        queue = self._lane.queue
        found: list[Part] = []
        room = aggregates * self._likely_room()
        most = aggregates * self._settings.aggregate_records
        while queue and most > 0 and room > 0 and not self._full:
            call = queue[0].call
            if call.is_stopped:
                self._lane.left([queue.popleft()])
                continue
            if not call.aggregate:
                break
            part = self._new_ones(queue.popleft())
            count = len(part)
            if not count:
                continue
            if not found:
                most = min(most, part.company_most)
            elif part.company_most != found[0].company_most:
                self._put_back(part)
                break
            if count > most or part.size > room:
                rest, part = part, part.cut(min(most, room * count // part.size + 1))
                self._put_back(rest)
            found.append(part)
            most -= len(part)
            room -= part.size
        return found

    def _likely_room(self) -> int:
        """Return what of data and keys an aggregate will probably take, by the lane's last one."""
        inside, whole = self._lane.packed
        return self._settings.aggregate_bytes * _LIKELY_PERCENT * inside // (100 * whole)

    def _new_ones(self, part: Part) -> Part:
        """Pass over the records whose keys are in the request, and return the others."""
        taken = self._taken()
        if not taken or taken.isdisjoint(part.columns.keys):
            return part
        known = list(map(taken.__contains__, part.columns.keys))
        passed = part.of(part.columns.where(known))
        self._pass_over(passed, most=_PASSED_OVER_BY_AGGREGATES)
        return part.of(part.columns.where(list(map(not_, known))))

    def _pass_over(self, part: Part, *, most: int) -> None:
        self._passed_over.append(part)
        self._passed += len(part)
        self._full = self._full or self._passed >= most

    def _first_of(self, parts: list[Part], count: int) -> list[Part]:
        """Return so many records of the parts; the rest goes back to the front of the queue."""
        for number, part in enumerate(parts):
            if count < len(part):
                found = [*parts[:number], part.cut(count)] if count else parts[:number]
                self._put_back(*reversed(parts[number + 1 :]), part)
                return found
            count -= len(part)
        return parts

    def _put_back(self, *parts: Part) -> None:
        """Put parts before the queue, the last of them in front."""
        self._lane.queue.extendleft(part for part in parts if len(part))

    def _add(
        self, parts: list[Part], put: OutgoingRecord, size: int, *, aggregated: bool = False
    ) -> None:
        self._portion.entries.append(RequestEntry(parts, put, size, aggregated))
        self._size += size


def _plain(parts: Sequence[Part]) -> PlainColumns:
    """Return the records of several parts, which have no explicit hash keys."""
    if len(parts) == 1:
        return PlainColumns(*parts[0].columns[:3])
    keys: list[str] = []
    data: list[bytes] = []
    sizes: list[int] = []
    for part in parts:
        keys += part.columns.keys
        data += part.columns.data
        sizes += part.columns.sizes
    return PlainColumns(keys, data, sizes)
