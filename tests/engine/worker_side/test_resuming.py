"""A shard that was stopped and is resumed in the same turn: what failed before does not count."""

import asyncio

import pytest

from shardfleet.events.delivery import BatchFailed, PositionLost, ShardStopped
from tests.engine.worker_side.test_crash_notes import Mortal
from tests.engine.worker_side.test_delivery import in_world, poison, sequence_of
from tests.engine.worker_side.worker_kit import key
from tests.virtual import within

STOP = ("stop", key(0))


async def stopped(world):
    """Wait until the shard is stopped."""
    while STOP not in world.state.documents:
        await world.clock.sleep_ms(1_000)


async def resumed(world, turn_ms, *, then=lambda: None):
    """Run a turn in which a person resumes the stopped shard; ``then`` runs just before."""

    async def person():
        await stopped(world)
        then()
        del world.state.documents[STOP]

    task = asyncio.create_task(person())
    await world.turn(turn_ms=turn_ms)
    await task


@pytest.mark.parametrize("together", [1, 5], ids=["one by one", "with its neighbours"])
def test_a_record_that_is_resumed_has_all_its_attempts_again(together):
    async def scenario(world):
        world.handler._script = poison(3)
        world.put(1, 5)
        await resumed(world, 60_000)
        assert len(world.told(ShardStopped)) == 2
        failures = [event.attempt for event in world.told(BatchFailed)]
        assert failures == [1, 2, 3, 1, 2, 3]
        assert world.state.documents[STOP].body["attempts"] == 3
        assert [call.batch.attempt for call in world.handler.calls][-1] == 3
        assert world.lease().checkpoint == sequence_of(world, 2)

    in_world(scenario, max_attempts=3, max_batch_records=together)


@within(in_world, max_attempts=3, max_batch_records=5)
async def test_what_is_resumed_goes_in_batches_again(world, /):
    world.handler._script = poison(3)
    world.put(1, 9)
    calls = []

    def mended():
        world.handler._script = None
        calls.append(len(world.handler.calls))

    await resumed(world, 60_000, then=mended)
    assert [len(call.batch) for call in world.handler.calls[calls[0] :]] == [5, 2]
    assert world.numbers[-7:] == list(range(3, 10))


@pytest.mark.parametrize("together", [1, 5], ids=["one by one", "with its neighbours"])
@pytest.mark.parametrize("on_trimmed", ["stop", "jump"])
def test_a_shard_whose_failing_record_was_trimmed_goes_on_by_the_rule_for_lost_positions(
    on_trimmed, together
):
    async def scenario(world):
        world.handler._script = poison(3)
        world.put(1, 5)

        def trimmed():
            world.put(6, 9)
            world.stream.trim(key(0), keep=2)

        task = asyncio.create_task(resumed(world, 90_000, then=trimmed))
        if on_trimmed == "stop":
            await stopped(world)
            await world.clock.sleep_ms(5_000)
            await stopped(world)
            assert "older than what the stream retains" in world.state.documents[STOP].body["error"]
            del world.state.documents[STOP]
        await task
        assert [event.policy for event in world.told(PositionLost)] == [on_trimmed]
        assert world.numbers[-2:] == [8, 9]
        assert world.lease().checkpoint == sequence_of(world, 9)

    in_world(scenario, max_attempts=3, max_batch_records=together, on_trimmed=on_trimmed)


@within(in_world, max_crashes=3)
async def test_deaths_before_a_stop_do_not_count_after_it(world, /):
    """H9: a resumed record is handed over again, and the process may die over it as before."""
    world.put(1, 5)
    mortal = Mortal(world, 3)
    await mortal.run_until_alive(turn_ms=30_000)
    assert "the process died 3 times" in world.state.documents[STOP].body["error"]
    deaths = len(world.deaths)

    del world.state.documents[STOP]
    await mortal.run_until_alive(turn_ms=30_000)
    # One in an ordinary turn, one over the noted range, then over the record alone.
    assert len(world.deaths) - deaths == deaths
    assert "the process died 3 times" in world.state.documents[STOP].body["error"]
    assert world.lease().checkpoint == sequence_of(world, 2)


@within(in_world, max_crashes=3)
async def test_a_record_that_killed_is_handled_when_it_is_resumed_in_the_turn_that_stopped_it(
    world, /
):
    world.put(1, 5)
    mortal = Mortal(world, 3)

    async def person():
        await stopped(world)
        mortal.poison.clear()
        await world.clock.sleep_ms(1_000)
        del world.state.documents[STOP]

    task = asyncio.create_task(person())
    await mortal.run_until_alive(turn_ms=60_000)
    await task
    assert STOP not in world.state.documents
    assert len(world.told(ShardStopped)) == 1
    assert world.lease().checkpoint == sequence_of(world, 5)
