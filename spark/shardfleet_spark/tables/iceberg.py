"""
Iceberg tables (`iceberg:CATALOG.NAMESPACE.TABLE`).

Iceberg has no counterpart of Delta's transaction ids, but a snapshot's summary carries properties:
query and number of the batch, in the same commit as the rows. Before a run of a query writes its
first batch, the only one that an earlier run may have written, it looks for the query's newest
snapshot among the ancestors of the current one, and passes over a batch that is there. Snapshots
from before the batch was begun need not be there any more; if later ones were expired, it cannot
be known, and the query stops.

Iceberg's jars are none of ours: Spark takes them from Maven Central (``spark.jars.packages``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_spark.host.compat import release_of
from shardfleet_spark.payload.growth import missing_fields
from shardfleet_spark.tables.commits import Commit
from shardfleet_spark.tables.merging import merge, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ICEBERG = "iceberg"
RELEASES = {(4, 0): "1.11.0", (4, 1): "1.12.0"}
"""The newest release of Iceberg for each release of Spark, which has an artifact of its own."""

_QUERY, _BATCH = "shardfleet.query", "shardfleet.batch"
_PROPERTY = "snapshot-property"
_CATALOG = "spark.sql.catalog"
_MERGE_SCHEMA = "mergeschema"
_CLOCKS_APART_MS = 600_000


class HistoryExpired(ShardfleetError):
    """The snapshots that would say whether a batch was written are gone."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    A snapshot of a table.

    Attributes:
        parent: id of the one before; None: it is the first.
        at_ms: when it was committed, epoch milliseconds.
        query: id of the query that made it; empty: somebody else did.
        batch: the number of that query's batch.

    """

    parent: int | None
    at_ms: int
    query: str = ""
    batch: int = -1


def iceberg_settings(version: str) -> dict[str, str]:
    """
    Return the settings of a session that writes to Iceberg tables, but for the catalog's.

    Args:
        version: of Spark.

    Raises:
        ConfigurationError: there is no Iceberg for it.

    """
    release = release_of(version)
    if release not in RELEASES:
        there = ", ".join(f"{major}.{minor}" for major, minor in RELEASES)
        raise ConfigurationError(
            f"sink iceberg: Iceberg is made for Spark {there}, and this is Spark {version}: "
            "install one of those (pip install 'pyspark==4.1.*')"
        )
    name = f"iceberg-spark-runtime-{release[0]}.{release[1]}_2.13"
    return {"spark.jars.packages": f"org.apache.iceberg:{name}:{RELEASES[release]}"}


def newest_batch(
    snapshots: Mapping[int, Snapshot], head: int | None, *, query: str, since_ms: int
) -> int:
    """
    Return the number of a query's newest batch in a table; -1: it has none since a moment.

    Args:
        snapshots: those of the table that are not expired, by id.
        head: the current one; None: the table has none.
        query: its id.
        since_ms: what was committed before is of no account, epoch milliseconds.

    Raises:
        HistoryExpired: there may have been one since.

    """
    at = head
    while at is not None:
        found = snapshots.get(at)
        if found is None:
            raise HistoryExpired(
                "sink iceberg: the snapshots that would say whether the query's last batch was "
                "written are expired. Look whether its rows are in the table; if they are not, or "
                "may be there twice, start the query with a new checkpoint where it stood "
                "(shardfleet position export). Keep snapshots for longer than a query stands "
                "still (history.expire.max-snapshot-age-ms)"
            )
        if found.query == query:
            return found.batch
        if found.at_ms < since_ms:
            break
        at = found.parent
    return -1


class IcebergTable:
    """
    A table of a catalog; made of the first rows if there is none.

    Args:
        name: catalog, namespace and table, with dots between them.
        options: of Iceberg's writer.

    """

    def __init__(self, name: str, options: Mapping[str, str]) -> None:
        self._parts = name.split(".")
        self._name = ".".join(quoted(part) for part in self._parts)
        # With the option the columns are added here: a table that lets Iceberg's writer do it, by
        # its property write.spark.accept-any-schema, can no longer be merged into.
        given = {key.lower(): value for key, value in options.items()}
        self._grows = given.get(_MERGE_SCHEMA, "").lower() == "true"
        self._options = {key: options[key] for key in options if key.lower() != _MERGE_SCHEMA}
        self._is_looked_up = False

    def check(self, spark: SparkSession) -> None:
        """Refuse a session without the table's catalog; see `Table`."""
        catalog = f"{_CATALOG}.{self._parts[0]}"
        if len(self._parts) > 2 and spark.conf.get(catalog, "") != "":  # noqa: PLR2004 - catalog, namespace, table
            return
        wanted = " ".join(
            f"--conf {key}={value}" for key, value in iceberg_settings(spark.version).items()
        )
        raise ConfigurationError(
            f"sink iceberg:{'.'.join(self._parts)}: CATALOG.NAMESPACE.TABLE is needed, and the "
            f"session has no setting {catalog}; start it (or the Connect server) with {wanted} "
            f"--conf {catalog}=org.apache.iceberg.spark.SparkCatalog and the catalog's own "
            f"settings, such as --conf {catalog}.type=glue --conf {catalog}.warehouse=s3://..."
        )

    def append(self, rows: DataFrame, commit: Commit | None) -> None:
        """Append rows; see `Table`."""
        self._make_room(rows)
        if self._has(rows.sparkSession, commit):
            return
        if self._grows:  # Spark 4.0 refuses rows without a column that the table has.
            whole = rows.sparkSession.table(self._name).limit(0)
            rows = whole.unionByName(rows, allowMissingColumns=True)
        writer = rows.writeTo(self._name).options(**self._options)
        for name, value in _properties(commit).items():
            writer = writer.option(f"{_PROPERTY}.{name}", value)
        writer.append()

    def merge(self, rows: DataFrame, keys: Sequence[str], commit: Commit | None) -> None:
        """Merge rows; see `Table`."""
        self._make_room(rows)
        spark = rows.sparkSession
        if self._has(spark, commit):
            return
        # A statement takes no options; these settings do the same.
        settings = {
            f"spark.sql.iceberg.{_PROPERTY}.{name}": value
            for name, value in _properties(commit).items()
        }
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            merge(rows, self._name, keys)
        finally:
            for name in settings:
                spark.conf.unset(name)

    def _make_room(self, rows: DataFrame) -> None:
        """Make the table, and, where that was asked for, its new columns."""
        spark = rows.sparkSession
        if not spark.catalog.tableExists(self._name):
            rows.limit(0).writeTo(self._name).using(ICEBERG).create()
        if not self._grows:
            return
        for path, kind in missing_fields(spark.table(self._name).schema, rows.schema):
            column = ".".join(quoted(part) for part in path)
            spark.sql(f"ALTER TABLE {self._name} ADD COLUMN {column} {kind.simpleString()}")

    def _has(self, spark: SparkSession, commit: Commit | None) -> bool:
        """Return whether the table has a batch; only the first of a run may be there."""
        if commit is None or self._is_looked_up:
            return False
        spark.catalog.refreshTable(self._name)
        branch = self._options.get("branch", "main")
        heads = spark.table(f"{self._name}.refs").where(sf.col("name") == branch)
        head = heads.select("snapshot_id").first()
        rows = spark.table(f"{self._name}.snapshots").select(
            "snapshot_id",
            "parent_id",
            sf.unix_millis("committed_at").alias("at_ms"),
            sf.try_element_at("summary", sf.lit(_QUERY)).alias("query"),
            sf.try_element_at("summary", sf.lit(_BATCH)).alias("batch"),
        )
        snapshots = {
            row["snapshot_id"]: Snapshot(
                row["parent_id"], row["at_ms"], row["query"] or "", int(row["batch"] or -1)
            )
            for row in rows.collect()
        }
        newest = newest_batch(
            snapshots,
            head["snapshot_id"] if head else None,
            query=commit.query,
            since_ms=commit.begun_ms - _CLOCKS_APART_MS,
        )
        self._is_looked_up = True
        return newest >= commit.number


def _properties(commit: Commit | None) -> dict[str, str]:
    return {} if commit is None else {_QUERY: commit.query, _BATCH: str(commit.number)}
