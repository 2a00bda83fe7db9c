"""How a batch's limit is divided among shards: by what waits in each, and none starves."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardfleet_spark.plan.planning import BatchLimits, advance, next_token
from shardfleet_spark.plan.shares import Inflow, plan_shares, waiting_in
from tests.spark.memory_seals import seal, stand, token

NOW = 1_700_000_000_000
MINUTE_MS = 60_000
SHARDS = [f"shard-{number:02d}" for number in range(64)]
WAITING = st.dictionaries(
    st.sampled_from(SHARDS), st.floats(0, 1e9) | st.just(0.0), min_size=1, max_size=64
)


@given(waiting=WAITING, total=st.integers(1, 10**7), turn=st.integers(0, 10**6))
def test_shares_add_up_to_the_limit(waiting, total, turn):
    shares = plan_shares(waiting, total=total, turn=turn)

    assert shares.keys() == waiting.keys()
    assert sum(shares.values()) == total
    assert min(shares.values()) >= 0


@given(
    waiting=st.lists(WAITING, min_size=5, max_size=5),
    total=st.integers(1, 10_000),
    turn=st.integers(0, 10**6),
)
def test_no_shard_starves_whatever_waits_in_the_others(waiting, total, turn):
    # What waits changes with each plan; how many shards there are does not.
    shards = waiting[0].keys()
    turns = 16 * len(shards) // total + 2
    given_to = dict.fromkeys(shards, 0)
    for number in range(turns):
        drawn = waiting[number % len(waiting)]
        now = {shard_id: drawn.get(shard_id, 0.0) for shard_id in shards}
        if not any(int(value * 1_000) for value in now.values()):
            now[min(shards)] = 1.0  # One is known to have work.
        for shard_id, share in plan_shares(now, total=total, turn=turn + number).items():
            given_to[shard_id] += share

    assert min(given_to.values()) >= 1


@given(waiting=WAITING, total=st.integers(64, 10**6), turn=st.integers(0, 10**6))
def test_a_shard_gets_in_proportion_to_what_waits_in_it(waiting, total, turn):
    shares, whole = plan_shares(waiting, total=total, turn=turn), sum(waiting.values())

    for shard_id, value in waiting.items():
        if whole > len(waiting):
            assert shares[shard_id] >= int(total * 15 / 16 * value / whole * 0.99) - 2


def drive(total, *, plans, hot="shard-17", rate=10_000):
    """
    Plan batches over 64 shards of which one has records, read each to its limits; yield shares.

    Args:
        total: `maxRecordsPerBatch`.
        plans: how many batches.
        hot: the shard that has an endless backlog, its records one a millisecond.
        rate: milliseconds between two batches.

    """
    plan, inflows, now_ms = token([stand(each) for each in SHARDS]), {}, NOW
    limits, read = BatchLimits(records=total, partitions=4), 0
    after = advance(plan, {}, inflows)
    for _ in range(plans):
        now_ms += rate
        plan = next_token(plan, after, limits=limits, now_ms=now_ms)
        shares = {
            shard_id: most
            for shards, quota in zip(plan.layout, plan.quotas, strict=True)
            for shard_id, most in zip(shards, quota.records, strict=True)
        }
        yield shares
        read += shares.get(hot, 0)
        took = {"first": "1", "last": str(read), "lag_ms": 9, "is_cut": True}
        took |= {"arrived_ms": NOW - MINUTE_MS * 600 + read, "count": shares.get(hot, 0)}
        idle = {"tip_ms": now_ms}
        seals = {
            index: seal(*({"shard_id": s, **(took if s == hot else idle)} for s in shards))
            for index, shards in enumerate(plan.layout)
        }
        after = advance(plan, seals, after.inflows)


def test_one_hot_shard_of_64_gets_nine_tenths_of_a_batch():
    first, *later = drive(6_400, plans=20)

    # Nothing is known yet: each shard gets as much.
    assert set(first.values()) == {100}
    for shares in later:
        assert shares["shard-17"] >= 0.9 * 6_400
        assert sum(shares.values()) == 6_400
        assert set(shares) == set(SHARDS)


def test_a_hot_shard_gets_its_part_of_limits_that_are_less_than_one_record_a_shard():
    plans = list(drive(16, plans=200))[8:]
    seen = {shard_id for shares in plans for shard_id in shares}

    assert all(sum(shares.values()) == 16 for shares in plans)
    assert sum(shares.get("shard-17", 0) for shares in plans) >= 0.9 * 16 * len(plans)
    assert seen == set(SHARDS)


def test_a_limit_of_bytes_goes_to_the_task_whose_shard_has_them():
    stands = [stand(each, 1, arrived=NOW - MINUTE_MS) for each in "abcd"]
    after = advance(token(stands), {})
    inflows = dict.fromkeys("abcd", Inflow(0, 0, 1_000)) | {"c": Inflow(10, 10_000, 1_000)}
    limits = BatchLimits(total_bytes=160_000, partitions=4)

    plan = next_token(
        token([]),
        replace(after, inflows=inflows),
        limits=limits,
        now_ms=NOW,
    )

    given_to = dict(zip((shards[0] for shards in plan.layout), plan.quotas, strict=True))
    assert given_to["c"].total_bytes == 152_500
    assert [given_to[each].total_bytes for each in "abd"] == [2_500] * 3


def test_what_waits_is_the_inflow_over_the_time_since_all_was_read():
    stands = {
        "behind": stand("behind", 1, arrived=NOW - 10 * MINUTE_MS),
        "at the tip": stand("at the tip", 1, arrived=NOW - 90 * MINUTE_MS, tip=NOW - 1_000),
        "new": stand("new"),
    }
    inflows = dict.fromkeys(("behind", "at the tip"), Inflow(30, 3_000, 1_000))

    found = waiting_in(stands, inflows, now_ms=NOW)

    assert (found["behind"].records, found["behind"].size_bytes) == (18_000, 1_800_000)
    assert found["at the tip"].records == 30
    assert found["new"] == found["behind"]


def test_no_more_is_expected_than_a_shard_takes():
    """Quotas of PutRecords: 1,000 records and 1 MiB a second for a shard."""
    stands = {"a": stand("a", 1, arrived=NOW - 1_000)}

    found = waiting_in(stands, {"a": Inflow(9_000, 10**9, 0)}, now_ms=NOW)["a"]

    assert (found.records, found.size_bytes) == (1_000, 1024 * 1024)


def test_newer_batches_count_more():
    inflow = Inflow().then(100, 1_000, 1_000).then(0, 0, 1_000).then(0, 0, 1_000)

    assert (inflow.records, inflow.over_ms) == (25, 1_750)


def test_there_are_more_tasks_while_more_waits_than_they_may_read():
    stands = [stand(each, 1, arrived=NOW - MINUTE_MS) for each in SHARDS[:8]]
    busy = dict.fromkeys(SHARDS[:8], Inflow(10_000, 900_000, 1_000))
    after = replace(advance(token(stands), {}), inflows=busy)

    def tasks(**limits):
        limits = BatchLimits(**{"partitions": 2, "fetch_ms": 30_000, **limits})
        return len(next_token(token([]), after, limits=limits, now_ms=NOW).layout)

    # 54 MB wait in each of 8 shards; a task may read 64 MiB.
    assert tasks() == 2
    assert tasks(partitions_most=8) == 7
    assert tasks(partitions_most=4) == 4
    # In a second, a shard gives 2 MiB.
    assert tasks(partitions_most=8, fetch_ms=1_000) == 2
    assert tasks(partitions_most=8, shards_per_partition=8) == 1
    # What the batch may not read needs no task: a record of each shard, of all, 100 MiB of all.
    assert tasks(partitions_most=8, records_per_shard=1) == 2
    assert tasks(partitions_most=8, records_per_shard=1_000_000) == 7
    assert tasks(partitions_most=8, records=1_000) == 2
    assert tasks(partitions_most=8, total_bytes=200 * 1024 * 1024) == 4
