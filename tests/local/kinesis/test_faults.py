"""Faults on demand: where they apply, and how they end."""

import pytest

SHARD = "shardId-000000000000"


def test_reads_of_one_shard_are_throttled_for_a_time(kinesis, refused, clock):
    kinesis.create(2)
    kinesis.faults.throttle_reads("s", shard=SHARD, duration_ms=60_000)
    with refused("ProvisionedThroughputExceededException"):
        kinesis.get(0)
    kinesis.get(1)
    clock.advance(59.999)
    with refused("ProvisionedThroughputExceededException"):
        kinesis.get(0)
    clock.advance(0.001)
    kinesis.get(0)


def test_an_operation_fails_for_one_shard_whether_it_is_named_or_meant_by_an_iterator(
    kinesis, refused
):
    kinesis.create(2)
    failure = {"Kind": "Failure", "StreamName": "s", "ShardId": SHARD, "Count": 2}
    kinesis.faults.inject({**failure, "Code": "ResourceNotFoundException"})
    iterator = kinesis.iterator(1)
    kinesis.GetRecords(ShardIterator=iterator)
    with refused("ResourceNotFoundException"):
        kinesis.iterator(0)
    kinesis.faults.clear()
    iterator = kinesis.iterator(0)
    kinesis.faults.inject({**failure, "Operation": "GetRecords"})
    for named in ({}, {"StreamARN": kinesis.arn()}):
        with refused("InternalFailure"):
            kinesis.GetRecords(ShardIterator=iterator, **named)
    kinesis.get(1)


def test_writes_of_a_stream_are_throttled_entry_by_entry(kinesis, refused, clock):
    kinesis.create(1).create(1, name="other")
    kinesis.faults.throttle_writes("s", duration_ms=1000)
    answer = kinesis.PutRecords(StreamName="s", Records=[{"PartitionKey": "k", "Data": ""}])
    assert answer["FailedRecordCount"] == 1
    with refused("ProvisionedThroughputExceededException"):
        kinesis.put()
    kinesis.put(name="other")
    clock.advance(1)
    kinesis.put()


def test_an_empty_read_has_lag_and_stays_where_it_is(kinesis):
    kinesis.create(1)
    kinesis.put("a")
    kinesis.faults.empty_reads("s", count=2)
    answer = kinesis.get()
    assert answer["Records"] == []
    assert answer["MillisBehindLatest"] > 0
    answer = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert answer["Records"] == []
    answer = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert len(answer["Records"]) == 1


def test_a_number_that_is_too_old_brings_nothing_for_ever_with_the_lag_of_a_retention(
    kinesis, clock
):
    # harlow/kinesis-consumer#125: "0 records, MillisBehindLatest 86400000", for 15 minutes.
    kinesis.create(1)
    old = kinesis.put("old")["SequenceNumber"]
    clock.advance(25 * 3600)
    kinesis.put("young")
    kinesis.faults.silent_positions("s", count=1)
    answer = kinesis.get(0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    for _ in range(3):
        assert (answer["Records"], answer["MillisBehindLatest"]) == ([], 86_400_000)
        answer = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert kinesis.read() == ["young"]


def test_a_false_end_has_neither_iterator_nor_children(kinesis):
    # KCL #624; protocol.md section 4.5: such an answer is thrown away, the same iterator retried.
    kinesis.create(1)
    kinesis.put("a")
    iterator = kinesis.iterator()
    kinesis.faults.false_end("s", count=1)
    answer = kinesis.GetRecords(ShardIterator=iterator)
    assert "NextShardIterator" not in answer
    assert "ChildShards" not in answer
    assert "NextShardIterator" in kinesis.GetRecords(ShardIterator=iterator)


def test_the_other_false_end_has_both(kinesis):
    kinesis.create(1)
    kinesis.split(0)
    kinesis.faults.false_end("s", count=1, with_children=True)
    answer = kinesis.get(0)
    assert "NextShardIterator" in answer
    assert len(answer["ChildShards"]) == 2


def test_iterators_expire_on_demand(kinesis, refused):
    kinesis.create(1)
    kinesis.faults.expired_iterators("s", count=1)
    with refused("ExpiredIteratorException"):
        kinesis.get()
    kinesis.get()


def test_a_failure_does_nothing_and_a_lost_reply_does_it(kinesis, refused):
    kinesis.create(1)
    kinesis.faults.failure("s", operation="PutRecord", count=1)
    with refused("InternalFailure") as error:
        kinesis.put("not stored")
    assert error.value.status == 500
    kinesis.faults.lost_reply("s", operation="PutRecord", count=1)
    with refused("InternalFailure"):
        kinesis.put("stored")
    assert kinesis.read() == ["stored"]


def test_a_failure_can_have_any_code_and_finds_the_stream_of_an_iterator(kinesis, refused):
    kinesis.create(1).create(1, name="other")
    kinesis.faults.failure("s", operation="GetRecords", count=1, code="KMSThrottlingException")
    iterator = kinesis.iterator(name="other")
    kinesis.GetRecords(ShardIterator=iterator)
    with refused("KMSThrottlingException") as error:
        kinesis.get()
    assert error.value.status == 400


def test_latency_is_told_to_whoever_carries_the_answer(kinesis, clock):
    kinesis.create(1)
    kinesis.faults.latency("s", operation="GetRecords", delay_ms=250, duration_ms=1000)
    request = {"ShardIterator": kinesis.iterator()}
    assert kinesis.engine.delay_ms("GetRecords", request) == 250
    assert kinesis.engine.delay_ms("PutRecord", {"StreamName": "s"}) == 0
    clock.advance(1)
    assert kinesis.engine.delay_ms("GetRecords", request) == 0


def test_faults_are_injected_listed_and_cleared_in_wire_form(kinesis, clock):
    kinesis.faults.inject({"Kind": "ThrottleReads", "StreamName": "s", "DurationMs": 5000})
    kinesis.faults.inject({"Kind": "EmptyReads", "ShardId": SHARD, "Count": 3})
    clock.advance(2)
    first, second = kinesis.faults.in_force()
    assert (first["Kind"], first["StreamName"], first["DurationMs"]) == ("ThrottleReads", "s", 3000)
    assert (second["Kind"], second["ShardId"], second["Count"]) == ("EmptyReads", SHARD, 3)
    clock.advance(3)
    assert [fault["Kind"] for fault in kinesis.faults.in_force()] == ["EmptyReads"]
    kinesis.faults.clear()
    assert kinesis.faults.in_force() == []


@pytest.mark.parametrize(
    "fault",
    [
        {"Kind": "Rain", "Count": 1},
        {"Count": 1},
        {"Kind": "EmptyReads"},
        {"Kind": "EmptyReads", "Count": -1},
        {"Kind": "EmptyReads", "Count": "many"},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(kinesis, refused, fault):
    with refused("ValidationException"):
        kinesis.faults.inject(fault)


def test_entries_fail_with_an_internal_failure_and_their_neighbours_are_stored(kinesis):
    """K31, botocore's model of PutRecords; vectordotdev/vector#359."""
    kinesis.create(1)
    kinesis.engine.faults.failed_entries("s", count=1)
    entries = [{"PartitionKey": key, "Data": ""} for key in "ab"]

    answer = kinesis.PutRecords(StreamName="s", Records=entries)

    failed, stored = answer["Records"]
    assert answer["FailedRecordCount"] == 1
    assert failed == {"ErrorCode": "InternalFailure", "ErrorMessage": "Internal service failure."}
    assert [record["PartitionKey"] for record in kinesis.get()["Records"]] == ["b"]
    assert "SequenceNumber" in stored


def test_the_records_of_a_request_are_stored_in_another_order_and_answered_in_theirs(kinesis):
    """K30, botocore's model of PutRecords; apache/flink#2229."""
    kinesis.create(1)
    kinesis.engine.faults.shuffled_puts("s", count=1)
    keys = [f"k{number}" for number in range(20)]
    entries = [{"PartitionKey": key, "Data": ""} for key in keys]

    answer = kinesis.PutRecords(StreamName="s", Records=entries)

    read = kinesis.get()["Records"]
    by_number = {record["SequenceNumber"]: record["PartitionKey"] for record in read}
    assert [record["PartitionKey"] for record in read] != keys
    assert [by_number[entry["SequenceNumber"]] for entry in answer["Records"]] == keys
