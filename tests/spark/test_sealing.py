"""Fetch, seal, emit: who loses the race emits what the winner sealed, more or less than it read."""

import dataclasses

import pytest
from msgspec.structs import replace

from shardfleet.domain.reading.pages import StartKind
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.seals import SealKey, SealOfAnotherLayout, ShardSeal, seal_to_bytes
from shardfleet_spark.read.fetching import fetch
from shardfleet_spark.read.sealing import PartitionRange, SealedRecords, read_sealed
from tests.spark.memory_seals import seal
from tests.spark.test_source_driver import Query, in_query
from tests.virtual import within

KEY = SealKey("sid", "0000000001-x", 0)


async def planned(query: Query):
    """Plan a batch over everything that is in the stream."""
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    (found,) = await query.driver.partitions(start, end)
    return found.range


async def read(query, partition):
    found = await read_sealed(partition, query.store, query.ports, writer={"who": "me"})
    return [record.data for each in found for record in each.records]


@pytest.mark.parametrize("winner_has", [0, 2, 9])
@within(in_query)
async def test_the_loser_of_the_race_emits_exactly_what_the_winner_sealed(query, /, winner_has):
    for number in range(winner_has):
        query.stream.put(b"%d" % number)
    partition = await planned(query) if winner_has else None
    if partition is None:
        query.stream.put(b"first")
        partition = await planned(query)
        query.stream.trim(query.stream.open_shard_ids[0])
    ranges, quota = partition.ranges, partition.quota
    winner = await fetch(ranges, quota, query.ports, writer={"who": "other"})
    for number in range(winner_has, 9):
        query.stream.put(b"%d" % number)

    def seal_first(operation):
        # The other one's seal arrives while this reader is still reading.
        if operation == "put":
            query.store.stored.setdefault(partition.parts[0].key, seal_to_bytes(winner.seal))

    query.store.fault = seal_first
    assert await read(query, partition) == [b"%d" % number for number in range(winner_has)]
    assert await read(query, partition) == [b"%d" % number for number in range(winner_has)]


@within(in_query)
async def test_the_loser_reads_what_it_lacks_from_the_first_sealed_record_on(query, /):
    for number in range(9):
        query.stream.put(b"%d" % number)
    partition = await planned(query)
    winner = await fetch(partition.ranges, partition.quota, query.ports, writer={})
    numbers = query.stream.sequence_numbers(query.stream.open_shard_ids[0])

    def seal_first(operation):
        if operation == "put":
            query.store.stored.setdefault(partition.parts[0].key, seal_to_bytes(winner.seal))

    query.store.fault = seal_first
    query.stream.calls.clear()
    short = PartitionRange(
        partition.parts,
        partition.quota.__class__(
            total_bytes=1 << 20, fetch_ms=0, records=(4,) * len(partition.ranges)
        ),
    )
    assert await read(query, short) == [b"%d" % number for number in range(9)]
    again = query.calls("shard_iterator")[-1].start
    assert again.kind is StartKind.AT_SEQUENCE_NUMBER
    assert again.sequence_number == numbers[0]


@within(in_query)
async def test_a_lag_that_nobody_tells_is_not_the_tip_for_what_is_read_again(query, /):
    """Model kinesis GetRecords: MillisBehindLatest is not required."""
    for number in range(9):
        query.stream.put(b"%d" % number)
    partition = await planned(query)
    winner = await fetch(partition.ranges, partition.quota, query.ports, writer={})
    silent = [0]

    def seal_first(operation):
        if operation == "put":
            query.store.stored.setdefault(partition.parts[0].key, seal_to_bytes(winner.seal))
            silent[0] = 3

    def altered(_, page):
        if not silent[0]:
            return page
        silent[0] -= 1
        return replace(page, records=(), resume_token=page.page_token, millis_behind_latest=None)

    query.store.fault, query.stream.alter = seal_first, altered
    short = dataclasses.replace(
        partition,
        quota=dataclasses.replace(partition.quota, records=(4,) * len(partition.ranges)),
    )
    assert await read(query, short) == [b"%d" % number for number in range(9)]
    assert silent == [0]


@within(in_query)
async def test_nothing_is_read_past_a_seal_that_is_there(query, /):
    for number in range(3):
        query.stream.put(b"%d" % number)
    partition = await planned(query)
    assert len(await read(query, partition)) == 3
    query.stream.put(b"later")
    asked = []
    query.store.fault = asked.append
    assert await read(query, partition) == [b"0", b"1", b"2"]
    assert asked == ["get"]


@pytest.mark.parametrize("error", [Throttled, OutcomeUnknown])
@pytest.mark.parametrize("operation", ["get", "put", "answer"])
@within(in_query)
async def test_a_failing_seal_store_is_asked_again_and_an_unanswered_seal_is_kept(
    query, /, error, operation
):
    query.stream.put(b"1")
    partition = await planned(query)
    left = [3]

    def fail(each):
        if each == operation and left[0]:
            left[0] -= 1
            raise error("store")

    query.store.fault = fail
    assert await read(query, partition) == [b"1"]
    assert left == [0]


@within(in_query)
async def test_a_seal_of_another_layout_is_refused_before_a_row_leaves(query, /):
    query.stream.put(b"1")
    partition = await planned(query)
    query.store.stored[partition.parts[0].key] = seal_to_bytes(seal({"shard_id": "shardId-9"}))
    with pytest.raises(SealOfAnotherLayout, match="shardId-9"):
        await read(query, partition)


def test_nobody_pays_for_a_repr_of_the_records():
    # asyncio.run makes one of what it returns: 33 ms for each 2 MiB of records.
    sealed = SealedRecords(ShardSeal(shard_id="s"), [StreamRecord(b"x" * 100, "k", "1", 0)])

    assert "xxx" not in repr(sealed)


@pytest.mark.parametrize(("lag_ms", "is_tip"), [(0, True), (1, False), (None, False)])
@within(in_query)
async def test_a_probe_s_tip_is_where_the_service_says_that_nothing_is_behind(
    query, /, lag_ms, is_tip
):
    """A tip proves that nothing was lost before it; a lag that nobody tells proves nothing."""
    query.stream.put(b"0")
    end, _ = await query.batch(await query.driver.initial())
    query.stream.alter = lambda _, page: replace(page, millis_behind_latest=lag_ms)
    await query.clock.sleep_ms(5_000)
    await query.driver.latest(end)
    assert bool(query.driver._prober.tips) == is_tip
