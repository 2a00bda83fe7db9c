"""The demo's Spark half on real Spark: aggregates and a split on the way."""

import asyncio

import pytest

from shardfleet_local.rig.feed import feed_stream
from shardfleet_local.rig.source import click_stream
from shardfleet_local.rig.spark_part import run_spark, why_not

pytestmark = pytest.mark.processes


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_figures_out_of_spark_are_those_of_the_input(embedded_aws, make_stream, seed):
    stream = make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    described = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    records = click_stream(1_200, seed=seed, visitors=30).records

    def feed(part):
        stream_arn = described["StreamARN"]
        asyncio.run(feed_stream(part, embedded_aws, stream_arn=stream_arn, duration_ms=0))

    feed(records[:600])
    client.split_shard(
        StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    client.get_waiter("stream_exists").wait(StreamName=stream)
    feed(records[600:])

    found = run_spark(embedded_aws, records, stream_name=stream)

    assert found.skipped == ""
    assert found.wrong == []
    assert found.rows == len(records)
    assert found.keys == len({record.key for record in records})
    assert found.fields == ["click"]
    assert len(found.batches) > 1
