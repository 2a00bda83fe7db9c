"""
The sink `delta:PATH`: micro-batches appended to a Delta table, each exactly once.

A batch is written with ``txnAppId`` (the query's id) and ``txnVersion`` (the batch's number): Delta
keeps both in the same commit as the rows, and passes over a batch that it has (Delta's guide,
"Idempotent table writes in foreachBatch"). The source repeats a batch unchanged, so nothing is
lost and nothing comes twice, wherever the driver dies between the write and Spark's commit log.

Delta's jars are none of ours: Spark takes them from Maven Central (``spark.jars.packages``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.compat import release_of
from shardfleet_spark.host.session import query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from shardfleet_spark.pipelines.plan import PipelinePlan

DELTA = "delta"
RELEASE = "4.4.0"
RELEASES_OF_SPARK = ((4, 0), (4, 1), (4, 2))
"""What this release of Delta was built for; each has an artifact of its own."""

_EXTENSIONS = "spark.sql.extensions"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def delta_settings(version: str) -> dict[str, str]:
    """
    Return the settings of a session that writes to Delta tables.

    Args:
        version: of Spark.

    Raises:
        ConfigurationError: there is no Delta for it.

    """
    major, minor = release_of(version)
    if (major, minor) not in RELEASES_OF_SPARK:
        there = ", ".join(f"{first}.{second}" for first, second in RELEASES_OF_SPARK)
        raise ConfigurationError(
            f"sink delta: Delta {RELEASE} is made for Spark {there}, and this is Spark {version}: "
            "install one of those (pip install 'pyspark==4.1.*')"
        )
    return {
        "spark.jars.packages": f"io.delta:delta-spark_{major}.{minor}_2.13:{RELEASE}",
        _EXTENSIONS: _EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def check_delta(spark: SparkSession) -> None:
    """
    Refuse a session without Delta, before a query starts.

    Raises:
        ConfigurationError: says what to set.

    """
    if _EXTENSION in (spark.conf.get(_EXTENSIONS, "") or ""):
        return
    wanted = " ".join(
        f"--conf {key}={value}" for key, value in delta_settings(spark.version).items()
    )
    raise ConfigurationError(
        f"sink delta: the session has no Delta; start it (or the Connect server) with {wanted}"
    )


def delta_writer(rows: DataFrame, plan: PipelinePlan) -> DataStreamWriter:
    """
    Return the writer of a table.

    Raises:
        ConfigurationError: the output mode is none that appends, or the session has no Delta.

    """
    if plan.output_mode != "append":
        raise ConfigurationError(
            f"sink {plan.sink!r}: output mode {plan.output_mode!r}: a Delta table is appended to"
        )
    check_delta(rows.sparkSession)
    return rows.writeStream.foreachBatch(
        _append(plan.to_place.where, plan.sink_options, plan.checkpoint)
    )


def _append(
    table: str, options: Mapping[str, str], checkpoint: str
) -> Callable[[DataFrame, int], None]:
    def append(batch: DataFrame, number: int) -> None:
        writer = batch.write.format(DELTA).options(**options).mode("append")
        writer = writer.option("txnAppId", query_id(batch.sparkSession, checkpoint))
        writer.option("txnVersion", number).save(table)

    return append
