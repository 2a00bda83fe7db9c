"""The life and the settings of a stream."""

import pytest

from shardfleet_local.kinesis.account import Phases


def test_without_phases_a_stream_is_active_at_once_and_gone_at_once(kinesis, refused):
    kinesis.create(1)
    assert kinesis.status() == "ACTIVE"
    kinesis.DeleteStream(StreamName="s")
    with refused("ResourceNotFoundException"):
        kinesis.status()


def test_a_stream_being_created_has_no_shards_and_takes_no_records(kinesis_with, refused, clock):
    kinesis = kinesis_with(phases=Phases(creating_ms=500)).create(2)
    assert kinesis.status() == "CREATING"
    description = kinesis.DescribeStream(StreamName="s")["StreamDescription"]
    assert description["Shards"] == []
    with refused("ResourceInUseException"):
        kinesis.shards()
    with refused("ResourceNotFoundException"):
        kinesis.put()
    clock.advance(0.5)
    assert kinesis.status() == "ACTIVE"
    assert kinesis.shards() == [0, 1]


def test_a_stream_being_resharded_works_as_before_until_it_is_active_again(
    kinesis_with, refused, clock
):
    kinesis = kinesis_with(phases=Phases(updating_ms=2000)).create(1)
    kinesis.split(0)
    assert kinesis.status() == "UPDATING"
    assert kinesis.shards() == [0]
    assert kinesis.put("during")["ShardId"] == "shardId-000000000000"
    with refused("ResourceInUseException"):
        kinesis.split(0)
    clock.advance(2)
    assert kinesis.status() == "ACTIVE"
    assert kinesis.shards() == [0, 1, 2]
    assert kinesis.read(0) == ["during"]


def test_a_stream_being_deleted_may_still_be_read(kinesis_with, refused, clock):
    kinesis = kinesis_with(phases=Phases(deleting_ms=1000)).create(1)
    kinesis.put("a")
    kinesis.DeleteStream(StreamName="s")
    assert kinesis.status() == "DELETING"
    assert kinesis.read() == ["a"]
    with refused("ResourceInUseException"):
        kinesis.split(0)
    clock.advance(1)
    with refused("ResourceNotFoundException"):
        kinesis.read()


def test_phases_end_in_their_order_when_nobody_looked_for_long(kinesis_with, clock):
    kinesis = kinesis_with(phases=Phases(creating_ms=100, updating_ms=100)).create(1)
    clock.advance(0.1)
    kinesis.split(0)
    kinesis.create(1, name="later")
    clock.advance(3600)
    assert kinesis.shards() == [0, 1, 2]
    assert kinesis.status("later") == "ACTIVE"


def test_names_are_unique(kinesis, refused):
    kinesis.create(1)
    with refused("ResourceInUseException"):
        kinesis.create(1)


@pytest.mark.parametrize("name", ["", "with space", "ä", "a" * 129, None])
def test_a_name_has_1_to_128_plain_characters(kinesis, refused, name):
    kinesis.create(1, name="a" * 128)
    with refused("ValidationException"):
        kinesis.create(1, name=name)


def test_a_provisioned_stream_needs_a_shard_count(kinesis, refused):
    with refused("InvalidArgumentException"):
        kinesis.CreateStream(StreamName="s")
    with refused("ValidationException"):
        kinesis.CreateStream(StreamName="s", ShardCount=0)


def test_at_most_five_streams_are_created_at_once(kinesis_with, refused, clock):
    kinesis = kinesis_with(phases=Phases(creating_ms=1000))
    for number in range(5):
        kinesis.create(1, name=f"s{number}")
    with refused("LimitExceededException"):
        kinesis.create(1)
    clock.advance(1)
    kinesis.create(1)


def test_a_stream_is_named_by_name_or_arn_or_both_if_they_agree(kinesis, refused):
    kinesis.create(1).create(1, name="other")
    arn = kinesis.arn()
    assert arn == "arn:aws:kinesis:us-east-1:000000000000:stream/s"
    kinesis.ListShards(StreamARN=arn)
    kinesis.ListShards(StreamARN=arn, StreamName="s")
    with refused("InvalidArgumentException"):
        kinesis.ListShards(StreamARN=arn, StreamName="other")
    with refused("InvalidArgumentException"):
        kinesis.ListShards()
    with refused("ValidationException"):
        kinesis.ListShards(StreamARN="arn:aws:s3:::bucket")
    with refused("ResourceNotFoundException"):
        kinesis.ListShards(StreamARN=arn.replace("us-east-1", "eu-west-1"))


def test_a_summary_says_what_there_is(kinesis, clock):
    kinesis.create(3)
    summary = kinesis.DescribeStreamSummary(StreamName="s")["StreamDescriptionSummary"]
    assert summary == {
        "StreamName": "s",
        "StreamARN": kinesis.arn(),
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": "PROVISIONED"},
        "StreamCreationTimestamp": clock.now_s,
        "RetentionPeriodHours": 24,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
        "OpenShardCount": 3,
        "ConsumerCount": 0,
        "MaxRecordSizeInKiB": 1024,
    }


def test_records_carry_the_encryption_of_the_time_they_were_written(kinesis):
    kinesis.create(1)
    key = {"StreamName": "s", "EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}
    kinesis.put("plain")
    kinesis.StartStreamEncryption(**key)
    assert kinesis.put("secret")["EncryptionType"] == "KMS"
    summary = kinesis.DescribeStreamSummary(StreamName="s")["StreamDescriptionSummary"]
    assert (summary["EncryptionType"], summary["KeyId"]) == ("KMS", "alias/aws/kinesis")
    kinesis.StopStreamEncryption(**key)
    assert "EncryptionType" not in kinesis.put("plain again")
    types = [record.get("EncryptionType") for record in kinesis.get()["Records"]]
    assert types == [None, "KMS", None]


def test_the_mode_can_be_changed_both_ways(kinesis):
    kinesis.create(2)
    for mode in ("ON_DEMAND", "PROVISIONED"):
        kinesis.UpdateStreamMode(StreamARN=kinesis.arn(), StreamModeDetails={"StreamMode": mode})
        summary = kinesis.DescribeStreamSummary(StreamName="s")["StreamDescriptionSummary"]
        assert summary["StreamModeDetails"] == {"StreamMode": mode}
    assert kinesis.shards() == [0, 1]


def test_limits_count_shards_and_on_demand_streams(kinesis):
    kinesis.create(3)
    kinesis.CreateStream(StreamName="o", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert kinesis.DescribeLimits() == {
        "ShardLimit": 20_000,
        "OpenShardCount": 7,
        "OnDemandStreamCount": 1,
        "OnDemandStreamCountLimit": 50,
    }


def test_shard_level_metrics_are_switched_one_by_one_or_all(kinesis, refused):
    kinesis.create(1)
    some = kinesis.EnableEnhancedMonitoring(StreamName="s", ShardLevelMetrics=["IncomingBytes"])
    assert some["DesiredShardLevelMetrics"] == ["IncomingBytes"]
    every = kinesis.EnableEnhancedMonitoring(StreamName="s", ShardLevelMetrics=["ALL"])
    assert every["CurrentShardLevelMetrics"] == ["IncomingBytes"]
    assert len(every["DesiredShardLevelMetrics"]) == 7
    none = kinesis.DisableEnhancedMonitoring(StreamName="s", ShardLevelMetrics=["ALL"])
    assert none["DesiredShardLevelMetrics"] == []
    with refused("ValidationException"):
        kinesis.EnableEnhancedMonitoring(StreamName="s", ShardLevelMetrics=["Some"])


def test_tags_of_a_stream_by_either_family_of_operations(kinesis, refused):
    kinesis.CreateStream(StreamName="s", ShardCount=1, Tags={"a": "1"})
    kinesis.AddTagsToStream(StreamName="s", Tags={"b": "2", "c": ""})
    kinesis.TagResource(ResourceARN=kinesis.arn(), Tags={"a": "changed"})
    first = kinesis.ListTagsForStream(StreamName="s", Limit=2)
    assert first["Tags"] == [{"Key": "a", "Value": "changed"}, {"Key": "b", "Value": "2"}]
    assert first["HasMoreTags"] is True
    kinesis.RemoveTagsFromStream(StreamName="s", TagKeys=["a", "missing"])
    kinesis.UntagResource(ResourceARN=kinesis.arn(), TagKeys=["b"])
    tags = kinesis.ListTagsForResource(ResourceARN=kinesis.arn())["Tags"]
    assert tags == [{"Key": "c", "Value": ""}]
    with refused("InvalidArgumentException"):
        kinesis.AddTagsToStream(StreamName="s", Tags={str(n): "" for n in range(50)})


def test_a_policy_is_kept_until_it_is_deleted(kinesis, refused):
    arn = kinesis.create(1).arn()
    kinesis.PutResourcePolicy(ResourceARN=arn, Policy="{}")
    assert kinesis.GetResourcePolicy(ResourceARN=arn) == {"Policy": "{}"}
    kinesis.DeleteResourcePolicy(ResourceARN=arn)
    with refused("ResourceNotFoundException"):
        kinesis.GetResourcePolicy(ResourceARN=arn)


def test_an_unknown_operation_is_named_with_those_there_are(kinesis, refused):
    with refused("UnknownOperationException") as error:
        kinesis.CreateChannel()
    assert "PutRecords" in str(error.value)


def test_a_dry_run_is_refused_instead_of_being_carried_out(kinesis, refused):
    kinesis.create(1)
    with refused("ValidationException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data="", DryRun=True)
    assert kinesis.read() == []


def test_a_key_is_changed_25_times_in_a_day(kinesis_with, refused, clock):
    """K48, botocore's model of StartStreamEncryption."""
    kinesis = kinesis_with(quotas=True).create(1)
    change = {"StreamName": "s", "EncryptionType": "KMS"}
    for number in range(25):
        kinesis.StartStreamEncryption(**change, KeyId=f"alias/{number}")
        clock.advance(60)
    with refused("LimitExceededException"):
        kinesis.StartStreamEncryption(**change, KeyId="alias/25")
    clock.advance(24 * 3_600)
    kinesis.StartStreamEncryption(**change, KeyId="alias/25")
