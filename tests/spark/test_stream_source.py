"""The streaming source on real Spark, against the embedded AWS."""

import time
from importlib.util import find_spec

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_spark.pipelines.patience import start_patiently
from tests.spark.kept import Kept

pytestmark = pytest.mark.processes

STOP_LIMIT_S = 300
MANY_BATCHES = find_spec("pyspark.sql.streaming.datasource") is not None


def put(aws, stream, records):
    client = aws.client("kinesis")
    for first in range(0, len(records), 500):
        answer = client.put_records(
            StreamName=stream,
            Records=[
                {"Data": data, "PartitionKey": key} for key, data in records[first : first + 500]
            ],
        )
        assert answer["FailedRecordCount"] == 0


def run_available(frame, checkpoint, *, into):
    """Run a query to the end of what is there; `into` keeps its batches."""
    writer = frame.writeStream.foreachBatch(into.keep).option("checkpointLocation", str(checkpoint))
    query = start_patiently(writer.trigger(availableNow=True).start)
    try:
        assert query.awaitTermination(STOP_LIMIT_S), "the query did not end"
    finally:
        query.stop()
    return query


@pytest.mark.parametrize("store", ["seals", "driver"])
def test_everything_that_is_there_arrives_once_and_in_order(
    embedded_aws, make_stream, source, tmp_path, store
):
    stream = make_stream(shards=2)
    records = [(f"key-{n % 7}", b"%d" % n) for n in range(1_000)]
    put(embedded_aws, stream, records[:600])
    options = {"startingPosition": "TRIM_HORIZON"}
    if MANY_BATCHES:  # Before Spark 4.2, AvailableNow is a single batch.
        options["maxRecordsPerBatch"] = "250"
    if store == "seals":
        options["sealStore"] = f"file:{tmp_path}/seals"
    kept = Kept(tmp_path / "kept")

    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=kept)
    put(embedded_aws, stream, records[600:])
    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=kept)

    rows = kept.rows()
    for key in {key for key, _ in records}:
        expected = [data for each, data in records if each == key]
        assert [bytes(row["data"]) for row in rows if row["partition_key"] == key] == expected
    assert len(rows) == len(records)
    assert {row["stream"] for row in rows} == {stream}
    batches = len(kept.batches())
    assert batches > 3 if MANY_BATCHES else batches == 2


class Query:
    """A running query; its batches are kept where a restarted query goes on."""

    def __init__(self, frame, checkpoint, *, kept):
        self._kept = kept
        writer = frame.writeStream.foreachBatch(kept.keep_read_twice)
        writer = writer.option("checkpointLocation", str(checkpoint))
        self.query = start_patiently(writer.trigger(processingTime="100 milliseconds").start)

    def until(self, count):
        deadline = time.monotonic() + STOP_LIMIT_S
        while len(self._kept.rows()) < count:
            assert time.monotonic() < deadline, f"{len(self._kept.rows())} of {count} rows arrived"
            if not self.query.isActive:
                raise AssertionError(str(self.query.exception()))
            time.sleep(0.1)
        while self.query.lastProgress is None:
            assert time.monotonic() < deadline, "no progress is reported"
            time.sleep(0.1)
        return self.query.lastProgress


def test_a_running_query_follows_splits_merges_and_aggregates_across_a_restart(
    embedded_aws, make_stream, source, tmp_path
):
    stream = make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    options = {"startingPosition": "TRIM_HORIZON", "sealStore": f"file:{tmp_path}/seals"}
    options |= {"discoveryInterval": "1s", "probeInterval": "200ms"}
    records = [(f"key-{n % 7}", b"%d" % n) for n in range(900)]
    put(embedded_aws, stream, records[:300])
    kept = Kept(tmp_path / "kept")
    first = Query(source(stream, **options).load(), tmp_path / "checkpoint", kept=kept)
    progress = first.until(300)
    half = client.list_shards(StreamName=stream)["Shards"][0]["HashKeyRange"]
    middle = (int(half["StartingHashKey"]) + int(half["EndingHashKey"]) + 1) // 2
    client.split_shard(
        StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(middle)
    )
    wait_active(client, stream)
    put(embedded_aws, stream, records[300:500])
    first.until(500)
    first.query.stop()
    client.merge_shards(
        StreamName=stream,
        ShardToMerge="shardId-000000000003",
        AdjacentShardToMerge="shardId-000000000001",
    )
    wait_active(client, stream)
    put(embedded_aws, stream, records[500:])
    for key in ("key-1", "key-2"):
        users = [OutgoingRecord(key, b"aggregated %d" % n) for n in range(50)]
        put(embedded_aws, stream, [(key, aggregate(users))])
        records += [(key, user.data) for user in users]

    # A batch that the first one had not committed is repeated, and must be the same again.
    second = Query(source(stream, **options).load(), tmp_path / "checkpoint", kept=kept)
    second.until(1_000)
    second.query.stop()

    rows = kept.rows()
    for key in {key for key, _ in records}:
        expected = [data for each, data in records if each == key]
        assert [bytes(row["data"]) for row in rows if row["partition_key"] == key] == expected
    assert len(rows) == 1_000
    assert {row["shard_id"][-1] for row in rows} >= set("012")
    aggregated = [row["sub_sequence_number"] for row in rows if b"aggr" in row["data"]]
    assert aggregated == [*range(50), *range(50)]
    # Since Spark 4.2 in latestOffset, before that in the offsets themselves.
    for figure in ("millis_behind_latest", "lagging_shards", "stream_records", "throttles"):
        assert figure in str(progress["sources"][0])


def wait_active(client, stream):
    client.get_waiter("stream_exists").wait(
        StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )


def test_a_misspelt_option_reaches_the_user_with_the_nearest_name(source):
    with pytest.raises(Exception, match=r"startingpositon does not exist; .*startingPosition"):
        source("clicks", startingPositon="LATEST").load().schema  # noqa: B018 - asks for the schema
