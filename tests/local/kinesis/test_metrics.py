"""What CloudWatch would be told."""

from shardfleet_local.kinesis.metrics import MetricSample

SHARD = "shardId-000000000000"


def totals(kinesis):
    samples = kinesis.engine.drain_metrics()
    return {(sample.name, sample.shard): sample.total for sample in samples}


def test_records_and_bytes_are_counted_at_stream_and_shard_level(kinesis):
    kinesis.create(1)
    kinesis.put("abc", key="k")
    kinesis.put("d", key="k")
    seen = totals(kinesis)
    assert seen["IncomingRecords", None] == seen["IncomingRecords", SHARD] == 2
    assert seen["IncomingBytes", None] == 6
    assert seen["WriteProvisionedThroughputExceeded", None] == 0


def test_reads_are_counted_under_the_names_of_each_level(kinesis, clock):
    kinesis.create(1)
    kinesis.put("abc")
    clock.advance(7)
    kinesis.put("abc")
    kinesis.engine.drain_metrics()
    kinesis.get(limit=1)
    seen = totals(kinesis)
    assert seen["GetRecords.Records", None] == seen["OutgoingRecords", SHARD] == 1
    assert seen["GetRecords.Bytes", None] == seen["OutgoingBytes", SHARD] == 4
    assert seen["GetRecords.IteratorAgeMilliseconds", None] == 7000
    assert seen["IteratorAgeMilliseconds", SHARD] == 7000


def test_throttling_is_counted_both_ways(kinesis, refused):
    kinesis.create(1)
    kinesis.faults.throttle_reads("s", duration_ms=1000)
    kinesis.faults.throttle_writes("s", duration_ms=1000)
    kinesis.PutRecords(StreamName="s", Records=[{"PartitionKey": "k", "Data": ""}] * 3)
    with refused("ProvisionedThroughputExceededException"):
        kinesis.get()
    seen = totals(kinesis)
    assert seen["WriteProvisionedThroughputExceeded", SHARD] == 3
    assert seen["ReadProvisionedThroughputExceeded", SHARD] == 1
    assert ("IncomingRecords", SHARD) not in seen


def test_samples_are_statistic_sets_per_second_handed_out_once(kinesis, clock):
    kinesis.create(1)
    for size in (1, 5, 3):
        kinesis.put("x" * size, key="k")
    clock.advance(1)
    kinesis.put("x", key="k")
    samples = [
        sample
        for sample in kinesis.engine.drain_metrics()
        if (sample.name, sample.shard) == ("IncomingBytes", None)
    ]
    start_ms = int(clock.now_s - 1) * 1000
    assert samples == [
        MetricSample("IncomingBytes", "s", None, start_ms, "Bytes", 3, 12, 2, 6),
        MetricSample("IncomingBytes", "s", None, start_ms + 1000, "Bytes", 1, 2, 2, 2),
    ]
    assert kinesis.engine.drain_metrics() == []


def test_undrained_samples_do_not_pile_up_for_ever(kinesis, clock, monkeypatch):
    monkeypatch.setattr("shardfleet_local.kinesis.metrics.MOST_SAMPLES", 30)
    kinesis.create(1)
    for _ in range(50):
        kinesis.put()
        clock.advance(1)
    samples = kinesis.engine.drain_metrics()
    assert len(samples) == 30
    assert samples[-1].start_ms == int(clock.now_s - 1) * 1000
