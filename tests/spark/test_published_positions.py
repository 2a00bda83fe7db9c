"""Whatever dies: a lease never says more than Spark has committed, and in the end it says all."""

from contextlib import suppress

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shardfleet.domain.leases.lease import Applied
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet_spark.plan.fleet_positions import start_after
from shardfleet_spark.publish.publication import owner_of
from shardfleet_spark.publish.publisher import Publication, Publisher
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryLeaseStore
from tests.spark.simulated_spark import SimulatedSpark

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
SEEDS = st.integers(0, 2**32)


class WatchedTable(MemoryLeaseStore):
    """A lease table that fails at random and compares each write with what is committed."""

    def __init__(self, spark):
        super().__init__()
        self.spark = spark

    async def apply(self, change):
        self._fault(Throttled)
        result = await super().apply(change)
        if isinstance(result, Applied):
            self._check(result.lease)
        self._fault(OutcomeUnknown)
        return result

    async def get(self, key):
        self._fault(Throttled)
        return await super().get(key)

    async def scan(self):
        self._fault(Throttled)
        return await super().scan()

    def _fault(self, kind):
        if self.spark.rng.random() < self.spark.crash / 3:
            raise kind("lease table")

    def _check(self, lease):
        done = self.spark.committed_of(lease.lease_key)
        if lease.is_finished:
            assert done == self.spark.put_to(lease.lease_key)
            for child in lease.child_shard_ids:
                assert child in self.leases, f"{lease.lease_key} ended before its {child}"
            assert lease.child_shard_ids
        elif not lease.checkpoint.is_sentinel:
            assert lease.checkpoint.sequence_number in done


class PublishingSpark(SimulatedSpark):
    """A query that publishes after each planning, by a publisher that dies with its driver."""

    def __init__(self, seed, **settings):
        super().__init__(seed, **settings)
        self.table = WatchedTable(self)
        self.publishers = {}

    def committed_of(self, shard_id):
        return {
            number
            for batch, partitions in self.sink.items()
            if batch < self.committed
            for rows in partitions.values()
            for each, number in rows
            if each == shard_id
        }

    def put_to(self, shard_id):
        return set(self.stream.sequence_numbers(shard_id))

    async def planned(self, driver):
        publisher = self.publishers.get(driver)
        while publisher is None:
            to = Publication(application="app", owner=owner_of(driver.standing.sid))
            begun = Publisher(self.table, self.clock, to)
            with suppress(Throttled, OutcomeUnknown):
                await begun.begin(driver.standing)
                publisher = self.publishers[driver] = begun
        if self.rng.random() < 0.4:  # Rounds are rarer than batches, sometimes.
            await publisher.publish(driver.standing)


@settings(max_examples=40, phases=PHASES)
@given(seed=SEEDS, with_store=st.booleans())
def test_a_lease_never_says_more_than_is_committed_and_children_come_first(seed, with_store):
    async def whole():
        spark = PublishingSpark(seed, with_store=with_store)
        await spark.run(steps=40)
        await spark.drain()
        (publisher,) = [each for driver, each in spark.publishers.items() if driver is spark.last]
        await publisher.publish(spark.last.standing)
        await publisher.release()
        return spark

    spark = run_virtual(whole())

    leases = list(spark.table.leases.values())
    start = start_after("app", leases)  # Drained: nobody owns any.
    open_shards = set(spark.stream.open_shard_ids)
    assert open_shards <= set(start.shards)
    for shard_id, number in start.shards.items():
        numbers = spark.put_to(shard_id)
        if shard_id in open_shards and numbers:
            assert number.done.sequence_number == max(numbers, key=int)
