"""Spark registers the ``DefaultSource`` of every module named ``pyspark_*``: this is ours."""

from shardfleet_spark.data_source import ShardfleetDataSource as DefaultSource

__all__ = ["DefaultSource"]
