"""
Random lives of a producer: reshards, throttling, lost and late replies, stale listings, crashes.

Every record given is read, and the first deliveries of every key have its order; records may be
there twice only where a reply was lost, an aggregate misrouted, or a producer crashed.
"""

import asyncio
import random

import pytest

from shardfleet.domain.reading.flow_control import FlowLimits
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries

SEEDS = 150
KEYS = 17
TROUBLED_REQUESTS = 80


class Life:
    """One seed: a stream that misbehaves for a while, and what was given to its producers."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.stream = MemoryStream(self.chance.choice([1, 3, 5]), before_put=self.trouble)
        self.stream.latency_ms = lambda: self.chance.choice([0, 5, 20, 200])
        self.stream.refuse = lambda _: self.troubled and self.chance.random() < 0.1
        self.given = {}
        self.number = 0
        self.settings = ProducerSettings(
            aggregate_bytes=self.chance.choice([400, 4_000]),
            aggregate_records=self.chance.choice([3, 50]),
            max_requests=self.chance.choice([1, 2, 8]),
            shard_records_per_s=self.chance.choice([50, 1_000]),
            buffer_bytes=self.chance.choice([50, 2_000, 1_000_000]),
            request_bytes=self.chance.choice([300, 100_000]),
            flow=FlowLimits(max_entries=self.chance.choice([10, 500])),
            give_up_ms=3_600_000,
        )

    @property
    def troubled(self):
        return len(self.stream.requests) < TROUBLED_REQUESTS

    def trouble(self, _):
        chance, happens = self.chance, self.chance.random() if self.troubled else 1
        self.stream.fail_listing = self.troubled and chance.random() < 0.1
        self.stream.list_as_before = self.troubled and chance.random() < 0.3
        if happens < 0.15:
            self.stream.split(chance.randrange(100))
        elif happens < 0.25:
            self.stream.merge(chance.randrange(100))
        elif happens < 0.3:
            return "throttle"
        elif happens < 0.35:
            return "lose the reply"
        elif happens < 0.4:
            return "lose the reply and deliver late"
        return None

    def records(self, count):
        found = []
        for _ in range(count):
            key = f"key-{self.chance.randrange(KEYS)}"
            found.append(OutgoingRecord(key, str(self.number).encode()))
            self.given.setdefault(key, []).append(self.number)
            self.number += 1
        return found

    def producer(self):
        entropy = SeededEntropy(self.chance.randrange(2**32))
        return Producer(self.stream, clock=VirtualClock(), entropy=entropy, settings=self.settings)

    async def calls(self, producer):
        """Overlapping sends, and puts between them; the order of the calls is the order."""
        sends = []
        for _ in range(self.chance.randrange(1, 12)):
            records, aggregate = self.records(self.chance.randrange(1, 30)), self.coin()
            if self.coin():
                await producer.put(*records, aggregate=aggregate)
            else:
                sends.append(asyncio.create_task(producer.send(records, aggregate=aggregate)))
                await asyncio.sleep(self.chance.choice([0, 0.01, 0.3]))
        await producer.flush()
        for send in sends:
            await send

    async def crashed_call(self):
        """Send some records, crash on the way, and give all of them to the next producer."""
        records, aggregate = self.records(self.chance.randrange(1, 60)), self.coin()
        crashing = asyncio.create_task(self.producer().send(records, aggregate=aggregate))
        await asyncio.sleep(self.chance.choice([0, 0.01, 0.05, 0.5]))
        for task in asyncio.all_tasks() - {asyncio.current_task()} - self.stream.late:
            task.cancel()
        await asyncio.gather(crashing, return_exceptions=True)
        await self.producer().send(records, aggregate=aggregate)

    async def late_replies(self):
        while self.stream.late:
            await asyncio.wait(self.stream.late)

    def coin(self):
        return self.chance.random() < 0.5


@pytest.mark.parametrize("number", range(SEEDS))
def test_calls_of_all_kinds_arrive_whole_and_in_order(seed, number):
    life = Life(seed + number)

    async def main():
        producer = life.producer()
        await life.calls(producer)
        await life.late_replies()
        return producer.counts

    counts = run_virtual(main())

    assert first_deliveries(life.stream) == life.given
    if not counts.unanswered and not counts.misrouted:
        assert sum(1 for _ in life.stream.in_range_records()) == life.number
    assert counts.accepted == life.number


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_crash_repeats_records_but_loses_and_reorders_none(seed, number):
    life = Life(seed + number)

    async def main():
        for _ in range(4):
            await life.crashed_call()
        await life.late_replies()

    run_virtual(main())

    assert first_deliveries(life.stream) == life.given
