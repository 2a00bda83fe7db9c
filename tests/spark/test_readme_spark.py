"""The Spark half of the README: its code and its command, run as they stand there."""

import json
import shlex
import sys

import pandas as pd
import pytest

from shardfleet.cli.app import run
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


def test_the_transform_and_the_command_of_the_readme_count_like_pandas(
    spark, embedded_aws, clicks, tmp_path, monkeypatch, capsys
):
    (line,) = [line for line in shell_lines() if " pipeline run " in line]
    (tmp_path / "views.py").write_text(block_with("def transform"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "views", raising=False)
    line = line.replace("shardfleet:clicks", f"shardfleet:{clicks}")
    # The JVM is running already, too, somewhere else.
    words = shlex.split(line.replace("parquet:build", f"parquet:{tmp_path}/build"))[1:]
    # The workers of this session are running already: they learn of the account by options.
    words += ["--source-option", f"endpoint={embedded_aws.endpoint_url}"]
    words += ["--source-option", f"region={embedded_aws.region}"]

    assert run([*words, "--print-plan"]) == 0
    run_pipeline(spark, PipelinePlan.from_json(capsys.readouterr().out))

    found = pd.read_parquet(tmp_path / "build/views").sort_values("partition_key")
    table = pd.DataFrame(CLICKS)
    wanted = table.groupby("visitor").agg(views=("n", "size"), slowest_ms=("ms", "max"))
    assert found["partition_key"].tolist() == wanted.index.tolist()
    assert found["views"].tolist() == wanted["views"].tolist()
    assert found["slowest_ms"].tolist() == wanted["slowest_ms"].tolist()
