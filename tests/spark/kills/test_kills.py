"""A slice of the kill suite: on one machine in every run of the tests, on a cluster if wanted."""

import os
import sys

import pytest

from shardfleet_spark.host.java import find_java
from tests.spark.kills.cluster import Cluster
from tests.spark.kills.driver import Driver
from tests.spark.kills.one_run import Plan, Run, make_table

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="needs /proc and all of 127.0.0.0/8"
    ),
]


@pytest.fixture(scope="module")
def aws(embedded_aws):
    if find_java() is None:
        pytest.skip("Spark needs Java 17 or newer")
    make_table(embedded_aws)
    return embedded_aws


def run(aws, folder, *, cluster=None, **kills):
    with Driver(folder, cluster) as driver:
        seed = 2 if cluster else 1
        return Run(aws, driver, 0, Plan(kills=kills, seed=seed, freezes=False)).go()


def check(outcome, kills):
    assert outcome.verdict.is_right, outcome
    assert sum(outcome.kills.values()) == kills
    assert outcome.rows == outcome.records > 0
    assert outcome.splits + outcome.merges > 0


def test_killed_workers_and_a_killed_planner_neither_lose_nor_repeat_a_record(aws, tmp_path):
    check(run(aws, tmp_path / "runs", source=1, worker=1), 2)


@pytest.mark.skipif(
    os.environ.get("SHARDFLEET_TEST_SPARK_CLUSTER") != "1",
    reason="starts five JVMs; opted in with SHARDFLEET_TEST_SPARK_CLUSTER=1",
)
def test_a_cluster_of_two_workers_survives_its_executor(aws, tmp_path):
    with Cluster(tmp_path / "cluster") as cluster:
        check(run(aws, tmp_path / "runs", cluster=cluster, executor=1), 1)
