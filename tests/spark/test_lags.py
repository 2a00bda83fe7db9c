"""What Spark's progress says of a batch is about that batch, not about the one before it."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.errors import ShardfleetError, Throttled
from shardfleet_spark.batch_reader import BatchPartition, Readings, _between
from shardfleet_spark.offsets.lineage import Family
from shardfleet_spark.offsets.plan_token import token_from_json
from shardfleet_spark.plan.lags import behind_now
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.plan.shares import Inflow
from tests.spark.memory_seals import stand
from tests.spark.test_source_driver import in_query
from tests.virtual import within

NOW = 1_700_000_000_000
TRIGGER_MS = 30_000


@within(in_query, start="LATEST")
async def test_a_query_with_a_trigger_is_behind_by_it_though_each_batch_ends_at_the_tip(query, /):
    async def produce():
        while True:
            query.stream.put(b"x")
            await query.clock.sleep_ms(100)

    producer = asyncio.ensure_future(produce())
    end, told = await query.driver.initial(), []
    for _ in range(6):
        end, _ = await query.batch(end)
        # Spark asks right after latestOffset; 4.0 and 4.1 show the offset itself.
        reported = query.driver.report()["millis_behind_latest"]
        assert end["stats"]["millis_behind_latest"] == reported
        told.append((reported, query.driver.report().get("left_behind_ms")))
        await query.clock.sleep_ms(TRIGGER_MS)
    producer.cancel()
    await query.clock.sleep_ms(1)
    for lag_ms, left_ms in told[2:]:
        assert TRIGGER_MS - 1_000 <= lag_ms <= TRIGGER_MS + 1_000
        assert left_ms == 0


@within(in_query)
async def test_a_query_that_has_read_everything_is_not_behind(query, /):
    query.stream.put(b"x")
    end, _ = await query.batch(await query.driver.initial())
    for _ in range(5):
        await query.clock.sleep_ms(TRIGGER_MS)
        assert await query.driver.latest(end) == end
    assert query.driver.report()["millis_behind_latest"] == 0
    assert query.driver.report()["lagging_shards"] == 0


@within(in_query)
async def test_news_in_an_idle_shard_is_told_by_the_batch_that_reads_it(query, /):
    query.stream.put(b"x")
    end, _ = await query.batch(await query.driver.initial())
    await query.clock.sleep_ms(1_000)
    assert await query.driver.latest(end) == end
    query.stream.put(b"y")
    await query.clock.sleep_ms(TRIGGER_MS)
    end = await query.driver.latest(end)
    assert query.driver.report()["millis_behind_latest"] == TRIGGER_MS


def test_shards_that_nothing_is_expected_in_are_not_behind():
    stands = {
        "read": stand("read", 1, arrived=NOW - 9_000),
        "quiet": stand("quiet", 1, arrived=NOW - 900_000, tip=NOW - 60_000),
        "new": stand("new"),
        "done": stand("done", "END"),
    }
    inflows = {"read": Inflow(10, 100, 1_000), "quiet": Inflow(0, 0, 1_000)}

    found = behind_now(Family(stands, {}), inflows, busy={"read"}, now_ms=NOW)

    assert found["millis_behind_latest"] == 9_000
    assert found["lagging_shards"] == 1
    assert found["shards_of_unknown_lag"] == 1


@within(in_query, shards=2)
async def test_before_anything_is_read_the_lag_is_unknown_and_not_zero(query, /):
    for number in range(50):
        query.stream.put(b"x", key=str(number))
    await query.clock.sleep_ms(3 * 3_600_000)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    before = query.driver.report()
    names = ("millis_behind_latest", "median_millis_behind_latest", "waiting_records")
    assert [before[name] for name in (*names, "lagging_shards")] == [None] * 4
    assert before["shards_of_unknown_lag"] == 2
    assert token_from_json(end).stats["millis_behind_latest"] is None

    await query.read(start, end)
    await query.clock.sleep_ms(60_000)
    await query.driver.latest(end)
    after = query.driver.report()
    assert after["shards_of_unknown_lag"] == 0
    # In which time the fifty came is not known: a minute later there need be none.
    assert [after[name] for name in names] == [0, 0, 0]


@within(in_query, records_per_read=10, limits=BatchLimits(partitions=1, fetch_ms=60_000))
async def test_refusals_and_pauses_are_counted(query, /):
    left = [3]

    def refuse(call):
        if call.operation == "get_records" and left[0]:
            left[0] -= 1
            raise Throttled("slow down")

    for number in range(40):
        query.stream.put(b"%d" % number)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    query.stream.fault = refuse
    begun_ms = query.clock.monotonic_ms()
    await query.read(start, end)
    took_ms = query.clock.monotonic_ms() - begun_ms
    await query.driver.latest(end)
    found = query.driver.report()
    assert found["throttles"] == 3
    # One pause between two calls is 200 ms; there were some of them.
    assert took_ms - 200 * (found["calls"] + 3) <= found["paused_ms"] <= took_ms
    assert found["paused_ms"] > 0


async def begun(query):
    """Return what a batch over the whole stream reads."""
    start = await query.driver.initial()
    (planned,) = await query.driver.partitions(start, await query.driver.latest(start))
    return planned.range.ranges


async def whole_batch(query, ranges):
    """Read it as a batch of the last second; return the data of its rows."""
    until_ms = query.clock.now_ms()
    task = BatchPartition((ranges,), until_ms - 1_000, until_ms, {})
    readings, rows = Readings(ranges, until_ms, query.ports), []
    while pages := await readings.next_pages():
        rows += [each.data for _, records in pages for each in _between(records, task)]
    return rows


@within(in_query)
async def test_a_batch_has_the_records_of_which_nobody_says_when_they_arrived(query, /):
    def undated(_, page):
        records = [replace(each, approximate_arrival_ms=0) for each in page.records]
        return replace(page, records=records)

    query.stream.put(b"old")
    ranges = await begun(query)
    await query.clock.sleep_ms(60_000)
    query.stream.put(b"new")
    assert await whole_batch(query, ranges) == [b"new"]
    query.stream.alter = undated
    assert await whole_batch(query, ranges) == [b"old", b"new"]


@within(in_query)
async def test_a_batch_whose_end_nobody_tells_is_refused_and_neither_cut_nor_endless(query, /):
    """Model kinesis GetRecords: MillisBehindLatest is not required, and pages may be empty."""
    query.stream.put(b"x")
    ranges = await begun(query)
    query.stream.alter = lambda _, page: replace(page, millis_behind_latest=None)
    with pytest.raises(ShardfleetError, match="MillisBehindLatest"):
        await asyncio.wait_for(whole_batch(query, ranges), 60)
