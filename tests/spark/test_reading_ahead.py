"""Without a seal store the driver reads what follows a batch while Spark is at work on it."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from shardfleet.errors import Throttled
from shardfleet_spark.host.background_loop import BackgroundLoop
from shardfleet_spark.offsets.plan_token import token_from_json
from shardfleet_spark.plan.planning import BatchLimits
from tests.spark.test_data_loss import BY_TWO_HUNDRED, at_the_horizon
from tests.spark.test_source_driver import in_query
from tests.virtual import within

BY_TEN = BatchLimits(partitions=1, records_per_shard=10)
SINK_MS = 5_000  # What Spark is at work on a batch for.


def put(query, numbers, *, key="k"):
    for number in numbers:
        query.stream.put(b"%d" % number, key=key)


def take_time(query, latency_ms):
    """Let each answer of the stream take so long from now on."""
    get_records = type(query.stream).get_records

    async def answer(*arguments, **named):
        await query.clock.sleep_ms(latency_ms)
        return await get_records(query.stream, *arguments, **named)

    query.stream.get_records = answer


async def batch(query, start):
    """Ask for a batch as Spark does; return its end, its records and how long the answer took."""
    asked_ms = query.clock.monotonic_ms()
    end = await query.driver.latest(start)
    took_ms = query.clock.monotonic_ms() - asked_ms
    data = [
        int(record.data)
        for planned in await query.driver.partitions(start, end)
        for records in planned.records.values()
        for record in records
    ]
    return end, data, took_ms


@within(in_query, store=False, limits=BY_TEN)
async def test_what_follows_a_full_batch_is_there_when_spark_asks_for_it(query, /):
    take_time(query, 700)
    put(query, range(45))
    start, found, waited = await query.driver.initial(), [], []
    for _ in range(5):
        start, data, took_ms = await batch(query, start)
        found.append(data)
        waited.append(took_ms)
        await query.clock.sleep_ms(SINK_MS)
    tens = [list(range(first, first + 10)) for first in range(0, 40, 10)]
    assert found == [*tens, list(range(40, 45))]
    assert waited[0] >= 700
    assert waited[1:4] == [0, 0, 0]


@within(in_query, store=False, limits=BY_TEN)
async def test_spark_waits_for_what_is_still_being_read(query, /):
    take_time(query, 3_000)
    put(query, range(45))
    start, _, _ = await batch(query, await query.driver.initial())
    await query.clock.sleep_ms(1_000)
    _, data, took_ms = await batch(query, start)
    assert data == list(range(10, 20))
    assert took_ms == 2_000


@within(in_query, store=False, limits=BY_TEN)
async def test_what_came_to_the_tip_is_read_anew_with_what_has_arrived_since(query, /):
    put(query, range(15))
    start, first, _ = await batch(query, await query.driver.initial())
    await query.clock.sleep_ms(SINK_MS)
    put(query, range(15, 18))
    _, second, _ = await batch(query, start)
    assert (first, second) == (list(range(10)), list(range(10, 18)))


@pytest.mark.parametrize("limit", [{}, {"records": 7}])
@within(in_query, store=False, limits=BY_TEN)
async def test_what_was_read_ahead_is_forgotten_where_it_is_not_what_is_asked_for(query, /, limit):
    """Another limit; or a batch that is asked for again, because the one after it was not taken."""
    put(query, range(45))
    start = await query.driver.initial()
    end, _, _ = await batch(query, start)
    await query.clock.sleep_ms(SINK_MS)
    again = await query.driver.latest(end if limit else start, **limit)
    token = token_from_json(again)
    count = sum(each.count for seal in token.sealed for each in seal.shards)
    assert (token.number, count) == ((2, 7) if limit else (1, 10))


@within(in_query, store=False, limits=BY_TEN, fail_on_data_loss=False)
async def test_a_stream_that_was_created_again_is_not_read_by_what_was_read_of_the_old_one(
    query, /
):
    put(query, range(45))
    start, _, _ = await batch(query, await query.driver.initial())
    await query.clock.sleep_ms(60_000)
    query.stream.create_again()
    put(query, range(100, 103))
    found = []
    for _ in range(3):
        start, data, _ = await batch(query, start)
        found += data
        await query.clock.sleep_ms(SINK_MS)
    assert found == [100, 101, 102]


@within(in_query, store=False, limits=BY_TEN, retry_attempts=2)
async def test_what_could_not_be_read_ahead_is_read_when_spark_asks(query, /):
    put(query, range(45))
    start, _, _ = await batch(query, await query.driver.initial())
    refused = []

    def refuse(call):
        refused.append(call)
        raise Throttled("too many calls")

    query.stream.fault = refuse
    await query.clock.sleep_ms(SINK_MS)
    query.stream.fault = lambda _call: None
    _, data, _ = await batch(query, start)
    assert refused
    assert data == list(range(10, 20))


@within(in_query, store=False, limits=BY_TWO_HUNDRED, fail_on_data_loss=False)
async def test_what_a_task_finds_gone_is_told_with_what_was_read_ahead(query, /, monkeypatch):
    monkeypatch.setattr("shardfleet_spark.plan.driver_reads.CARRIED_BYTES", 0)
    await at_the_horizon(query)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    await query.driver.partitions(
        start, end
    )  # Its task is to read again, and gets nothing to go by.
    await query.clock.sleep_ms(60_000)
    following = await query.driver.latest(end)
    assert "of the 200 records" in str(following["stats"]["lost"])


@within(in_query, shards=2, store=False, limits=BY_TEN)
async def test_available_now_reads_no_shard_ahead_that_has_given_what_was_there(query, /):
    one, other = query.stream.open_shard_ids
    for shard_id, count in ((one, 5), (other, 45)):
        for number in range(count):
            query.stream.put(b"%d" % number, shard_id=shard_id)
    start, found = await query.driver.initial(), []
    query.driver.prepare_available_now()
    while True:
        end, data, _ = await batch(query, start)
        if end == start:
            break
        found += data
        start = end
        query.stream.put(b"1000", shard_id=one)
        await query.clock.sleep_ms(SINK_MS)
    assert sorted(found) == sorted([*range(5), *range(45)])


@within(in_query, store=False, limits=BY_TEN)
async def test_a_shard_is_asked_no_more_often_than_its_interval_also_for_what_is_read_anew(
    query, /
):
    query.policy = replace(query.policy, poll_interval_ms=4_000)
    query.restart()
    put(query, range(15))
    start, _, _ = await batch(query, await query.driver.initial())
    await query.clock.sleep_ms(4_500)  # Meanwhile it was read ahead, to its tip.
    await batch(query, start)
    asked = [call.at_ms for call in query.calls("get_records")]
    assert all(b - a >= 4_000 for a, b in pairwise(asked)), asked


def test_with_a_seal_store_and_at_the_tip_nothing_is_read_ahead():
    async def scenario(query):
        put(query, range(15 if query.store else 5))
        start = await query.driver.initial()
        end = await query.driver.latest(start)
        asked = len(query.calls("get_records"))
        await query.clock.sleep_ms(SINK_MS)
        assert end != start
        assert len(query.calls("get_records")) == asked

    in_query(scenario, store=True, limits=BY_TEN)
    in_query(scenario, store=False, limits=BY_TEN)


@within(in_query, store=False, limits=BY_TEN)
async def test_available_now_on_an_old_spark_reads_nothing_that_its_process_cannot_hand_on(
    query, /
):
    put(query, range(45))
    query.driver.prepare_available_now(query.clock.now_ms())
    await query.driver.latest()
    asked = len(query.calls("get_records"))
    await query.clock.sleep_ms(SINK_MS)
    assert len(query.calls("get_records")) == asked


def test_a_loop_goes_on_between_two_calls():
    loop, found = BackgroundLoop(), []

    async def begin():
        async def work():
            await asyncio.sleep(0.01)
            found.append("done")

        return asyncio.create_task(work())

    async def end(task):
        await task

    task = loop.run(begin())
    loop.run(end(task))
    assert found == ["done"]


def test_a_failure_in_the_loop_is_the_callers():
    async def fail():
        raise Throttled("as it was")

    with pytest.raises(Throttled, match="as it was"):
        BackgroundLoop().run(fail())
