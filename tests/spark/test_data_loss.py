"""
A query that reads where the stream forgets: each gap is told, and none is told that is none.

Kinesis: records are gone when the retention period is over, and an iterator that points at them
goes on, without a word, at the oldest record that is left (GetRecords, AT_SEQUENCE_NUMBER).
"""

import pytest
from msgspec.structs import replace

from shardfleet.errors import Throttled
from shardfleet_spark.offsets.plan_token import token_from_json
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read.sealing import conform
from shardfleet_spark.read.shard_pages import DataLost
from shardfleet_testkit.memory_stream import MemoryStream
from tests.spark.test_source_driver import DAY_MS, HOUR_MS, at_record, in_query, read_from
from tests.virtual import within

MINUTE_MS = 60_000
BY_TWO_HUNDRED = BatchLimits(partitions=1, records_per_shard=200)


async def at_the_horizon(query, *, records=2_200):
    """Put ten records a second, and stand still until the oldest has 20 s left."""
    for number in range(records):
        query.stream.put(b"%d" % number)
        await query.clock.sleep_ms(100)
    await query.clock.sleep_ms(DAY_MS - records * 100 - 20_000)


@pytest.mark.parametrize("probed", [True, False])
@within(in_query, limits=BY_TWO_HUNDRED)
async def test_what_expires_between_two_batches_stops_the_query(query, /, probed):
    await at_the_horizon(query)
    end, data = await query.batch(await query.driver.initial())
    assert len(data) == 200
    if probed:
        await query.clock.sleep_ms(1_000)
        after = await query.driver._after_plan(token_from_json(end))
        assert await query.driver._prober.has_work(after.family.stands)
    # The iterator that the batch left lives for five minutes; 1,600 records do not.
    await query.clock.sleep_ms(3 * MINUTE_MS)
    with pytest.raises(DataLost, match="records behind it may be lost"):
        await query.batch(end)


@within(in_query, store=False, limits=BY_TWO_HUNDRED)
async def test_what_expires_between_two_batches_that_the_driver_reads_stops_the_query(query, /):
    await at_the_horizon(query)
    end = await query.driver.latest(await query.driver.initial())
    await query.clock.sleep_ms(3 * MINUTE_MS)
    # What follows was read ahead, and in time; what is behind it was not.
    end = await query.driver.latest(end)
    (planned,) = await query.driver.partitions(None, end)
    assert sum(map(len, planned.records.values())) == 200
    with pytest.raises(DataLost, match="records behind it may be lost"):
        await query.driver.latest(end)


@within(in_query, limits=BatchLimits(partitions=1, records_per_shard=1))
async def test_what_expires_before_an_idle_shard_is_asked_again_is_not_taken_for_its_tip(query, /):
    query.stream.put(b"read")
    await query.clock.sleep_ms(MINUTE_MS)
    query.stream.put(b"not read")
    await query.clock.sleep_ms(DAY_MS - 2 * MINUTE_MS)
    end, data = await query.batch(await query.driver.initial())
    assert data == [b"read"]
    await query.clock.sleep_ms(3 * MINUTE_MS)
    with pytest.raises(DataLost, match="the oldest now is none"):
        await query.batch(end)


@within(in_query, limits=BY_TWO_HUNDRED, fail_on_data_loss=False)
async def test_what_expires_between_two_batches_is_stated_where_that_was_asked_for(query, /):
    await at_the_horizon(query)
    end, data = await query.batch(await query.driver.initial())
    await query.clock.sleep_ms(3 * MINUTE_MS)
    end, more = await query.batch(end)
    assert len(data + more) == 400
    end = await query.driver.latest(end)
    assert "records behind it may be lost" in str(end["stats"]["lost"])


@pytest.mark.parametrize("away_ms", [10_000, 60_000])
@within(in_query, store=False, limits=BY_TWO_HUNDRED, fail_on_data_loss=False)
async def test_what_the_driver_has_read_and_is_gone_when_tasks_read_it_again_is_stated(
    query, /, away_ms, caplog
):
    await at_the_horizon(query)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    query.restart()  # The records that the driver had are gone with it.
    await query.clock.sleep_ms(away_ms)
    (planned,) = await query.driver.partitions(start, end)
    (part,) = planned.range.parts
    (read,) = await conform(part, planned.sealed, query.ports, buffers=planned.records)
    following = await query.driver.latest(end)
    count = planned.sealed.shards[0].count
    is_whole = len(read.records) == count > 0
    assert is_whole == (away_ms == 10_000)
    told = [each for each in following["stats"]["lost"] if f"of the {count} records" in each]
    assert bool(told) != is_whole
    assert ("the stream has 0" in caplog.text) != is_whole


@pytest.mark.parametrize("is_told", [True, False])
def test_what_of_a_batch_is_gone_when_it_is_read_again_stops_the_query_or_is_stated(is_told):
    async def scenario(query):
        await at_the_horizon(query)
        start = await query.driver.initial()
        end, data = await query.batch(start)
        assert len(data) == 200
        await query.clock.sleep_ms(30_000)  # 20 s until the oldest goes, ten go in a second.
        query.restart()
        if not is_told:
            with pytest.raises(DataLost, match="of the 200 records from"):
                await query.read(start, end)
            return
        left = len(await query.read(start, end))
        assert 0 < left < 200
        following = await query.driver.latest(end)
        (lost,) = following["stats"]["lost"]
        assert f"of the 200 records from 2 to 201 the stream has {left}" in lost
        assert query.driver.report()["lost"] == [lost]

    in_query(scenario, limits=BY_TWO_HUNDRED, fail_on_data_loss=not is_told)


def test_what_expires_between_two_pages_of_a_batch_stops_it():
    async def scenario(query):
        await at_the_horizon(query)
        start = await query.driver.initial()
        end = await query.driver.latest(start)
        answers = []

        def refuse(call):
            if call.operation == "get_records":
                answers.append(query.clock.now_ms())
                if len(answers) > 1 and answers[-1] < answers[0] + 2 * MINUTE_MS:
                    raise Throttled("slow down")

        query.stream.fault = refuse
        with pytest.raises(DataLost, match="records behind it may be lost"):
            await query.read(start, end)

    limits = BatchLimits(partitions=1, fetch_ms=10 * MINUTE_MS)
    in_query(scenario, records_per_read=10, limits=limits)


def keeping(query, retention_ms):
    """Give the query a stream that keeps its records longer than the shortest retention."""
    query.stream = MemoryStream(query.clock, retention_ms=retention_ms)
    query.restart()


@within(in_query, limits=BY_TWO_HUNDRED, records_per_read=50)
async def test_a_query_days_behind_on_a_longer_retention_reads_everything(query, /):
    keeping(query, 7 * DAY_MS)
    for number in range(1_000):
        query.stream.put(b"%d" % number)
        await query.clock.sleep_ms(1_000)
    await query.clock.sleep_ms(3 * DAY_MS)
    end, found = await query.driver.initial(), []
    for _ in range(6):
        end, data = await query.batch(end)
        found += data
        await query.clock.sleep_ms(MINUTE_MS)
    assert found == [b"%d" % number for number in range(1_000)]
    # Nothing that came before the tip was seen is in doubt any more.
    asked = len(query.calls("shard_iterator"))
    for _ in range(5):
        await query.driver.latest(end)
        await query.clock.sleep_ms(MINUTE_MS // 2)
    assert len(query.calls("shard_iterator")) == asked


@within(in_query, records_per_read=1)
async def test_a_query_days_behind_gets_through_empty_answers_with_lag(query, /):
    # Hazard H6: the next record is some empty answers away, each time from the position on.
    keeping(query, 7 * DAY_MS)
    first = query.stream.put(b"first")
    await query.clock.sleep_ms(HOUR_MS)
    query.stream.put(b"second")
    await query.clock.sleep_ms(3 * DAY_MS)
    empty = [True] * 5

    def sparse(_shard_id, page):
        if page.records and page.records[0].data == b"second" and empty:
            empty.pop()
            again = query.stream._issue(query.stream._iterators[query.used])
            return replace(page, records=(), millis_behind_latest=9, resume_token=again)
        return page

    get_records = query.stream.get_records

    async def remembered(iterator, **changes):
        query.used = iterator
        return await get_records(iterator, **changes)

    query.stream.get_records, query.stream.alter = remembered, sparse
    found = await read_from(query, at_record(query, first))
    while not found.records[query.stream.open_shard_ids[0]]:
        found = await read_from(query, at_record(query, first))
    assert [each.data for each in found.records[query.stream.open_shard_ids[0]]] == [b"second"]
    assert found.seal.shards[0].lost == ""


@within(in_query, limits=BY_TWO_HUNDRED)
async def test_nothing_more_is_asked_while_a_query_is_well_within_the_shortest_retention(query, /):
    for number in range(1_000):
        query.stream.put(b"%d" % number)
    await query.clock.sleep_ms(20 * HOUR_MS)
    end = await query.driver.initial()
    for _ in range(5):
        end, data = await query.batch(end)
        assert len(data) == 200
    assert len(query.calls("shard_iterator")) == 1
    assert len(query.calls("get_records")) == 5 + 1  # One looked whether there is work.


@pytest.mark.parametrize(("away_ms", "is_told"), [(23 * HOUR_MS, False), (25 * HOUR_MS, True)])
@pytest.mark.parametrize("is_last_kept", [True, False])
@within(in_query)
async def test_a_child_whose_first_records_may_have_expired_unread_is_told(
    query, /, away_ms, is_told, is_last_kept
):
    async def batches(query, end, count):
        found = []
        for _ in range(count):
            end, data = await query.batch(end)
            found += data
            await query.clock.sleep_ms(2_000)
        return end, found

    query.stream.put(b"parent")
    end, _ = await batches(query, await query.driver.initial(), 1)
    child, _ = query.stream.split(query.stream.open_shard_ids[0])
    end, _ = await batches(query, end, 1)
    query.stream.put(b"first", shard_id=child)
    await query.clock.sleep_ms(away_ms)
    if is_last_kept:
        query.stream.put(b"last", shard_id=child)
    if is_told:
        with pytest.raises(DataLost, match="first records may be older"):
            await batches(query, end, 3)
    else:
        _, found = await batches(query, end, 3)
        assert found == [b"first", *([b"last"] if is_last_kept else [])]


@pytest.mark.parametrize(("away_ms", "is_told"), [(23 * HOUR_MS, False), (25 * HOUR_MS, True)])
@within(in_query, shards=2)
async def test_what_expires_while_a_query_is_away_that_has_only_seen_the_tip_is_told(
    query, /, away_ms, is_told
):
    start = await query.driver.initial()
    # A batch that ends a neighbour leaves this shard at its tip, and nothing read of it.
    query.stream.split(query.stream.open_shard_ids[0])
    end, _ = await query.batch(start)
    query.stream.put(b"gone", shard_id=query.stream.open_shard_ids[0])
    await query.clock.sleep_ms(away_ms)
    query.stream.put(b"there", shard_id=query.stream.open_shard_ids[0])
    query.restart()
    if is_told:
        with pytest.raises(DataLost, match="first records may be older"):
            await query.batch(end)
    else:
        assert (await query.batch(end))[1] == [b"gone", b"there"]
