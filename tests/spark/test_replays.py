"""A batch that is repeated is the same to the record, on real Spark with each store of seals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet.domain.stream.sequence import PointKind
from shardfleet_spark.host.java import find_java
from shardfleet_spark.pipelines.patience import start_patiently
from shardfleet_spark.plan.checkpoints import LocalCheckpoint, read_logs, standing_after
from tests.contract.stores.test_seal_store_contract import make_bucket, make_table
from tests.spark.conftest import SETTINGS
from tests.spark.kept import Kept
from tests.spark.kills.cluster import spark_environment
from tests.spark.test_stream_source import put, run_available

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
KILLED = -9
LIMIT_S = 300

# Its sink stores a batch and dies before Spark can commit it: once, if it is told to.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from shardfleet_spark.pipelines.patience import start_patiently

told = json.loads(Path(sys.argv[1]).read_text())
builder = SparkSession.builder.master("local[2]").appName("replay")
for name, value in told["spark"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
folder = Path(told["folder"])

def keep(batch, batch_id):
    rows = [[row.shard_id, row.sequence_number] for row in batch.collect()]
    attempt = len(list(folder.glob(f"batch-{batch_id}-*")))
    (folder / f"batch-{batch_id}-{attempt}").write_text(json.dumps(sorted(rows)))
    if told["dies"]:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

frame = spark.readStream.format("shardfleet").options(**told["source"]).load()
writer = frame.writeStream.foreachBatch(keep)
query = writer.option("checkpointLocation", str(folder / "checkpoint"))
start_patiently(query.trigger(availableNow=True).start).awaitTermination()
spark.stop()
"""


def store_named(aws, kind):
    if kind == "dynamodb":
        return f"dynamodb:{make_table(aws)}"
    return f"s3://{make_bucket(aws)}/seals"


@pytest.fixture(params=["dynamodb", "s3"])
def options(request, embedded_aws):
    return {
        "startingPosition": "TRIM_HORIZON",
        "sealStore": store_named(embedded_aws, request.param),
        "storeEndpoint": embedded_aws.endpoint_url,
    }


def test_a_batch_whose_sink_failed_is_repeated_unchanged_from_its_seals(
    embedded_aws, make_stream, source, tmp_path, options
):
    stream = make_stream(shards=2)
    put(embedded_aws, stream, [(f"key-{n}", b"first") for n in range(100)])
    kept = Kept(tmp_path / "kept")

    def fail(batch, batch_id):
        kept.keep(batch, batch_id)
        raise RuntimeError("the sink fails when it has everything")

    frame = source(stream, **options).load()
    writer = frame.writeStream.foreachBatch(fail).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(Exception, match="the sink fails"):
        start_patiently(writer.trigger(availableNow=True).start).awaitTermination(LIMIT_S)
    put(embedded_aws, stream, [(f"key-{n}", b"second") for n in range(50)])
    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=kept)

    first, *later = kept.batches()
    assert kept.repeated() == [0]
    assert {bytes(row["data"]) for row in first} == {b"first"}
    assert sum(len(rows) for rows in later) == 50


def test_a_driver_that_is_killed_between_seal_and_commit_repeats_the_very_same_batch(
    embedded_aws, make_stream, tmp_path
):
    if find_java() is None:
        pytest.skip("Spark needs Java 17 or newer")
    stream = make_stream(shards=2)
    told = {
        "folder": str(tmp_path),
        "spark": SETTINGS | {"spark.local.dir": str(tmp_path / "local")},
        "source": {
            "stream": stream,
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
            "startingPosition": "TRIM_HORIZON",
            "sealStore": f"file:{tmp_path}/seals",
        },
    }
    put(embedded_aws, stream, [(f"key-{n}", b"first") for n in range(100)])
    assert run_driver(tmp_path, {**told, "dies": True}) == KILLED
    # Whoever goes on from here reads that batch again, and is told so by the export.
    logged = read_logs(LocalCheckpoint(tmp_path / "checkpoint"))
    assert (logged.batch, logged.begun is not None) == (-1, True)
    places = {stand.position.kind for stand in standing_after(logged, None).stands.values()}
    assert places == {PointKind.TRIM_HORIZON}
    put(embedded_aws, stream, [(f"key-{n}", b"second") for n in range(50)])

    assert run_driver(tmp_path, {**told, "dies": False}) == 0

    batches = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("batch-*")}
    assert len(batches["batch-0-0"]) == 100
    assert batches["batch-0-1"] == batches["batch-0-0"]
    assert sum(len(rows) for name, rows in batches.items() if "batch-0-" not in name) == 50


def run_driver(folder, told):
    settings = folder / "settings.json"
    settings.write_text(json.dumps(told))
    with (folder / "driver.log").open("ab") as output:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, str(settings)],
            cwd=ROOT,
            env=spark_environment("127.0.0.1"),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
    return driver.returncode
