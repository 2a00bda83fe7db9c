"""The contract of streams and records: life, settings, routing, positions, lag."""

import time
from hashlib import md5

import pytest

HASH_KEYS = 1 << 128


def shard_of(shards, key):
    digest = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big")
    return next(s for s in shards if int(s["HashKeyRange"]["EndingHashKey"]) >= digest)


# Streams


@pytest.mark.documented("CreateStream, DescribeStreamSummary")
def test_a_new_stream_has_its_shards_over_all_hash_keys(stream):
    stream.create(3)
    summary = stream.summary()
    ranges = sorted(
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in stream.shards()
    )
    assert (summary["OpenShardCount"], summary["RetentionPeriodHours"]) == (3, 24)
    assert (ranges[0][0], ranges[-1][1]) == (0, HASH_KEYS - 1)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]


@pytest.mark.documented("CreateStream: ResourceInUseException")
def test_a_name_is_taken_once(stream):
    stream.create()
    with stream.refused("ResourceInUseException"):
        stream.client.create_stream(StreamName=stream.name, ShardCount=1)


@pytest.mark.documented("every operation: ResourceNotFoundException")
def test_a_stream_that_is_not_there_is_not_found(stream):
    for call in (stream.summary, stream.shards, lambda: stream.put("x")):
        with stream.refused("ResourceNotFoundException"):
            call()


@pytest.mark.documented("DeleteStream")
def test_a_deleted_stream_is_gone(stream):
    stream.create()
    stream.client.delete_stream(StreamName=stream.name)
    stream.until(stream.is_gone)


@pytest.mark.documented("every operation: StreamName, StreamARN, or both")
def test_every_call_takes_the_arn_instead_of_the_name(stream):
    arn = stream.create().arn
    client = stream.client
    put = client.put_record(StreamARN=arn, PartitionKey="k", Data=b"x")
    records = [{"PartitionKey": "k", "Data": b"y"}]
    client.put_records(StreamARN=arn, Records=records)
    assert len(client.list_shards(StreamARN=arn)["Shards"]) == 1
    iterator = client.get_shard_iterator(
        StreamARN=arn, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    answer = client.get_records(ShardIterator=iterator, StreamARN=arn)
    assert [record["Data"] for record in answer["Records"]] == [b"x", b"y"]


@pytest.mark.documented("IncreaseStreamRetentionPeriod, DecreaseStreamRetentionPeriod")
def test_retention_goes_up_and_down_but_not_below_a_day(stream):
    stream.create()
    name = {"StreamName": stream.name}
    stream.client.increase_stream_retention_period(**name, RetentionPeriodHours=48)
    assert stream.settled().summary()["RetentionPeriodHours"] == 48
    stream.client.decrease_stream_retention_period(**name, RetentionPeriodHours=24)
    assert stream.settled().summary()["RetentionPeriodHours"] == 24
    with stream.refused("InvalidArgumentException"):
        stream.client.decrease_stream_retention_period(**name, RetentionPeriodHours=23)


@pytest.mark.documented("AddTagsToStream, RemoveTagsFromStream, ListTagsForStream")
def test_tags_come_and_go(stream):
    name = {"StreamName": stream.create().name}
    stream.client.add_tags_to_stream(**name, Tags={"a": "1", "b": "2"})
    stream.client.remove_tags_from_stream(**name, TagKeys=["a"])
    assert stream.client.list_tags_for_stream(**name)["Tags"] == [{"Key": "b", "Value": "2"}]


@pytest.mark.documented("StartStreamEncryption: verified by the response of PutRecord")
def test_encryption_shows_in_the_answers(stream):
    stream.create()
    stream.client.start_stream_encryption(
        StreamName=stream.name, EncryptionType="KMS", KeyId="alias/aws/kinesis"
    )
    stream.settled()
    assert stream.summary()["EncryptionType"] == "KMS"
    assert stream.put("x")["EncryptionType"] == "KMS"


# Records


@pytest.mark.documented("PutRecord: an MD5 hash function maps partition keys")
def test_a_record_goes_to_the_shard_of_its_keys_md5(stream):
    shards = stream.create(5).shards()
    for key in ("a", "b", "schlüssel"):
        assert stream.put("x", key=key)["ShardId"] == shard_of(shards, key)["ShardId"]


@pytest.mark.documented("PutRecords: ExplicitHashKey, natural ordering of the response")
def test_put_records_answers_in_order_and_follows_explicit_hash_keys(stream):
    shards = stream.create(2).shards()
    wanted = [shards[index] for index in (0, 1, 1, 0)]
    answer = stream.client.put_records(
        StreamName=stream.name,
        Records=[
            {
                "PartitionKey": "k",
                "Data": b"x",
                "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
            }
            for shard in wanted
        ],
    )
    assert answer["FailedRecordCount"] == 0
    assert [each["ShardId"] for each in answer["Records"]] == [each["ShardId"] for each in wanted]


@pytest.mark.documented("PutRecord: sequence numbers increase over time within a shard")
def test_numbers_grow_within_a_shard(stream):
    stream.create()
    numbers = [int(stream.put(str(index))["SequenceNumber"]) for index in range(10)]
    assert numbers == sorted(set(numbers))


@pytest.mark.observed(
    "KCL's SequenceNumberValidator: 186 bits, version 2, shard number in bits 4 to 35"
)
def test_numbers_have_the_known_layout(stream):
    for shard in stream.create(2).shards():
        number = int(stream.put("x", shard)["SequenceNumber"])
        assert (number.bit_length(), number >> 184) == (186, 2)
        assert (number >> 4) & 0xFFFFFFFF == int(shard["ShardId"][-12:])


@pytest.mark.documented("PutRecords: each request can support up to 500 records")
@pytest.mark.fails_on("kinesis-local", "K76", "it takes them")
def test_501_records_are_refused(stream):
    stream.create()
    records = [{"PartitionKey": "k", "Data": b""}] * 501
    with stream.refused("ValidationException", "InvalidArgumentException"):
        stream.client.put_records(StreamName=stream.name, Records=records)


@pytest.mark.documented("GetShardIterator: the five types")
def test_every_iterator_type_starts_where_it_says(stream):
    stream.create()
    numbers = [stream.put(data)["SequenceNumber"] for data in "abc"]
    (shard,) = stream.shards()

    def read(kind, **position):
        return stream.drain(shard["ShardId"], kind, **position)[0]

    assert read("TRIM_HORIZON") == ["a", "b", "c"]
    assert read("AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == ["b", "c"]
    assert read("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == ["c"]
    assert read("AT_TIMESTAMP", Timestamp=time.time() - 3600) == ["a", "b", "c"]
    latest = stream.iterator(shard["ShardId"], "LATEST")
    stream.put("d")
    answer = stream.until(
        lambda: (got := stream.client.get_records(ShardIterator=latest))["Records"] and got
    )
    assert [record["Data"] for record in answer["Records"]] == [b"d"]


@pytest.mark.documented(
    "GetShardIterator: numbers returned by PutRecord, GetRecords or DescribeStream"
)
def test_a_shards_own_starting_number_is_a_position(stream):
    stream.create()
    stream.put("a")
    (shard,) = stream.shards()
    start = shard["SequenceNumberRange"]["StartingSequenceNumber"]
    data, _ = stream.drain(shard["ShardId"], "AT_SEQUENCE_NUMBER", StartingSequenceNumber=start)
    assert data == ["a"]


@pytest.mark.documented("GetShardIterator: InvalidArgumentException")
@pytest.mark.fails_on("kinesis-local", "K12", "it takes any number")
def test_a_number_that_did_not_come_from_the_stream_is_refused(stream):
    stream.create()
    (shard,) = stream.shards()
    start = int(shard["SequenceNumberRange"]["StartingSequenceNumber"])
    with stream.refused("InvalidArgumentException"):
        stream.iterator(
            shard["ShardId"],
            "AFTER_SEQUENCE_NUMBER",
            StartingSequenceNumber=str(start - (1 << 150)),
        )


@pytest.mark.observed("akkadotnet/Alpakka#160, localstack#635 quote AWS (fact K10)")
@pytest.mark.fails_on("kinesis-local", "K10", "it takes what the type has no use for")
@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST"])
def test_a_beginning_takes_no_sequence_number(stream, kind):
    stream.create()
    number = stream.put("a")["SequenceNumber"]
    (shard,) = stream.shards()
    with stream.refused("InvalidArgumentException"):
        stream.iterator(shard["ShardId"], kind, StartingSequenceNumber=number)


@pytest.mark.observed("boto3#1478, amazon-kinesis-client#391 quote AWS (fact K11)")
@pytest.mark.fails_on("kinesis-local", "K11", "it takes any number")
def test_a_number_of_another_shard_is_refused(stream):
    one, other = stream.create(2).shards()
    number = stream.put("a", one)["SequenceNumber"]
    with stream.refused("InvalidArgumentException"):
        stream.iterator(other["ShardId"], "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)


@pytest.mark.observed("amazon-kinesis-connectors#8, logstash-input-kinesis#22 quote AWS (fact K12)")
@pytest.mark.fails_on("kinesis-local", "K12", "it takes any number")
def test_a_number_of_a_deleted_namesake_is_refused(stream):
    number = int(stream.create().put("a")["SequenceNumber"])
    created = stream.summary()["StreamCreationTimestamp"]
    stream.client.delete_stream(StreamName=stream.name)
    stream.until(stream.is_gone)
    # A number begins with the second in which its shard was made.
    stream.until(lambda: time.time() > created.timestamp() + 2)
    (shard,) = stream.create().shards()
    assert int(shard["SequenceNumberRange"]["StartingSequenceNumber"]) > number
    with stream.refused("InvalidArgumentException"):
        stream.iterator(
            shard["ShardId"], "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=str(number)
        )


@pytest.mark.documented("GetShardIterator: Timestamp (fact K29)")
def test_a_moment_without_a_record_is_the_next_record_after_it(stream):
    stream.create()
    stream.put("a")
    (shard,) = stream.shards()
    (first,) = stream.until(lambda: stream.get(shard["ShardId"])["Records"])
    # boto3 sends whole seconds, so the moment between needs one to itself.
    between = int(first["ApproximateArrivalTimestamp"].timestamp()) + 1
    stream.until(lambda: time.time() > between + 0.1)
    stream.put("b")
    assert stream.drain(shard["ShardId"], "AT_TIMESTAMP", Timestamp=between)[0] == ["b"]


@pytest.mark.observed("kinesis-mock#435: the KPL gives both (fact K09)")
def test_a_name_and_an_arn_that_agree_may_come_together(stream):
    arn = stream.create().arn
    assert len(stream.client.list_shards(StreamARN=arn, StreamName=stream.name)["Shards"]) == 1


@pytest.mark.documented("GetRecords: MillisBehindLatest, zero: caught up (fact K24)")
def test_a_page_that_is_caught_up_may_carry_records(stream):
    stream.create()
    stream.put("a")
    (shard,) = stream.shards()
    answer = stream.until(lambda: (got := stream.get(shard["ShardId"]))["Records"] and got)
    assert (len(answer["Records"]), answer["MillisBehindLatest"]) == (1, 0)


@pytest.mark.documented("GetShardIterator: ResourceNotFoundException")
def test_a_shard_that_is_not_there_is_not_found(stream):
    stream.create()
    with stream.refused("ResourceNotFoundException"):
        stream.iterator("shardId-000000000099")


@pytest.mark.documented("GetRecords: InvalidArgumentException")
@pytest.mark.fails_on("kinesis-local", "K72", "it answers HTTP 500")
def test_an_iterator_of_nobodys_is_refused(stream):
    stream.create()
    with stream.refused("InvalidArgumentException"):
        stream.client.get_records(ShardIterator="AAAAAAAAAAFh")


@pytest.mark.documented("GetRecords: Limit up to 10,000")
def test_a_limit_above_ten_thousand_is_refused(stream):
    stream.create()
    (shard,) = stream.shards()
    with stream.refused("InvalidArgumentException", "ValidationException"):
        stream.get(shard["ShardId"], limit=10_001)


@pytest.mark.documented("GetRecords: MillisBehindLatest")
@pytest.mark.fails_on(
    "kinesis-local", "K23", "its lag is the time between two arrivals, whatever time it is now"
)
def test_lag_is_zero_at_the_tip_and_the_age_of_the_read_record_before(stream):
    stream.create()
    (shard,) = stream.shards()
    # In one request: the time between two arrivals is not to look like an age.
    entries = [{"Data": data, "PartitionKey": "k"} for data in (b"a", b"b")]
    stream.client.put_records(StreamName=stream.name, Records=entries)
    first, _ = stream.until(lambda: stream.get(shard["ShardId"])["Records"])
    stream.until(lambda: time.time() - first["ApproximateArrivalTimestamp"].timestamp() > 1.1)
    behind = stream.get(shard["ShardId"], limit=1)
    assert behind["MillisBehindLatest"] >= 1000
    _, last = stream.drain(shard["ShardId"])
    assert last["MillisBehindLatest"] == 0
