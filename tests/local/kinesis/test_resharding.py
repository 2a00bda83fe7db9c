"""Splits, merges and UpdateShardCount: what closes, what opens, and where records go."""

import pytest

HASH_KEYS = 1 << 128


def test_a_split_closes_the_parent_and_opens_two_children_over_its_range(kinesis):
    kinesis.create(2)
    before = kinesis.shard(0)

    kinesis.split(0)

    parent, low, high = (kinesis.shard(number) for number in (0, 2, 3))
    assert kinesis.shards() == [0, 1, 2, 3]
    assert parent["end"] is not None
    assert (low["first"], high["last"]) == (before["first"], before["last"])
    assert low["last"] + 1 == high["first"]
    assert low["parents"] == high["parents"] == [0]
    assert low["end"] is None


def test_a_merge_closes_both_parents_and_names_them_in_the_order_of_the_call(kinesis):
    kinesis.create(2)
    kinesis.merge(1, 0)
    child = kinesis.shard(2)
    assert child["parents"] == [1, 0]
    assert (child["first"], child["last"]) == (0, HASH_KEYS - 1)
    assert kinesis.shard(0)["end"] is not None
    assert kinesis.shard(1)["end"] is not None


def test_after_a_split_new_records_go_to_the_children_and_old_ones_stay_in_the_parent(kinesis):
    kinesis.create(1)
    kinesis.put("old", key="k")
    kinesis.split(0)
    answer = kinesis.put("new", key="k")
    assert answer["ShardId"] in ("shardId-000000000001", "shardId-000000000002")
    assert kinesis.read(0) == ["old"]
    assert kinesis.read(1) + kinesis.read(2) == ["new"]


def test_draining_a_closed_shard_gives_child_shards_and_no_iterator(kinesis):
    kinesis.create(1)
    kinesis.put("a")
    kinesis.put("b")
    kinesis.split(0)

    first = kinesis.get(0, limit=1)
    last = kinesis.GetRecords(ShardIterator=first["NextShardIterator"])

    assert "ChildShards" not in first
    assert "NextShardIterator" not in last
    low = kinesis.shard(1)
    assert last["ChildShards"][0] == {
        "ShardId": "shardId-000000000001",
        "ParentShards": ["shardId-000000000000"],
        "HashKeyRange": {
            "StartingHashKey": str(low["first"]),
            "EndingHashKey": str(low["last"]),
        },
    }
    assert len(last["ChildShards"]) == 2


def test_both_parents_of_a_merge_name_the_child_with_both_parents(kinesis):
    kinesis.create(2)
    kinesis.merge(0, 1)
    for parent in (0, 1):
        (child,) = kinesis.get(parent)["ChildShards"]
        assert child["ParentShards"] == ["shardId-000000000000", "shardId-000000000001"]


def test_an_iterator_taken_before_the_split_drains_the_parent(kinesis):
    kinesis.create(1)
    iterator = kinesis.iterator(0, "LATEST")
    kinesis.put("a")
    kinesis.split(0)
    answer = kinesis.GetRecords(ShardIterator=iterator)
    assert len(answer["Records"]) == 1
    assert len(answer["ChildShards"]) == 2


def test_latest_on_a_closed_shard_ends_at_once(kinesis):
    kinesis.create(1)
    kinesis.put("a")
    kinesis.split(0)
    answer = kinesis.get(0, "LATEST")
    assert answer["Records"] == []
    assert len(answer["ChildShards"]) == 2


def test_the_ending_number_is_greater_than_every_record_and_less_than_the_childrens(kinesis):
    kinesis.create(1)
    record = kinesis.put("a")["SequenceNumber"]
    kinesis.split(0)
    end = kinesis.shard(0)["end"]
    assert int(record) < int(end) < int(kinesis.shard(1)["start"])


def test_a_closed_shard_can_be_neither_split_nor_merged(kinesis, refused):
    kinesis.create(2)
    kinesis.split(0)
    with refused("InvalidArgumentException"):
        kinesis.split(0)
    with refused("InvalidArgumentException"):
        kinesis.merge(0, 1)


def test_only_neighbours_can_be_merged(kinesis, refused):
    kinesis.create(3)
    with refused("InvalidArgumentException"):
        kinesis.merge(0, 2)
    with refused("InvalidArgumentException"):
        kinesis.merge(1, 1)


@pytest.mark.parametrize("start", ["0", str(HASH_KEYS // 2), str(HASH_KEYS - 1)])
def test_the_new_starting_hash_key_must_lie_inside_the_shard(kinesis, refused, start):
    kinesis.create(2)
    with refused("InvalidArgumentException"):
        kinesis.SplitShard(
            StreamName="s", ShardToSplit="shardId-000000000000", NewStartingHashKey=start
        )


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 5), (5, 3), (1, 2), (4, 4)])
def test_update_shard_count_ends_with_equal_ranges(kinesis, before, after):
    kinesis.create(before)
    answer = kinesis.UpdateShardCount(
        StreamName="s", TargetShardCount=after, ScalingType="UNIFORM_SCALING"
    )
    assert answer["CurrentShardCount"] == before
    assert answer["TargetShardCount"] == after
    open_now = [
        kinesis.shard(number) for number in kinesis.shards(ShardFilter={"Type": "AT_LATEST"})
    ]
    starts = sorted(shard["first"] for shard in open_now)
    assert starts == [HASH_KEYS * index // after for index in range(after)]


def test_update_shard_count_keeps_every_record(kinesis):
    kinesis.create(3)
    for number in range(60):
        kinesis.put(str(number), key=str(number))
    kinesis.UpdateShardCount(StreamName="s", TargetShardCount=5, ScalingType="UNIFORM_SCALING")
    kept = [data for shard in kinesis.shards() for data in kinesis.read(shard)]
    assert sorted(kept, key=int) == [str(number) for number in range(60)]


def test_scaling_beyond_double_or_below_half_is_over_the_limit(kinesis_with, refused):
    kinesis = kinesis_with(quotas=True).create(4)
    for target in (9, 1):
        with refused("LimitExceededException"):
            kinesis.UpdateShardCount(
                StreamName="s", TargetShardCount=target, ScalingType="UNIFORM_SCALING"
            )


def test_scaling_an_eleventh_time_in_a_day_is_over_the_limit(kinesis_with, refused, clock):
    kinesis = kinesis_with(quotas=True).create(2)

    def scale():
        clock.advance(60)
        kinesis.UpdateShardCount(StreamName="s", TargetShardCount=2, ScalingType="UNIFORM_SCALING")

    for _ in range(10):
        scale()
    with refused("LimitExceededException"):
        scale()
    clock.advance(86_400)
    scale()


def test_on_demand_streams_are_not_resharded_by_hand(kinesis, refused):
    kinesis.CreateStream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert len(kinesis.shards()) == 4
    with refused("ValidationException"):
        kinesis.split(0)


def test_the_accounts_shard_limit_is_kept(kinesis_with, refused):
    kinesis = kinesis_with(shard_limit=2).create(2)
    with refused("LimitExceededException"):
        kinesis.split(0)
    with refused("LimitExceededException"):
        kinesis.create(1, name="other")
    kinesis.merge(0, 1)
    kinesis.split(2)


def test_a_stream_is_not_scaled_beyond_ten_thousand_shards(kinesis_with, refused):
    """K42, botocore's model of UpdateShardCount."""
    kinesis = kinesis_with(quotas=True).create(5_001)
    request = {"StreamName": "s", "ScalingType": "UNIFORM_SCALING"}
    with refused("LimitExceededException"):
        kinesis.UpdateShardCount(**request, TargetShardCount=10_001)
    kinesis.UpdateShardCount(**request, TargetShardCount=5_001)
