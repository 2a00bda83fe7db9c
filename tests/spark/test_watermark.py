"""A watermark on the arrival times of several shards, one of which has much more to catch up."""

import time

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet_spark.pipelines.draining import reports_of, rows_of
from shardfleet_spark.pipelines.patience import start_patiently
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.spark.kept import Kept

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
    kept = Kept(f"{checkpoint}-kept")
    arrival = "approximate_arrival_timestamp"
    writer = (
        frame.withWatermark(arrival, "1 second")
        .groupBy(sf.window(arrival, "100 milliseconds"), "shard_id")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(kept.keep)
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
            read = rows_of(reports_of(query))
    finally:
        query.stop()
    counts = {(row["shard_id"], row["window"]): row["count"] for row in kept.rows()}
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


def test_aggregate_equals_pandas_on_an_uneven_backlog_with_no_option(
    uneven_stream, source, spark, embedded_aws, make_stream, tmp_path
):
    plan = PipelinePlan(
        source=f"shardfleet:{uneven_stream}",
        sink=f"parquet:{tmp_path}/counts",
        transform="aggregate",
        settings={"window": "1 second", "watermark": "1 second"},
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerShard": str(2 * TICKS),  # Small, for there are but 440 rows.
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        output_mode="append",
        checkpoint=str(tmp_path / "checkpoint"),
    )

    run_pipeline(spark, plan)
    # Later records of both shards close every window of before.
    time.sleep(3)
    client = embedded_aws.client("kinesis")
    for key in (key_of(0), key_of(1)):
        client.put_record(StreamName=uneven_stream, Data=b"end", PartitionKey=key)
    run_pipeline(spark, plan)

    rows = source(uneven_stream, batch=True).load().collect()
    table = pd.DataFrame([row.asDict() for row in rows if bytes(row["data"]) != b"end"])
    start = table["approximate_arrival_timestamp"].dt.floor("1s").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = table.groupby([table["partition_key"], start]).size()
    counts = spark.read.parquet(f"{tmp_path}/counts").collect()
    found = pd.DataFrame([row.asDict() for row in counts]).set_index(
        ["partition_key", "window_start"]
    )["count"]
    pd.testing.assert_series_equal(
        found.sort_index(), wanted.sort_index(), check_names=False, check_dtype=False
    )
