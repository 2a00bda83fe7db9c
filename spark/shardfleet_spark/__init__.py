"""
Kinesis in and out of Spark: a data source, ``spark.readStream.format("shardfleet")``.

Spark finds it by itself where the module ``pyspark_shardfleet`` is installed, as this
distribution does; elsewhere ``spark.dataSource.register(ShardfleetDataSource)`` does it. Importing
this package does not load pyspark: the planner, the seals and the options are plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardfleet_spark.data_source import ShardfleetDataSource
    from shardfleet_spark.host.session import of_cluster

__all__ = ["ShardfleetDataSource", "of_cluster"]


def __getattr__(name: str) -> Any:
    """Load what is asked for, and pyspark with it, when it is first asked for."""
    if name == "ShardfleetDataSource":
        from shardfleet_spark.data_source import ShardfleetDataSource  # noqa: PLC0415

        return ShardfleetDataSource
    if name == "of_cluster":
        from shardfleet_spark.host.session import of_cluster  # noqa: PLC0415

        return of_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
