"""The contract of shards: resharding, listing, limits, enhanced fan-out."""

import time

import pytest

HASH_KEYS = 1 << 128


# Resharding


@pytest.mark.documented("SplitShard; developer guide: data routing after a reshard")
def test_after_a_split_old_records_stay_in_the_parent_and_new_ones_go_to_the_children(stream):
    stream.create()
    (parent,) = stream.shards()
    stream.put("old")
    stream.split(parent)
    new = stream.put("new")["ShardId"]
    closed, *children = stream.shards()
    assert [child["ParentShardId"] for child in children] == [parent["ShardId"]] * 2
    assert "EndingSequenceNumber" in closed["SequenceNumberRange"]
    assert new in [child["ShardId"] for child in children]
    assert stream.drain(parent["ShardId"])[0] == ["old"]
    assert stream.drain(new)[0] == ["new"]


@pytest.mark.documented(
    "GetRecords: ChildShards, NextShardIterator null at the end of a closed shard"
)
def test_draining_a_closed_shard_names_its_children_with_their_parents(stream):
    stream.create()
    (parent,) = stream.shards()
    stream.put("a")
    stream.split(parent)
    data, last = stream.drain(parent["ShardId"])
    assert data == ["a"]
    assert "NextShardIterator" not in last
    assert stream.ids(last["ChildShards"]) == [1, 2]
    for child, listed in zip(last["ChildShards"], stream.shards()[1:], strict=True):
        assert child["ParentShards"] == [parent["ShardId"]]
        assert child["HashKeyRange"] == listed["HashKeyRange"]


@pytest.mark.documented("MergeShards; Shard: AdjacentParentShardId")
def test_a_merged_shard_names_both_parents(stream):
    one, other = stream.create(2).shards()
    stream.merge(one, other)
    child = stream.shards()[2]
    assert child["ParentShardId"] == one["ShardId"]
    assert child["AdjacentParentShardId"] == other["ShardId"]
    for parent in (one, other):
        _, last = stream.drain(parent["ShardId"])
        assert [sorted(each["ParentShards"]) for each in last["ChildShards"]] == [
            sorted([one["ShardId"], other["ShardId"]])
        ]


@pytest.mark.documented(
    "GetShardIterator: a valid iterator for the last sequence number of a closed shard"
)
def test_latest_on_a_closed_shard_ends_at_once(stream):
    stream.create()
    (parent,) = stream.shards()
    stream.put("a")
    stream.split(parent)
    data, last = stream.drain(parent["ShardId"], "LATEST")
    assert data == []
    assert len(last["ChildShards"]) == 2


@pytest.mark.documented("MergeShards: adjacent shards, InvalidArgumentException")
def test_shards_that_are_no_neighbours_are_not_merged(stream):
    first, _, third = stream.create(3).shards()
    with stream.refused("InvalidArgumentException"):
        stream.merge(first, third)


@pytest.mark.observed("mhart/kinesalite#109, on AWS")
@pytest.mark.fails_on("kinesis-local", "K65", "it answers ResourceInUseException")
def test_a_closed_shard_is_not_split_again(stream):
    (shard,) = stream.create().shards()
    stream.split(shard)
    with stream.refused("InvalidArgumentException"):
        stream.split(shard)


@pytest.mark.documented("UpdateShardCount: UNIFORM_SCALING")
def test_scaling_out_keeps_the_records_and_ends_with_equal_ranges(stream):
    stream.create(2)
    for index in range(10):
        stream.put(str(index), key=str(index))
    stream.client.update_shard_count(
        StreamName=stream.name, TargetShardCount=4, ScalingType="UNIFORM_SCALING"
    )
    stream.settled()
    starts = sorted(
        int(shard["HashKeyRange"]["StartingHashKey"])
        for shard in stream.shards(ShardFilter={"Type": "AT_LATEST"})
    )
    wanted = [HASH_KEYS * index // 4 for index in range(4)]
    assert all(abs(start - at) <= 4 for start, at in zip(starts, wanted, strict=True))
    kept = [data for shard in stream.shards() for data in stream.drain(shard["ShardId"])[0]]
    assert sorted(kept, key=int) == [str(index) for index in range(10)]


@pytest.mark.documented("UpdateShardCount: up to double, down to half (fact K41)")
@pytest.mark.parametrize("target", [9, 1])
def test_scaling_at_most_doubles_or_halves(stream, target):
    stream.create(4)
    with stream.refused("InvalidArgumentException", "LimitExceededException"):
        stream.client.update_shard_count(
            StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )


@pytest.mark.documented("GetShardIterator: of a closed shard, a valid one (fact K17)")
def test_a_number_of_a_closed_shard_is_a_position_until_its_end(stream):
    (parent,) = stream.create().shards()
    numbers = [stream.put(data)["SequenceNumber"] for data in "ab"]
    stream.split(parent)
    data, last = stream.drain(
        parent["ShardId"], "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[0]
    )
    assert data == ["b"]
    nothing, end = stream.drain(
        parent["ShardId"], "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]
    )
    assert nothing == []
    for each in (last, end):
        assert "NextShardIterator" not in each
        assert len(each["ChildShards"]) == 2


# Listing


@pytest.mark.documented("ShardFilter")
def test_shard_filters_by_state_and_id(stream):
    first, second = stream.create(2).shards()
    stream.split(first)

    def listed(kind, **argument):
        return stream.ids(stream.shards(ShardFilter={"Type": kind, **argument}))

    assert listed("AT_LATEST") == [1, 2, 3]
    assert listed("FROM_TRIM_HORIZON") == [0, 1, 2, 3]
    assert listed("AFTER_SHARD_ID", ShardId=second["ShardId"]) == [2, 3]


@pytest.mark.documented("ShardFilter: open at TRIM_HORIZON")
@pytest.mark.fails_on("kinesis-local", "K98", "it lists every shard")
def test_at_trim_horizon_lists_what_was_open_at_the_beginning(stream):
    first, _ = stream.create(2).shards()
    stream.until(lambda: time.time() > stream.summary()["StreamCreationTimestamp"].timestamp() + 1)
    stream.split(first)
    assert stream.ids(stream.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"})) == [0, 1]


@pytest.mark.documented("ShardFilter: AT_TIMESTAMP, FROM_TIMESTAMP")
def test_shard_filters_by_time(stream):
    first, _ = stream.create(2).shards()
    # boto3 sends whole seconds, so the split needs one to itself on either side.
    before = time.time() + 1
    stream.until(lambda: time.time() > before + 1.1)
    stream.split(first)
    after = time.time() + 1
    stream.until(lambda: time.time() > after + 1.1)

    def listed(kind, at):
        return stream.ids(stream.shards(ShardFilter={"Type": kind, "Timestamp": at}))

    assert listed("AT_TIMESTAMP", before) == [0, 1]
    assert listed("FROM_TIMESTAMP", before) == [0, 1, 2, 3]
    assert listed("AT_TIMESTAMP", after) == [1, 2, 3]
    assert listed("FROM_TIMESTAMP", after) == [1, 2, 3]


@pytest.mark.documented("ListShards: NextToken excludes StreamName and ExclusiveStartShardId")
def test_pages_follow_by_token_alone(stream):
    stream.create(3)
    first = stream.client.list_shards(StreamARN=stream.arn, MaxResults=2)
    rest = stream.client.list_shards(NextToken=first["NextToken"], MaxResults=2)
    assert stream.ids(first["Shards"] + rest["Shards"]) == [0, 1, 2]
    start = first["Shards"][0]["ShardId"]
    for beside in ({"StreamName": stream.name}, {"ExclusiveStartShardId": start}):
        with stream.refused("InvalidArgumentException"):
            stream.client.list_shards(NextToken=first["NextToken"], **beside)


@pytest.mark.observed("aws-cli #9635 (StreamARN), amazon-kinesis-client #788 (ShardFilter)")
def test_neither_an_arn_nor_a_filter_goes_with_a_token(stream):
    stream.create(3)
    token = stream.client.list_shards(StreamARN=stream.arn, MaxResults=2)["NextToken"]
    for beside in ({"StreamARN": stream.arn}, {"ShardFilter": {"Type": "AT_LATEST"}}):
        with stream.refused("InvalidArgumentException"):
            stream.client.list_shards(NextToken=token, **beside)


# Limits


@pytest.mark.documented(
    "PutRecords: each shard up to 1,000 records per second, ErrorCode per entry"
)
@pytest.mark.fails_on("kinesis-local", "K74", "it has no limits")
def test_a_burst_beyond_a_shards_write_limit_is_throttled_entry_by_entry(stream):
    stream.create()
    records = [{"PartitionKey": "k", "Data": b"x"}] * 500
    answers = [stream.hasty.put_records(StreamName=stream.name, Records=records) for _ in range(8)]
    failed = [each for answer in answers for each in answer["Records"] if "ErrorCode" in each]
    assert sum(answer["FailedRecordCount"] for answer in answers) == len(failed) > 0
    assert {each["ErrorCode"] for each in failed} == {"ProvisionedThroughputExceededException"}
    assert stream.name in failed[0]["ErrorMessage"]


@pytest.mark.documented("GetRecords: five transactions per second per shard")
@pytest.mark.fails_on("kinesis-local", "K75", "it has no limits")
def test_a_sixth_read_within_a_second_is_throttled(stream):
    stream.create()
    (shard,) = stream.shards()
    iterator = stream.iterator(shard["ShardId"])
    with stream.refused("ProvisionedThroughputExceededException"):
        for _ in range(100):
            stream.hasty.get_records(ShardIterator=iterator)


# Enhanced fan-out


def consumer_of(stream):
    arn = stream.arn
    made = stream.client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]

    def is_active():
        described = stream.client.describe_stream_consumer(ConsumerARN=made["ConsumerARN"])
        return described["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE"

    stream.until(is_active)
    return made["ConsumerARN"]


@pytest.mark.documented("DeleteStream: EnforceConsumerDeletion")
def test_a_stream_with_consumers_is_deleted_only_by_force(stream):
    stream.create()
    consumer_of(stream)
    with stream.refused("ResourceInUseException"):
        stream.client.delete_stream(StreamName=stream.name)


@pytest.mark.documented("SubscribeToShard, SubscribeToShardEvent")
@pytest.mark.fails_on(
    "kinesis-local", "K99", "it sends no initial-response, which botocore wants first"
)
def test_a_subscription_pushes_records_and_ends_with_the_children(stream):
    stream.create()
    (shard,) = stream.shards()
    stream.put("a")
    subscription = stream.client.subscribe_to_shard(
        ConsumerARN=consumer_of(stream),
        ShardId=shard["ShardId"],
        StartingPosition={"Type": "TRIM_HORIZON"},
    )
    stream.put("b")
    stream.split(shard)
    events = [event["SubscribeToShardEvent"] for event in subscription["EventStream"]]
    data = [record["Data"] for event in events for record in event["Records"]]
    assert data == [b"a", b"b"]
    assert stream.ids(events[-1]["ChildShards"]) == [1, 2]
    assert all("ContinuationSequenceNumber" in event for event in events[:-1])
