"""Pages of whatever source: the same promises, and the same cursor above them."""

import asyncio
from itertools import pairwise

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.cursor import End, ReadFrom, ReadLimits
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON, StartingPosition, StartKind
from shardfleet.engine.retry import Halt, Patience
from shardfleet.engine.shard.pushing import PushedSource
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.errors import PositionTrimmed, Throttled
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryEvents, SeededEntropy
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN, MemoryStream
from shardfleet_testkit.pushed_stream import SUBSCRIPTION_LIFE_MS, SUBSCRIPTIONS_APART_MS
from tests.testing.shard_source_contract import PROMISES
from tests.testing.sources import SOURCES

HOUR_MS = 3_600_000


class Bench:
    """A stream of one shard in memory, and a source of its pages."""

    def __init__(self, kind):
        self.clock = VirtualClock()
        self.stream = MemoryStream(self.clock)
        self.begun_ms = self.clock.now_ms()
        (self.shard,) = self.stream.open_shard_ids
        self.ref = ShardRef(MEMORY_STREAM_ARN, self.shard)
        self._kind = kind
        self.source = None
        self._make()

    def _make(self):
        self.source = SOURCES[self._kind](self.stream, self.clock)

    async def begin_anew(self):
        await self.close()
        self._make()

    async def close(self):
        if isinstance(self.source, PushedSource):
            await self.source.close()
            # A subscription of a reader that is gone keeps the next one off for a while.
            await self.clock.sleep_ms(SUBSCRIPTIONS_APART_MS)

    async def put(self, data):
        return self.stream.put(data, shard_id=self.shard)

    async def close_shard(self):
        return list(self.stream.split(self.shard))

    async def pause(self):
        await self.clock.sleep_ms(SUBSCRIPTIONS_APART_MS)

    def reader(self, start=FROM_TRIM_HORIZON, *, records_most=1_000, **known):
        patience = Patience(clock=self.clock, entropy=SeededEntropy(7), first_ms=100, most_ms=3_000)
        ports = ReadPorts(
            source=self.source, clock=self.clock, events=MemoryEvents(), patience=patience
        )
        limits = ReadLimits(back_off_ms=patience.back_off_ms, records_most=records_most)
        origin = ReadFrom(start=start, **known)
        return ShardReader(self.ref, origin, limits=limits, ports=ports)


@pytest.fixture(params=SOURCES)
def on_bench(request):
    def run(scenario):
        async def main():
            bench = Bench(request.param)
            try:
                return await scenario(bench)
            finally:
                await bench.close()

        return run_virtual(main())

    return run


class Patient:
    """A source that is asked again while it refuses, as every driver does."""

    def __init__(self, bench):
        self._bench = bench

    def __getattr__(self, name):
        return getattr(self._bench, name)

    @property
    def source(self):
        return self

    async def page(self, *arguments, **options):
        while True:
            try:
                return await self._bench.source.page(*arguments, **options)
            except Throttled:
                await self._bench.pause()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_source_in_memory_keeps(promise, on_bench):
    on_bench(lambda bench: promise(Patient(bench)))


async def read(bench, reader, count):
    """Read until so many records have come, or the shard has ended."""
    found = []
    while len(found) < count:
        page = await reader.next_page(Halt())
        assert not isinstance(page, End)
        found += [record.data for record in page.records]
        if page.resume_token is None:
            break
    return found


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


def test_a_cursor_goes_on_over_whatever_a_source_forgets_or_refuses(on_bench):
    async def scenario(bench):
        calls = []

        def refuse(call):
            calls.append(call)
            if len(calls) % 5 == 0:
                bench.stream.expire_iterators()
            if len(calls) % 3 == 0:
                raise Throttled("slow down")

        bench.stream.fault = refuse

        async def producing():
            for number in range(60):
                await bench.put(b"%d" % number)
                await bench.clock.sleep_ms(20_000)
            await bench.close_shard()

        producer = asyncio.create_task(producing())
        assert await read(bench, bench.reader(), 1_000) == numbers(0, 60)
        await producer
        if isinstance(bench.source, PushedSource):
            subscribed = bench.source._subscriptions.subscribed[bench.shard]
            assert len(subscribed) > 20 * 60_000 // SUBSCRIPTION_LIFE_MS
            assert min(b - a for a, b in pairwise(subscribed)) >= SUBSCRIPTIONS_APART_MS

    on_bench(scenario)


def test_a_cursor_tells_the_same_gap_over_each_source(on_bench):
    async def scenario(bench):
        first = await bench.put(b"0")
        await bench.clock.sleep_ms(20 * HOUR_MS)
        for number in range(1, 5):
            await bench.put(b"%d" % number)
        await bench.clock.sleep_ms(5 * HOUR_MS)
        start = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, first)
        reader = bench.reader(start, witness=first, complete_before_ms=0)
        with pytest.raises(PositionTrimmed, match="records behind it may be lost"):
            await read(bench, reader, 1)
        reader.cursor.accept_gap()
        assert await read(bench, reader, 4) == numbers(1, 5)

    on_bench(scenario)


def test_a_cursor_asks_a_source_whether_its_last_record_is_still_there(on_bench):
    """After a day of lag; the answer that is in doubt is not read anew."""

    async def scenario(bench):
        bench.stream = MemoryStream(bench.clock, retention_ms=7 * 24 * HOUR_MS)
        bench._make()
        first = await bench.put(b"0")
        for number in range(1, 9):
            await bench.put(b"%d" % number)
        await bench.clock.sleep_ms(30 * HOUR_MS)
        start = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, first)
        reader = bench.reader(start, records_most=3, witness=first, complete_before_ms=0)
        assert await read(bench, reader, 9) == numbers(0, 9)
        begun = [call.start for call in bench.stream.calls if call.operation == "shard_iterator"]
        at = [each.sequence_number for each in begun if each.kind is StartKind.AT_SEQUENCE_NUMBER]
        assert [int(number) - int(first) for number in at] == [0, 2, 5]

    on_bench(scenario)
