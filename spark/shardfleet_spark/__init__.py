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

__all__ = ["ShardfleetDataSource"]


def __getattr__(name: str) -> Any:
    """Load the data source, and pyspark with it, when it is first asked for."""
    if name == "ShardfleetDataSource":
        from shardfleet_spark.data_source import ShardfleetDataSource  # noqa: PLC0415

        return ShardfleetDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
