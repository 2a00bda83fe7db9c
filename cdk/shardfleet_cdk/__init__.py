"""
The construct: `ShardFleet` deploys a fleet that consumes one Kinesis stream.

Importing this package starts Node (the CDK runs on it) and fails with a clear message when there
is none.
"""

from shardfleet_cdk.node import require_node

require_node()

# ruff: noqa: E402 - Node must be found before aws_cdk is imported, which starts it.
from shardfleet_cdk.fleet import ShardFleet
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.monitoring import AlarmSetting, FleetMonitoring, Level, MonitoringOptions
from shardfleet_cdk.options import FleetTables, ManagerOptions, Operations, WorkerOptions

__all__ = [
    "AlarmSetting",
    "FleetMonitoring",
    "FleetTables",
    "HandlerCode",
    "Level",
    "ManagerOptions",
    "MonitoringOptions",
    "Operations",
    "ShardFleet",
    "WorkerOptions",
]
