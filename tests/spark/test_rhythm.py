"""A query keeps up with its stream on the defaults, whatever its trigger."""

import asyncio
from dataclasses import replace

import pytest

from shardfleet.errors import Throttled
from shardfleet_local.kinesis.quotas import GET_RECORDS_BYTES, ShardQuota
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.plan.rhythm import Rhythm
from shardfleet_spark.stream_reader import settings_of
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_stream import MemoryStream
from tests.spark.test_source_driver import Query

RECORD = b"x" * 90_000
RECORDS_PER_S = 10
RUN_MS = 600_000


class LimitedStream(MemoryStream):
    """
    One shard with Kinesis's limits: five calls and 2 MiB a second, 10 MiB in an answer.

    They are those of the embedded Kinesis (facts K26, K75).
    """

    def __init__(self, clock):
        super().__init__(clock)
        self._quota = ShardQuota(clock.now_ms())

    async def get_records(self, iterator, *, shard_id, limit):
        if not self._quota.take_read(self._clock.now_ms()):
            raise Throttled("Rate exceeded for shard")
        most = min(limit, GET_RECORDS_BYTES // (len(RECORD) + 1))
        page = await super().get_records(iterator, shard_id=shard_id, limit=most)
        self._quota.charge_read(page.size)
        return page


async def produce(query):
    while True:
        query.stream.put(RECORD)
        await query.clock.sleep_ms(1_000 // RECORDS_PER_S)


async def run(query, *, trigger_ms, sink_ms):
    """
    Let Spark's micro-batches go on for ten minutes; return the lag at the end in milliseconds.

    The next trigger is at the next multiple of the interval, at once if that has passed
    (`ProcessingTimeExecutor`).
    """
    clock, end, read = query.clock, await query.driver.initial(), 0
    begun_ms = clock.monotonic_ms()
    while clock.monotonic_ms() - begun_ms < RUN_MS:
        now_ms = clock.monotonic_ms()
        start, (end, data) = end, await query.batch(end)
        read += len(data)
        if end != start:
            await clock.sleep_ms(sink_ms)
            await query.driver.commit(end)
        next_ms = (now_ms // trigger_ms + 1) * trigger_ms if trigger_ms else now_ms + 10
        await clock.sleep_ms(max(1, next_ms - clock.monotonic_ms()))
    unread = query.stream._logs[query.stream.open_shard_ids[0]].records[read:]
    return clock.now_ms() - unread[0].approximate_arrival_ms if unread else 0


class ReadByTheDriver(Query):
    """A query without a seal store: its tasks are handed what the driver has read."""

    async def read(self, start, end):
        planned = await self.driver.partitions(start, end)
        assert all(list(each.records) == list(self.stream.open_shard_ids) for each in planned)
        return [r.data for each in planned for records in each.records.values() for r in records]


def lag_after_ten_minutes(*, trigger_ms, sink_ms=2_000, store=True, **options):
    async def main():
        settings = settings_of(read_options(SourceOptions, {"stream": "s", **options}))
        kind = Query if store else ReadByTheDriver
        query = kind(store=store, limits=replace(settings.limits, partitions=1))
        query.stream = LimitedStream(query.clock)
        query.restart()
        producer = asyncio.ensure_future(produce(query))
        lag_ms = await run(query, trigger_ms=trigger_ms, sink_ms=sink_ms)
        producer.cancel()
        return lag_ms

    return run_virtual(main())


@pytest.mark.parametrize("trigger_ms", [30_000, 60_000])
@pytest.mark.parametrize("sink_ms", [500, 5_000])
@pytest.mark.parametrize("store", [True, False])
def test_a_shard_at_nine_tenths_of_its_limit_is_kept_up_with_on_the_defaults(
    trigger_ms, sink_ms, store
):
    lag_ms = lag_after_ten_minutes(trigger_ms=trigger_ms, sink_ms=sink_ms, store=store)

    assert lag_ms < 2 * trigger_ms


def test_without_an_interval_too():
    assert lag_after_ten_minutes(trigger_ms=0) < 15_000


def test_the_option_says_otherwise():
    assert lag_after_ten_minutes(trigger_ms=30_000, maxFetchTime="2s") > 120_000


def test_a_batch_reads_for_four_fifths_of_the_time_between_two_questions_within_bounds():
    rhythm, found = Rhythm(), []
    for now_ms in (7, 30_007, 60_007, 60_018, 1_000_000):
        rhythm.asked(now_ms)
        found.append(rhythm.fetch_ms)

    assert found == [2_000, 24_000, 24_000, 2_000, 60_000]


def test_batches_back_to_back_do_not_grow_without_end():
    """Trigger 0: from one question to the next is what reading and the sink took."""
    rhythm, now_ms, lengths = Rhythm(), 0, []
    for _ in range(60):
        rhythm.asked(now_ms)
        lengths.append(rhythm.fetch_ms)
        now_ms += rhythm.fetch_ms + 3_000

    assert max(lengths) <= 12_000
    assert lengths[-1] == pytest.approx(12_000, rel=0.01)
