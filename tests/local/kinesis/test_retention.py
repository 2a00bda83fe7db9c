"""What time takes away: old records, then closed shards."""

import pytest

HOUR = 3600
DAY = 24 * HOUR


def test_records_older_than_the_retention_period_are_gone(kinesis, clock):
    kinesis.create(1)
    kinesis.put("old")
    clock.advance(HOUR)
    kinesis.put("young")
    clock.advance(DAY - HOUR)
    assert kinesis.read() == ["old", "young"]
    clock.advance(1)
    assert kinesis.read() == ["young"]
    clock.advance(HOUR)
    assert kinesis.read() == []


def test_an_iterator_at_an_expired_record_moves_on_to_the_oldest(kinesis, clock):
    kinesis.create(1)
    kinesis.put("old")
    clock.advance(DAY)
    kinesis.put("young")
    iterator = kinesis.iterator()
    clock.advance(60)
    answer = kinesis.GetRecords(ShardIterator=iterator)
    assert len(answer["Records"]) == 1
    assert kinesis.GetRecords(ShardIterator=answer["NextShardIterator"])["Records"] == []


def test_a_number_of_an_expired_record_means_trim_horizon(kinesis, clock):
    kinesis.create(1)
    old = kinesis.put("old")["SequenceNumber"]
    clock.advance(DAY + 1)
    kinesis.put("young")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert kinesis.read(0, kind, StartingSequenceNumber=old) == ["young"]


def test_a_closed_shard_is_listed_until_its_last_record_could_have_expired(kinesis, clock, refused):
    kinesis.create(1)
    kinesis.put("a")
    clock.advance(HOUR)
    kinesis.split(0)
    clock.advance(DAY)
    assert kinesis.shards() == [0, 1, 2]
    assert kinesis.read(0) == []
    clock.advance(1)
    assert kinesis.shards() == [1, 2]
    assert kinesis.shard(1)["parents"] == [0]
    with refused("ResourceNotFoundException"):
        kinesis.iterator(0)


def test_an_iterator_of_an_expired_shard_is_not_found(kinesis, clock, refused):
    kinesis.create(1)
    kinesis.split(0)
    clock.advance(DAY)
    iterator = kinesis.iterator(0)
    clock.advance(1)
    with refused("ResourceNotFoundException"):
        kinesis.GetRecords(ShardIterator=iterator)


def test_longer_retention_does_not_bring_anything_back(kinesis, clock):
    kinesis.create(1)
    kinesis.put("lost")
    clock.advance(HOUR)
    kinesis.put("kept")
    clock.advance(DAY - HOUR + 1)
    kinesis.IncreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=48)
    assert kinesis.read() == ["kept"]
    clock.advance(DAY - HOUR)
    assert kinesis.read() == ["kept"]


def test_shorter_retention_takes_away_at_once(kinesis, clock):
    kinesis.create(1)
    kinesis.IncreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=48)
    kinesis.put("old")
    clock.advance(DAY + 1)
    assert kinesis.read() == ["old"]
    kinesis.DecreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=24)
    assert kinesis.read() == []


@pytest.mark.parametrize("hours", [23, 8761, "48"])
def test_retention_is_from_one_day_to_a_year(kinesis, refused, hours):
    kinesis.create(1)
    for change in ("IncreaseStreamRetentionPeriod", "DecreaseStreamRetentionPeriod"):
        with refused("InvalidArgumentException"):
            kinesis.engine.call(change, {"StreamName": "s", "RetentionPeriodHours": hours})


def test_an_increase_must_be_one_and_a_decrease_too(kinesis, refused):
    kinesis.create(1)
    kinesis.IncreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=48)
    with refused("InvalidArgumentException"):
        kinesis.IncreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=36)
    with refused("InvalidArgumentException"):
        kinesis.DecreaseStreamRetentionPeriod(StreamName="s", RetentionPeriodHours=72)


def test_much_trimming_keeps_positions_and_sizes_right(kinesis, clock):
    # The log drops its front in large pieces; offsets and byte counts must not notice.
    kinesis.create(1)
    numbers = []
    for number in range(10_000):
        numbers.append(kinesis.put(str(number))["SequenceNumber"])
        if number % 100 == 99:
            clock.advance(DAY / 50)
    kept = kinesis.read()
    assert kept == [str(number) for number in range(10_000 - len(kept), 10_000)]
    assert 4_900 <= len(kept) <= 5_000
    assert kinesis.read(0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[9_990]) == [
        str(number) for number in range(9_990, 10_000)
    ]


def test_a_shard_that_is_only_written_to_forgets_too(kinesis, clock):
    kinesis.create(1)
    for _ in range(10):
        kinesis.put()
        clock.advance(DAY / 2)
    (shard,) = kinesis.engine._account.streams["s"].shards.values()
    assert shard.log.end - shard.log.oldest == 3


def test_a_shard_can_be_trimmed_on_demand(kinesis):
    kinesis.create(1)
    kinesis.put("old")
    kinesis.engine.trim("s", "shardId-000000000000")
    assert kinesis.read() == []


def test_a_closed_shard_that_is_trimmed_on_demand_is_listed_no_more(kinesis):
    kinesis.create(1)
    kinesis.SplitShard(
        StreamName="s", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(1 << 127)
    )
    kinesis.engine.trim("s", "shardId-000000000000")
    listed = [shard["ShardId"] for shard in kinesis.ListShards(StreamName="s")["Shards"]]
    assert listed == ["shardId-000000000001", "shardId-000000000002"]
