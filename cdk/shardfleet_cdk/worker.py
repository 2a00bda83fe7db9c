"""
The worker function: the user's folder is its asset, shardfleet comes from the layer.

Where the handler is a function of its own, the asset is `functions/worker/`, without user code.

Executions call the alias `live`. A deploy publishes a new version and moves the alias; what runs
in the old version finishes its turn there, and the next invocation, of the same execution with
the same worker id, runs the new one. Old versions are retained for that.
"""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet.config import ALLOCATOR, FleetConfig
from shardfleet_cdk import acknowledgements as nag
from shardfleet_cdk import permissions
from shardfleet_cdk.assets import function_code
from shardfleet_cdk.functions import fleet_function, log_group
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.layers import FleetLayers
from shardfleet_cdk.options import Operations, WorkerOptions

ENTRY_POINT = "shardfleet.runtime.entry_points.worker_handler"
ALIAS = "live"


class WorkerFunction(Construct):
    """
    The worker function and its alias.

    Attributes:
        function: the function.
        alias: what the state machine invokes.
        role: the function's role; grant the user's handler its rights here.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: FleetConfig,
        handler: HandlerCode | None,
        layers: FleetLayers,
        options: WorkerOptions,
        operations: Operations,
        resources: permissions.Resources,
    ) -> None:
        super().__init__(scope, construct_id)
        self.log_group = log_group(self, "Logs", operations=operations)
        rights = permissions.worker_rights(
            resources,
            log_group_arn=self.log_group.log_group_arn,
            in_vpc=options.vpc is not None,
        )
        self.role = permissions.lambda_role(self, "Role", rights)
        self.function = fleet_function(
            self,
            "Function",
            platform=layers.platform,
            operations=operations,
            role=self.role,
            log_group=self.log_group,
            timeout_s=options.timeout_s,
            environment={**ALLOCATOR, **options.environment, **config.to_env()},
            description="shardfleet worker: one time-boxed turn of a slot",
            code=self._code(handler, layers),
            handler=ENTRY_POINT,
            layers=[*layers.all(), *options.layers],
            memory_size=options.memory_mb,
            reserved_concurrent_executions=options.reserved_concurrency,
            vpc=options.vpc,
            vpc_subnets=options.subnets,
            security_groups=list(options.security_groups) or None,
            current_version_options=lambda_.VersionOptions(removal_policy=RemovalPolicy.RETAIN),
        )
        # Without `@aws-cdk/aws-lambda:recognizeLayerVersion` the CDK looks at the function alone,
        # and a new library would not make a new version.
        self.function.invalidate_version_based_on(layers.fingerprint)
        self.alias = lambda_.Alias(
            self, "Live", alias_name=ALIAS, version=self.function.current_version
        )
        self._acknowledge(options, operations, resources)

    def _code(self, handler: HandlerCode | None, layers: FleetLayers) -> lambda_.Code:
        if handler is None:
            return function_code("worker")
        return handler.code(self, layers.platform.packages)

    def _acknowledge(
        self,
        options: WorkerOptions,
        operations: Operations,
        resources: permissions.Resources,
    ) -> None:
        nag.acknowledge(self.function, nag.WORKER)
        if options.vpc is not None:
            nag.acknowledge(self.role, nag.NETWORK_ROLE)
        if operations.tracing:
            nag.acknowledge(self.role, nag.TRACED_ROLE)
        if resources.failed_bucket:
            objects = permissions.failed_objects_arn(resources.failed_bucket, resources.fleet)
            nag.acknowledge(self.role, nag.wildcard(self, objects, nag.ANY_OBJECT))
            if resources.has_windows:
                states = permissions.states_arn(resources.failed_bucket, resources.fleet)
                nag.acknowledge(self.role, nag.wildcard(self, states, nag.ANY_STATE))
