"""How much one batch reads and carries, whatever the records' size."""

import logging

import pytest
from pyspark import cloudpickle

from shardfleet_spark.plan.planning import DRIVER_BYTES, BatchLimits
from shardfleet_spark.read.sealing import conform
from tests.spark.test_source_driver import in_query
from tests.virtual import within


def test_a_batch_is_bounded_by_bytes_and_one_answer():
    async def scenario(query):
        for _ in range(100):
            query.stream.put(b"x" * 99, key="k")
        start = await query.driver.initial()
        sizes = []
        while True:
            end, data = await query.batch(start)
            if end == start:
                break
            sizes.append(sum(map(len, data)) + len(data))
            start = end
        assert sum(sizes) == 10_000
        assert max(sizes) <= 1_000 + 700

    limits = BatchLimits(bytes_per_partition=1_000)
    in_query(scenario, limits=limits, records_per_read=7)


def test_a_shards_records_of_a_batch_are_counted_over_all_its_answers():
    async def scenario(query):
        for _ in range(25):
            query.stream.put(b"x", key="k")
        start, counts = await query.driver.initial(), []
        while True:
            end, data = await query.batch(start)
            if end == start:
                break
            counts.append(len(data))
            start = end
        assert counts == [10, 10, 5]

    limits = BatchLimits(records_per_shard=10)
    in_query(scenario, limits=limits, records_per_read=4)


def test_once_sizes_are_known_many_shards_together_keep_within_the_bytes_of_a_batch():
    async def scenario(query):
        for number in range(1_600):
            query.stream.put(b"x" * 95, key=str(number))
        start, sizes = await query.driver.initial(), []
        while True:
            await query.clock.sleep_ms(2_000)
            end, data = await query.batch(start)
            if end == start:
                break
            sizes.append(sum(map(len, data)))
            start = end
        assert sum(sizes) == 1_600 * 95
        assert max(sizes[1:]) <= 10_000 + 4 * 100 < sizes[0] < 4 * 150 * 100

    limits = BatchLimits(partitions=1, bytes_per_partition=10_000)
    in_query(scenario, shards=4, limits=limits, records_per_read=150)


@within(in_query, store=False)
async def test_what_is_too_much_to_be_handed_to_a_task_is_read_again_by_it(query, /, monkeypatch):
    monkeypatch.setattr("shardfleet_spark.plan.driver_reads.CARRIED_BYTES", 300)
    handed, found = [], []
    start = await query.driver.initial()
    for size in (10, 1_000, 20):
        query.stream.put(b"x" * size, key="k")
        await query.clock.sleep_ms(2_000)
        end = await query.driver.latest(start)
        (planned,) = await query.driver.partitions(start, end)
        handed.append(len(planned.records))
        for each in await conform(
            planned.range.parts[0], planned.sealed, query.ports, buffers=planned.records
        ):
            found += [len(record.data) for record in each.records]
        start = end
    assert handed == [1, 0, 1]
    assert found == [10, 1_000, 20]


MIB = 1024 * 1024


@pytest.mark.parametrize(("size", "count"), [(1 * MIB - 5, 160), (100, 20_000)])
def test_what_the_driver_hands_to_all_tasks_of_a_batch_is_bounded_whatever_the_size(
    size, count, monkeypatch
):
    most = DRIVER_BYTES
    if size == 100:
        most = MIB  # Twenty thousand records, not a million.
        monkeypatch.setattr("shardfleet_spark.plan.driver_reads.DRIVER_BYTES", most)

    async def scenario(query):
        for number in range(count):
            query.stream.put(b"x" * size, key=f"{number:04}")
            await query.clock.sleep_ms(1)
        start, handed, found = await query.driver.initial(), [], 0
        for _ in range(40):
            await query.clock.sleep_ms(20_000)
            end = await query.driver.latest(start)
            if end == start:
                break
            planned = await query.driver.partitions(start, end)
            handed.append(sum(len(cloudpickle.dumps(each.records)) for each in planned))
            found += sum(len(records) for each in planned for records in each.records.values())
            start = end
        assert found == count
        # One record of each shard may be beyond; the first answers are of unknown size.
        assert max(handed) <= most + 8 * size + 100_000
        assert max(handed) > most * 3 // 4

    limits = BatchLimits(partitions=3, fetch_ms=60_000)
    in_query(scenario, store=False, shards=8, limits=limits, records_per_read=1_000)


def test_partitions_that_the_driver_reads_are_read_at_the_same_time():
    async def scenario(query):
        for number in range(400):
            query.stream.put(b"x" * 10, key=str(number))
        start, begun_ms = await query.driver.initial(), query.clock.monotonic_ms()
        await query.driver.latest(start)
        assert query.clock.monotonic_ms() - begun_ms <= 2_500  # Not three times two seconds.

    limits = BatchLimits(partitions=3, fetch_ms=2_000)
    in_query(scenario, store=False, shards=3, limits=limits, records_per_read=2)


@pytest.mark.parametrize(("shards", "store"), [(1, False), (2, True), (2, False)])
def test_a_query_whose_shards_may_take_more_than_the_driver_hands_on_says_so(shards, store, caplog):
    async def scenario(query):
        start = await query.driver.initial()
        for _ in range(3):
            await query.driver.latest(start)
        is_told = shards > 1 and not store
        assert caplog.text.count("set sealStore") == is_told
        assert ("64 MiB a batch" in query.driver.report().get("notice", "")) == is_told

    with caplog.at_level(logging.WARNING):
        in_query(scenario, store=store, shards=shards)
