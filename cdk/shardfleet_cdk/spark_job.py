"""
The functions of a Spark job: one looks after it, the other ends it.

CloudFormation changes and deletes an application only when it is CREATED or STOPPED (fact R02), and
stops nothing itself. Two custom resources therefore end the job: one that the application depends
on changes with the application's settings, and so comes before an update of it; the other depends
on the application, and so goes before it. What the function that ends may do is a policy of its
own: at an update it is the policy of the deploy before, which names the same application.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CustomResource, Duration, Stack
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet_cdk import acknowledgements as nag
from shardfleet_cdk import spark_permissions as rights
from shardfleet_cdk.assets import function_code
from shardfleet_cdk.bundling import library_code
from shardfleet_cdk.functions import fleet_function, log_group
from shardfleet_cdk.lambda_platform import lambda_platform
from shardfleet_cdk.options import Operations

LOOK_SECONDS = 30
"""Of one look; the end of a job waits so long for one that began before."""

END_SECONDS = 900
MEMORY_MB = 256
"""A look makes four calls: most of its time, and of its memory, is the import of the SDK."""


class SparkJobFunctions(Construct):
    """
    The functions, and the custom resource that comes before a change of the application.

    Attributes:
        look: looks after the job.

    """

    def __init__(
        self, scope: Construct, construct_id: str, *, operations: Operations, stop_seconds: int
    ) -> None:
        super().__init__(scope, construct_id)
        self._operations = operations
        self._stop_seconds = stop_seconds
        self._platform = lambda_platform()
        is_bundled = Stack.of(self).bundling_required
        with library_code(platform=self._platform.packages, is_bundled=is_bundled) as code:
            self._library = lambda_.LayerVersion(
                self,
                "Library",
                code=code,
                description="shardfleet: the library",
                compatible_runtimes=[self._platform.runtime],
                compatible_architectures=[self._platform.architecture],
            )
        self.look = self._function(
            "Look", "looks after a Spark job", entry_point="spark_job.watch", seconds=LOOK_SECONDS
        )
        self._end = self._function(
            "End", "ends a Spark job", entry_point="spark_job.end", seconds=END_SECONDS
        )
        rights.let_describe_stack(self.look, "DescribeStacks")
        rights.let_describe_stack(self._end, "DescribeStackResource")

    def before(self, application: emr.CfnApplication, settings: object) -> None:
        """End the job before an update that changes the application's settings."""
        resource = self._resource(
            "BeforeUpdate",
            On="Update",
            Application=application.logical_id,
            Settings=Stack.of(self).to_json_string(settings),
        )
        application.node.add_dependency(resource)

    def serve(self, application: emr.CfnApplication, job_role: iam.IRole) -> None:
        """Let both functions do their work, and end the job before the application is deleted."""
        arn = application.attr_arn
        runs = nag.wildcard(self, rights.runs_of(arn), nag.ANY_JOB_RUN)
        look = iam.Policy(
            self,
            "LookRights",
            roles=[_role(self.look)],
            statements=rights.look_rights(arn, job_role.role_arn),
        )
        end = iam.Policy(
            self, "EndRights", roles=[_role(self._end)], statements=rights.end_rights(arn)
        )
        for policy in (look, end):
            nag.acknowledge(policy, runs)
        resource = self._resource(
            "BeforeDelete", On="Delete", ApplicationId=application.attr_application_id
        )
        resource.node.add_dependency(end, application)

    def _function(
        self, name: str, description: str, *, entry_point: str, seconds: int
    ) -> lambda_.Function:
        logs = log_group(self, f"{name}Logs", operations=self._operations)
        role = rights.function_role(self, f"{name}Role", log_group_arn=logs.log_group_arn)
        function = fleet_function(
            self,
            name,
            platform=self._platform,
            operations=self._operations,
            role=role,
            log_group=logs,
            timeout_s=seconds,
            description=f"shardfleet: {description}",
            code=function_code("spark_job"),
            handler=entry_point,
            memory_size=MEMORY_MB,
            layers=[self._library],
        )
        nag.acknowledge(function, nag.SPARK_JOB)
        if self._operations.tracing:
            nag.acknowledge(role, nag.TRACED_ROLE)
        return function

    def _resource(self, name: str, **properties: Any) -> CustomResource:
        return CustomResource(
            self,
            name,
            resource_type="Custom::ShardFleetSparkJob",
            service_token=self._end.function_arn,
            service_timeout=Duration.seconds(END_SECONDS + 60),
            properties={
                **properties,
                "WatchSeconds": LOOK_SECONDS,
                "GraceSeconds": self._stop_seconds,
            },
        )


def _role(function: lambda_.Function) -> iam.IRole:
    assert function.role is not None
    return function.role
