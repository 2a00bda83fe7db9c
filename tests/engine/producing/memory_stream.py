"""A stream in memory that reshards, throttles and loses replies in the middle of requests."""

import asyncio

from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import PutOutcome
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.kpl.packing import OutgoingRecord


class MemoryStream:
    """
    The `StreamWriter` port.

    `before_put` is called before each request with its number, and may answer what is to become
    of it: "throttle", "lose the reply", "lose the reply and deliver late". `latency_ms` is asked
    for each way of each request.
    """

    def __init__(self, shard_count, *, before_put=lambda number: None):
        width = (HASH_KEY_MAX + 1) // shard_count
        self.shards = []
        self.stored = []  # (shard id, sequence number, OutgoingRecord), in order of acceptance
        self.requests = []
        self.before_put = before_put
        self.refuse = lambda position: False
        self.fail_listing = False
        self.list_as_before = False
        self.latency_ms = lambda: 0
        self.late = set()
        for number in range(shard_count):
            last = number == shard_count - 1
            end = HASH_KEY_MAX if last else width * (number + 1) - 1
            self._open(HashKeyRange(width * number, end))

    def split(self, position):
        parent = self.open_shards()[position % len(self.open_shards())]
        bounds = parent.hash_key_range
        middle = (bounds.start + bounds.end) // 2
        self._close(parent)
        self._open(HashKeyRange(bounds.start, middle), parent.shard_id)
        self._open(HashKeyRange(middle + 1, bounds.end), parent.shard_id)

    def merge(self, position):
        shards = self.open_shards()
        if len(shards) < 2:
            return
        first = position % (len(shards) - 1)
        left, right = shards[first], shards[first + 1]
        self._close(left)
        self._close(right)
        whole = HashKeyRange(left.hash_key_range.start, right.hash_key_range.end)
        self._open(whole, left.shard_id, right.shard_id)

    def open_shards(self):
        return sorted((s for s in self.shards if s.is_open), key=lambda s: s.hash_key_range)

    def in_range_records(self):
        """What a consumer with Java's rule delivers, as (shard id, sequence, sub, record)."""
        shards = {shard.shard_id: shard for shard in self.shards}
        for shard_id, sequence, entry in self.stored:
            bounds = shards[shard_id].hash_key_range
            found = deaggregate(
                entry.data,
                partition_key=entry.partition_key,
                limits=ExpansionLimits(),
                hash_range=(bounds.start, bounds.end),
                policy="kpl",
            )
            for sub, record in enumerate(found.records):
                yield shard_id, sequence, sub, record

    async def put_records(self, entries):
        await asyncio.sleep(self.latency_ms() / 1000)
        self.requests.append(list(entries))
        verdict = self.before_put(len(self.requests))
        if verdict == "throttle":
            raise Throttled("the whole request")
        if verdict == "lose the reply and deliver late":
            self._deliver_late(entries)
            raise OutcomeUnknown("no answer")
        outcomes = [self._put(position, entry) for position, entry in enumerate(entries)]
        await asyncio.sleep(self.latency_ms() / 1000)
        if verdict == "lose the reply":
            raise OutcomeUnknown("no answer")
        return outcomes

    def _deliver_late(self, entries):
        async def deliver():
            await asyncio.sleep(10 * self.latency_ms() / 1000)
            for position, entry in enumerate(entries):
                self._put(position, entry)

        task = asyncio.create_task(deliver())
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    async def list_shards(self):
        before = list(self.shards)
        await asyncio.sleep(self.latency_ms() / 1000)
        if self.fail_listing:
            raise Throttled("ListShards")
        return before if self.list_as_before else list(self.shards)

    def _put(self, position, entry: OutgoingRecord):
        if self.refuse(position):
            return PutOutcome(error_code="ProvisionedThroughputExceededException")
        shard_id, sequence = self.shard_of(entry), str(len(self.stored) + 1)
        self.stored.append((shard_id, sequence, entry))
        return PutOutcome(shard_id=shard_id, sequence_number=sequence)

    def shard_of(self, entry: OutgoingRecord):
        hash_key = effective_hash(entry.partition_key, entry.explicit_hash_key)
        shards = self.open_shards()
        return next(s.shard_id for s in shards if s.hash_key_range.contains(hash_key))

    def _close(self, shard):
        place = self.shards.index(shard)
        self.shards[place] = Shard(
            shard_id=shard.shard_id,
            hash_key_range=shard.hash_key_range,
            starting_sequence_number=shard.starting_sequence_number,
            ending_sequence_number=str(len(self.stored)),
            parent_shard_id=shard.parent_shard_id,
            adjacent_parent_shard_id=shard.adjacent_parent_shard_id,
        )

    def _open(self, bounds, parent=None, adjacent=None):
        self.shards.append(
            Shard(
                shard_id=f"shardId-{len(self.shards):012d}",
                hash_key_range=bounds,
                starting_sequence_number=str(len(self.stored)),
                parent_shard_id=parent,
                adjacent_parent_shard_id=adjacent,
            )
        )
