"""A whole worker whose pages are not polled: its promises are those of one that polls."""

import asyncio

import pytest

from shardfleet.domain.slots.slot import SlotState, TurnOutcome
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.errors import Throttled
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.pushed_stream import SUBSCRIPTIONS_APART_MS
from tests.engine.worker_side.worker_kit import Crash, World, key
from tests.testing.sources import SOURCES

TURN_MS = 120_000
SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "parent_poll_ms": 500}


@pytest.fixture(params=sorted(SOURCES.keys() - {"polled"}))
def source_of(request):
    """Return how the sources of a run are made."""
    return SOURCES[request.param]


@pytest.fixture
def on_source(source_of):
    """Run a scenario in a world whose workers read from a source of their own, each turn anew."""

    class OnSource(World):
        async def turn(self, given=None, *, turn_ms=TURN_MS, **replaced):
            source = source_of(self.stream, self.clock)
            try:
                return await super().turn(given, turn_ms=turn_ms, source=source, **replaced)
            finally:
                await source.close()
                # A shard takes one subscription in five seconds.
                await self.clock.sleep_ms(SUBSCRIPTIONS_APART_MS)

    def run(scenario, **world):
        async def main():
            return await scenario(OnSource(**{**SHORT, **world}))

        return run_virtual(main())

    return run


def test_turns_handle_every_record_once_and_in_order_as_it_comes(on_source):
    async def scenario(world):
        async def feed():
            for n in range(21, 101):
                world.put(n)
                await world.clock.sleep_ms(2_000)

        world.put(1, 20)
        feeding = asyncio.create_task(feed())
        outcomes = [await world.turn() for _ in range(3)]
        await feeding

        assert outcomes == [TurnOutcome.CONTINUE] * 3
        assert world.numbers == list(range(1, 101))
        assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]

    on_source(scenario)


def test_a_shard_that_is_split_is_read_to_its_end_before_its_children(on_source):
    async def scenario(world):
        world.put(1, 10)
        world.stream.split(key(0))
        world.put(11, 15, number=1)
        world.put(21, 25, number=2)
        await world.turn()
        await world.turn()

        assert world.lease().checkpoint == AT_SHARD_END
        assert world.numbers[:10] == list(range(1, 11))
        assert [n for n in world.numbers if 10 < n < 20] == list(range(11, 16))
        assert [n for n in world.numbers if n > 20] == list(range(21, 26))

    on_source(scenario, shards=1)


def test_a_worker_that_dies_repeats_what_was_not_checkpointed_and_loses_nothing(on_source):
    async def scenario(world):
        world.put(1, 50)
        world.leases.before = crash_at_the_first_checkpoint
        await world.turn_that_may_die()
        world.leases.before = lambda _: None
        world.put(51, 60)
        await world.turn()
        await world.turn()

        assert world.deaths
        assert sorted(set(world.numbers)) == list(range(1, 61))
        again = world.numbers[world.numbers.index(1, 1) :]
        assert again == list(range(1, 61))

    def crash_at_the_first_checkpoint(change):
        if change.operation == "checkpoint":
            raise Crash

    on_source(scenario)


def test_a_subscription_that_is_refused_or_that_fails_is_made_anew_behind_what_was_read(on_source):
    async def scenario(world):
        async def feed():
            for n in range(11, 61):
                world.put(n)
                await world.clock.sleep_ms(1_000)

        reads = iter(range(1_000))
        world.stream.fault = lambda *_: refuse_some(next(reads))
        world.put(1, 10)
        feeding = asyncio.create_task(feed())
        await world.turn()
        await feeding

        assert world.numbers == list(range(1, 61))

    def refuse_some(number):
        if number % 17 == 5:
            raise Throttled("refused")

    on_source(scenario)


@pytest.mark.parametrize("after_ms", [0, 60_500])
def test_a_turn_that_is_told_to_leave_a_quiet_shard_ends_at_once(on_source, source_of, after_ms):
    async def scenario(world):
        world.put(1, 20)
        source = source_of(world.stream, world.clock)
        given, now_ms = await world.open_slot(), world.clock.monotonic_ms
        began_ms = now_ms()
        ports = world.ports(source=source)
        turn = WorkerTurn(given, config=world.config, ports=ports, deadline_ms=began_ms + TURN_MS)
        asyncio.get_running_loop().call_later(after_ms / 1_000, turn.leave)

        assert await turn.run() is TurnOutcome.CONTINUE
        assert now_ms() - began_ms <= after_ms + 1
        assert world.slot().state is SlotState.RUNNING
        await source.close()
        await world.clock.sleep_ms(SUBSCRIPTIONS_APART_MS)
        await world.turn()
        assert world.numbers == list(range(1, 21))

    on_source(scenario)
