"""
shardfleet: a serverless fleet that consumes Kinesis streams on the KCL's own lease table.

This is the public surface for people who write handlers. Importing it loads neither an SDK nor
protobuf nor PySpark; a test asserts so.
"""

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.record_ids import SeenIds, split_record_id
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.records import Batch, Record

__all__ = [
    "Batch",
    "ConfigurationError",
    "FleetConfig",
    "Record",
    "SeenIds",
    "ShardfleetError",
    "split_record_id",
]
