"""
A lane per shard: what waits for it, how fast it may go, and whose turn it is.

One request of a lane is in flight at a time, so nothing overtakes a refused record, and a shard
that refuses holds up nobody else's. When the map of shards changes, the waiting records move to
the lanes of their new owners; such a lane begins only when the old lanes it inherits from have
their last answer, because what that answer refuses goes first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct, field

from shardfleet.domain.reading.flow_control import Flow, after_answer, unhindered
from shardfleet.domain.reading.pacing import Bucket, available, full_bucket, spend, wait_ms
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE, HashKeyRange
from shardfleet.domain.stream.shard_map import ShardMap
from shardfleet.domain.stream.shards import Shard
from shardfleet.kpl.hash_keys import effective_hash, hash_digests
from shardfleet.kpl.packing import OutgoingRecord, looked_up
from shardfleet.producer.calls import Columns, Part
from shardfleet.producer.settings import ProducerSettings, ShardFlow

# The lanes of so many keys are remembered twice over: a generation that has become so large is
# the old one then, and what nobody asks for goes with the next. About 20 MB both.
_KEYS_REMEMBERED = 65_536
_PORTION = 10  # A paced lane waits until a tenth of a second's worth may go, not for each record.


class Lane(Struct, eq=False):
    """
    The way to one shard.

    Attributes:
        shard: None for records that no listed shard owns.
        flow: batch size and pause.
        records: pace, in stream records.
        bytes: pace, in bytes.
        queue: what waits, per key in order.
        waiting: records of the queue.
        waiting_bytes: their data and keys.
        due_ms: when the oldest has lingered long enough; infinite when nothing waits.
        not_before_ms: end of the pause.
        busy: a request is in flight.
        packed: of its last aggregate, bytes of data and keys, and of what they became.
        after: lanes whose answer has to come first.

    """

    shard: Shard | None
    flow: Flow
    records: Bucket
    bytes: Bucket
    queue: deque[Part] = field(default_factory=deque)
    waiting: int = 0
    waiting_bytes: int = 0
    due_ms: float = math.inf
    not_before_ms: float = 0
    busy: bool = False
    packed: tuple[int, int] = (1, 1)
    after: list[Lane] = field(default_factory=list)

    @property
    def shard_id(self) -> str | None:
        """Return the shard's id."""
        return self.shard.shard_id if self.shard else None

    @property
    def bounds(self) -> HashKeyRange:
        """Return the hash keys it may hold."""
        return self.shard.hash_key_range if self.shard else WHOLE_HASH_SPACE

    def last(self, part: Part, *, due_ms: float) -> None:
        """Put a part behind everything that waits; it may linger until ``due_ms``."""
        self.queue.append(part)
        self._add(part)
        self.due_ms = min(self.due_ms, due_ms)

    def first(self, parts: Sequence[Part]) -> None:
        """Put parts before everything that waits."""
        self.queue.extendleft(reversed(parts))
        for part in parts:
            self._add(part)
        if parts:
            self.due_ms = 0

    def left(self, parts: Iterable[Part]) -> None:
        """Note that parts that were taken out of the queue do not wait any more."""
        for part in parts:
            self.waiting -= len(part)
            self.waiting_bytes -= part.size

    def _add(self, part: Part) -> None:
        self.waiting += len(part)
        self.waiting_bytes += part.size


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
        self._rates = settings.record_rate, settings.byte_rate
        self._lanes: dict[str | None, Lane] = {}
        self._draining: list[Lane] = []
        self._lane_of_key: dict[str, Lane] = {}
        self._lane_of_older_key: dict[str, Lane] = {}

    @property
    def anything_waits(self) -> bool:
        """Return whether a lane has a record."""
        return any(lane.queue for lane in self._lanes.values())

    def owns(self, shard_id: str, record: OutgoingRecord) -> bool:
        """Return whether a shard is known and the record lies in its range of hash keys."""
        hash_key = effective_hash(record.partition_key, record.explicit_hash_key)
        return self.map.owns(shard_id, hash_key)

    def flows(self) -> list[ShardFlow]:
        """Describe every lane."""
        return [
            ShardFlow(
                shard_id=lane.shard_id,
                batch=lane.flow.batch,
                pause_ms=lane.flow.pause_ms,
                waiting=lane.waiting,
                waiting_bytes=lane.waiting_bytes,
            )
            for lane in self._lanes.values()
        ]

    def accept(self, part: Part, *, due_ms: float, now_ms: int) -> None:
        """Queue records behind what waits; they may linger until ``due_ms``."""
        for lane, its in self._routed(part, now_ms=now_ms):
            lane.last(its, due_ms=due_ms)

    def hurry(self, now_ms: int) -> None:
        """Let nothing linger any longer."""
        for lane in self._lanes.values():
            lane.due_ms = min(lane.due_ms, now_ms) if lane.queue else lane.due_ms

    def forget(self) -> None:
        """Let nothing wait that nobody asks for any more."""
        for lane in self._lanes.values():
            lane.left(part for part in lane.queue if part.call.is_stopped)
            lane.queue = deque(part for part in lane.queue if not part.call.is_stopped)
            lane.due_ms = lane.due_ms if lane.queue else math.inf

    def learn(self, listing: Iterable[Shard], *, now_ms: int) -> None:
        """Take a new listing; records move to the lanes of their owners."""
        self.map = ShardMap(listing)
        self._lane_of_key.clear()
        self._lane_of_older_key.clear()
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
            for part in lane.queue:
                for heir, its in self._routed(part, now_ms=now_ms):
                    heir.last(its, due_ms=lane.due_ms)

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
        record_rate, byte_rate = self._rates
        records = available(lane.records, record_rate, now_ms=now_ms)
        size = available(lane.bytes, byte_rate, now_ms=now_ms)
        return max(1, min(lane.flow.batch, records)), max(1, size)

    def depart(self, lane: Lane, *, entries: int, size: int, now_ms: int) -> None:
        """Note that so much is on its way; the lane is busy until ``arrive``."""
        lane.busy = True
        lane.after.clear()
        record_rate, byte_rate = self._rates
        lane.records, _ = spend(lane.records, record_rate, amount=entries, now_ms=now_ms)
        lane.bytes, _ = spend(lane.bytes, byte_rate, amount=size, now_ms=now_ms)
        if not lane.queue:
            lane.due_ms = math.inf

    def arrive(self, lane: Lane, refused: Sequence[Part], *, now_ms: int) -> None:
        """Note that the answer came; what it refused goes before everything later."""
        lane.busy = False
        if self._lanes.get(lane.shard_id) is lane:
            lane.first(refused)
            return
        if lane in self._draining:
            self._draining.remove(lane)
        heirs: dict[Lane, list[Part]] = {}
        for part in refused:
            for heir, its in self._routed(part, now_ms=now_ms):
                heirs.setdefault(heir, []).append(its)
        for heir, parts in heirs.items():
            heir.first(parts)

    def judge(self, lane: Lane, *, sent: int, refused: int) -> None:
        """Adapt the flow of a lane to an answer."""
        lane.flow = after_answer(lane.flow, self._settings.flow, sent=sent, refused=refused)

    def _ready_at(self, lane: Lane, now_ms: int) -> float:
        if not lane.queue or lane.busy or any(other.busy for other in lane.after):
            return math.inf
        settings, (record_rate, byte_rate) = self._settings, self._rates
        enough = (
            lane.waiting >= lane.flow.batch
            or lane.waiting_bytes * _PORTION >= settings.shard_bytes_per_s
        )
        due_ms = now_ms if enough else lane.due_ms
        records = min(lane.waiting, -(-settings.shard_records_per_s // _PORTION))
        size = min(lane.waiting_bytes, -(-settings.shard_bytes_per_s // _PORTION))
        pace_ms = max(
            wait_ms(lane.records, record_rate, now_ms=now_ms, needed=records),
            wait_ms(lane.bytes, byte_rate, now_ms=now_ms, needed=size),
        )
        return max(due_ms, lane.not_before_ms, now_ms + pace_ms)

    def _routed(self, part: Part, *, now_ms: int) -> Iterable[tuple[Lane, Part]]:
        """Return a part's records by the lanes they belong to, each in its order."""
        return part.by(self._lanes_for(part.columns, now_ms=now_ms))

    def _lanes_for(self, columns: Columns, *, now_ms: int) -> Sequence[Lane]:
        keys, hash_keys = columns.keys, columns.hash_keys
        if self.map.whole is not None or not self.map.owners:
            return [self._lane_of(self.map.whole, now_ms)] * len(keys)
        try:
            found = looked_up(self._lane_of_key, keys)
        except KeyError:
            known = self._lane_of_key
            new = self._lanes_of_new(dict.fromkeys(key for key in keys if key not in known), now_ms)
            found = [new.get(key) or known[key] for key in keys]
        if hash_keys:
            found = list(found)
            for number, hash_key in enumerate(hash_keys):
                if hash_key is not None:
                    owner = self.map.owner(effective_hash(keys[number], hash_key))
                    found[number] = self._lane_of(owner, now_ms)
        return found

    def _lanes_of_new(self, keys: Collection[str], now_ms: int) -> dict[str, Lane]:
        """Return the lanes of keys that the younger generation lacks; it has them then."""
        older = self._lane_of_older_key
        found = {key: older[key] for key in keys if key in older}
        unknown = [key for key in keys if key not in found]
        owners = self.map.owners_of_digests(hash_digests(unknown))
        different = {id(owner): owner for owner in owners}
        lanes = {it: self._lane_of(owner, now_ms) for it, owner in different.items()}
        found.update(zip(unknown, map(lanes.__getitem__, map(id, owners)), strict=True))
        if len(self._lane_of_key) + len(found) > _KEYS_REMEMBERED:
            self._lane_of_older_key, self._lane_of_key = self._lane_of_key, {}
        if len(found) <= _KEYS_REMEMBERED:
            self._lane_of_key.update(found)
        return found

    def _lane_of(self, owner: Shard | None, now_ms: int) -> Lane:
        return self._lanes.get(owner.shard_id if owner else None) or self._open(owner, now_ms)

    def _open(self, owner: Shard | None, now_ms: int) -> Lane:
        record_rate, byte_rate = self._rates
        lane = Lane(
            owner,
            unhindered(self._settings.flow),
            full_bucket(record_rate, now_ms=now_ms),
            full_bucket(byte_rate, now_ms=now_ms),
        )
        lane.after = [other for other in self._draining if _overlap(other.bounds, lane.bounds)]
        self._lanes[lane.shard_id] = lane
        return lane


def _overlap(one: HashKeyRange, other: HashKeyRange) -> bool:
    return one.start <= other.end and other.start <= one.end
