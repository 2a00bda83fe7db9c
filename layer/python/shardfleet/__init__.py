"""
shardfleet: a serverless fleet that consumes Kinesis streams on the KCL's own lease table.

This is the public surface for people who write handlers. Importing it loads neither an SDK nor
protobuf nor PySpark; a test asserts so.
"""

from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.records import Batch, Record

__all__ = ["Batch", "ConfigurationError", "FleetConfig", "Record", "ShardfleetError"]
