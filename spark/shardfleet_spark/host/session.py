"""What a session knows of its cluster and its queries, in Spark itself and over Spark Connect."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pyspark.errors import PySparkAttributeError
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MORE_THAN_CORES = 1 << 20
_BEGUN = re.compile(r'"batchTimestampMs":(\d+)')


def tasks_at_once(spark: SparkSession) -> int:
    """Return Spark's default parallelism: how many tasks run at the same time."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:  # Spark Connect has no context; a range is as parallel as that.
        places = spark.range(_MORE_THAN_CORES).select(sf.spark_partition_id().alias("place"))
        last = places.agg(sf.max("place")).first()
        assert last is not None
        return int(last[0]) + 1


def of_cluster(spark: SparkSession) -> dict[str, str]:
    """
    Return the options with which a source has one task per core of the cluster.

    Use: ``spark.readStream.format("shardfleet").options(**of_cluster(spark))``. The source cannot
    find it out: Spark asks it in Python processes that have neither session nor context.
    """
    return {"partitions": str(tasks_at_once(spark))}


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """
    Return the id of a streaming query that has begun: the same as long as its checkpoint is.

    Spark writes it there first of all (``StreamMetadata``); over Spark Connect nothing else in a
    ``foreachBatch`` says it.

    Args:
        spark: any session that reads the checkpoint's folder.
        checkpoint: the folder.

    """
    found = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").first()
    assert found is not None
    return str(json.loads(found[0])["id"])


def begun_ms(spark: SparkSession, checkpoint: str, number: int) -> int:
    """
    Return when a micro-batch was begun, whichever run did, epoch milliseconds; 0: it is not known.

    Spark writes it to the checkpoint's ``offsets`` before anything of the batch is done.
    """
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/offsets/{number}").collect()
    found = (_BEGUN.search(line[0]) for line in lines)
    return next((int(each[1]) for each in found if each), 0)
