"""How many tasks a source has: as many as the cluster has cores, where a session tells."""

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkAttributeError

from shardfleet_spark.host.cluster import of_cluster
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import _spread


class Connected:
    """A session of Spark Connect: settings, and no context (its own class and words)."""

    def __init__(self, **settings):
        found = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = SimpleNamespace(get=found.get)

    @property
    def sparkContext(self):  # noqa: N802 - Spark's name
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED",
            messageParameters={"attr_name": "sparkContext"},
        )


def classic(cores):
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))


@pytest.mark.parametrize(
    ("spark", "partitions"),
    [
        (classic(48), {"partitions": "48"}),
        (Connected(spark_default_parallelism="40"), {"partitions": "40"}),
        (
            Connected(spark_executor_instances="3", spark_executor_cores="4"),
            {"partitions": "12"},
        ),
        (Connected(spark_executor_instances="3"), {"partitions": "3"}),
        (Connected(), {}),
    ],
)
def test_a_source_has_a_task_per_core_of_the_cluster(spark, partitions):
    assert of_cluster(spark) == partitions


@pytest.mark.parametrize(
    ("options", "partitions"),
    [({}, "48"), ({"partitions": "5"}, "5"), ({"SHARDSPERPARTITION": "2"}, None)],
)
def test_a_pipeline_asks_the_cluster_unless_an_option_says_it(options, partitions):
    plan = PipelinePlan(
        source="shardfleet:clicks", sink="console", checkpoint="c", source_options=options
    )

    assert _spread(classic(48), plan).get("partitions") == partitions
