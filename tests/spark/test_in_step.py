"""
Shards in step by arrival: what a batch brings is never older than what a batch before brought, by
more than `maxShardSkew`; so no watermark with that delay drops anything. On virtual time.
"""

import random

import pytest

from shardfleet_spark.plan.planning import BatchLimits
from tests.spark.test_source_driver import Query
from tests.virtual import virtual

MINUTE_MS = 60_000
SKEW_MS = 10 * MINUTE_MS


async def read_all(query, start, arrived, *, until_empty=5):
    """Read until nothing comes any more; return the last offset."""
    newest, idle = 0, 0
    while idle < until_empty:
        end = await query.driver.latest(start)
        data = [] if end == start else await query.read(start, end)
        oldest = min((arrived[each] for each in data), default=newest)
        assert oldest >= newest - SKEW_MS, f"{newest - oldest} ms behind what came before"
        newest = max([newest, *(arrived[each] for each in data)])
        read = query.taken
        assert not read.intersection(data)
        read.update(data)
        idle = idle + 1 if end == start else 0
        start = end
        await query.clock.sleep_ms(1_000)
    return start


def a_query(rng):
    limits = BatchLimits(
        partitions=2, records_per_shard=rng.choice([0, 7, 40]), skew_ms=SKEW_MS, fetch_ms=500
    )
    query = Query(shards=3, limits=limits, records_per_read=rng.choice([3, 100]))
    query.taken = set()
    return query


@pytest.mark.parametrize("seed_of_one", range(12))
@virtual
async def test_no_shard_is_ahead_of_another_by_more_than_the_skew(seed_of_one, seed):
    rng = random.Random(seed * 1_000 + seed_of_one)
    query, arrived = a_query(rng), {}

    async def feed(steps):
        # Shards of very different rates, some of them silent for hours, some split.
        keys = [f"key {n}" for n in range(6)]
        often = rng.sample(keys, 2)
        for _ in range(steps):
            await query.clock.sleep_ms(rng.choice([1_000, MINUTE_MS, 20 * MINUTE_MS]))
            key = rng.choice(often) if rng.random() < 0.9 else rng.choice(keys)
            data = b"%d" % len(arrived)
            arrived[data] = query.clock.now_ms()
            query.stream.put(data, key=key)
            if rng.random() < 0.02:
                query.stream.split(rng.choice(query.stream.open_shard_ids))

    await feed(80)
    start = await read_all(query, await query.driver.initial(), arrived)
    assert len(query.taken) == len(arrived)
    # A driver that stood still for hours is behind again.
    await feed(60)
    query.restart()
    await query.driver.partitions(start, start)
    await read_all(query, start, arrived)
    assert len(query.taken) == len(arrived)
