"""How many cores a cluster has, as far as the process of a query's author can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkAttributeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def of_cluster(spark: SparkSession) -> dict[str, str]:
    """
    Return the options with which a source has one task per core of the cluster.

    Use: ``spark.readStream.format("shardfleet").options(**of_cluster(spark))``. The source cannot
    find it out: Spark asks it in Python processes that have neither session nor context.

    Returns:
        Option ``partitions``, from ``SparkContext.defaultParallelism``. Over Spark Connect, which
        shows no context: from the session's ``spark.default.parallelism``, or
        ``spark.executor.instances`` times ``spark.executor.cores``; nothing where none is set.

    """
    cores = _cores_of(spark)
    return {"partitions": str(cores)} if cores else {}


def _cores_of(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        pass

    def setting(name: str, default: str) -> int:
        found = spark.conf.get(name, default) or default
        return int(found) if found.isdecimal() else 0

    # Spark's documentation: an executor of YARN or Kubernetes has one core unless it says more.
    return setting("spark.default.parallelism", "0") or setting(
        "spark.executor.instances", "0"
    ) * setting("spark.executor.cores", "1")
