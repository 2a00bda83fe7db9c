"""
The stream: the memory stream, reshards and puts recorded in the ledger, and a faulty reader.

The faults are Kinesis' own: throttles, iterators that expire early, pages that contradict
themselves about a shard's end, empty pages with lag, records that appear late, listings of a
moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import ChildShard, Shard
from shardfleet.engine.ports import ListingFilter
from shardfleet.engine.retry import ATTEMPTS_MOST
from shardfleet.errors import (
    IteratorExpired,
    ShardGone,
    StreamGone,
    SubscriptionHeld,
    Throttled,
)
from shardfleet.kpl.envelope import ENVELOPE_BYTES, MAGIC
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import AggregateBuilder
from shardfleet.records import StreamRecord
from shardfleet_testkit.checkers import SourceRecord
from shardfleet_testkit.memory_stream import MemoryStream, Polled
from shardfleet_testkit.pushed_stream import MemoryConsumer, MemorySubscription
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.wire import Wire

# Of the events of subscriptions so many are the last that comes, unsaid or said.
_SILENT, _BROKEN_OFF, _TAKEN_OVER = 0.001, 0.001, 0.001
_SILENCE_MS = 3_600_000
_LISTING_BEHIND_MS = 4_000
_VISIBLE_AFTER_MS = 1_500
# As described: so short that shards expire within a run; a record leaves only when it is done.
_RETENTION_MS = 120_000
_DAMAGED_ONE_IN = 20
_LISTS_NOTHING = 2
# So many denials of a stream that is there are for once; one more in a row is believed.
_LIES_MOST = ATTEMPTS_MOST - 1
_LIES_MS = 60_000
# As large as an aggregate that is taken apart by itself, and as slow as a step of that may be.
_BOMB_BYTES = 257 * 1024
_BOMB_S = 0.25


class _Bomb(bytes):
    """The data of a small aggregate that says it is large, and takes long to be taken apart."""

    explode: Callable[[], None]

    def __len__(self) -> int:
        return _BOMB_BYTES

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and place.start == len(MAGIC):
            self.explode()
        return super().__getitem__(place)


class TrueStream:
    """
    The stream as it is.

    Attributes:
        memory: the stream.
        consumer: by which its records may be pushed.
        reshards: how many there were.
        read_to: shard to the greatest sequence number that any read has returned.
        bombs: sequence numbers of records that take long to be taken apart.

    """

    def __init__(self, around: Surroundings, *, shards: int) -> None:
        """Create the stream."""
        self.memory = MemoryStream(around.clock, shards=shards)
        self.consumer = MemoryConsumer(lambda: self.memory, around.clock)
        self.reshards = 0
        self.read_to: dict[str, int] = {}
        self.bombs: set[str] = set()
        self._around = around
        self._chance = around.chance("stream")
        self._listings: deque[tuple[int, Sequence[Shard]]] = deque(maxlen=16)
        self._listed: list[str] = []
        for shard_id in self.memory.open_shard_ids:
            self._opened(shard_id, ())
        self._remember()

    def put(self, key: str, *, users: int = 1, kills: bool = False) -> None:
        """Put the next records of a key, as one aggregate if there are several; one may kill."""
        first = self._around.ledger.last_number(key) + 1
        payloads = [f"{key}/{number}".encode() for number in range(first, first + users)]
        if users == 1 and self._chance.randrange(_DAMAGED_ONE_IN) == 0:
            # What looks like an aggregate and is none is a record like any other.
            payloads[0] = MAGIC + payloads[0] + bytes(ENVELOPE_BYTES)
        self.send(key, payloads, kills=kills)

    def put_bombs(self, key: str, count: int) -> None:
        """Put aggregates of a key, one after the other, that take long to be taken apart."""
        for _ in range(count):
            number = self._around.ledger.last_number(key) + 1
            self.send(key, [f"{key}/{number}".encode()], is_aggregate=True)
            self.bombs.add(str(self.memory.sequence))

    def send(
        self,
        key: str,
        payloads: Sequence[bytes],
        *,
        kills: bool = False,
        is_aggregate: bool = False,
    ) -> None:
        """Put records of a key, as one aggregate if there are several or told; one may kill."""
        ledger, now_ms, users = self._around.ledger, self._around.now_ms, len(payloads)
        numbers = [ledger.next_number(key) for _ in payloads]
        outer, data = key, payloads[0]
        if users > 1 or is_aggregate:
            outer = "a"  # as the KPL does (amazon-kinesis-producer issue 439)
            builder = AggregateBuilder()
            for payload in payloads:
                builder.add(OutgoingRecord(key, payload))
            data = builder.build().data
        shard_id = self.shard_of(key)
        sequence = int(self.memory.put(data, key=outer, shard_id=shard_id))
        self.memory.calls.clear()
        for sub, (number, payload) in enumerate(zip(numbers, payloads, strict=True)):
            entry = SourceRecord(shard_id, (sequence, sub), key, number, now_ms, payload)
            entry.kills = kills and sub == users // 2
            ledger.put(entry)
        self._around.log("producer", "put", f"{key}/{numbers[0]}+{users}", shard_id, sequence)

    def reshard(self, *, grows: bool, least: int, most: int) -> None:
        """Split a shard or merge two, rather the one if it ``grows``, within both bounds."""
        memory, open_ids = self.memory, self.memory.open_shard_ids
        ranges = {key: memory.shard(key).hash_key_range for key in open_ids}
        by_start = sorted(open_ids, key=lambda key: ranges[key].start)
        chosen = self._chance.choice((grows, grows, grows, not grows))
        splits = len(open_ids) <= least or (chosen and len(open_ids) < most)
        if splits:
            self.split(self._chance.choice(by_start))
        else:
            index = self._chance.randrange(len(by_start) - 1)
            self.merge(by_start[index], by_start[index + 1])

    def split(self, parent: str) -> None:
        """Split an open shard in the middle."""
        self._resharded((parent,), self.memory.split(parent))

    def merge(self, parent: str, adjacent: str) -> None:
        """Merge two open shards that are neighbours."""
        self._resharded((parent, adjacent), (self.memory.merge(parent, adjacent),))

    def _resharded(self, parents: Sequence[str], children: Sequence[str]) -> None:
        for child in children:
            self._opened(child, parents)
        self.reshards += 1
        self._remember()
        self._around.log("stream", "reshard", ",".join(parents), "into", ",".join(children))

    def create_again(self, shards: int) -> None:
        """Delete the stream and create another of the same name: shard ids repeat (H12)."""
        self._around.log("stream", "is deleted and created again")
        self._around.ledger.give_up(self._around.now_ms)
        self.memory.create_again(shards)
        self._listed = list(self.memory.open_shard_ids)
        self._remember()

    def is_listed(self, shard_id: str) -> bool:
        """Return whether the stream still has a shard."""
        return shard_id in self._listed

    def forget(self, *, but: AbstractSet[str]) -> None:
        """Let one closed shard leave the stream whose records are all done, as retention does."""
        open_windows = {entry.shard_id for entry in self._around.ledger.without_result()}
        for shard_id in self._listed:
            truth = self._around.ledger.shards[shard_id]
            gone = [parent for parent in truth.parents if parent in self._listed]
            is_over = truth.children and truth.first_unfinished() is None and not gone
            if is_over and shard_id not in but | open_windows:
                self._listed.remove(shard_id)
                self.memory.forget_shard(shard_id)
                truth.has_left = True
                self._remember()
                self._around.log("stream", "forgets", shard_id)
                return

    def listing(self, behind_ms: int) -> Sequence[Shard]:
        """Return the shards as they were."""
        moment_ms = self._around.now_ms - behind_ms
        for at_ms, shards in reversed(self._listings):
            if at_ms <= moment_ms:
                return shards
        return self._listings[0][1]

    def torn_listing(self, manner: int) -> Sequence[Shard]:
        """
        Return a listing made in the middle of the latest reshard.

        Its parents look open beside their children (0), or are closed and have none
        (awslabs/amazon-kinesis-client issue 164), or nothing is listed at all (2).
        """
        now = self._listings[-1][1] if manner < _LISTS_NOTHING else ()
        latest = now[-1].parent_shard_ids if now else ()
        if manner == 0:
            return [
                replace(s, ending_sequence_number=None) if s.shard_id in latest else s for s in now
            ]
        return [s for s in now if not latest or s.parent_shard_ids != latest]

    def shard_of(self, key: str) -> str:
        """Return the open shard that takes a key."""
        hash_key = effective_hash(key)
        for shard_id in self.memory.open_shard_ids:
            if self.memory.shard(shard_id).hash_key_range.contains(hash_key):
                return shard_id
        message = f"no open shard takes the key {key}"
        raise ValueError(message)

    def _opened(self, shard_id: str, parents: Sequence[str]) -> None:
        self._around.ledger.open_shard(shard_id, parents)
        self._listed.append(shard_id)

    def _remember(self) -> None:
        shards = [self.memory.shard(shard_id) for shard_id in sorted(self._listed)]
        self._listings.append((self._around.now_ms, shards))


class FaultyStream(Polled):
    """The stream as one invocation reaches it."""

    def __init__(self, stream: TrueStream, wire: Wire, *, around: Surroundings, by: Actor) -> None:
        """Reach the stream over a wire."""
        super().__init__()
        self._stream = stream
        self._wire = wire
        self._around = around
        self._by = by
        self._lied_ms: deque[int] = deque((-_LIES_MS,) * _LIES_MOST, maxlen=_LIES_MOST)

    async def incarnation(self) -> StreamIncarnation:
        """Describe the stream."""

        async def work() -> StreamIncarnation:
            self._may_not_find_stream()
            return await self._stream.memory.incarnation()

        found = await self._wire.read("stream.incarnation", work)
        return replace(found, retention_ms=_RETENTION_MS)

    async def list_shards(
        self, listing: ListingFilter = ListingFilter.NONE, *, instant_ms: int | None = None
    ) -> Sequence[Shard]:
        """List shards, perhaps as they were a moment ago."""
        faults = self._around.faults

        async def work() -> Sequence[Shard]:
            self._may_not_find_stream()
            if listing is ListingFilter.NONE and faults.strike("stale_listing"):
                return self._stream.listing(faults.whole("stale_listing", 0, _LISTING_BEHIND_MS))
            if listing is ListingFilter.NONE and faults.strike("torn_listing"):
                return self._stream.torn_listing(faults.whole("torn_listing", 0, 2))
            return await self._stream.memory.list_shards(listing, instant_ms=instant_ms)

        return await self._wire.read("stream.list_shards", work, about=listing.value)

    async def shard_iterator(self, shard_id: str, start: StartingPosition) -> str:
        """Get an iterator."""

        async def work() -> str:
            self._may_not_find(shard_id)
            return await self._stream.memory.shard_iterator(shard_id, start)

        about = f"{shard_id} {start.kind} {start.sequence_number or ''}"
        return await self._wire.read("stream.shard_iterator", work, about=about)

    async def get_records(self, iterator: str, *, shard_id: str, limit: int) -> RecordsPage:
        """Read one page, which may be short, empty, late or wrong about the shard's end."""

        async def work() -> RecordsPage:
            is_worker = self._by.execution != (0, 0)
            if is_worker and self._around.faults.strike("consumer_raises", shard_id):
                message = f"shard {shard_id}: an error that nobody foresaw"
                raise RuntimeError(message)
            return await self._page(iterator, shard_id, limit)

        self._tell_of_read(shard_id)
        for begun in self._around.seers["get_records_begun"]:
            begun(self._around.now_ms, self._by, shard_id)
        return await self._wire.read("stream.get_records", work, about=shard_id)

    async def pushed(self, iterator: str, *, shard_id: str, limit: int) -> RecordsPage:
        """Return what is pushed next to who has subscribed, as good and as bad as what is read."""
        roll = self._around.chance(f"pushed/{iterator}").random()
        if roll < _SILENT:
            # Longer than anybody waits: of a half-open subscription nothing comes any more.
            await self._around.clock.sleep_ms(_SILENCE_MS)
        elif roll < _SILENT + _BROKEN_OFF:
            message = f"shard {shard_id}: the subscription broke off"
            raise Throttled(message)
        elif roll < _SILENT + _BROKEN_OFF + _TAKEN_OVER:
            message = f"shard {shard_id}: somebody else has subscribed"
            raise SubscriptionHeld(message)
        if not self._by.ended.done():
            self._tell_of_read(shard_id)
        return await self._page(iterator, shard_id, limit)

    async def subscribe(
        self, shard_id: str, start: StartingPosition, *, wake: Callable[[], None]
    ) -> MemorySubscription:
        """Subscribe to a shard, by the one consumer that all workers share."""

        async def work() -> MemorySubscription:
            self._may_not_find(shard_id)
            return await self._stream.consumer.subscribe(
                shard_id, start, wake=wake, pages=self.pushed
            )

        self._tell_of_read(shard_id)
        about = f"{shard_id} {start.kind} {start.sequence_number or ''}"
        return await self._wire.read("stream.subscribe", work, about=about)

    async def close(self) -> None:
        """Keep nothing open."""

    def _tell_of_read(self, shard_id: str) -> None:
        now_ms = self._around.now_ms
        for begun in self._around.seers["read_begun"]:
            begun(now_ms, self._by, shard_id)

    def _may_not_find_stream(self) -> None:
        now_ms = self._around.now_ms
        if now_ms - self._lied_ms[0] >= _LIES_MS and self._around.faults.strike("false_no_stream"):
            self._lied_ms.append(now_ms)
            message = "the service says for once that it does not know the stream"
            raise StreamGone(message)

    def _may_not_find(self, shard_id: str) -> None:
        if self._around.faults.strike("false_gone", shard_id):
            message = f"shard {shard_id}: the service says for once that it does not know it"
            raise ShardGone(message)

    async def _page(self, iterator: str, shard_id: str, limit: int) -> RecordsPage:
        faults, memory = self._around.faults, self._stream.memory
        self._may_not_find(shard_id)
        if faults.strike("iterator_expired", shard_id):
            message = f"iterator {iterator} expired"
            raise IteratorExpired(message)
        if faults.strike("short_page", shard_id):
            limit = min(limit, faults.whole("short_page", 1, 3))
        page = await memory.get_records(iterator, shard_id=shard_id, limit=limit)
        if faults.strike("late_visibility", shard_id):
            behind_ms = faults.whole("late_visibility", 0, _VISIBLE_AFTER_MS)
            newest_ms = self._around.clock.now_ms() - behind_ms
            known = self._stream.read_to.get(shard_id, 0)
            seen = sum(
                record.approximate_arrival_ms <= newest_ms or int(record.sequence_number) <= known
                for record in page.records
            )
            if not seen:
                return RecordsPage(records=(), resume_token=iterator, millis_behind_latest=0)
            if seen < len(page.records):
                page = await memory.get_records(iterator, shard_id=shard_id, limit=seen)
                page = replace(page, millis_behind_latest=0)
        if faults.strike("empty_with_lag", shard_id):
            return RecordsPage(records=(), resume_token=iterator, millis_behind_latest=1_000)
        if faults.strike("false_end", shard_id):
            return _contradictory(page, shard_id, iterator)
        if page.records:
            # What was seen once stays visible.
            newest = int(page.records[-1].sequence_number)
            self._stream.read_to[shard_id] = max(self._stream.read_to.get(shard_id, 0), newest)
        bombs = self._stream.bombs
        if bombs and not bombs.isdisjoint(each.sequence_number for each in page.records):
            return replace(page, records=[self._armed(each, shard_id) for each in page.records])
        return page

    def _armed(self, record: StreamRecord, shard_id: str) -> StreamRecord:
        """Return a record as it is for a worker of ours, which takes it apart at some time."""
        actor = self._by
        if record.sequence_number not in self._stream.bombs or actor.execution == (0, 0):
            return record

        def explode() -> None:
            self._around.faults.struck("decode_bomb", shard_id)
            self._around.compute(actor, _BOMB_S)

        data = _Bomb(record.data)
        data.explode = explode
        arrival_ms = record.approximate_arrival_ms
        return StreamRecord(data, record.partition_key, record.sequence_number, arrival_ms)


def _contradictory(page: RecordsPage, shard_id: str, iterator: str) -> RecordsPage:
    """Return a page that contradicts itself about the shard's end (protocol.md §4.5)."""
    if page.resume_token is None:
        return replace(page, resume_token=iterator)
    if page.records:
        return replace(page, resume_token=None)
    stranger = ChildShard(
        shard_id=f"{shard_id}-x", parent_shard_ids=("another",), hash_key_range=HashKeyRange(0, 1)
    )
    return replace(page, resume_token=None, child_shards=(stranger, stranger))
