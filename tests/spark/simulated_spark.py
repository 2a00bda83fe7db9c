"""
Spark's micro-batch engine in small, on virtual time, with everything that may die.

What survives a crash of the driver: the offset log, the commit log, the sink (keyed by batch), the
seal store and the stream. Everything else is made anew.
"""

import asyncio
import json
import random

from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet_spark.offsets.plan_token import Emission
from shardfleet_spark.offsets.seals import seal_to_bytes
from shardfleet_spark.options.starting import Start
from shardfleet_spark.plan.driver import DriverSettings, SourceDriver
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.plan.probing import ProbePace
from shardfleet_spark.read.fetching import fetch
from shardfleet_spark.read.sealing import conform, read_sealed, split
from shardfleet_spark.read.shard_pages import FetchPorts, ReadPolicy
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory_stream import MemoryStream
from tests.spark.memory_seals import MemorySealStore

POLICY = ReadPolicy(poll_interval_ms=10, records_per_read=7, concurrency=3)


class Killed(Exception):
    """The driver process is gone."""


class SeededEntropy:
    def __init__(self, rng):
        self._rng = rng

    def token(self):
        return f"{self._rng.getrandbits(64):016x}"

    def uniform(self, low, high):
        return self._rng.uniform(low, high)


class SimulatedSpark:
    """
    One query over one stream.

    `crash` is the probability that the driver dies at each step, or that a task fails.
    `reader` replaces how a task reads (the control experiment). `unasked` is the probability that
    nobody asks for the rows of a partition, as `take` does in a `foreachBatch`; a task of it that
    was begun all the same may seal when the batch has long been committed.
    """

    # Whether a batch that is read again may have lost rows; its sink knows the batch by its number.
    may_lose = False

    def __init__(self, seed, *, crash=0.1, unasked=0.0, with_store=True, limits=None, reader=None):
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.stream = MemoryStream(self.clock, shards=3)
        self.store = MemorySealStore() if with_store else None
        self.crash = crash
        self.unasked = unasked
        self._asked_from = 1 << 30
        self._passed = -1  # the last batch after which a driver was asked for another one
        self._asking = random.Random(f"asking {seed}").random()
        self.limits = limits or BatchLimits(partitions=2, fetch_ms=50, records_per_shard=20)
        self.offsets = []  # end offsets as JSON text
        self.committed = 0
        self.sink = {}  # batch: {partition: [(shard id, sequence number)]}
        self.replays = 0
        self.put_keys = {}  # sequence number: key
        self._reader = reader or SimulatedSpark._read
        self._late = set()

    def ports(self):
        return FetchPorts(
            stream=self.stream,
            source=self.stream,
            clock=self.clock,
            entropy=SeededEntropy(self.rng),
            policy=POLICY,
        )

    def driver(self):
        settings = DriverSettings(
            start=Start("TRIM_HORIZON"),
            limits=self.limits,
            emission=Emission(),
            pace=ProbePace(interval_ms=100, per_second=1_000),
            discovery_interval_ms=500,
        )
        return SourceDriver(settings, self.ports(), self.store)

    async def run(self, *, steps):
        """Let the query, its crashes and the producer go on for so many triggers."""
        driver = self.driver()
        if self.store is not None:
            self.store.fault = self._store_fault
        for _ in range(steps):
            self._produce()
            try:
                await self._trigger(driver)
            except Killed:
                driver = self.driver()
            await self.clock.sleep_ms(self.rng.choice([1, 20, 150]))

    async def drain(self):
        """Read what is left, without crashes, until several triggers brought nothing."""
        self.crash, idle, driver = 0.0, 0, self.driver()
        self._asked_from = len(self.offsets)
        self.last = driver
        while idle < 20:
            before = len(self.offsets)
            await self._trigger(driver)
            idle = idle + 1 if len(self.offsets) == before else 0
            await self.clock.sleep_ms(200)
        self._passed = len(self.offsets)
        await asyncio.gather(*self._late, return_exceptions=True)

    async def planned(self, driver):
        """What happens whenever Spark has asked for the next batch; for publishing."""

    def rows(self):
        """Return (batch, shard id, sequence number) of everything in the sink, in order."""
        return [
            (batch, shard_id, number)
            for batch, partitions in sorted(self.sink.items())
            for _, rows in sorted(partitions.items())
            for shard_id, number in rows
        ]

    # --- inside

    def _produce(self):
        for _ in range(self.rng.randrange(12)):
            key = f"k{self.rng.randrange(10)}"
            number = self.stream.put(b"x" * self.rng.randrange(1, 20), key=key)
            self.put_keys[number] = key
        if self.rng.random() < 0.05:
            self.stream.split(self.rng.choice(self.stream.open_shard_ids))
        elif self.rng.random() < 0.05:
            self._merge_some()
        if self.rng.random() < 0.1:
            self.stream.expire_iterators()

    def _merge_some(self):
        by_range = sorted(self.stream.open_shard_ids, key=self._first_hash)
        if len(by_range) > 1:
            index = self.rng.randrange(len(by_range) - 1)
            self.stream.merge(by_range[index], by_range[index + 1])

    def _first_hash(self, shard_id):
        return self.stream.shard(shard_id).hash_key_range.start

    def _may_die(self):
        if self.rng.random() < self.crash:
            raise Killed

    def _store_fault(self, _operation):
        if self.rng.random() < self.crash / 2:
            raise self.rng.choice([Throttled, OutcomeUnknown])("store")

    async def _trigger(self, driver):
        if self.committed < len(self.offsets):
            self.replays += self.committed in self.sink
        else:
            initial = json.dumps(await driver.initial()) if not self.offsets else ""
            start = self.offsets[-1] if self.offsets else initial
            end = json.dumps(await driver.latest(json.loads(start)))
            self._passed = len(self.offsets) - 1
            await self.planned(driver)
            if json.loads(end) == json.loads(start) and self.offsets:
                return
            self._may_die()
            self.offsets.append(end)
            self._may_die()
        await self._execute(driver, self.committed)

    async def _execute(self, driver, batch):
        end = json.loads(self.offsets[batch])
        # Spark makes the initial offset of batch 0 anew when it is replayed.
        start = json.loads(self.offsets[batch - 1]) if batch else {"v": 1}
        partitions = {}
        for index, planned in enumerate(await driver.partitions(start, end)):
            if self._is_asked(batch, index):
                partitions[index] = await self._task(planned)
            elif self.rng.random() < 0.5:
                self._late.add(asyncio.ensure_future(self._zombie(planned, behind=batch)))
            self._may_die()
        before = self.sink.setdefault(batch, partitions)
        assert self.may_lose or before == partitions, f"batch {batch} was not the same again"
        self._may_die()
        self.committed = batch + 1
        if self.rng.random() < 0.5:
            await driver.commit(end)

    def _is_asked(self, batch, index):
        """Return what the query's own code asks for: the same when a batch is repeated."""
        chance = random.Random(f"{self._asking} {batch} {index}").random()
        return chance >= self.unasked or batch >= self._asked_from

    async def _task(self, planned):
        """Run attempts until one succeeds, some of them twice at the same time."""
        while True:
            if self.rng.random() < self.crash and self.store is not None:
                self._late.add(asyncio.ensure_future(self._zombie(planned)))
            twins = [self._reader(self, planned) for _ in range(1 + (self.rng.random() < 0.2))]
            found = await asyncio.gather(*twins)
            assert self.may_lose or all(rows == found[0] for rows in found), "twins differ"
            if self.rng.random() >= self.crash:
                return found[0]

    async def _read(self, planned):
        ports = self.ports()
        if planned.sealed is not None:
            (part,) = planned.range.parts
            sealed = await conform(part, planned.sealed, ports, buffers=planned.records)
        else:
            sealed = await read_sealed(planned.range, self.store, ports, writer={})
        return [(each.sealed.shard_id, r.sequence_number) for each in sealed for r in each.records]

    async def _zombie(self, planned, *, behind=-1):
        """A task of a dead run, or of rows that nobody took: reads now, seals much later."""
        ports = self.ports()
        fetched = await fetch(planned.range.ranges, planned.range.quota, ports, writer={})
        await self.clock.sleep_ms(self.rng.choice([1, 100, 2_000]))
        while self._passed < behind:
            await self.clock.sleep_ms(10)
        parts = planned.range.parts
        for part, seal in zip(parts, split(fetched.seal, parts), strict=True):
            self.store.stored.setdefault(part.key, seal_to_bytes(seal))
