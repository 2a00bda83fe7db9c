"""
What a record costs stops nobody: it is taken apart in steps, between which leases are renewed.

The records are those that cost the most of what `make fuzz` draws; what one costs beside a sound
one of its size is measured there.
"""

import asyncio
import hashlib

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.engine.retry import Halt, Halted
from shardfleet.engine.shard.deaggregation import Deaggregator, UserRecords
from shardfleet.events.delivery import AggregatesNotExpanded
from shardfleet.events.worker import LeaseLost
from shardfleet.kpl.packing import OutgoingRecord, varint
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import StreamRecord
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

LARGE = 10 * 1024 * 1024 - 512  # Kinesis takes 10 MiB with the key.
SOUND = bytes.fromhex("0a 01 6b 1a 05 08 00 1a 01 78")
SHARD = ShardRef("arn", key(0))


def framed(body):
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest()


def heap(unit):
    """Return an aggregate of one record and as many of these fields as there is room for."""
    return framed(SOUND + unit * ((LARGE - 64) // len(unit)))


BOMBS = {
    "five million empty records": heap(b"\x1a\x00"),
    "keys that are no UTF-8": heap(b"\x0a\x01\xff"),
    "data again and again in one record": framed(
        SOUND + b"\x1a" + varint(LARGE - 64) + b"\x08\x00" + b"\x1a\x00" * (LARGE // 2 - 33)
    ),
    "as many records as there may be": framed(
        b"\x0a\x01k" + b"".join(b"\x1a\x68\x08\x00\x1a\x64" + b"x" * 100 for _ in range(98_000))
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@virtual
async def test_a_bomb_in_each_shard_costs_no_lease_and_everything_else_is_delivered(name):
    """The loop has its turn between steps, so that renewals have theirs."""
    world = World(shards=2, leases_per_worker=2, handler_timeout_ms=5_000)
    for number in range(2):
        world.put(1, 2, number=number)
        world.stream.put(BOMBS[name], shard_id=key(number))
        world.put(3, 4, number=number)
    await world.turn(turn_ms=60_000)
    handled = [r.data for r in world.handler.handled]
    for data in (b"1", b"2", b"3", b"4"):
        assert handled.count(data) == 2
    assert not world.told(LeaseLost)


async def turns_of_others(page):
    """Return how often another task has its turn while a page is taken apart."""
    turns = [0]

    async def other():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    world, task = World(), asyncio.create_task(other())
    deaggregator = Deaggregator(
        ShardRef("arn", key(0)), None, config=world.config, sink=world.events
    )
    await deaggregator.expand(page, None)
    task.cancel()
    return turns[0]


@pytest.mark.parametrize("name", BOMBS)
def test_others_have_their_turn_while_a_large_record_is_taken_apart(name):
    assert run_virtual(turns_of_others([StreamRecord(BOMBS[name], "k", "1", 0)])) >= 4


def test_others_have_their_turn_while_a_page_of_small_records_is_taken_apart():
    page = [StreamRecord(b"x", "k", str(number), 0) for number in range(10_000)]
    assert run_virtual(turns_of_others(page)) >= 4


@virtual
async def test_whoever_is_asked_to_stop_takes_no_more_bombs_apart():
    """A page of bombs took longer than a handover may (seed 222)."""
    world = World()
    bomb = BOMBS["keys that are no UTF-8"]
    page = [StreamRecord(bomb, "k", str(number), 0) for number in range(1, 6)]
    halt = Halt()
    expander = Deaggregator(
        ShardRef("arn", key(0)), None, config=world.config, sink=world.events, halt=halt
    )
    asyncio.get_running_loop().call_soon(halt.set)
    with pytest.raises(Halted):
        await UserRecords(page, None, expander).waiting(10)
    assert not world.told(AggregatesNotExpanded), "the first one is not even done"


@virtual
async def test_small_aggregates_are_no_long_stretch_together_either():
    """A page of 10 MiB of bombs is as long as one of them."""
    world = World()
    sound = aggregate([OutgoingRecord("k", b"x" * 100_000), OutgoingRecord("k", b"y")])
    left = [StreamRecord(sound, "k", str(n), 0) for n in range(40)]
    made = []
    deaggregator = Deaggregator(
        ShardRef("arn", key(0)), None, config=world.config, sink=world.events
    )
    deaggregator.take_apart(left, made, until=10_000, done=None)
    assert sum(len(record.data) for record in made) < 500_000
