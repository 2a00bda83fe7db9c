"""
A query that lives at the trim horizon: what is lost is reported, whatever dies, ages or splits.

Days of virtual time in steps of minutes and hours, batches of few records, so that the query's lag
is about the 24 hours for which the stream keeps them. `make whole` plays 1,000 seeds of each kind.
"""

import asyncio
import dataclasses
import json
import os
import random
import sys

from msgspec.structs import replace

from shardfleet_spark.plan import sealed_plans
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read import shard_pages
from shardfleet_spark.read.shard_pages import DataLost, FetchPorts, ReadPolicy
from shardfleet_testkit.clock import run_virtual
from tests.spark.simulated_spark import Killed, SeededEntropy, SimulatedSpark

PLAYED = int(os.environ.get("SHARDFLEET_TEST_DRAWN", "150"))
# The most that a control draws until one fails. It begins with one that does, one of a hundred;
# where the code has changed, another will.
SEEDS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
# Young iterators, those that are too old for a hint, and a day all but something.
PAUSES_MS = [1_000, 3 * MINUTE_MS, 6 * MINUTE_MS, HOUR_MS, 8 * HOUR_MS, 23 * HOUR_MS]
LIMITS = BatchLimits(partitions=2, fetch_ms=0, records_per_shard=3)
POLICY = ReadPolicy(poll_interval_ms=200, records_per_read=2, retry_attempts=3)


class AtTheHorizon(SimulatedSpark):
    """A query that falls behind until the stream forgets what it has not read."""

    crash = 0.05

    def __init__(self, seed):
        super().__init__(seed, crash=self.crash, limits=LIMITS)
        self.shard_of, self.closed, self.parents = {}, {}, {}
        self.reported, self.pauses_ms = "", PAUSES_MS

    def ports(self):
        entropy = SeededEntropy(self.rng)
        return FetchPorts(
            stream=self.stream,
            source=self.stream,
            clock=self.clock,
            entropy=entropy,
            policy=POLICY,
        )

    async def live(self, *, steps):
        """Go on until a loss is reported, or for so many steps and then to the end."""
        driver = self.driver()
        try:
            if self.rng.random() < 0.5:
                await self._stand_still(driver)
            for _ in range(steps):
                self.last = driver
                self._produce()
                try:
                    await self._trigger(driver)
                except Killed:
                    driver = self.last = self.driver()
                await self.clock.sleep_ms(self.rng.choice(self.pauses_ms))
            self.crash, idle = 0.0, 0
            while idle < 3:
                before = len(self.offsets)
                await self._trigger(driver)
                idle = idle + 1 if len(self.offsets) == before else 0
                await self.clock.sleep_ms(10_000)
        except DataLost as lost:
            self.reported = str(lost)
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _stand_still(self, driver):
        """Begin, and go on when the oldest records are about to go, minutes from batch to batch."""
        await driver.initial()
        begun_ms, self.pauses_ms = self.clock.now_ms(), PAUSES_MS[:3]
        for _ in range(15):
            self._produce()
            await self.clock.sleep_ms(MINUTE_MS)
        left_ms = self.rng.randrange(20) * MINUTE_MS
        await self.clock.sleep_ms(begun_ms + DAY_MS - left_ms - self.clock.now_ms())

    def silently_lost(self):
        """
        Return what nobody reported: all that is missing, or what was passed over before.

        A query that starts at TRIM_HORIZON begins a shard at the oldest record that it finds, and
        so a child of shards in which it found nothing at all.
        """
        read, first, last = set(), {}, {}
        for _, shard_id, number in self.rows():
            read.add(number)
            first.setdefault(shard_id, int(number))
            last[shard_id] = int(number)

        def is_begun(shard_id):
            parents = self.parents.get(shard_id, ())
            return not any(each in first or not is_begun(each) for each in parents)

        def is_owed(number, shard_id):
            begins = first.get(shard_id, sys.maxsize) if is_begun(shard_id) else 0
            ends = last.get(shard_id, 0) if self.reported else sys.maxsize
            return begins <= int(number) <= ends

        return {each for each, shard in self.shard_of.items() if is_owed(each, shard)} - read

    def _produce(self):
        for _ in range(self.rng.randrange(5)):
            shard_id = self.rng.choice(self.stream.open_shard_ids)
            self.shard_of[self.stream.put(b"x", shard_id=shard_id)] = shard_id
        was_open = set(self.stream.open_shard_ids)
        if self.rng.random() < 0.15:
            self.stream.split(self.rng.choice(self.stream.open_shard_ids))
        elif self.rng.random() < 0.15:
            self._merge_some()
        now_ms = self.clock.now_ms()
        for shard_id in set(self.stream.open_shard_ids) - was_open:
            self.parents[shard_id] = self.stream.shard(shard_id).parent_shard_ids
        for shard_id in was_open - set(self.stream.open_shard_ids):
            self.closed[shard_id] = now_ms
        for shard_id in [each for each, at_ms in self.closed.items() if now_ms - at_ms > DAY_MS]:
            del self.closed[shard_id]
            self.stream.forget_shard(shard_id)


class GoesOn(AtTheHorizon):
    """A query with failOnDataLoss=false: it states what it lost, and lives on."""

    may_lose = True

    def ports(self):
        found = super().ports()
        return dataclasses.replace(
            found, policy=dataclasses.replace(found.policy, fail_on_data_loss=False)
        )

    def told(self):
        """Return plan numbers and what was stated as lost of that plan, in Spark's progress."""
        stats = [json.loads(end)["stats"] for end in self.offsets] + [self.final]
        return {(each["plan"], text) for each in stats for text in each.get("lost", ())}

    def silently_lost(self):
        """
        Return the lost records of which no batch says so in whose time they were passed over.

        That is from the batch with the record before them to the one with the record behind.
        """
        lost, told, numbers = super().silently_lost(), self.told(), {}
        for batch, shard_id, number in self.rows():
            plan = json.loads(self.offsets[batch])["n"]
            numbers.setdefault(shard_id, []).append((int(number), plan))

        def is_told(number, shard_id):
            known = numbers.get(shard_id, [])
            first = max((plan for each, plan in known if each < int(number)), default=0)
            last = min((plan for each, plan in known if each > int(number)), default=sys.maxsize)
            return any(
                first <= plan <= last and text.startswith(f"{shard_id}:") for plan, text in told
            )

        return {each for each in lost if not is_told(each, self.shard_of[each])}


class DiesOften(GoesOn):
    """A query that reads many of its batches again; what is wrong there is found soon."""

    crash = 0.3


def run(seeds, *, steps=8, kind=AtTheHorizon):
    """Return the seeds of queries that lost something silently, reported a loss, lost nothing."""

    async def one(seed):
        query = kind(seed)
        await query.live(steps=steps)
        if query.may_lose:
            query.final = query.last.report()
            query.reported = " ".join(text for _, text in query.told())
        return query

    silent, reported, whole = [], [], []
    for seed in seeds:
        query = run_virtual(one(seed))
        if query.silently_lost():
            silent.append(seed)
        (reported if query.reported else whole).append(seed)
    return silent, reported, whole


def drawn(seed, count):
    rng = random.Random(seed)
    return [rng.getrandbits(32) for _ in range(count)]


def test_every_loss_at_the_horizon_is_reported_whatever_happens(seed):
    silent, reported, whole = run(drawn(seed, PLAYED))

    assert not silent
    # Both happen, or nothing was tested.
    assert len(reported) > PLAYED // 10
    assert len(whole) > PLAYED // 10


def test_every_loss_is_stated_by_a_query_that_goes_on_whatever_happens(seed):
    silent, reported, whole = run(drawn(seed, PLAYED), kind=GoesOn)

    assert not silent
    assert len(reported) > PLAYED // 10
    assert len(whole) > PLAYED // 10


def test_control_a_batch_that_is_read_again_with_fewer_rows_is_found_out(seed, monkeypatch):
    """The rule of before: what is gone of the sealed records was nobody's concern."""
    monkeypatch.setattr(sealed_plans, "noted_losses", lambda _stored: [])

    seeds = (2_455_298_159, *drawn(seed, SEEDS))
    assert any(run([each], kind=DiesOften)[0] for each in seeds)


def test_control_a_hinted_iterator_that_counts_as_proof_is_found_out(seed, monkeypatch):
    """The rule of before: what an iterator younger than four minutes brings follows no gap."""
    rule = shard_pages.origin_of

    def trusting(reading, now):
        origin = rule(reading, now)
        return replace(origin, complete_before_ms=None) if origin.resume_token else origin

    monkeypatch.setattr(shard_pages, "origin_of", trusting)

    seeds = (1_545_087_244, *drawn(seed, SEEDS))
    assert any(run([each])[0] for each in seeds)


def test_control_a_child_that_is_begun_without_a_proof_is_found_out(seed, monkeypatch):
    monkeypatch.setattr(shard_pages, "is_beginning_in_doubt", lambda _stand, _now: False)

    seeds = (2_125_010_681, *drawn(seed, SEEDS))
    assert any(run([each])[0] for each in seeds)
