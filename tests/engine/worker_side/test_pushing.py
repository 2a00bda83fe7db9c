"""A source that is pushed: five minutes, five seconds, silence, take-overs, and polling instead."""

import asyncio
import os
from contextlib import suppress
from itertools import count, pairwise
from random import Random

import pytest

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.domain.slots.usage import ShardWay
from shardfleet.engine.retry import Halt, Halted
from shardfleet.engine.shard.pushing import POLLED_MS, SILENCE_MS
from shardfleet.errors import (
    ConfigurationError,
    IteratorExpired,
    OutcomeUnknown,
    RightMissing,
    ShardGone,
    SubscriptionHeld,
    SubscriptionTaken,
    Throttled,
    Unsettled,
)
from shardfleet.events.delivery import PushLost
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryEvents
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN, MemoryStream
from shardfleet_testkit.pushed_stream import MemoryConsumer
from tests.engine.worker_side.worker_kit import World
from tests.testing.sources import pushed
from tests.virtual import virtual

SECOND = 1_000


class Bench:
    """One shard, one consumer, and a reader of its pages."""

    def __init__(self):
        self.clock = VirtualClock()
        self.stream = MemoryStream(self.clock)
        (self.shard,) = self.stream.open_shard_ids
        self.ref = ShardRef(MEMORY_STREAM_ARN, self.shard)
        self.consumer = MemoryConsumer(self.stream, self.clock)
        self.events = MemoryEvents()
        self.halt = Halt()
        self.token = None
        self.source = self.other()

    def other(self):
        """Another source by the same consumer."""
        return pushed(self.stream, self.clock, consumer=self.consumer, events=self.events)

    def put(self, data):
        return self.stream.put(data, shard_id=self.shard)

    async def page(self, source=None):
        page = await (source or self.source).page(
            self.ref, FROM_TRIM_HORIZON, resume_token=self.token, limit=1_000, halt=self.halt
        )
        self.token = page.resume_token
        return [record.data for record in page.records]

    async def until(self, data, source=None):
        """Read until that record comes, or until what is raised."""
        while data not in await self.page(source):
            pass

    @property
    def subscribed(self):
        return [ms - self.begun_ms for ms in self.consumer.subscribed[self.shard]]

    @property
    def begun_ms(self):
        return self.consumer.subscribed[self.shard][0]

    def refuse(self, error):
        """Let each subscription fail from now on."""

        def fault(_):
            raise error

        self.consumer.fault = fault


@virtual
async def test_the_next_subscription_begins_when_the_five_minutes_of_the_last_one_are_over():
    bench = Bench()
    bench.put(b"first")
    await bench.until(b"first")
    for _ in range(5):
        await bench.clock.sleep_ms(200 * SECOND)
        bench.put(b"later")
        await bench.until(b"later")
    assert len(bench.subscribed) >= 3
    assert min(b - a for a, b in pairwise(bench.subscribed)) >= 300 * SECOND


@virtual
async def test_a_silent_subscription_is_given_up_after_35_seconds_and_nothing_is_lost():
    bench = Bench()
    bench.put(b"a")
    await bench.until(b"a")
    bench.consumer.live[bench.shard].is_silent = True
    bench.put(b"b")
    before_ms = bench.clock.monotonic_ms()
    with pytest.raises(OutcomeUnknown, match="nothing came"):
        await bench.page()
    assert bench.clock.monotonic_ms() - before_ms == 35 * SECOND
    await bench.until(b"b")


@virtual
async def test_time_in_which_nobody_reads_is_no_silence():
    bench = Bench()
    await bench.page()
    bench.consumer.live[bench.shard].is_silent = True
    await bench.clock.sleep_ms(SILENCE_MS - 1)
    reading = asyncio.create_task(bench.page())
    await bench.clock.sleep_ms(SILENCE_MS - 1)
    assert not reading.done()
    with pytest.raises(OutcomeUnknown):
        await reading


@virtual
async def test_what_another_one_subscribed_to_just_now_is_waited_for_and_is_no_failure():
    bench = Bench()
    for _ in range(5):
        bench.source, bench.token = bench.other(), None
        await bench.page()
    # A try a second: the first that comes after the five succeeds.
    assert all(5 * SECOND <= b - a <= 6 * SECOND for a, b in pairwise(bench.subscribed))
    assert not bench.events.events


@virtual
async def test_the_five_seconds_since_its_own_success_are_waited_out_without_asking():
    bench, asked = Bench(), []
    bench.consumer.fault = lambda _: asked.append(bench.clock.monotonic_ms())
    await bench.page()
    bench.consumer.live[bench.shard].end(Throttled("reset"))
    with pytest.raises(Throttled):
        await bench.until(b"never")
    await bench.page()
    first_ms, second_ms = asked
    assert second_ms - first_ms == 5 * SECOND


@virtual
async def test_who_is_taken_over_is_told_and_comes_back_no_sooner_than_in_five_seconds():
    bench = Bench()
    await bench.page()
    await bench.clock.sleep_ms(6 * SECOND)
    other = bench.other()
    await bench.page(other)
    with pytest.raises(SubscriptionTaken):
        await bench.until(b"never")
    taken_ms = bench.clock.monotonic_ms()
    await bench.page()
    assert 4 * SECOND <= bench.clock.monotonic_ms() - taken_ms <= 6 * SECOND
    with pytest.raises(SubscriptionTaken):
        await bench.until(b"never", other)


@virtual
async def test_three_failures_in_a_minute_and_a_shard_is_polled_for_five():
    bench = Bench()
    bench.put(b"a")
    await bench.until(b"a")
    bench.consumer.live[bench.shard].end(Throttled("broken off"))
    bench.refuse(Throttled("no"))
    bench.put(b"b")
    for _ in range(3):
        with pytest.raises(Throttled):
            await bench.until(b"never")
    (told,) = bench.events.events
    assert told == PushLost(lease_key=bench.ref.lease_key, error="Throttled", polled_ms=300_000)
    bench.consumer.fault = bool
    before = len(bench.subscribed)
    # Behind what was pushed, and not from the start again.
    assert await bench.page() == [b"b"]
    assert len(bench.subscribed) == before
    await bench.clock.sleep_ms(POLLED_MS)
    bench.put(b"c")
    with pytest.raises(IteratorExpired):
        await bench.page()
    bench.token = None
    await bench.until(b"c")
    assert len(bench.subscribed) == before + 1


@virtual
async def test_failures_that_are_further_apart_are_no_reason_to_poll():
    bench = Bench()
    await bench.page()
    for _ in range(6):
        bench.consumer.live[bench.shard].end(Throttled("broken off"))
        with pytest.raises(Throttled):
            await bench.until(b"never")
        await bench.page()
        await bench.clock.sleep_ms(31 * SECOND)
    assert not bench.events.events


@virtual
async def test_a_consumer_that_somebody_else_holds_for_good_is_no_reason_to_read_nothing():
    bench = Bench()
    bench.put(b"a")
    bench.refuse(SubscriptionHeld("held"))
    before_ms = bench.clock.monotonic_ms()
    for _ in range(3):
        with pytest.raises(SubscriptionHeld):
            await bench.page()
    assert bench.clock.monotonic_ms() - before_ms <= 60 * SECOND
    assert await bench.page() == [b"a"]


@virtual
async def test_a_shard_that_is_gone_is_told_and_counts_as_no_failure():
    bench = Bench()
    bench.refuse(ShardGone("gone"))
    for _ in range(5):
        with pytest.raises(ShardGone):
            await bench.page()
    assert not bench.events.events


@virtual
async def test_who_is_asked_to_stop_leaves_the_subscription():
    bench = Bench()
    await bench.page()
    live = bench.consumer.live[bench.shard]
    reading = asyncio.create_task(bench.until(b"never"))
    await bench.clock.sleep_ms(50)
    bench.halt.set()
    with pytest.raises(Halted):
        await reading
    await bench.clock.sleep_ms(1)
    assert live.pushing.cancelled()


@virtual
async def test_a_source_that_is_closed_leaves_all_subscriptions():
    bench = Bench()
    await bench.page()
    await bench.source.close()
    await bench.clock.sleep_ms(1)
    assert bench.consumer.live[bench.shard].pushing.cancelled()


@pytest.mark.parametrize(
    ("error", "gap_ms"),
    [
        (None, 35 * SECOND),  # Silence: as long as the KCL waits (SILENCE_MS).
        (Throttled("reset"), 5 * SECOND),  # The time between two subscriptions (fact K34).
        (OutcomeUnknown("the connection takes no more requests"), 5 * SECOND),  # GOAWAY
        (SubscriptionHeld("taken over"), 5 * SECOND),
    ],
)
@virtual
async def test_the_longest_time_without_an_event_is_told_whatever_it_comes_from(error, gap_ms):
    bench = Bench()
    await bench.page()
    live = bench.consumer.live[bench.shard]
    live.is_silent = error is None
    if error:
        live.end(error)
    bench.put(b"a")
    with pytest.raises((Throttled, OutcomeUnknown, SubscriptionTaken)):
        await bench.until(b"never")
    await bench.until(b"a")
    for _ in range(10):
        bench.put(b"b")
        await bench.page()
    assert bench.source.ways == {bench.ref.lease_key: ShardWay(gap_ms=gap_ms)}


@pytest.mark.parametrize(
    "verdict", [RightMissing("no right"), ConfigurationError("no such consumer")]
)
@virtual
async def test_why_a_shard_is_polled_is_told_until_it_is_pushed_again(verdict):
    bench = Bench()
    bench.refuse(Unsettled(verdict))
    bench.put(b"a")
    for _ in range(3):
        with pytest.raises(Unsettled):
            await bench.page()
    await bench.page()
    assert bench.source.ways[bench.ref.lease_key].polled == str(Unsettled(verdict))
    await bench.clock.sleep_ms(POLLED_MS)
    bench.consumer.fault, bench.token = bool, None
    await bench.page()
    assert bench.source.ways == {bench.ref.lease_key: ShardWay()}


class Workers(World):
    """A world whose workers read by one consumer."""

    def __init__(self, **world):
        super().__init__(**world)
        self.consumer = MemoryConsumer(self.stream, self.clock)
        self.ways = {}

    async def turn(self, given=None, **options):
        source = pushed(self.stream, self.clock, consumer=self.consumer, events=self.events)
        try:
            return await super().turn(given, source=source, **options)
        finally:
            self.ways = source.ways
            await source.close()


SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "parent_poll_ms": 500}


@virtual
async def test_a_worker_whose_lease_stands_takes_its_shard_back():
    world = Workers(**SHORT)
    world.put(1, 5)
    turn = asyncio.create_task(world.turn(turn_ms=90_000))
    await world.clock.sleep_ms(20_000)
    (shard,) = world.consumer.live
    await world.consumer.subscribe(shard, FROM_TRIM_HORIZON, wake=bool)
    world.put(6, 9)
    assert await turn == TurnOutcome.CONTINUE
    assert world.numbers == list(range(1, 10))
    assert len(world.consumer.subscribed[shard]) == 3
    # As of its last sign of life, for a person.
    assert 4_000 <= world.slot().signs.ways[shard].gap_ms <= 6_000


@virtual
async def test_a_worker_that_is_taken_over_and_has_lost_its_lease_delivers_nothing_more():
    # So that it is not a renewal that finds out.
    world = Workers(**SHORT, failover_ms=300_000)
    world.put(1, 5)
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.clock.sleep_ms(20_000)
    (shard,) = world.consumer.live
    await world.leases.apply(lease_changes.evict(world.lease()))
    await world.consumer.subscribe(shard, FROM_TRIM_HORIZON, wake=bool)
    world.put(6, 9)
    await turn
    assert world.numbers == list(range(1, 6))
    assert len(world.consumer.subscribed[shard]) == 2


class Bad:
    """What befalls the subscriptions of a consumer, one thing after the other."""

    def __init__(self, world, chance):
        self.world, self.chance = world, chance
        self.kinds = (self.silence, self.reset, self.go_away, self.take_over, self.deny)

    async def befall(self):
        while True:
            await self.world.clock.sleep_ms(self.chance.randrange(1_000, 60_000))
            if self.world.consumer.live:
                await self.chance.choice(self.kinds)(*self.world.consumer.live.popitem())

    async def silence(self, _, live):
        live.is_silent = True

    async def reset(self, _, live):
        live.end(Throttled("reset"))

    async def go_away(self, _, live):
        live.end(OutcomeUnknown("the connection takes no more requests"))

    async def take_over(self, shard, live):
        self.world.consumer.live[shard] = live
        with suppress(SubscriptionHeld):
            await self.world.consumer.subscribe(shard, FROM_TRIM_HORIZON, wake=bool)

    async def deny(self, _, live):
        """Withdraw the right, or delete the consumer, for a while."""
        verdict = self.chance.choice((RightMissing("no"), ConfigurationError("no consumer")))

        def fault(_):
            raise Unsettled(verdict)

        live.end(Unsettled(verdict))
        self.world.consumer.fault = fault
        await self.world.clock.sleep_ms(self.chance.randrange(90_000))
        self.world.consumer.fault = bool


# `make whole` runs 10,000: five times 2,000.
TURNS = 2 * int(os.environ.get("SHARDFLEET_TEST_DRAWN", "25"))
LIVES = 5 if "SHARDFLEET_TEST_DRAWN" in os.environ else 1


@pytest.mark.parametrize("life", range(LIVES))
@virtual
async def test_turns_of_half_a_minute_lose_nothing_whatever_befalls_their_subscriptions(seed, life):
    world = Workers(**SHORT)
    numbers = count(1)

    async def feed():
        while True:
            world.put(next(numbers))
            await world.clock.sleep_ms(2_000)

    around = [
        asyncio.create_task(each)
        for each in (feed(), Bad(world, Random(f"{seed}/{life}")).befall())
    ]
    polled = 0
    for _ in range(TURNS):
        before = len(world.handler.calls)
        assert await world.turn(turn_ms=30_000) == TurnOutcome.CONTINUE
        (way,), calls = world.ways.values(), world.handler.calls[before:]
        longest_ms = max((b.began_ms - a.began_ms for a, b in pairwise(calls)), default=0)
        # A record comes each two seconds.
        assert way.polled or longest_ms <= way.gap_ms + 2_100
        polled += bool(way.polled)
    assert polled < TURNS / 2
    for each in around:
        each.cancel()
    await asyncio.wait(around)
    world.consumer.fault = bool
    await world.turn(turn_ms=60_000)
    # Each once, and in order: what a turn had in hand it has handled.
    assert world.numbers == list(range(1, next(numbers)))
    assert world.told(PushLost)
