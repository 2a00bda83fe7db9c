"""The Spark half of the README: its code and its command, run as they stand there."""

import json
import re
import shlex
import sys

import pandas as pd
import pytest

from shardfleet.adapters.dynamodb.items import lease_from_item
from shardfleet.adapters.dynamodb.tables import ensure_lease_table
from shardfleet_ops.cli.app import run
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.test_readme import block_with, shell_lines

pytestmark = pytest.mark.processes

CLICKS = [
    {"visitor": f"v{n % 7}", "page": "/", "ms": (n * 7919) % 1_000, "n": n} for n in range(500)
]


@pytest.fixture
def clicks(embedded_aws, make_stream, monkeypatch):
    for name, value in embedded_aws.environment().items():
        monkeypatch.setenv(name, value)
    stream = make_stream(shards=2)
    embedded_aws.client("kinesis").put_records(
        StreamName=stream,
        Records=[
            {"Data": json.dumps(click).encode(), "PartitionKey": click["visitor"]}
            for click in CLICKS
        ],
    )
    return stream


def test_the_source_of_the_readme_is_a_stream_of_three_lines(spark, embedded_aws):
    source = block_with("SparkSession")
    source = source.replace(
        ".load()",
        f'.option("region", "{embedded_aws.region}")'
        f'.option("endpoint", "{embedded_aws.endpoint_url}").load()',
    )
    defined = {}
    exec(compile(source, "README.md", "exec"), defined)  # noqa: S102 - it is what readers will run.

    assert defined["clicks"].isStreaming
    assert {"data", "partition_key", "sequence_number"} <= set(defined["clicks"].columns)
    assert len([line for line in block_with("SparkSession").splitlines() if line]) == 3


def run_as_it_stands(line, spark, aws, capsys, *, folder):
    """Run a pipeline's command on the session that there is, and on its account."""
    # The JVM is running already, somewhere else.
    words = shlex.split(line.replace("build/", f"{folder}/build/"))[1:]
    # Spark's workers are running already, too: they learn of the account by options.
    for option in (
        f"endpoint={aws.endpoint_url}",
        f"storeEndpoint={aws.endpoint_url}",
        f"region={aws.region}",
    ):
        words += ["--source-option", option]
    assert run([*words, "--print-plan"]) == 0
    return run_pipeline(spark, PipelinePlan.from_json(capsys.readouterr().out))


def test_the_transform_and_the_command_of_the_readme_count_like_pandas(
    spark, embedded_aws, clicks, tmp_path, monkeypatch, capsys
):
    (line,) = [line for line in shell_lines() if " pipeline run --batch " in line]
    (tmp_path / "views.py").write_text(block_with("def transform"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "views", raising=False)
    line = line.replace("shardfleet:clicks", f"shardfleet:{clicks}")

    run_as_it_stands(line, spark, embedded_aws, capsys, folder=tmp_path)

    found = pd.read_parquet(tmp_path / "build/views").sort_values("partition_key")
    table = pd.DataFrame(CLICKS)
    wanted = table.groupby("visitor").agg(views=("n", "size"), slowest_ms=("ms", "max"))
    assert found["partition_key"].tolist() == wanted.index.tolist()
    assert found["views"].tolist() == wanted["views"].tolist()
    assert found["slowest_ms"].tolist() == wanted["slowest_ms"].tolist()


def checkpoints(client, table):
    items = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {lease.lease_key: str(lease.checkpoint) for lease in map(lease_from_item, items)}


def test_the_position_of_the_readmes_query_is_shown_exported_and_imported(
    spark, embedded_aws, clicks, tmp_path, capsys
):
    (line,) = [line for line in shell_lines() if "publishTo=" in line]
    shown, exported, _, imported, _ = shell_lines()[shell_lines().index(line) + 1 :][:5]
    client, of_fleet = embedded_aws.client("dynamodb"), f"fleet-{clicks}"
    ensure_lease_table(client, of_fleet)
    (application,) = re.findall(r"publishTo=(\S+)", line)

    line = line.replace("shardfleet:clicks", f"shardfleet:{clicks}")
    assert run_as_it_stands(line, spark, embedded_aws, capsys, folder=tmp_path).rows == len(CLICKS)
    assert run([*shlex.split(shown)[1:], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for told in (exported, f"{imported} --application {of_fleet}"):
        assert run(shlex.split(told.replace("build/", f"{tmp_path}/build/"))[1:]) == 0

    last = {
        shard["ShardId"]: last_number(embedded_aws, clicks, shard["ShardId"])
        for shard in embedded_aws.client("kinesis").list_shards(StreamName=clicks)["Shards"]
    }
    assert checkpoints(client, of_fleet) == checkpoints(client, application) == last
    assert {row["lease_key"] for row in rows} == set(last)
    for table in (of_fleet, application):
        client.delete_table(TableName=table)


def last_number(aws, stream, shard_id):
    client = aws.client("kinesis")
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    return client.get_records(ShardIterator=iterator)["Records"][-1]["SequenceNumber"]
