"""Seals of thousands of shards: each fits into an item, and costs what the page says."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from shardfleet_spark.offsets import seals
from shardfleet_spark.offsets.seals import MARK, SealKey, in_groups, seal_from_bytes, seal_to_bytes
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read.sealing import read_sealed
from tests.spark.many_seals import MeteredSealStore, busy_seal
from tests.spark.seal_costs import SHARDS_PER_SEAL, seal_use, seals_per_month
from tests.spark.test_exactly_once import check, run
from tests.spark.test_source_driver import Query
from tests.virtual import virtual

PAGE = (Path(__file__).resolve().parents[2] / "docs/cost.md").read_text("utf-8")
PLANS = ["0000000001-aa", "0000000002-bb"]


@virtual
async def test_a_query_over_5000_shards_goes_on_from_its_seals_after_a_restart():
    query = Query(shards=5_000, limits=BatchLimits(partitions=2), concurrency=256)
    query.store = MeteredSealStore()
    query.restart()
    for shard_id in query.stream.open_shard_ids:
        query.stream.put(b"1", shard_id=shard_id)
    start = await query.driver.initial()
    end, data = await query.batch(start)
    assert len(data) == 5_000
    # 26 seals and the driver's mark.
    assert len(query.store.stored) == 27
    query.restart()
    for shard_id in query.stream.open_shard_ids:
        query.stream.put(b"2", shard_id=shard_id)
    await query.clock.sleep_ms(2_000)
    assert await query.read(start, end) == [b"1"] * 5_000
    _, data = await query.batch(end)
    assert data == [b"2"] * 5_000


@pytest.mark.parametrize("steps", [40])
def test_every_record_once_when_each_shard_has_a_seal_of_its_own(steps, seed, monkeypatch):
    # Twins, zombies and crashes between two seals of one partition.
    monkeypatch.setattr(seals, "SHARDS_PER_SEAL", 1)
    for number in range(20):
        check(run(seed + number, steps=steps, crash=0.2))


@virtual
async def test_a_task_that_died_between_two_seals_leaves_the_first_as_it_is(monkeypatch):
    monkeypatch.setattr(seals, "SHARDS_PER_SEAL", 1)
    query = Query(shards=2, limits=BatchLimits(partitions=1))
    ids = query.stream.open_shard_ids
    for shard_id in ids:
        query.stream.put(b"early", shard_id=shard_id)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    (planned,) = await query.driver.partitions(start, end)
    left = [1]

    def die(operation):
        if operation == "put" and not left[0]:
            raise asyncio.CancelledError
        left[0] -= operation == "put"

    query.store.fault = die
    with pytest.raises(asyncio.CancelledError):
        await read_sealed(planned.range, query.store, query.ports, writer={})
    query.store.fault = lambda _operation: None
    for shard_id in ids:
        query.stream.put(b"late", shard_id=shard_id)
    await query.clock.sleep_ms(1_000)
    found = await read_sealed(planned.range, query.store, query.ports, writer={})
    sealed, free = ([record.data for record in each.records] for each in found)
    assert sealed == [b"early"]
    assert free == [b"early", b"late"]


def test_the_largest_seal_goes_without_iterators_and_fits():
    """Names of 128 characters and iterators of 512 are the most that Kinesis's model allows."""
    seal = busy_seal(range(SHARDS_PER_SEAL))
    found = json.loads(seal_to_bytes(seal))
    for shard in found["shards"]:
        shard["shard"], shard["iterator"] = "s" * 128, "A" * 512
        shard["first"] = shard["last"] = "9" * 128
        shard["lost"] = "x" * 300
        shard["children"] = {"c" * 128: ["s" * 128, "t" * 128], "d" * 128: ["s" * 128]}
    body = seal_to_bytes(seal_from_bytes(json.dumps(found).encode()))

    MeteredSealStore().put_if_absent(SealKey("s" * 32, PLANS[0], 0), body)
    assert seal_from_bytes(body).shards[0].iterator is None


def counted(shards, *, tasks):
    """Write, read and delete the seals of one batch; return the store."""
    store = MeteredSealStore()
    store.put_if_absent(SealKey("s" * 16, PLANS[0], MARK), b"{}")
    numbers = [range(task, shards, tasks) for task in range(tasks)]
    groups = [group for each in numbers for group in in_groups(each)]
    for number, group in enumerate(groups):
        key = SealKey("s" * 16, PLANS[0], number)
        assert store.get(key) is None
        store.put_if_absent(key, seal_to_bytes(busy_seal(group)))
    store.read_plan("s" * 16, PLANS[0])
    store.delete(list(store.stored))
    return store


@pytest.mark.parametrize(("shards", "tasks"), [(1, 1), (64, 4), (1_000, 16), (5_000, 16)])
def test_the_estimate_is_within_a_tenth_of_the_units_that_dynamodb_counts(shards, tasks):
    store, use = counted(shards, tasks=tasks), seal_use(shards, tasks=tasks)

    assert SHARDS_PER_SEAL == seals.SHARDS_PER_SEAL
    assert use.write_units == pytest.approx(store.write_units, rel=0.1)
    assert use.read_units == pytest.approx(store.read_units, rel=0.1)


def test_the_page_about_cost_says_what_the_code_computes():
    rows = re.findall(
        r"^\| ([\d,]+) \| (\d+) \| (\d+) s \| ([\d.,]+) \| ([\d.,]+) \|", PAGE, re.MULTILINE
    )

    assert len(rows) >= 6
    for shards, tasks, batch_s, *told in rows:
        found = seals_per_month(
            int(shards.replace(",", "")), tasks=int(tasks), batch_s=float(batch_s)
        )
        for text, name in zip(told, ("dynamodb", "s3"), strict=True):
            assert text == f"{found[name]:,.2f}"
