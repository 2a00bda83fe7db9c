"""The limits of a shard, on a virtual clock: what passes in a burst, and what over time."""

from base64 import b64encode

import pytest

MIB = 1 << 20
KIB_RECORD = b64encode(bytes(1023)).decode()
SMALL = {"PartitionKey": "k", "Data": ""}


@pytest.fixture
def limited(kinesis_with):
    return kinesis_with(quotas=True)


def accepted(kinesis, count, record=SMALL, shard=0):
    start = str(kinesis.shard(shard)["first"])
    entry = record | {"ExplicitHashKey": start}
    total = 0
    while count > 0:
        records = [entry] * min(count, 500)
        count -= len(records)
        answer = kinesis.PutRecords(StreamName="s", Records=records)
        total += len(records) - answer["FailedRecordCount"]
    return total


def test_a_shard_takes_a_thousand_records_a_second(limited, clock):
    limited.create(1)
    assert accepted(limited, 1500) == 1000
    clock.advance(0.5)
    assert accepted(limited, 1500) == 500
    clock.advance(60)
    assert accepted(limited, 1500) == 1000


def test_a_shard_takes_a_mebibyte_a_second(limited, clock):
    limited.create(1)
    record = {"PartitionKey": "k", "Data": b64encode(bytes(4095)).decode()}
    assert accepted(limited, 500, record) == 256
    clock.advance(1)
    assert accepted(limited, 500, record) == 256


def test_each_shard_has_limits_of_its_own(limited):
    limited.create(2)
    assert accepted(limited, 1500, shard=0) == 1000
    assert accepted(limited, 1500, shard=1) == 1000


def test_throttled_entries_are_named_one_by_one_and_the_others_are_stored(limited):
    limited.create(2)
    accepted(limited, 1000, shard=0)
    records = [SMALL | {"ExplicitHashKey": str(shard << 127)} for shard in (0, 1)]
    answer = limited.PutRecords(StreamName="s", Records=records)
    assert answer["FailedRecordCount"] == 1
    refused, stored = answer["Records"]
    assert refused == {
        "ErrorCode": "ProvisionedThroughputExceededException",
        "ErrorMessage": "Rate exceeded for shard shardId-000000000000 in stream s under account "
        "000000000000.",
    }
    assert stored["ShardId"] == "shardId-000000000001"
    assert limited.read(1) == [""]


def test_a_single_put_over_the_limit_is_refused(limited, refused):
    limited.create(1)
    accepted(limited, 1000)
    with refused("ProvisionedThroughputExceededException"):
        limited.put()


def test_a_large_record_passes_on_a_fresh_shard_and_is_paid_off(limited, refused, clock):
    limited.create(1)
    limited.UpdateMaxRecordSize(StreamARN=limited.arn(), MaxRecordSizeInKiB=10_240)
    large = {"PartitionKey": "k", "Data": b64encode(bytes(3 * MIB - 1)).decode()}
    limited.PutRecord(StreamName="s", **large)
    clock.advance(1.9)
    with refused("ProvisionedThroughputExceededException"):
        limited.PutRecord(StreamName="s", PartitionKey="k", Data=KIB_RECORD)
    clock.advance(0.2)
    limited.PutRecord(StreamName="s", PartitionKey="k", Data=KIB_RECORD)


def test_a_shard_answers_five_get_records_a_second_to_all_pollers_together(limited, refused, clock):
    limited.create(1)
    pollers = [limited.iterator(0, kind) for kind in ("TRIM_HORIZON", "LATEST")]
    for call in range(5):
        limited.GetRecords(ShardIterator=pollers[call % 2])
    with refused("ProvisionedThroughputExceededException"):
        limited.GetRecords(ShardIterator=pollers[0])
    clock.advance(0.2)
    limited.GetRecords(ShardIterator=pollers[0])
    with refused("ProvisionedThroughputExceededException"):
        limited.GetRecords(ShardIterator=pollers[1])


def fill(kinesis, clock, mebibytes):
    record = {"PartitionKey": "k", "Data": b64encode(bytes(MIB - 1)).decode()}
    for _ in range(mebibytes):
        kinesis.PutRecord(StreamName="s", **record)
        clock.advance(1)


@pytest.mark.parametrize(("mebibytes", "seconds"), [(10, 5.0), (4, 2.0)])
def test_a_large_answer_blocks_the_shard_for_its_size_over_two_mebibytes(
    limited, refused, clock, mebibytes, seconds
):
    limited.create(1)
    fill(limited, clock, mebibytes)
    iterator = limited.get()["NextShardIterator"]
    clock.advance(seconds - 0.1)
    with refused("ProvisionedThroughputExceededException"):
        limited.GetRecords(ShardIterator=iterator)
    clock.advance(0.2)
    limited.GetRecords(ShardIterator=iterator)


def test_two_mebibytes_a_second_flow_without_throttling(limited, clock):
    limited.create(1)
    fill(limited, clock, 20)
    iterator, read = limited.iterator(), 0
    for _ in range(10):
        answer = limited.GetRecords(ShardIterator=iterator, Limit=2)
        iterator, read = answer["NextShardIterator"], read + len(answer["Records"])
        clock.advance(1)
    assert read == 20


def test_get_shard_iterator_has_five_a_second_per_shard(limited, refused, clock):
    limited.create(2)
    for _ in range(5):
        limited.iterator(0)
    with refused("ProvisionedThroughputExceededException"):
        limited.iterator(0)
    limited.iterator(1)
    clock.advance(0.2)
    limited.iterator(0)


@pytest.mark.parametrize(
    ("operation", "request_", "per_second"),
    [
        ("ListShards", {"StreamName": "s"}, 1000),
        ("DescribeStream", {"StreamName": "s"}, 10),
        ("DescribeStreamSummary", {"StreamName": "s"}, 20),
        ("ListStreams", {}, 5),
        ("DescribeLimits", {}, 1),
    ],
)
def test_control_plane_calls_have_rates(limited, refused, clock, operation, request_, per_second):
    limited.create(1)
    for _ in range(per_second):
        limited.engine.call(operation, request_)
    with refused("LimitExceededException"):
        limited.engine.call(operation, request_)
    clock.advance(1 / per_second + 0.001)
    limited.engine.call(operation, request_)


def test_rates_per_stream_are_shared_by_name_and_arn_only_within_the_stream(limited, refused):
    limited.create(1).create(1, name="other")
    arn = limited.arn()
    for _ in range(500):
        limited.ListShards(StreamName="s")
        limited.ListShards(StreamARN=arn)
    with refused("LimitExceededException"):
        limited.ListShards(StreamARN=arn)
    limited.ListShards(StreamName="other")


def test_a_page_counts_for_the_stream_of_its_token(limited, refused):
    limited.create(2).create(2, name="other")
    token = limited.ListShards(StreamName="s", MaxResults=1)["NextToken"]
    other = limited.ListShards(StreamName="other", MaxResults=1)["NextToken"]
    for _ in range(999):
        limited.ListShards(NextToken=token)
    with refused("LimitExceededException"):
        limited.ListShards(NextToken=token)
    limited.ListShards(NextToken=other)


def test_without_quotas_nothing_is_throttled(kinesis):
    kinesis.create(1)
    assert accepted(kinesis, 3000) == 3000
    for _ in range(20):
        kinesis.get(limit=1)
        kinesis.DescribeLimits()
