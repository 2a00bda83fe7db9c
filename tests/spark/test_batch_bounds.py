"""How much one batch reads and carries, whatever the records' size."""

from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read.sealing import conform
from tests.spark.test_source_driver import in_query


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


def test_what_is_too_much_to_be_handed_to_a_task_is_read_again_by_it(monkeypatch):
    monkeypatch.setattr("shardfleet_spark.plan.driver.CARRIED_BYTES", 100)

    async def scenario(query):
        handed, found = [], []
        start = await query.driver.initial()
        for size in (10, 1_000, 20):
            query.stream.put(b"x" * size, key="k")
            await query.clock.sleep_ms(2_000)
            end = await query.driver.latest(start)
            (planned,) = query.driver.partitions(start, end)
            handed.append(len(planned.records))
            for each in await conform(
                planned.range.parts[0], planned.sealed, query.ports, buffers=planned.records
            ):
                found += [len(record.data) for record in each.records]
            start = end
        assert handed == [1, 0, 1]
        assert found == [10, 1_000, 20]

    in_query(scenario, store=False)
