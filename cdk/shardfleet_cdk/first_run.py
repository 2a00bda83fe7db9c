"""
The first run of the lease manager, at deploy time, so that nobody waits for the schedule.

When the stack is deleted it ends the workers, so that nobody waits for their turns (finding A11).

A function of its own answers CloudFormation: the manager would have to reach ``ResponseURL``,
keep CloudFormation waiting while it runs, and hold up every deploy with a mistake of its own. It
is Python without layers; the CDK's ready-made triggers are Node functions.
"""

from __future__ import annotations

from aws_cdk import CustomResource, Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from shardfleet.config import FleetConfig
from shardfleet_cdk import acknowledgements as nag
from shardfleet_cdk import permissions
from shardfleet_cdk.assets import function_code
from shardfleet_cdk.functions import fleet_function, log_group
from shardfleet_cdk.layers import FleetLayers
from shardfleet_cdk.lease_manager import LeaseManagerFunction
from shardfleet_cdk.options import Operations

ENTRY_POINT = "handler.handler"  # functions/first_run/handler.py
TIMEOUT_SECONDS = 60
MEMORY_MB = 128  # Lambda's least; it makes one call.


class FirstRun(Construct):
    """
    Invokes the manager after everything else is there.

    Attributes:
        function: answers CloudFormation.
        resource: changes, and so runs again, with the fleet's configuration or its layers.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        manager: LeaseManagerFunction,
        config: FleetConfig,
        layers: FleetLayers,
        operations: Operations,
        machine: sfn.StateMachine,
    ) -> None:
        super().__init__(scope, construct_id)
        self.log_group = log_group(self, "Logs", operations=operations)
        self.role = permissions.lambda_role(
            self,
            "Role",
            permissions.first_run_rights(
                log_group_arn=self.log_group.log_group_arn,
                manager_arn=manager.function.function_arn,
                machine=machine,
                encryption_key=operations.encryption_key,
            ),
        )
        executions = permissions.executions_arn(machine.state_machine_name)
        nag.acknowledge(self.role, nag.wildcard(self, executions, nag.ANY_EXECUTION))
        self.function = fleet_function(
            self,
            "Function",
            platform=layers.platform,
            operations=operations,
            role=self.role,
            log_group=self.log_group,
            timeout_s=TIMEOUT_SECONDS,
            description="shardfleet: invokes the lease manager at deploy time, ends workers",
            code=function_code("first_run"),
            handler=ENTRY_POINT,
            memory_size=MEMORY_MB,
        )
        nag.acknowledge(self.function, nag.FIRST_RUN)
        if operations.tracing:
            nag.acknowledge(self.role, nag.TRACED_ROLE)
        self.resource = self._resource(
            Manager=manager.function.function_name,
            StateMachine=machine.state_machine_arn,
            Configuration=config.to_env(),
            Layers=[layer.layer_version_arn for layer in layers.all()],
        )

    def _resource(self, **properties: object) -> CustomResource:
        return CustomResource(
            self,
            "Run",
            resource_type="Custom::ShardFleetFirstRun",
            service_token=self.function.function_arn,
            service_timeout=Duration.seconds(2 * TIMEOUT_SECONDS),
            properties=properties,
        )
