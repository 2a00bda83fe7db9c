"""
Sink and source on a stream of 1,001 shards, without a JVM, against the embedded AWS.

A page of ListShards never has more than 1,000 shards (API reference).
"""

from pyspark import cloudpickle

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.sink.sink_session import open_shards, send
from shardfleet_spark.stream_reader import KinesisStreamReader

SHARDS = 1_001
IDS = [f"shardId-{number:012d}" for number in range(SHARDS)]


def test_a_sink_writes_to_every_shard_and_a_source_reads_every_one(embedded_aws, make_stream):
    whom = {
        "stream": make_stream(shards=SHARDS),
        "region": embedded_aws.region,
        "endpoint": embedded_aws.endpoint_url,
    }

    # An aggregate belongs to one shard, so the sink has to know them all.
    sink = read_options(SinkOptions, {**whom, "aggregate": "true"})
    shards = open_shards(sink)
    assert [shard.shard_id for shard in shards] == IDS
    rows = [
        OutgoingRecord("key", shard.shard_id.encode(), str(shard.hash_key_range.start))
        for shard in shards
    ]
    assert send(iter(rows), sink).rows == SHARDS

    reader = KinesisStreamReader(
        read_options(SourceOptions, {**whom, "startingPosition": "TRIM_HORIZON"})
    )
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    read = []
    for partition in reader.partitions(start, end):
        away, sent = cloudpickle.loads(cloudpickle.dumps((reader, partition)))
        for batch in away.read(sent):
            read += zip(batch["shard_id"].to_pylist(), batch["data"].to_pylist(), strict=True)
    assert sorted(read) == [(shard_id, shard_id.encode()) for shard_id in IDS]
