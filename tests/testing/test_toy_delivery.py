"""A new way of delivering is a module (`toy_delivery.py`) and one line in a table."""

from functools import partial

import pytest

from shardfleet.domain.delivery.ways import PLAIN, WAYS
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.runtime.delivering import PROGRESS
from tests.engine.worker_side.worker_kit import World, key
from tests.testing.toy_delivery import ToyProgress
from tests.virtual import virtual

KEYS, EACH = 7, 20
RECORDS = [(f"k{n % KEYS}", str(1 + n // KEYS)) for n in range(KEYS * EACH)]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Register the toy, for every fleet; return whose way was asked for."""
    fleets = []
    monkeypatch.setitem(PROGRESS, "", lambda: fleets.append("") or ToyProgress)
    return fleets


def handler_of(sink):
    def handle(batch):
        for record in batch:
            with_it = partial(_with, int(record.data))
            sink.update(f"done {record.partition_key}", with_it, ())

    return handle


def _with(what, those):
    """Add something to what is there, once: calls are repeated."""
    return those if what in those else (*those, what)


def check(sink):
    for name in (f"k{n}" for n in range(KEYS)):
        assert sink.values.get(f"done {name}", ()) == tuple(range(1, EACH + 1)), name


@virtual
async def test_a_whole_worker_keeps_one_record_open_until_it_leaves_or_the_shard_ends():
    world = World(shards=1)
    world.put(1, 20)
    await world.turn()
    assert world.numbers == list(range(1, 21))
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]
    world.put(21, 25)
    world.stream.split(key(0))
    await world.turn()
    assert world.numbers == list(range(1, 26))
    assert world.lease().checkpoint == AT_SHARD_END


@pytest.mark.parametrize("seed", [3, 5, 6])
def test_simulated_fleets_lose_nothing(fleet, sink, seed, asked):
    [run] = fleet.run(handler_of(sink), RECORDS, seed=seed, hours=0.1, check=check)

    assert asked
    assert run.ended_hard


def test_each_way_that_an_option_chooses_has_what_carries_it_out():
    assert PROGRESS.keys() == {way.option for way in (PLAIN, *WAYS)}
