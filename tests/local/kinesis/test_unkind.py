"""
What AWS leaves open happens in the engine, each by itself, and all of it where it is unkind.

The expected texts and numbers are those of the sources named: threads in which others met it.
"""

import pytest

DAY_MS = 86_400_000


def inject(kinesis, kind, **fault):
    kinesis.faults.inject({"Kind": kind, "StreamName": "s", **{"Count": 1} | fault})


def listed(kinesis):
    """Return shard number -> whether it is listed open."""
    shards = kinesis.ListShards(StreamName="s")["Shards"]
    return {
        int(each["ShardId"][8:]): "EndingSequenceNumber" not in each["SequenceNumberRange"]
        for each in shards
    }


def test_a_listing_right_after_a_split_has_the_parent_closed_and_no_children(kinesis, clock):
    """K05, awslabs/amazon-kinesis-scaling-utils#72, amazon-kinesis-client#164."""
    kinesis.create(1).split(0)
    inject(kinesis, "ChildrenUnlisted", Count=9, DelayMs=3_000)
    assert listed(kinesis) == {0: False}
    described = kinesis.DescribeStream(StreamName="s")["StreamDescription"]["Shards"]
    assert [each["ShardId"][-1] for each in described] == ["0"]
    clock.advance(3)
    assert listed(kinesis) == {0: False, 1: True, 2: True}


def test_a_listing_right_after_a_split_has_the_parent_open_beside_its_children(kinesis, clock):
    """K06, awslabs/amazon-kinesis-client#282."""
    kinesis.create(1).split(0)
    inject(kinesis, "ParentsListedOpen", Count=9, DelayMs=3_000)
    assert listed(kinesis) == {0: True, 1: True, 2: True}
    clock.advance(3)
    assert listed(kinesis) == {0: False, 1: True, 2: True}


def test_a_new_iterator_brings_many_empty_pages_before_its_first_record(kinesis):
    """K20, boto/boto3#1301."""
    kinesis.create(1).put("a")
    inject(kinesis, "EmptyStarts")
    answer, empty = kinesis.get(), 0
    while not answer["Records"]:
        assert answer["MillisBehindLatest"] > 0
        empty += 1
        answer = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert 1 <= empty <= 12
    assert kinesis.read() == ["a"]


def test_an_idle_shard_has_lag_for_once_and_none_with_the_next_iterator(kinesis):
    """K21, awslabs/spark-sql-kinesis-connector#49."""
    kinesis.create(1)
    inject(kinesis, "PhantomLag")
    answer = kinesis.get()
    assert answer["Records"] == []
    assert answer["MillisBehindLatest"] > 0
    after = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert after["MillisBehindLatest"] == 0


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST"])
def test_the_first_read_has_the_lag_of_a_day_whatever_there_is(kinesis, kind):
    """K22, awslabs/amazon-kinesis-client#158: "spikes to 24 hours", and back to 0."""
    kinesis.create(1).put("a")
    inject(kinesis, "FirstReadLag")
    answer = kinesis.get(kind=kind)
    assert answer["MillisBehindLatest"] == DAY_MS
    after = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])
    assert after["MillisBehindLatest"] == 0


def test_records_of_a_shard_say_that_they_arrived_in_another_order(kinesis, clock):
    """K28, botocore's model of GetRecords: no guarantee about its accuracy, nor of its order."""
    kinesis.create(1)
    inject(kinesis, "UnevenArrivals", Count=20, DelayMs=2_000)
    for number in range(20):
        clock.advance(0.1)
        kinesis.put(str(number))
    arrivals = [each["ApproximateArrivalTimestamp"] for each in kinesis.get()["Records"]]
    assert arrivals != sorted(arrivals)
    assert all(0 < clock.now_s - each <= 4 for each in arrivals)
    # AT_TIMESTAMP goes by when they came, which no record says.
    came_s = clock.now_s - 0.5
    assert kinesis.read(0, "AT_TIMESTAMP", Timestamp=came_s) == [str(n) for n in range(14, 20)]


def test_a_number_that_is_too_old_is_refused(kinesis, refused, clock):
    """K14, harlow/kinesis-consumer#175."""
    kinesis.create(1)
    old = kinesis.put("old")["SequenceNumber"]
    clock.advance(25 * 3600)
    kinesis.put("young")
    inject(kinesis, "RefusedPositions")
    with refused("InvalidArgumentException"):
        kinesis.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    assert kinesis.read(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=old) == ["young"]


def test_records_of_a_new_key_are_denied_for_a_moment(kinesis, refused, clock):
    """I01, K47: spring-cloud-stream-binder-aws-kinesis#188."""
    kinesis.create(1).put("plain")
    inject(kinesis, "DeniedKeys", Count=9, DelayMs=5_000)
    assert kinesis.read() == ["plain"]
    kinesis.StartStreamEncryption(StreamName="s", EncryptionType="KMS", KeyId="alias/mine")
    denied = "KMSAccessDeniedException: User .* is not authorized to decrypt records in stream s"
    with pytest.raises(Exception, match=denied):
        kinesis.get()
    with refused("KMSAccessDeniedException"):
        kinesis.put()
    with refused("KMSAccessDeniedException"):
        kinesis.PutRecords(StreamName="s", Records=[{"PartitionKey": "k", "Data": ""}])
    clock.advance(5)
    kinesis.put("secret")
    assert kinesis.read() == ["plain", "secret"]


def test_an_unkind_engine_does_it_all_again_by_its_seed_and_loses_nothing(kinesis_with):
    def story(seed):
        kinesis = kinesis_with(unkind=seed).create(1)
        for number in range(30):
            kinesis.clock.advance(0.1)
            kinesis.put(str(number))
        pages, answer = [], kinesis.get(limit=7)
        while len(pages) < 40:
            pages.append((len(answer["Records"]), answer["MillisBehindLatest"]))
            answer = kinesis.GetRecords(ShardIterator=answer["NextShardIterator"], Limit=7)
        return pages

    stories = [story(seed) for seed in (1, 2, 3, 4, 5, 6, 7, 1)]
    assert [sum(count for count, _ in each) for each in stories] == [30] * 8
    assert stories[0] == stories[7]
    lags = [lag_ms for each in stories for count, lag_ms in each if not count]
    assert any(lags)
    assert DAY_MS in {lag_ms for each in stories for _, lag_ms in each}


def test_a_kind_engine_does_none_of_it_and_clearing_leaves_an_unkind_one_unkind(kinesis_with):
    assert not kinesis_with().faults.any
    unkind = kinesis_with(unkind=1)
    unkind.faults.clear()
    assert unkind.faults.any
    assert unkind.faults.in_force() == []


def test_a_chance_is_above_nothing_and_at_most_certain(kinesis, refused):
    for chance in (0, 1.1, "often"):
        with refused("ValidationException"):
            inject(kinesis, "PhantomLag", Chance=chance)
