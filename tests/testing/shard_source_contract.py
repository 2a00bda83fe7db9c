"""What every ``ShardSource`` promises, whether its pages are polled or pushed."""

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON, StartingPosition, StartKind
from shardfleet.engine.retry import Halt
from shardfleet.errors import ShardGone


async def page_of(bench, start, token, limit, halt=None):
    return await bench.source.page(
        bench.ref, start, resume_token=token, limit=limit, halt=halt or Halt()
    )


async def until_something(bench, start=FROM_TRIM_HORIZON, token=None, limit=100):
    """Return the first page with a record or an end; empty ones in between are followed."""
    while True:
        page = await page_of(bench, start, token, limit)
        if page.records or page.resume_token is None:
            return page
        token = page.resume_token
        await bench.pause()


async def all_of(bench, start=FROM_TRIM_HORIZON, token=None, limit=100):
    """Read to the end of the shard; return its records' data and the last page."""
    found = []
    while True:
        page = await until_something(bench, start, token, limit)
        found += [record.data for record in page.records]
        if page.resume_token is None:
            return found, page
        token = page.resume_token


async def reading_begins_where_the_position_says(bench):
    numbers = [await bench.put(data) for data in (b"a", b"b", b"c")]
    await bench.close_shard()

    async def read(kind, **where):
        return (await all_of(bench, StartingPosition(kind, **where)))[0]

    assert await read(StartKind.TRIM_HORIZON) == [b"a", b"b", b"c"]
    assert await read(StartKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[1]) == [b"b", b"c"]
    assert await read(StartKind.AFTER_SEQUENCE_NUMBER, sequence_number=numbers[1]) == [b"c"]
    assert await read(StartKind.AT_TIMESTAMP, instant_ms=bench.begun_ms) == [b"a", b"b", b"c"]


async def a_token_goes_on_behind_its_page_however_small_the_pages_are(bench):
    for number in range(7):
        await bench.put(b"%d" % number)
    await bench.close_shard()
    for limit in (1, 2, 3, 100):
        assert (await all_of(bench, limit=limit))[0] == [b"%d" % number for number in range(7)]


async def a_token_is_good_for_another_source_of_the_same_kind(bench):
    for number in range(4):
        await bench.put(b"%d" % number)
    whole = await until_something(bench)
    await bench.begin_anew()
    part = await until_something(bench, limit=2)
    await bench.begin_anew()
    await bench.put(b"4")
    await bench.close_shard()
    for page in (whole, part):
        read = [record.data for record in page.records]
        rest, _ = await all_of(bench, token=page.resume_token)
        assert [*read, *rest] == [b"0", b"1", b"2", b"3", b"4"]


async def a_page_can_be_read_again_by_its_own_token(bench):
    for number in range(3):
        await bench.put(b"%d" % number)
    await bench.close_shard()
    first = await until_something(bench, limit=1)
    second = await until_something(bench, token=first.resume_token, limit=1)
    await bench.pause()
    again = await until_something(bench, token=second.page_token, limit=1)
    assert [record.data for record in again.records] == [b"1"]


async def a_closed_shard_ends_with_its_children_and_without_a_token(bench):
    await bench.put(b"a")
    children = await bench.close_shard()
    found, last = await all_of(bench)
    assert (found, last.resume_token) == ([b"a"], None)
    assert [child.shard_id for child in last.child_shards] == children
    assert all(bench.shard in child.parent_shard_ids for child in last.child_shards)


async def at_the_tip_there_are_empty_pages_that_say_so(bench):
    page = await page_of(bench, FROM_TRIM_HORIZON, None, 10)
    assert (list(page.records), page.millis_behind_latest) == ([], 0)
    await bench.put(b"late")
    late = await until_something(bench, token=page.resume_token)
    assert [record.data for record in late.records] == [b"late"]


async def a_shard_that_is_not_there_is_told(bench):
    shard = ShardRef("arn", "shardId-000000000099")
    with pytest.raises(ShardGone):
        await bench.source.page(shard, FROM_TRIM_HORIZON, resume_token=None, limit=10, halt=Halt())


PROMISES = (
    reading_begins_where_the_position_says,
    a_token_goes_on_behind_its_page_however_small_the_pages_are,
    a_token_is_good_for_another_source_of_the_same_kind,
    a_page_can_be_read_again_by_its_own_token,
    a_closed_shard_ends_with_its_children_and_without_a_token,
    at_the_tip_there_are_empty_pages_that_say_so,
    a_shard_that_is_not_there_is_told,
)
"""Each takes a bench: ``source``, ``shard``, ``begun_ms``, ``put``, ``close_shard``, ``begin_anew``
(another source on the same stream) and ``pause``."""
