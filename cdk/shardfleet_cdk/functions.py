"""What all functions of a fleet have in common: platform, log group, and settings of operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from shardfleet_cdk.lambda_platform import LambdaPlatform
from shardfleet_cdk.options import Operations


def log_group(
    scope: Construct, construct_id: str, *, operations: Operations, name: str | None = None
) -> logs.LogGroup:
    """Make a log group with a retention; named by CloudFormation unless a name is given."""
    return logs.LogGroup(
        scope,
        construct_id,
        log_group_name=name,
        retention=operations.log_retention,
        encryption_key=operations.encryption_key,
        removal_policy=operations.removal_policy,
    )


def fleet_function(
    scope: Construct,
    construct_id: str,
    *,
    platform: LambdaPlatform,
    operations: Operations,
    role: iam.IRole,
    log_group: logs.ILogGroup,
    timeout_s: int,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> lambda_.Function:
    """
    Make a function.

    Args:
        scope: the parent construct.
        construct_id: within it.
        platform: what it runs on.
        operations: key and tracing.
        role: everything the function may do.
        log_group: where it logs.
        timeout_s: of one invocation, seconds.
        environment: its variables.
        settings: passed on to :class:`aws_cdk.aws_lambda.Function`.

    """
    return lambda_.Function(
        scope,
        construct_id,
        runtime=platform.runtime,
        architecture=platform.architecture,
        role=role,
        log_group=log_group,
        timeout=Duration.seconds(timeout_s),
        environment=dict(environment) if environment else None,
        environment_encryption=operations.encryption_key if environment else None,
        tracing=lambda_.Tracing.ACTIVE if operations.tracing else None,
        **settings,
    )
