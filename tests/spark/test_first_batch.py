"""What a new query waits for: its planning process begins with what planning takes, and no more."""

import os
import subprocess
import sys

import pytest

from tests.spark.test_stream_source import put

pytestmark = pytest.mark.processes

PLANS = """
import gc, sys
from shardfleet_spark.data_source import ShardfleetDataSource

seals, stream, endpoint, region = sys.argv[1:]
options = dict(stream=stream, endpoint=endpoint, region=region, startingPosition="TRIM_HORIZON")
searched = []
gc.callbacks.append(lambda phase, told: searched.append(phase))
before = gc.get_freeze_count()
reader = ShardfleetDataSource(options | {"sealStore": seals}).streamReader(None)
print("searches", len(searched), gc.get_freeze_count() > before, gc.isenabled())
start = reader.initialOffset()
tasks = reader.partitions(start, reader.latestOffset(start))
print(*sys.modules)
print("rows", sum(batch.num_rows for task in tasks for batch in reader.read(task)))
"""
OF_OTHERS = (
    "botocore.session",  # Where the environment names the keys.
    "google.protobuf",  # A task's, that meets an aggregate.
    "pyarrow.compute",  # A task's.
    "shardfleet.adapters.dynamodb.leases",  # Of option publishTo.
    "shardfleet_spark.aws.columns",
    "shardfleet_spark.publish.figures",
    "shardfleet_spark.publish.publisher",
)


def test_what_plans_a_query_has_loaded_nothing_that_is_for_others(
    embedded_aws, make_stream, tmp_path
):
    stream = make_stream(shards=2)
    put(embedded_aws, stream, [("key", b"data")])
    words = [f"file:{tmp_path}", stream, embedded_aws.endpoint_url, embedded_aws.region]
    of_user = {name: it for name, it in os.environ.items() if not name.startswith("AWS_")}
    told = subprocess.run(
        [sys.executable, "-c", PLANS, *words],
        env=of_user | {"HOME": str(tmp_path)} | embedded_aws.key.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    searches, modules, rows = told.stdout.splitlines()
    assert searches == "searches 0 True True"
    assert "shardfleet_spark.plan.driver" in (loaded := modules.split())
    assert [name for name in OF_OTHERS if name in loaded] == []
    assert rows == "rows 1"
