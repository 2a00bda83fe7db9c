"""The words in which Kinesis refuses, as those who met them quoted them (docs/facts.md)."""

import re

import pytest

from shardfleet_local.kinesis.account import Phases

CASES = {}


def quoted(words):
    """Say what is quoted; `…` stands for anything."""

    def keep(scenario):
        CASES[scenario.__name__] = (scenario, words)
        return scenario

    return keep


@quoted(  # harlow/kinesis-consumer#116
    "InvalidArgumentException: The timestampInMillis parameter cannot be greater than the "
    "currentTimestampInMillis. timestampInMillis: 1700000001000, currentTimestampInMillis: "
    "1700000000000"
)
def k71_an_instant_in_the_future(kinesis, clock):
    clock.advance(1_700_000_000 - clock.now_s)
    kinesis.create(1).iterator(0, "AT_TIMESTAMP", Timestamp=1_700_000_001)


@quoted(  # boto/botocore#413, aws/aws-sdk-php#650
    "SerializationException: 'string' can not be converted to a Blob: Base64 encoded length is "
    "expected a multiple of 4 bytes but found: 6"
)
def k61_data_that_is_no_base64(kinesis, _clock):
    kinesis.create(1).PutRecord(StreamName="s", PartitionKey="k", Data="string")


@quoted(  # estuary/connectors#3071
    "ExpiredIteratorException: Iterator expired. The iterator was created at time Tue Nov 14 "
    "22:13:20 UTC 2023 while right now it is Tue Nov 14 22:18:21 UTC 2023 which is further in the "
    "future than the tolerated delay of 300000 milliseconds."
)
def k18_an_iterator_that_is_too_old(kinesis, clock):
    clock.advance(1_700_000_000 - clock.now_s)
    iterator = kinesis.create(1).iterator()
    clock.advance(301)
    kinesis.GetRecords(ShardIterator=iterator)


@quoted(  # mhart/kinesalite#109
    "InvalidArgumentException: Shard shardId-000000000000 in stream s under account 000000000000 "
    "has already been merged or split, and thus is not eligible for merging or splitting."
)
def k65_a_shard_that_was_split(kinesis, _clock):
    kinesis.create(1).split(0)
    kinesis.split(0)


@quoted(  # mhart/kinesalite#109
    "InvalidArgumentException: Shard shardId-000000000000 in stream s under account 000000000000 "
    "has already been merged or split, and thus is not eligible for merging or splitting."
)
def k65_a_shard_that_was_split_is_not_merged(kinesis, _clock):
    kinesis.create(2).split(0)
    kinesis.merge(0, 1)


@quoted(  # mcohen01/amazonica#468
    "ValidationException: 1 validation error detected: Value '2023-01-30T10:25:46.090Z' at "
    "'startingSequenceNumber' failed to satisfy constraint: Member must satisfy regular "
    r"expression pattern: 0|([1-9]\d{0,128})"
)
def k60_a_number_that_is_none(kinesis, _clock):
    kinesis.create(1).iterator(
        0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber="2023-01-30T10:25:46.090Z"
    )


@quoted(  # localstack/localstack#4048
    "ValidationException: 1 validation error detected: Value 't/stream/2021-05-18T20:27:22.715' at "
    "'streamName' failed to satisfy constraint: Member must satisfy regular expression pattern: "
    "[a-zA-Z0-9_.-]+"
)
def k60_a_name_with_a_slash(kinesis, _clock):
    kinesis.PutRecord(StreamName="t/stream/2021-05-18T20:27:22.715", PartitionKey="k", Data="")


@quoted(  # spring-attic/spring-cloud-stream-binder-aws-kinesis#118
    "ResourceNotFoundException: Stream nobody under account 000000000000 not found."
)
def k62_a_stream_that_is_not_there(kinesis, _clock):
    kinesis.DescribeStreamSummary(StreamName="nobody")


@quoted(  # aws/aws-sdk-java#1490: "shardid-", and a 500
    "InternalFailure: …"
)
def k04_a_shard_id_in_the_wrong_case(kinesis, _clock):
    kinesis.create(1).ListShards(StreamName="s", ExclusiveStartShardId="shardid-000000000000")


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_has_the_words_that_were_quoted(kinesis, clock, name):
    scenario, words = CASES[name]

    with pytest.raises(Exception, match="^" + re.escape(words).replace("…", ".*") + "$"):
        scenario(kinesis, clock)


def test_a_consumer_that_is_not_active_is_named_with_its_time(kinesis_with, clock, refused):
    """K87, awslabs/kinesis-hot-shard-advisor#37."""
    clock.advance(1_731_291_806 - clock.now_s)
    kinesis = kinesis_with(phases=Phases(consumer_ms=1_000)).create(1)
    kinesis.RegisterStreamConsumer(StreamARN=kinesis.arn(), ConsumerName="khs")
    arn = kinesis.DescribeStreamConsumer(StreamARN=kinesis.arn(), ConsumerName="khs")

    with refused("ResourceInUseException") as error:
        kinesis.engine.subscribe(
            {
                "ConsumerARN": arn["ConsumerDescription"]["ConsumerARN"],
                "ShardId": "shardId-000000000000",
                "StartingPosition": {"Type": "LATEST"},
            }
        )

    assert error.value.message == (
        "Consumer khs with creation timestamp 1731291806 under stream: s , account 000000000000 is "
        "not in ACTIVE status."
    )


def test_one_shard_too_many_is_told_with_the_numbers(kinesis_with, refused):
    """K46, mhart/kinesalite#72."""
    kinesis = kinesis_with(shard_limit=4).create(4)

    with refused("LimitExceededException") as error:
        kinesis.create(1, name="other")

    assert error.value.message == (
        "This request would exceed the shard limit for the account 000000000000 in us-east-1. "
        "Current shard count for the account: 4. Limit: 4. Number of additional shards that would "
        "have resulted from this request: 1."
    )
