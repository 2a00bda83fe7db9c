"""
shardfleet: a serverless fleet that consumes Kinesis streams on the KCL's own lease table.

This is the public surface for people who write handlers. Importing it loads neither an SDK nor
protobuf nor PySpark; a test asserts so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.record_ids import SeenIds, split_record_id
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.faces import loaded_from
from shardfleet.records import Batch, Record

if TYPE_CHECKING:
    from shardfleet_processes.worker import Worker

__all__ = [
    "Batch",
    "ConfigurationError",
    "FleetConfig",
    "Record",
    "SeenIds",
    "ShardfleetError",
    "Worker",
    "split_record_id",
]

__getattr__ = loaded_from(__name__, {"Worker": "shardfleet_processes.worker"})
