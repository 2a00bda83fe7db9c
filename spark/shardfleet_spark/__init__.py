"""
Kinesis in and out of Spark: a data source, ``spark.readStream.format("shardfleet")``.

Spark finds it by itself where the module ``pyspark_shardfleet`` is installed, as this
distribution does; elsewhere ``spark.dataSource.register(ShardfleetDataSource)`` does it. Importing
this package does not load pyspark: the planner, the seals and the options are plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.faces import loaded_from

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

__getattr__ = loaded_from(__name__, _HOMES, extra="spark")
