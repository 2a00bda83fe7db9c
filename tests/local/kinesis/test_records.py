"""Putting and getting records: routing, numbers, sizes, positions, lag."""

from base64 import b64encode
from hashlib import md5

import pytest

MIB = 1 << 20
SHARD = "shardId-000000000000"


def base64_of(size):
    return b64encode(bytes(size)).decode()


def test_a_record_goes_to_the_shard_of_its_keys_md5(kinesis):
    kinesis.create(7)
    for key in ("a", "b", "schlüssel", "日本"):
        digest = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big")
        shard = int(kinesis.put(key=key)["ShardId"][-12:])
        assert kinesis.shard(shard)["first"] <= digest <= kinesis.shard(shard)["last"]


def test_an_explicit_hash_key_overrides_the_partition_key(kinesis):
    kinesis.create(4)
    for shard in range(4):
        assert kinesis.put(key="same", shard=shard)["ShardId"] == f"shardId-{shard:012d}"


@pytest.mark.parametrize("key", ["-1", "007", "x", ""])
def test_an_explicit_hash_key_must_be_a_decimal_number(kinesis, refused, key):
    kinesis.create(1)
    with refused("ValidationException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data="", ExplicitHashKey=key)


def test_an_explicit_hash_key_must_be_below_two_to_the_128(kinesis, refused):
    kinesis.create(1)
    with refused("InvalidArgumentException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data="", ExplicitHashKey=str(1 << 128))


def test_numbers_have_56_digits_186_bits_version_2_and_the_shards_number(kinesis):
    # protocol.md section 5.4, KCL's SequenceNumberValidator
    kinesis.create(3)
    for shard in range(3):
        number = kinesis.put(shard=shard)["SequenceNumber"]
        value = int(number)
        assert len(number) == 56
        assert value.bit_length() == 186
        assert value >> 184 == 2
        assert (value >> 4) & 0xFFFFFFFF == shard


def test_numbers_grow_over_all_shards_even_when_the_clock_goes_back(kinesis, clock):
    kinesis.create(4)
    numbers = []
    for step in (1, 0, -5, 2, 0):
        clock.advance(step)
        numbers += [int(kinesis.put(shard=shard)["SequenceNumber"]) for shard in range(4)]
    assert numbers == sorted(set(numbers))


def test_arrival_times_never_go_back_even_when_the_clock_does(kinesis, clock):
    kinesis.create(1)
    for step in (5, -60, 1):
        clock.advance(step)
        kinesis.put()
    arrivals = [record["ApproximateArrivalTimestamp"] for record in kinesis.get()["Records"]]
    assert arrivals == [clock.now_s + 59] * 3


def test_a_record_comes_back_as_it_was_put(kinesis, clock):
    kinesis.create(1)
    clock.advance(0.25)
    put = kinesis.put("hello", key="schlüssel")
    (record,) = kinesis.get()["Records"]
    assert record == {
        "SequenceNumber": put["SequenceNumber"],
        "ApproximateArrivalTimestamp": clock.now_s,
        "Data": b64encode(b"hello").decode(),
        "PartitionKey": "schlüssel",
    }


def test_put_records_answers_in_the_order_of_the_request(kinesis):
    kinesis.create(2)
    records = [
        {"PartitionKey": "k", "Data": "", "ExplicitHashKey": str(shard << 127)}
        for shard in (0, 1, 1, 0)
    ]
    answer = kinesis.PutRecords(StreamName="s", Records=records)
    assert answer["FailedRecordCount"] == 0
    assert [int(record["ShardId"][-12:]) for record in answer["Records"]] == [0, 1, 1, 0]


@pytest.mark.parametrize("count", [0, 501])
def test_put_records_takes_1_to_500(kinesis, refused, count):
    kinesis.create(1)
    records = [{"PartitionKey": "k", "Data": ""}] * count
    with refused("ValidationException"):
        kinesis.PutRecords(StreamName="s", Records=records)


def test_one_bad_record_fails_the_whole_request_and_stores_nothing(kinesis, refused):
    kinesis.create(1)
    records = [{"PartitionKey": "k", "Data": ""}, {"PartitionKey": "", "Data": ""}]
    with refused("ValidationException") as error:
        kinesis.PutRecords(StreamName="s", Records=records)
    assert "records.2.member.partitionKey" in str(error.value)
    assert kinesis.read() == []


@pytest.mark.parametrize("key", [None, "", "k" * 257])
def test_a_partition_key_has_1_to_256_characters(kinesis, refused, key):
    kinesis.create(1)
    kinesis.PutRecord(StreamName="s", PartitionKey="ü" * 256, Data="")
    with refused("ValidationException"):
        kinesis.PutRecord(StreamName="s", PartitionKey=key, Data="")


@pytest.mark.parametrize("data", ["abc", "ab=", "äbcd"])
def test_data_must_be_base64(kinesis, refused, data):
    kinesis.create(1)
    with refused("SerializationException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data=data)


def test_data_and_key_together_have_at_most_one_mebibyte_by_default(kinesis, refused):
    kinesis.create(1)
    kinesis.PutRecord(StreamName="s", PartitionKey="kk", Data=base64_of(MIB - 2))
    with refused("InvalidArgumentException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="kk", Data=base64_of(MIB - 1))


def test_a_stream_can_take_records_of_ten_mebibytes(kinesis, refused):
    kinesis.create(1)
    kinesis.UpdateMaxRecordSize(StreamARN=kinesis.arn(), MaxRecordSizeInKiB=10_240)
    kinesis.PutRecord(StreamName="s", PartitionKey="k", Data=base64_of(10 * MIB - 1))
    with refused("InvalidArgumentException"):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data=base64_of(10 * MIB))


def test_a_put_records_request_has_at_most_ten_mebibytes(kinesis, refused):
    kinesis.create(1)
    records = [{"PartitionKey": "k", "Data": base64_of(MIB - 1)} for _ in range(10)]
    kinesis.PutRecords(StreamName="s", Records=records)
    with refused("InvalidArgumentException"):
        kinesis.PutRecords(StreamName="s", Records=[*records, {"PartitionKey": "k", "Data": ""}])


def test_a_number_for_ordering_must_have_come_from_the_stream(kinesis, refused):
    kinesis.create(1)
    last = kinesis.put()["SequenceNumber"]
    later = str(int(last) + 1)
    request = {"StreamName": "s", "PartitionKey": "k", "Data": ""}
    kinesis.PutRecord(**request, SequenceNumberForOrdering=last)
    with refused("InvalidArgumentException"):
        kinesis.PutRecord(**request, SequenceNumberForOrdering=str(int(later) << 8))


def test_get_records_stops_at_ten_mebibytes_but_gives_at_least_one_record(kinesis):
    kinesis.create(1)
    for _ in range(11):
        kinesis.PutRecord(StreamName="s", PartitionKey="k", Data=base64_of(MIB - 1))
    first = kinesis.get()
    second = kinesis.GetRecords(ShardIterator=first["NextShardIterator"])
    assert [len(first["Records"]), len(second["Records"])] == [10, 1]


@pytest.mark.parametrize("limit", [0, 10_001, "5"])
def test_a_limit_is_from_1_to_10000(kinesis, refused, limit):
    kinesis.create(1)
    with refused("InvalidArgumentException"):
        kinesis.get(limit=limit)


def test_every_position_is_where_the_api_says(kinesis, clock):
    kinesis.create(1)
    numbers = []
    for data in "abcd":
        numbers.append(kinesis.put(data)["SequenceNumber"])
        clock.advance(10)
    start = clock.now_s - 40
    assert kinesis.read(0, "TRIM_HORIZON") == list("abcd")
    assert kinesis.read(0, "LATEST") == []
    at_b = {"StartingSequenceNumber": numbers[1]}
    assert kinesis.read(0, "AT_SEQUENCE_NUMBER", **at_b) == list("bcd")
    assert kinesis.read(0, "AFTER_SEQUENCE_NUMBER", **at_b) == list("cd")
    assert kinesis.read(0, "AT_TIMESTAMP", Timestamp=start + 10) == list("bcd")
    assert kinesis.read(0, "AT_TIMESTAMP", Timestamp=start + 10.001) == list("cd")
    assert kinesis.read(0, "AT_TIMESTAMP", Timestamp=start - 1000) == list("abcd")


def test_the_shards_own_starting_and_ending_numbers_are_positions(kinesis):
    kinesis.create(1)
    kinesis.put("a")
    kinesis.split(0)
    shard = kinesis.shard(0)
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert kinesis.read(0, kind, StartingSequenceNumber=shard["start"]) == ["a"]
        assert kinesis.read(0, kind, StartingSequenceNumber=shard["end"]) == []


def test_a_number_from_outside_the_shard_is_no_position(kinesis, refused):
    kinesis.create(1)
    kinesis.put("a")
    kinesis.split(0)
    child_record = kinesis.put("b")
    foreign = (child_record["SequenceNumber"], "0", str(int(kinesis.shard(0)["start"]) - 1))
    for number in foreign:
        with refused("InvalidArgumentException"):
            kinesis.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
    with refused("ValidationException"):
        kinesis.iterator(0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber="abc")


def test_a_number_of_another_shard_is_refused_by_the_names_of_both(kinesis, refused):
    """boto/boto3#1478, awslabs/amazon-kinesis-client#391."""
    kinesis.create(2)
    number = kinesis.put("a", shard=1)["SequenceNumber"]
    with refused("InvalidArgumentException") as error:
        kinesis.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
    assert error.value.message == (
        "Invalid StartingSequenceNumber. It encodes shardId-000000000001, while it was used in a "
        "call to shardId-000000000000"
    )


def test_a_kind_and_a_number_that_do_not_belong_together_are_refused(kinesis, refused):
    """akkadotnet/Alpakka#160, localstack/localstack#635."""
    kinesis.create(1)
    number = kinesis.put("a")["SequenceNumber"]
    for kind in ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"):
        with refused("InvalidArgumentException") as error:
            kinesis.iterator(0, kind, StartingSequenceNumber=number, Timestamp=1)
        assert error.value.message.startswith("Must either specify (1) AT_SEQUENCE_NUMBER")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        with refused("InvalidArgumentException"):
            kinesis.iterator(0, kind)


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_a_position_needs_its_argument(kinesis, refused, kind):
    kinesis.create(1)
    with refused("InvalidArgumentException"):
        kinesis.iterator(0, kind)


def test_a_timestamp_must_not_lie_in_the_future(kinesis, refused, clock):
    kinesis.create(1)
    kinesis.iterator(0, "AT_TIMESTAMP", Timestamp=clock.now_s)
    with refused("InvalidArgumentException"):
        kinesis.iterator(0, "AT_TIMESTAMP", Timestamp=clock.now_s + 1)


def test_lag_is_the_age_of_the_last_record_read_while_others_wait(kinesis, clock):
    kinesis.create(1)
    for data in "abc":
        kinesis.put(data)
        clock.advance(10)
    answer = kinesis.get(limit=2)
    assert answer["MillisBehindLatest"] == 20_000
    rest = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert rest["MillisBehindLatest"] == 0
    assert kinesis.get(0, "LATEST")["MillisBehindLatest"] == 0


def test_an_iterator_can_be_used_again_and_finds_later_records(kinesis):
    kinesis.create(1)
    iterator = kinesis.iterator(0, "LATEST")
    assert kinesis.GetRecords(ShardIterator=iterator)["Records"] == []
    kinesis.put("a")
    for _ in range(2):
        assert len(kinesis.GetRecords(ShardIterator=iterator)["Records"]) == 1


def test_an_iterator_expires_after_five_minutes(kinesis, refused, clock):
    kinesis.create(1)
    iterator = kinesis.iterator()
    clock.advance(300)
    following = kinesis.GetRecords(ShardIterator=iterator)["NextShardIterator"]
    clock.advance(0.001)
    with refused("ExpiredIteratorException"):
        kinesis.GetRecords(ShardIterator=iterator)
    kinesis.GetRecords(ShardIterator=following)


@pytest.mark.parametrize("mangle", [lambda it: it[:-4], lambda it: "A" + it[1:], lambda it: "x"])
def test_a_mangled_iterator_is_invalid(kinesis, refused, mangle):
    kinesis.create(1)
    with refused("InvalidArgumentException"):
        kinesis.GetRecords(ShardIterator=mangle(kinesis.iterator()))


def test_the_arn_on_get_records_must_be_the_iterators_stream(kinesis, refused):
    kinesis.create(1).create(1, name="other")
    iterator = kinesis.iterator()
    assert kinesis.GetRecords(ShardIterator=iterator, StreamARN=kinesis.arn())["Records"] == []
    with refused("InvalidArgumentException"):
        kinesis.GetRecords(ShardIterator=iterator, StreamARN=kinesis.arn("other"))


def test_a_stream_created_again_knows_nothing_of_the_old_ones_positions(kinesis, refused, clock):
    # Hazard H12: same name, same shard ids, other records.
    kinesis.create(1)
    old = kinesis.put("old")["SequenceNumber"]
    iterator = kinesis.iterator()
    kinesis.DeleteStream(StreamName="s")
    with refused("ResourceNotFoundException"):
        kinesis.GetRecords(ShardIterator=iterator)
    clock.advance(1)
    kinesis.create(1)
    new = kinesis.put("new")["SequenceNumber"]
    with refused("ResourceNotFoundException"):
        kinesis.GetRecords(ShardIterator=iterator)
    with refused("InvalidArgumentException"):
        kinesis.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    assert int(new) > int(old)


def test_an_unknown_shard_is_not_found(kinesis, refused):
    kinesis.create(1)
    with refused("ResourceNotFoundException"):
        kinesis.iterator(7)
