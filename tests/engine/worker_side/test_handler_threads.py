"""Calls of different shards side by side, in threads: never two of one shard, or of one lane."""

import asyncio
from collections import Counter

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}
CALL_MS = 50
RECORDS = 40


class Watched:
    """A handler's script that takes its time, and sees how many calls each shard has at once."""

    def __init__(self, world):
        self.running = Counter()
        self.most_of_a_shard = 0
        self.most = 0
        self.numbers = {}
        world.handler._script = self

    async def __call__(self, batch):
        shard = batch.shard_id
        self.running[shard] += 1
        self.most_of_a_shard = max(self.most_of_a_shard, self.running[shard])
        self.most = max(self.most, self.running.total())
        await asyncio.sleep(CALL_MS / 1000)
        self.running[shard] -= 1
        self.numbers.setdefault(shard, []).extend(int(record.data) for record in batch)


def handled(shards, **config):
    """Have shards of 40 records handled, a record a call; return what was seen."""

    async def scenario():
        world = World(shards=shards, max_batch_records=1, overlaps=False, **config, **SHORT)
        watched = Watched(world)
        for n in range(RECORDS):
            for shard in range(shards):
                world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(shard))
        await world.turn(turn_ms=60_000)
        assert {shard: sorted(each) for shard, each in watched.numbers.items()} == {
            key(shard): list(range(RECORDS)) for shard in range(shards)
        }
        return watched

    return run_virtual(scenario())


@pytest.mark.parametrize(
    ("config", "most", "of_a_shard"),
    [
        ({}, 1, 1),
        ({"handler_threads": 2}, 2, 1),
        ({"handler_threads": 16}, 3, 1),
        ({"handler_threads": 16, "parallelism": 2}, 6, 2),
        ({"handler_threads": 2, "parallelism": 4}, 4, 2),
    ],
    ids=str,
)
def test_so_many_shards_are_handled_at_once_and_none_twice(config, most, of_a_shard):
    watched = handled(3, **config)
    assert (watched.most, watched.most_of_a_shard) == (most, of_a_shard)


def test_a_shards_records_stay_in_order():
    watched = handled(3, handler_threads=3)
    assert all(numbers == list(range(RECORDS)) for numbers in watched.numbers.values())


@virtual
async def test_after_a_death_a_suspicious_shard_is_handled_alone():
    world = World(shards=3, handler_threads=3, max_batch_records=1, overlaps=False, **SHORT)
    at_once, deaths, poison = Counter(), [], key(1)

    async def handle(batch):
        at_once[batch.shard_id] += 1
        if batch.shard_id == poison and deaths:
            assert at_once.total() == 1, at_once
        await asyncio.sleep(CALL_MS / 1000)
        if batch.shard_id == poison and not deaths:
            deaths.append(steps)
            steps.died.set()
            await asyncio.Event().wait()
        at_once[batch.shard_id] -= 1

    world.handler._script = handle
    for n in range(6):
        for shard in range(3):
            world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(shard))
    steps = Steps(only=lambda name: False)
    steps.names.append("in the handler")
    await process(world, steps, turn_ms=60_000)
    assert deaths
    at_once.clear()
    await process(world, Steps(only=lambda name: False), turn_ms=60_000)
    assert world.lease(1).checkpoint.sequence_number == world.stream.sequence_numbers(poison)[-1]


def test_a_handler_that_waits_does_not_make_the_other_shards_wait():
    """The same work, an eighth of the time: what waits for something else needs no CPU."""

    async def took(**config):
        world = World(shards=8, max_batch_records=1, overlaps=False, **config, **SHORT)
        watched = Watched(world)
        for n in range(RECORDS):
            for shard in range(8):
                world.stream.put(str(n).encode(), key="k", shard_id=key(shard))
        began_ms = world.clock.monotonic_ms()
        turn = asyncio.create_task(world.turn(turn_ms=600_000))
        await world.run_until(lambda: sum(map(len, watched.numbers.values())) == 8 * RECORDS)
        turn.cancel()
        return world.clock.monotonic_ms() - began_ms

    one_ms, eight_ms = run_virtual(took()), run_virtual(took(handler_threads=8))
    assert one_ms >= 6 * eight_ms


def test_more_threads_than_there_can_be_are_refused():
    with pytest.raises(ConfigurationError, match="handler_threads: 101 found, 1 to 100 allowed"):
        World(handler_threads=101)
