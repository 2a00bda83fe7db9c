"""A checkpoint that was copied, or restored, on the same seal store: nobody deletes another's."""

from dataclasses import replace
from itertools import product

import pytest

from shardfleet.errors import ShardfleetError
from shardfleet_spark.plan.planning import BatchLimits
from tests.spark.checkpointed import Checkpointed
from tests.spark.test_source_driver import in_query
from tests.virtual import within

# The seals of two batches are kept, and old ones deleted once in ten batches.
RETAINED, LONG = 2, 30
CELLS = [
    pytest.param(*cell, id="-".join(map(str, cell)))
    for cell in product(
        ("committed", "offset", "sink"),
        ("copy", "original", "in turn"),
        ("one run", "many runs"),
        ("store", "none"),
    )
]
ONE_EACH = BatchLimits(partitions=1, records_per_shard=1)
RECORDS = 90


def in_short_memory(scenario, **settings):
    """Run a scenario with a query that keeps few seals."""

    async def prepared(query):
        query.settings = replace(query.settings, plans_retained=RETAINED)
        for number in range(RECORDS):
            query.stream.put(b"%d" % number)
        await scenario(query)

    in_query(prepared, limits=ONE_EACH, poll_interval_ms=10, **settings)


async def go_on(life, batches, *, runs):
    """Run so many batches in so many runs."""
    for _ in range(runs):
        await life.start()
        await life.run(batches // runs)


@pytest.mark.parametrize(("at", "ahead", "runs", "sealed"), CELLS)
def test_a_query_and_its_copy_each_read_every_record_once(at, ahead, runs, sealed):
    async def scenario(query):
        original = Checkpointed(query, query.store)
        await original.start()
        await original.run(5, dies="" if at == "committed" else at)
        twin = original.copied()
        runs_of_all = 1 if runs == "one run" else 5
        if ahead == "in turn":
            for _ in range(5):
                await go_on(original, LONG // 5, runs=1)
                await go_on(twin, LONG // 5, runs=1)
        else:
            first = twin if ahead == "copy" else original
            await go_on(first, LONG, runs=runs_of_all)
            second = original if first is twin else twin
            await go_on(second, LONG, runs=runs_of_all)
        for life in (original, twin):
            await life.start()
            await life.run()
            assert list(map(int, life.rows())) == list(range(RECORDS))

    in_short_memory(scenario, store=sealed == "store")


@within(in_short_memory)
async def test_two_runs_at_the_same_time_never_delete_what_the_other_one_reads(query, /):
    original = Checkpointed(query, query.store)
    await original.start()
    await original.run(5)
    twin = original.copied()
    await original.start()
    await twin.start()
    # They make the same plans, one batch after the other; then one of them stands still.
    for _ in range(3):
        await original.run(1)
        await twin.run(1)
    await twin.run(LONG)
    await original.run()
    assert list(map(int, original.rows())) == list(range(RECORDS))


@within(in_short_memory)
async def test_an_older_restore_is_refused_with_words_or_goes_on_and_the_query_goes_on_beside_it(
    query, /
):
    original = Checkpointed(query, query.store)
    await original.start()
    await original.run(5)
    backup = original.copied()
    await original.run(LONG)
    # The plan that the backup ends with was made by the run that has gone on.
    await backup.start()
    with pytest.raises(ShardfleetError, match="copy of this checkpoint") as caught:
        await backup.run()
    assert "failOnDataLoss" not in str(caught.value)
    later = original.copied()
    await go_on(later, LONG, runs=3)
    await original.start()
    await original.run()
    assert list(map(int, original.rows())) == list(range(RECORDS))


@within(in_short_memory)
async def test_a_query_deletes_its_own_seals_but_the_newest_and_leaves_those_of_runs_before(
    query, /
):
    life = Checkpointed(query, query.store)
    await life.start()
    await life.run(30)
    await life.start()
    await life.run(LONG)
    plans = sorted({int(key.plan[:10]) for key in query.store.stored})
    # Spark told the source of plan 29 as the newest commit in the first run, 59 in the second;
    # at 20 and at 50, two were kept and one, behind which Spark's commit lags.
    assert plans == [*range(18, 31), *range(48, 61)]
