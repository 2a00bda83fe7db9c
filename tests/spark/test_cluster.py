"""
How many tasks a source has: as many as the cluster has cores.

Over Spark Connect: `test_connect.py`.
"""

from types import SimpleNamespace

import pytest

from shardfleet_spark.host.session import of_cluster
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import _spread


def classic(cores):
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))


def test_a_source_has_a_task_per_core_of_the_cluster():
    assert of_cluster(classic(48)) == {"partitions": "48"}


@pytest.mark.parametrize(
    ("options", "partitions"),
    [({}, "48"), ({"partitions": "5"}, "5"), ({"SHARDSPERPARTITION": "2"}, None)],
)
def test_a_pipeline_asks_the_cluster_unless_an_option_says_it(options, partitions):
    plan = PipelinePlan(
        source="shardfleet:clicks", sink="console", checkpoint="c", source_options=options
    )

    assert _spread(classic(48), plan).get("partitions") == partitions
