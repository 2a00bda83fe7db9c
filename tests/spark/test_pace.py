"""How often a query asks the stream for what is new, and what it computes meanwhile."""

from collections import Counter
from itertools import pairwise

from msgspec.structs import replace

from shardfleet_spark.plan import driver
from shardfleet_spark.plan.planning import BatchLimits
from tests.spark.test_source_driver import HOUR_MS, in_query
from tests.virtual import within


@within(in_query, shards=3)
async def test_however_often_spark_asks_an_idle_stream_is_asked_at_its_own_pace(query, /):
    start = await query.driver.initial()
    asks = 0
    while query.clock.monotonic_ms() < 11_000:
        assert await query.driver.latest(start) == start
        await query.clock.sleep_ms(11)
        asks += 1
    assert 170 < asks < 250  # Not ninety a second: one that is in vain lets Spark wait.
    reads = Counter(call.shard_id for call in query.calls("get_records"))
    assert set(reads.values()) <= {11, 12}
    assert len(query.calls("shard_iterator")) == 3
    assert len(query.calls("list_shards")) == 3  # Two at the beginning, one 10 s later.


@within(in_query, shards=3)
async def test_an_ask_to_which_nothing_has_come_back_computes_nothing(query, /, monkeypatch):
    computed = Counter()
    for name in ("next_token", "admit", "behind_now"):
        whole = getattr(driver, name)

        def counted(*words, name=name, whole=whole, **more):
            computed[name] += 1
            return whole(*words, **more)

        monkeypatch.setattr(driver, name, counted)

    async def asks(number, **limits):
        computed.clear()
        for _ in range(number):
            assert await query.driver.latest(dict(start), **limits) == start
        return computed["next_token"] + computed["admit"] + computed["behind_now"]

    start = await query.driver.initial()
    assert await asks(1)
    begun_ms = query.clock.monotonic_ms()
    assert not await asks(19)
    assert query.clock.monotonic_ms() - begun_ms == 19 * 50
    assert query.driver.is_rested
    assert query.driver.is_idle
    assert query.driver.report()["millis_behind_latest"] == 0
    assert await asks(1, records=7)  # Another question.
    await query.clock.sleep_ms(1_000)
    assert await asks(1)  # The shards may be asked again.
    await query.clock.sleep_ms(999)
    query.stream.put(b"news")
    assert not await asks(1)  # It takes that millisecond, and no more.
    assert (await query.batch(start))[1] == [b"news"]
    assert not query.driver.is_rested


@within(in_query, start="LATEST")
async def test_an_idle_stream_goes_on_from_where_it_was_pinned_for_days(query, /):
    query.stream.put(b"before")
    await query.clock.sleep_ms(60_000)
    start = await query.driver.initial()
    for _ in range(100):
        assert await query.driver.latest(start) == start
        await query.clock.sleep_ms(HOUR_MS)
    query.stream.put(b"after")
    _, data = await query.batch(start)
    assert data == [b"after"]


@within(in_query)
async def test_empty_answers_with_lag_are_followed_until_there_is_something(query, /):
    async def scenario(query):
        query.stream.put(b"far behind")
        left = [40]

        def far_away(_shard_id, page):
            left[0] -= 1
            return page if left[0] < 0 else replace(page, records=(), millis_behind_latest=9)

        start = await query.driver.initial()
        query.stream.alter = far_away
        begun_ms = query.clock.monotonic_ms()
        # Each empty answer names the next iterator, which stays before the record.
        query.stream.alter = lambda shard_id, page: _same_place(query, far_away(shard_id, page))
        while await query.driver.latest(start) == start:
            await query.clock.sleep_ms(50)
        assert query.clock.monotonic_ms() - begun_ms < 40 * 300

    def _same_place(query, page):
        return page if page.records else replace(page, resume_token=query.stream.issue_first())

    def issue_first(stream):
        return lambda: stream._issue(next(iter(stream._iterators.values())))

    query.stream.issue_first = issue_first(query.stream)
    await scenario(query)


@within(in_query)
async def test_a_shard_is_asked_no_more_often_than_its_interval_across_batches(query, /):
    start = await query.driver.initial()
    for number in range(1_000):
        query.stream.put(b"%d" % number)
        start, _ = await query.batch(start)
        await query.clock.sleep_ms(5)
    at = [call.at_ms for call in query.calls("get_records")]
    assert len(at) > 20
    # A probe and the batch it calls for are two questions; otherwise the interval holds.
    assert all(later - sooner >= 200 for sooner, later in pairwise(at[1:]))


@within(in_query, shards=2, limits=BatchLimits(records_per_shard=1))
async def test_the_shard_list_is_read_at_once_when_a_child_waits_for_a_parent_nobody_knows(
    query, /
):
    start = await query.driver.initial()
    one, two = query.stream.open_shard_ids
    for number in range(10):
        query.stream.put(b"%d" % number, shard_id=one)
    _, high = query.stream.split(one)
    child = query.stream.merge(high, two)
    query.stream.put(b"last", shard_id=child)
    begun_ms, data = query.clock.monotonic_ms(), []
    while b"last" not in data and query.clock.monotonic_ms() - begun_ms < 9_000:
        start, more = await query.batch(start)
        data += more
        await query.clock.sleep_ms(100)
    assert data == [*(b"%d" % number for number in range(10)), b"last"]
    # The second shard ends first and names its child, whose other parent is not in the list.
    assert len(query.calls("list_shards")) == 3
