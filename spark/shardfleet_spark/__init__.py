"""
Kinesis in and out of Spark: a data source, ``spark.readStream.format("shardfleet")``.

Spark finds it by itself where the module ``pyspark_shardfleet`` is installed, as this
distribution does; elsewhere ``spark.dataSource.register(ShardfleetDataSource)`` does it. Importing
this package does not load pyspark: the planner, the seals and the options are plain Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardfleet_spark.data_source import ShardfleetDataSource
    from shardfleet_spark.host.session import of_cluster
    from shardfleet_spark.payload.parsing import parse_payload
    from shardfleet_spark.pipelines.draining import drain
    from shardfleet_spark.sink.by_shard import by_shard

__all__ = [
    "ShardfleetDataSource",
    "by_shard",
    "drain",
    "of_cluster",
    "parse_payload",
]

_HOMES = {
    "ShardfleetDataSource": "shardfleet_spark.data_source",
    "of_cluster": "shardfleet_spark.host.session",
    "parse_payload": "shardfleet_spark.payload.parsing",
    "drain": "shardfleet_spark.pipelines.draining",
    "by_shard": "shardfleet_spark.sink.by_shard",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and pyspark with it, when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
