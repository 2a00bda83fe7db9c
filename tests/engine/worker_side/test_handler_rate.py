"""No more records a second than the handler is to get, whichever shards they are of."""

import asyncio

import pytest

from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}


async def handed_over(*, per_second, shards=1, count=200, call_ms=0, **config):
    """Return when each record was handed over, by call: milliseconds, records."""
    world = World(shards=shards, handler_records_per_second=per_second, **config, **SHORT)

    async def handle(batch):
        calls.append((world.clock.monotonic_ms() - began_ms, len(batch)))
        await asyncio.sleep(call_ms / 1000)

    calls, world.handler._script = [], handle
    for shard in range(shards):
        for n in range(count):
            world.stream.put(str(n).encode(), key=f"{shard}/{n}", shard_id=key(shard))
    began_ms = world.clock.monotonic_ms()
    turn = asyncio.create_task(world.turn(turn_ms=200_000))
    await world.run_until(lambda: sum(n for _, n in calls) == shards * count)
    turn.cancel()
    return calls


CASES = {
    "one shard": {},
    "small batches": {"max_batch_records": 7},
    "three shards": {"shards": 3},
    "coroutines": {"shards": 3, "overlaps": True},
    "lanes": {"parallelism": 8, "overlaps": True, "max_batch_records": 5},
    "slow calls": {"shards": 2, "call_ms": 900},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_in_no_second_more_is_handed_over_than_the_rate_and_the_call_that_crosses_it(case):
    per_second = 50
    calls = run_virtual(handed_over(per_second=per_second, **case))
    most = max(n for _, n in calls)
    assert most <= per_second
    for at_ms, _ in calls:
        within = sum(n for when, n in calls if at_ms <= when < at_ms + 1_000)
        assert within < per_second + most
    total = sum(n for _, n in calls)
    assert calls[-1][0] >= 1_000 * (total - most) // per_second


def test_a_handler_that_is_quick_gets_nearly_as_many_as_the_rate_allows():
    calls = run_virtual(handed_over(per_second=50, count=1_000))
    assert calls[-1][0] <= 1_000 * 1_000 // 50 * 1.1


@virtual
async def test_shards_have_their_part_of_the_rate():
    world = World(shards=3, handler_records_per_second=30, overlaps=True, **SHORT)
    for shard in range(3):
        for n in range(2_000):
            world.stream.put(str(n).encode(), key=f"{shard}/{n}", shard_id=key(shard))
    turn = asyncio.create_task(world.turn(turn_ms=200_000))
    await world.clock.sleep_ms(40_000)
    parts = [r.shard_id for r in world.handler.handled]
    turn.cancel()
    assert len(parts) <= 30 * 41
    assert min(parts.count(key(n)) for n in range(3)) >= len(parts) // 3 - 30


@virtual
async def test_a_shard_of_one_key_has_its_part_beside_one_with_many_lanes():
    world = World(
        shards=2,
        parallelism=16,
        max_batch_records=5,
        handler_records_per_second=50,
        overlaps=True,
        **SHORT,
    )
    for n in range(3_000):
        world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(0))
        world.stream.put(str(n).encode(), key="one", shard_id=key(1))
    turn = asyncio.create_task(world.turn(turn_ms=200_000))
    await world.clock.sleep_ms(40_000)
    parts = [record.shard_id for record in world.handler.handled]
    turn.cancel()
    assert parts.count(key(1)) >= len(parts) // 3
