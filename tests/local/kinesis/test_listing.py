"""ListShards with its filters and pages; DescribeStream and ListStreams."""

import pytest

from shardfleet_local.kinesis.account import Phases

HOUR = 3600


@pytest.fixture
def history(kinesis, clock):
    """
    Shards 0 and 1 from 0 h; 0 split into 2 and 3 at 1 h; 2 and 3 merged into 4 at 2 h; now 3 h.
    """
    kinesis.create(2)
    clock.advance(HOUR)
    kinesis.split(0)
    clock.advance(HOUR)
    kinesis.merge(2, 3)
    clock.advance(HOUR)
    return kinesis


def at(clock, hours_ago):
    return clock.now_s - hours_ago * HOUR


def test_without_a_filter_every_shard_is_listed_open_or_closed(history):
    assert history.shards() == [0, 1, 2, 3, 4]
    assert history.shards(ShardFilter={"Type": "FROM_TRIM_HORIZON"}) == [0, 1, 2, 3, 4]


def test_at_latest_lists_the_open_shards(history):
    assert history.shards(ShardFilter={"Type": "AT_LATEST"}) == [1, 4]


def test_at_trim_horizon_lists_what_was_open_when_the_stream_began(history):
    assert history.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == [0, 1]


def test_at_trim_horizon_lists_the_first_shards_of_a_stream_that_took_time_to_create(
    kinesis_with, clock
):
    kinesis = kinesis_with(phases=Phases(creating_ms=500)).create(2)
    clock.advance(1)

    assert kinesis.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == [0, 1]
    assert kinesis.shards(ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": at(clock, 1)}) == [0, 1]


def test_at_trim_horizon_moves_on_with_retention(history, clock):
    clock.advance(24 * HOUR - 1.5 * HOUR)
    assert history.shards(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == [1, 2, 3]


@pytest.mark.parametrize(
    ("hours_ago", "expected"),
    [(2.5, [0, 1]), (1.5, [1, 2, 3]), (0.5, [1, 4]), (100, [0, 1]), (2, [0, 1, 2, 3])],
)
def test_at_timestamp_lists_what_was_open_then(history, clock, hours_ago, expected):
    shard_filter = {"Type": "AT_TIMESTAMP", "Timestamp": at(clock, hours_ago)}
    assert history.shards(ShardFilter=shard_filter) == expected


@pytest.mark.parametrize(
    ("hours_ago", "expected"),
    [(2.5, [0, 1, 2, 3, 4]), (1.5, [1, 2, 3, 4]), (0.5, [1, 4]), (100, [0, 1, 2, 3, 4])],
)
def test_from_timestamp_lists_what_was_open_then_or_later(history, clock, hours_ago, expected):
    shard_filter = {"Type": "FROM_TIMESTAMP", "Timestamp": at(clock, hours_ago)}
    assert history.shards(ShardFilter=shard_filter) == expected


def test_after_shard_id_and_exclusive_start_mean_the_same(history):
    shard_filter = {"Type": "AFTER_SHARD_ID", "ShardId": "shardId-000000000002"}
    assert history.shards(ShardFilter=shard_filter) == [3, 4]
    assert history.shards(ExclusiveStartShardId="shardId-000000000002") == [3, 4]


@pytest.mark.parametrize(
    "shard_filter",
    [
        {"Type": "AFTER_SHARD_ID"},
        {"Type": "AT_TIMESTAMP"},
        {"Type": "AT_LATEST", "Timestamp": 1.0},
        {"Type": "FROM_TIMESTAMP", "Timestamp": 1.0, "ShardId": "shardId-000000000000"},
    ],
)
def test_a_filter_must_have_its_argument_and_no_other(history, refused, shard_filter):
    with refused("InvalidArgumentException"):
        history.shards(ShardFilter=shard_filter)


def test_an_unknown_filter_type_is_invalid(history, refused):
    with refused("ValidationException"):
        history.shards(ShardFilter={"Type": "SOME"})


def pages(kinesis, limit, **request):
    listed = []
    answer = kinesis.ListShards(StreamName="s", MaxResults=limit, **request)
    while True:
        listed.append([int(shard["ShardId"][-12:]) for shard in answer["Shards"]])
        if "NextToken" not in answer:
            return listed
        answer = kinesis.ListShards(NextToken=answer["NextToken"], MaxResults=limit)


def test_pages_go_on_where_the_last_one_ended(history):
    assert pages(history, 2) == [[0, 1], [2, 3], [4]]
    assert pages(history, 5) == [[0, 1, 2, 3, 4]]


def test_pages_keep_the_filter(history):
    # KCL #788: pagination with a filter was broken in a client; the server must be right.
    assert pages(history, 1, ShardFilter={"Type": "AT_LATEST"}) == [[1], [4]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        # Seen on AWS: aws-cli #9635 (ARN), terraform-provider-aws #40494 (name), amazon-kinesis-
        # scaling-utils #82 (start), beam #33478 (filter). The model says it of the creation time.
        ("StreamARN", "arn:aws:kinesis:us-east-1:000000000000:stream/s"),
        ("StreamName", "s"),
        ("ExclusiveStartShardId", "shardId-000000000000"),
        ("ShardFilter", {"Type": "AT_LATEST"}),
        ("StreamCreationTimestamp", 1.0),
    ],
)
def test_a_token_stands_alone(history, refused, field, value):
    token = history.ListShards(StreamName="s", MaxResults=1)["NextToken"]
    with refused("InvalidArgumentException") as error:
        history.ListShards(NextToken=token, **{field: value})
    assert f"NextToken and {field} cannot be provided together." in str(error.value)


def test_a_token_expires_after_300_seconds(history, refused, clock):
    token = history.ListShards(StreamName="s", MaxResults=1)["NextToken"]
    clock.advance(300)
    history.ListShards(NextToken=token)
    clock.advance(1)
    with refused("ExpiredNextTokenException"):
        history.ListShards(NextToken=token)


@pytest.mark.parametrize("token", ["x", "AAAA", "not base64 at all!"])
def test_a_token_of_somebody_elses_is_invalid(history, refused, token):
    with refused("InvalidArgumentException"):
        history.ListShards(NextToken=token)


def test_a_token_of_another_listing_is_invalid(history, refused):
    for number in range(2):
        history.create(1, name=f"other-{number}")
    token = history.ListStreams(Limit=1)["NextToken"]
    with refused("InvalidArgumentException"):
        history.ListShards(NextToken=token)


def test_the_creation_time_tells_two_streams_of_one_name_apart(kinesis, refused, clock):
    kinesis.create(1)
    summary = kinesis.DescribeStreamSummary(StreamName="s")["StreamDescriptionSummary"]
    created = summary["StreamCreationTimestamp"]
    assert kinesis.shards(StreamCreationTimestamp=created) == [0]
    kinesis.DeleteStream(StreamName="s")
    clock.advance(1)
    kinesis.create(1)
    with refused("ResourceNotFoundException"):
        kinesis.shards(StreamCreationTimestamp=created)


def test_describe_stream_gives_a_hundred_shards_at_a_time(kinesis):
    kinesis.create(130)
    first = kinesis.DescribeStream(StreamName="s")["StreamDescription"]
    assert first["HasMoreShards"] is True
    last_id = first["Shards"][-1]["ShardId"]
    rest = kinesis.DescribeStream(StreamName="s", ExclusiveStartShardId=last_id)
    assert len(first["Shards"]) == 100
    assert len(rest["StreamDescription"]["Shards"]) == 30
    assert rest["StreamDescription"]["HasMoreShards"] is False


def test_list_shards_gives_a_thousand_at_a_time(kinesis):
    kinesis.create(1001)
    answer = kinesis.ListShards(StreamName="s", MaxResults=5000)
    assert len(answer["Shards"]) == 1000
    assert len(kinesis.ListShards(NextToken=answer["NextToken"])["Shards"]) == 1


def test_streams_are_listed_by_name_in_pages(kinesis):
    for name in ("c", "a", "b"):
        kinesis.create(1, name=name)
    first = kinesis.ListStreams(Limit=2)
    assert (first["StreamNames"], first["HasMoreStreams"]) == (["a", "b"], True)
    assert kinesis.ListStreams(NextToken=first["NextToken"])["StreamNames"] == ["c"]
    second = kinesis.ListStreams(ExclusiveStartStreamName="b")
    assert (second["StreamNames"], second["HasMoreStreams"]) == (["c"], False)
    assert first["StreamSummaries"][0]["StreamStatus"] == "ACTIVE"
