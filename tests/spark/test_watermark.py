"""A watermark on the arrival times of several shards, one of which has much more to catch up."""

import time

import pytest
from pyspark.sql import functions as sf

from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet_spark.pipelines.patience import start_patiently

pytestmark = pytest.mark.processes

STOP_LIMIT_S = 300
TICKS, BUSY_PER_TICK = 40, 10
TICK_S = 0.1


def key_of(shard):
    keys = (f"key-{n}" for n in range(100))
    return next(key for key in keys if hash_of_partition_key(key) * 2 >> 128 == shard)


@pytest.fixture
def uneven_stream(embedded_aws, make_stream):
    """Two shards filled over the same four seconds; the second one has ten times the records."""
    stream = make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    keys = [key_of(0), *[key_of(1)] * BUSY_PER_TICK]
    for _ in range(TICKS):
        client.put_records(
            StreamName=stream, Records=[{"Data": b"x", "PartitionKey": key} for key in keys]
        )
        time.sleep(TICK_S)  # The records' arrival times are what this is about.
    return stream


def counted(frame, checkpoint):
    """Count per shard and window until everything was read; return rows by shard."""
    counts = {}

    def keep(batch, _batch_id):
        for row in batch.collect():
            counts[row["shard_id"], row["window"]] = row["count"]

    arrival = "approximate_arrival_timestamp"
    writer = (
        frame.withWatermark(arrival, "1 second")
        .groupBy(sf.window(arrival, "100 milliseconds"), "shard_id")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="100 milliseconds")
    )
    query = start_patiently(writer.start)
    deadline, read = time.monotonic() + STOP_LIMIT_S, 0
    try:
        while read < TICKS * (1 + BUSY_PER_TICK):
            assert query.exception() is None, query.exception()
            assert time.monotonic() < deadline, f"{read} rows were read"
            time.sleep(0.2)
            read = sum(int(each["numInputRows"]) for each in query.recentProgress)
    finally:
        query.stop()
    found = {"quiet": 0, "busy": 0}
    for (shard_id, _), count in counts.items():
        found["busy" if shard_id.endswith("1") else "quiet"] += count
    return found


def test_a_shard_that_catches_up_slowly_is_late_unless_the_others_wait_for_it(
    uneven_stream, source, tmp_path
):
    options = {
        "startingPosition": "TRIM_HORIZON",
        "maxRecordsPerShard": str(TICKS),
        "sealStore": f"file:{tmp_path}/seals",
    }

    without = counted(source(uneven_stream, **options).load(), tmp_path / "without")
    within = counted(
        source(uneven_stream, **options, maxShardSkew="500ms").load(), tmp_path / "within"
    )

    assert within == {"quiet": TICKS, "busy": TICKS * BUSY_PER_TICK}
    assert without["quiet"] == TICKS
    assert without["busy"] < TICKS * BUSY_PER_TICK, "nothing was late: the test shows nothing"
