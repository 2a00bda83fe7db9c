"""Filters: what no handler gets is done all the same, and nothing beside it is."""

import json

import pytest

from shardfleet.events.delivery import RecordsFiltered
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from tests.engine.worker_side.steps_kit import deaths
from tests.engine.worker_side.worker_kit import World, at, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}
EVEN = json.dumps([{"data": {"kind": ["even"]}}])


def a_world(**world):
    return World(**SHORT, **world)


def payload(n):
    return json.dumps({"n": n, "kind": "odd" if n % 2 else "even"}).encode()


def last_of(world):
    return world.stream.sequence_numbers(key(0))[-1]


def put(world, first, last):
    for n in range(first, last + 1):
        world.stream.put(payload(n), shard_id=key(0))


def numbers(world):
    return [json.loads(data)["n"] for data in world.handler.payloads]


@pytest.mark.parametrize("last", [40, 41])
@virtual
async def test_what_matches_no_filter_is_passed_and_counted(last):
    world = a_world(filters=EVEN, max_batch_records=7)
    put(world, 1, last)
    await world.turn(turn_ms=20_000)

    assert numbers(world) == list(range(2, 41, 2))
    assert str(world.lease().checkpoint) == last_of(world)
    assert sum(event.count for event in world.told(RecordsFiltered)) == last - 20


@virtual
async def test_a_shard_without_one_record_for_the_handler_is_checkpointed_to_its_end():
    world = a_world(filters=EVEN)
    for _ in range(50):
        world.stream.put(b"no JSON", shard_id=key(0))
    await world.turn(turn_ms=20_000)

    assert not world.handler.calls
    assert str(world.lease().checkpoint) == last_of(world)


@virtual
async def test_filters_look_at_the_records_inside_of_an_aggregate():
    world = a_world(filters=EVEN)
    inside = [OutgoingRecord("k", payload(n)) for n in range(1, 10)]
    world.stream.put(aggregate(inside), shard_id=key(0))
    await world.turn(turn_ms=20_000)

    assert numbers(world) == [2, 4, 6, 8]
    assert [record.sub_sequence_number for record in world.handler.handled] == [1, 3, 5, 7]
    assert world.lease().checkpoint.sub_sequence_number == 8


@virtual
async def test_a_record_that_fails_is_not_passed_by_what_is_filtered_behind_it():
    world = a_world(filters=EVEN, max_attempts=0)

    async def fail(batch):
        raise ValueError(batch[0])

    world.handler._script = fail
    put(world, 1, 3)
    await world.turn(turn_ms=20_000)

    assert world.lease().checkpoint < at(world.stream.sequence_numbers(key(0))[1])


def test_a_death_at_any_step_neither_loses_a_record_nor_hands_over_one_that_is_filtered():
    async def prepared():
        world = World(**SHORT, filters=EVEN, max_batch_records=2)
        world.handler._script = lambda batch: world.clock.sleep_ms(1_500)
        put(world, 1, 12)
        return world

    for world, where in deaths(prepared, every=3, steps_least=50):
        assert set(numbers(world)) == {2, 4, 6, 8, 10, 12}, where
        assert str(world.lease().checkpoint) == last_of(world), where
