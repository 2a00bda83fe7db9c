"""
The constructs: `ShardFleet` is a fleet, `SparkPipeline` a Spark job, that consumes a stream.

Each module is a part of one of the two; a stack of many small constructs is one idea.

Importing this package starts Node (the CDK runs on it) and fails with a clear message when there
is none.
"""

from importlib.util import find_spec

from shardfleet_cdk.node import let_node_end_first, require_node

# ruff: noqa: E402 - Node must be found before aws_cdk is imported, which starts it.
require_node()
from shardfleet.faces import ExtraMissing

if find_spec("aws_cdk") is None:
    raise ExtraMissing(__name__, "aws_cdk", "cdk")
let_node_end_first()

from shardfleet_cdk.fleet import ShardFleet
from shardfleet_cdk.fleet_options import ExpertOptions, FleetOptions
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.monitoring import AlarmLevel, AlarmSetting, MonitoringOptions
from shardfleet_cdk.options import FanOut, FleetTables, ManagerOptions, Operations, WorkerOptions
from shardfleet_cdk.spark_environment import TransformCode
from shardfleet_cdk.spark_options import PipelineWork, SparkAlarms, SparkBuckets, SparkOptions
from shardfleet_cdk.spark_pipeline import SparkPipeline

__all__ = [
    "AlarmLevel",
    "AlarmSetting",
    "ExpertOptions",
    "FanOut",
    "FleetOptions",
    "FleetTables",
    "HandlerCode",
    "ManagerOptions",
    "MonitoringOptions",
    "Operations",
    "PipelineWork",
    "ShardFleet",
    "SparkAlarms",
    "SparkBuckets",
    "SparkOptions",
    "SparkPipeline",
    "TransformCode",
    "WorkerOptions",
]
