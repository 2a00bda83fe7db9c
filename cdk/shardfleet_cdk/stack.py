"""The repository's own stack: one stream, one fleet, set up from the context in `cdk.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Duration, IStackSynthesizer, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.fleet import ShardFleet
from shardfleet_cdk.fleet_config import divided
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.lease_table import OWNER_INDEX
from shardfleet_cdk.monitoring import AlarmLevel, AlarmSetting, MonitoringOptions
from shardfleet_cdk.options import FanOut, FleetTables, Operations, WorkerOptions
from shardfleet_cdk.stack_settings import FAN_OUT, POLLING, StackSettings, read_settings

REMOVALS = {
    "retain": RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    "destroy": RemovalPolicy.DESTROY,
}
RETENTION_HOURS = 24  # Kinesis: the least, and free.


class ShardFleetStack(Stack):
    """
    One stream and one fleet.

    Args:
        scope: the app.
        construct_id: the stack's name.
        project: the folder that relative paths of the context start from.
        synthesizer: where assets go and who deploys (default: the CDK's bootstrap stack).

    Attributes:
        stream: new, or imported by its ARN.
        fleet: the fleet.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        project: Path,
        synthesizer: IStackSynthesizer | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            synthesizer=synthesizer,
            description="shardfleet: a fleet of Lambda functions that consumes a Kinesis stream",
            analytics_reporting=False,
        )
        settings = read_settings(self.node.try_get_context)
        operations = Operations(removal_policy=REMOVALS[settings.removal])
        self.stream = self._stream(settings, operations)
        self.fleet = ShardFleet(
            self,
            "Fleet",
            stream=self.stream,
            handler=self._handler(settings, project),
            spill=settings.spill,
            reading=_reading(settings.reading),
            **divided(settings.config or {}),
            worker=WorkerOptions(**(settings.worker or {})),
            tables=FleetTables(lease_table=self._existing_lease_table(settings)),
            operations=operations,
            architecture=lambda_.Architecture.custom(settings.architecture),
            runtime=lambda_.Runtime(settings.runtime, lambda_.RuntimeFamily.PYTHON),
            sdk_services=settings.sdk_services,
            monitoring=self._monitoring(settings),
        )
        self._outputs(
            {
                "StreamName": (self.stream.stream_name, "the stream"),
                "StreamArn": (self.stream.stream_arn, "the stream"),
                "LeaseTable": (self.fleet.lease_table.table_name, "KCL's lease table"),
                "StateTable": (self.fleet.state_table.table_name, "the fleet's own state"),
                "ManagerFunction": (self.fleet.manager_function.function_name, "assigns leases"),
                "WorkerFunction": (self.fleet.worker_function.function_name, "runs the handler"),
                "StateMachineArn": (
                    self.fleet.state_machine.state_machine_arn,
                    "one execution is one worker slot",
                ),
            }
        )

    def _handler(self, settings: StackSettings, project: Path) -> HandlerCode | lambda_.IFunction:
        named = settings.handler_function
        if not named:
            return HandlerCode(folder=project / settings.handler, function=settings.function)
        if named.startswith("arn:"):
            return lambda_.Function.from_function_arn(self, "HandlerFunction", named)
        return lambda_.Function.from_function_name(self, "HandlerFunction", named)

    def _stream(self, settings: StackSettings, operations: Operations) -> kinesis.IStream:
        if isinstance(settings.stream, str):
            return kinesis.Stream.from_stream_attributes(
                self,
                "Stream",
                stream_arn=settings.stream,
                encryption_key=self._key("StreamKey", settings.stream_key),
            )
        return kinesis.Stream(
            self,
            "Stream",
            shard_count=settings.stream["shards"],
            retention_period=Duration.hours(RETENTION_HOURS),
            encryption=kinesis.StreamEncryption.MANAGED,
            removal_policy=operations.removal_policy,
        )

    def _monitoring(self, settings: StackSettings) -> MonitoringOptions | bool:
        if settings.monitoring is False:
            return False
        wanted = settings.monitoring if isinstance(settings.monitoring, Mapping) else {}
        topics = {
            name: [sns.Topic.from_topic_arn(self, f"{name.title()}Topic", wanted[name])]
            for name in ("page", "notice")
            if name in wanted
        }
        alarms = {
            name: AlarmSetting(**_leveled(change)) if change is not False else None
            for name, change in wanted.get("alarms", {}).items()
        }
        own = ("by_cause", "retention_hours", "runbook", "dashboard")
        rest = {name: wanted[name] for name in own if name in wanted}
        return MonitoringOptions(
            alarms=alarms,
            page=topics.get("page", ()),
            notice=topics.get("notice", ()),
            **rest,
        )

    def _existing_lease_table(self, settings: StackSettings) -> ddb.ITable | None:
        if not settings.lease_table:
            return None
        return ddb.Table.from_table_attributes(
            self,
            "LeaseTable",
            table_name=settings.lease_table,
            global_indexes=[OWNER_INDEX],
            encryption_key=self._key("LeaseTableKey", settings.lease_table_key),
        )

    def _key(self, construct_id: str, arn: str) -> kms.IKey | None:
        return kms.Key.from_key_arn(self, construct_id, arn) if arn else None

    def _outputs(self, outputs: Mapping[str, tuple[str, str]]) -> None:
        for name, (value, description) in outputs.items():
            CfnOutput(
                self, f"{name}Output", value=value, description=description
            ).override_logical_id(name)


def _reading(wanted: str) -> FanOut | None:
    if wanted == POLLING:
        return None
    return FanOut(consumer_arn=None if wanted == FAN_OUT else wanted)


def _leveled(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return an alarm's setting with its level as the enumeration's member."""
    try:
        return {**change, **({"level": AlarmLevel(change["level"])} if "level" in change else {})}
    except ValueError as error:
        levels = ", ".join(AlarmLevel)
        raise ConfigurationError(
            f"context: monitoring: level: {change['level']!r} found, one of {levels} allowed"
        ) from error
