"""Exactly once, whatever dies: the source's own code under a small Spark, on virtual time."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read.fetching import fetch
from shardfleet_testkit.clock import run_virtual
from tests.spark.simulated_spark import SimulatedSpark

# A seed does not shrink to anything simpler.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
SEEDS = st.integers(0, 2**32)
LIMITS = st.builds(
    BatchLimits,
    records=st.sampled_from([0, 2, 30]),
    total_bytes=st.sampled_from([0, 200]),
    records_per_shard=st.sampled_from([0, 1, 5]),
    bytes_per_partition=st.sampled_from([20, 300, 1 << 20]),
    fetch_ms=st.sampled_from([0, 30, 500]),
    skew_ms=st.sampled_from([0, 100, 5_000]),
    partitions=st.sampled_from([1, 2, 4]),
    shards_per_partition=st.sampled_from([0, 0, 1]),
)


def run(seed, *, steps=40, **settings):
    """Run a query to its end; return it."""

    async def whole():
        spark = SimulatedSpark(seed, **settings)
        await spark.run(steps=steps)
        await spark.drain()
        return spark

    return run_virtual(whole())


def check(spark):
    rows = spark.rows()
    numbers = [number for _, _, number in rows]
    assert len(numbers) == len(set(numbers)), "duplicates"
    assert set(numbers) == set(spark.put_keys), "records are missing, or out of nowhere"
    by_key = {}
    for _, _, number in rows:
        by_key.setdefault(spark.put_keys[number], []).append(int(number))
    assert all(found == sorted(found) for found in by_key.values()), "a key is out of order"
    batches = {}
    for batch, shard_id, _ in rows:
        first, last = batches.get(shard_id, (batch, batch))
        batches[shard_id] = (min(first, batch), max(last, batch))
    for shard_id, (first, _) in batches.items():
        for parent in spark.stream.shard(shard_id).parent_shard_ids:
            assert batches.get(parent, (0, -1))[1] < first, f"{shard_id} before its {parent}"


@settings(max_examples=40, phases=PHASES)
@given(seed=SEEDS, limits=LIMITS)
def test_every_record_once_in_order_and_parents_first_whatever_dies(seed, limits):
    check(run(seed, limits=limits))


@settings(max_examples=40, phases=PHASES)
@given(seed=SEEDS, limits=LIMITS)
def test_rows_that_nobody_asked_for_come_later_once_and_no_late_task_takes_them_away(seed, limits):
    check(run(seed, limits=limits, unasked=0.4))


@settings(max_examples=20, phases=PHASES)
@given(seed=SEEDS, limits=LIMITS)
def test_without_a_seal_store_the_offsets_alone_make_a_batch_the_same_again(seed, limits):
    check(run(seed, limits=limits, with_store=False))


@pytest.mark.parametrize("with_store", [True, False])
def test_the_crashes_do_lead_to_replays(seed, with_store):
    spark = run(seed, steps=100, crash=0.2, with_store=with_store)

    check(spark)
    assert spark.replays > 3


def test_a_shard_that_was_born_and_read_between_two_lists_is_not_read_again():
    # Found by the property above: the old list lacked the shard, so its end was forgotten.
    limits = BatchLimits(
        records=30,
        total_bytes=200,
        records_per_shard=5,
        bytes_per_partition=300,
        fetch_ms=500,
        skew_ms=100,
    )

    check(run(1_782, limits=limits))


async def without_seals(spark, planned):
    found = await fetch(planned.range.ranges, planned.range.quota, spark.ports(), writer={})
    return [(shard, r.sequence_number) for shard, some in found.records.items() for r in some]


def test_control_a_task_that_ignores_seals_is_found_out(seed):
    with pytest.raises(AssertionError):
        check(run(seed, steps=100, crash=0.2, reader=without_seals))
