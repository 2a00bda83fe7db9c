"""
Delta tables (`delta:PATH`).

A batch is written with ``txnAppId`` (the query's id) and ``txnVersion`` (the batch's number): Delta
keeps both in the same commit as the rows, and passes over a batch that it has (Delta's guide,
"Idempotent table writes in foreachBatch"). The source repeats a batch unchanged, so nothing is
lost and nothing comes twice, wherever the driver dies between the write and Spark's commit log.

Delta's jars are none of ours: Spark takes them from Maven Central (``spark.jars.packages``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.compat import release_of
from shardfleet_spark.payload.growth import missing_fields
from shardfleet_spark.tables.commits import Commit
from shardfleet_spark.tables.merging import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA = "delta"
RELEASE = "4.4.0"
RELEASES_OF_SPARK = ((4, 0), (4, 1), (4, 2))
"""What this release of Delta was built for; each has an artifact of its own."""

_EXTENSIONS = "spark.sql.extensions"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_MERGE_SCHEMA = "mergeschema"
_DML = "spark.databricks.delta.write"
"""Of the settings that do for statements what the options txnAppId and txnVersion do."""


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


class DeltaTable:
    """
    A table in a folder; made of the first rows if there is none.

    Args:
        folder: a path or a URI.
        options: of Delta's writer.

    """

    def __init__(self, folder: str, options: Mapping[str, str]) -> None:
        self._folder = folder
        self._options = options

    def check(self, spark: SparkSession) -> None:
        """Refuse a session without Delta; see `Table`."""
        if _EXTENSION in (spark.conf.get(_EXTENSIONS, "") or ""):
            return
        wanted = " ".join(
            f"--conf {key}={value}" for key, value in delta_settings(spark.version).items()
        )
        raise ConfigurationError(
            f"sink delta: the session has no Delta; start it (or the Connect server) with {wanted}"
        )

    def append(self, rows: DataFrame, commit: Commit | None) -> None:
        """Append rows; see `Table`."""
        writer = rows.write.format(DELTA).options(**self._options).mode("append")
        if commit is not None:
            writer = writer.option("txnAppId", commit.query).option("txnVersion", commit.number)
        writer.save(self._folder)

    def merge(self, rows: DataFrame, keys: Sequence[str], commit: Commit | None) -> None:
        """Merge rows; see `Table`."""
        self._make_room(rows)
        conf = rows.sparkSession.conf
        if commit is None:
            merge(rows, self._name, keys)
            return
        conf.set(f"{_DML}.txnAppId", commit.query)
        conf.set(f"{_DML}.txnVersion", str(commit.number))
        try:
            merge(rows, self._name, keys)
        finally:
            conf.unset(f"{_DML}.txnAppId")
            conf.unset(f"{_DML}.txnVersion")

    @property
    def _name(self) -> str:
        return f"{DELTA}.`{self._folder.replace('`', '``')}`"

    def _make_room(self, rows: DataFrame) -> None:
        """Make the table, and, where that was asked for, its new columns."""
        given = {name.lower(): value for name, value in self._options.items()}
        none = rows.limit(0).write.format(DELTA).options(**self._options)
        none.mode("ignore").save(self._folder)
        if given.get(_MERGE_SCHEMA, "").lower() == "true":
            there = rows.sparkSession.read.format(DELTA).load(self._folder).schema
            if any(missing_fields(there, rows.schema)):
                none.mode("append").save(self._folder)
