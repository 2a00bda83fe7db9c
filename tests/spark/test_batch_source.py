"""The batch source on real Spark: between two positions, over splits and merges."""

import time

import pytest

from tests.spark.kept import Kept
from tests.spark.test_stream_source import put, run_available

pytestmark = pytest.mark.processes


def resharded(aws, stream):
    """Put records before, between and after a split and a merge; return all of them."""
    client = aws.client("kinesis")
    records = [(f"key-{n % 9}", b"%04d" % n) for n in range(900)]
    put(aws, stream, records[:300])
    shards = client.list_shards(StreamName=stream)["Shards"]
    first = shards[0]["HashKeyRange"]
    middle = (int(first["StartingHashKey"]) + int(first["EndingHashKey"]) + 1) // 2
    client.split_shard(
        StreamName=stream, ShardToSplit=shards[0]["ShardId"], NewStartingHashKey=str(middle)
    )
    wait_active(client, stream)
    put(aws, stream, records[300:600])
    client.merge_shards(
        StreamName=stream,
        ShardToMerge="shardId-000000000002",
        AdjacentShardToMerge="shardId-000000000003",
    )
    wait_active(client, stream)
    put(aws, stream, records[600:])
    return records


def wait_active(client, stream):
    client.get_waiter("stream_exists").wait(
        StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )


def test_all_records_of_all_generations_and_of_a_part(embedded_aws, make_stream, source):
    stream = make_stream(shards=2)
    records = resharded(embedded_aws, stream)
    time.sleep(0.002)  # So that "now" is later than the last arrival, in whole milliseconds.

    whole = source(stream, batch=True, partitions="1").load().collect()
    arrivals = sorted(row["approximate_arrival_timestamp"] for row in whole)
    start, end = arrivals[200], arrivals[700]
    part = source(
        stream,
        batch=True,
        startingPosition=f"{start.isoformat()}Z",
        endingPosition=f"{end.isoformat()}Z",
        columns="data,shard_id,approximate_arrival_timestamp",
    ).load()
    one = source(stream, batch=True, shards="shardId-000000000004").load()

    for key in {key for key, _ in records}:
        expected = [data for each, data in records if each == key]
        assert [bytes(row["data"]) for row in whole if row["partition_key"] == key] == expected
    assert len(whole) == len(records)
    assert {row["shard_id"][-1] for row in whole} == set("01234")
    assert part.columns == ["data", "shard_id", "approximate_arrival_timestamp"]
    expected = [
        row["data"] for row in whole if start <= row["approximate_arrival_timestamp"] <= end
    ]
    assert sorted(row["data"] for row in part.collect()) == sorted(expected)
    assert one.count() == sum(row["shard_id"][-1] == "4" for row in whole)


def test_a_session_whose_timestamps_have_no_zone_reads_both_ways(
    spark, embedded_aws, make_stream, source, tmp_path
):
    """The DDL's `timestamp` is what a session makes of it (SPARK-35662); ours is an instant."""
    stream = make_stream(shards=1)
    put(embedded_aws, stream, [("key", b"%d" % number) for number in range(9)])
    kept = Kept(tmp_path / "kept")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        table = source(stream, batch=True).load()
        rows = table.collect()
        frame = source(stream, startingPosition="TRIM_HORIZON").load()
        run_available(frame, tmp_path / "checkpoint", into=kept)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert dict(table.dtypes)["approximate_arrival_timestamp"] == "timestamp"
    assert [bytes(row["data"]) for row in rows] == [b"%d" % number for number in range(9)]
    assert len(kept.rows()) == 9
