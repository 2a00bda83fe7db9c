"""Who of a Spark pipeline may do what, written out (hazard H19), role by role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aws_cdk import Aws, Stack
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from shardfleet_cdk.permissions import of_this_account

SOURCE_ACTIONS = ("DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
SINK_ACTIONS = ("DescribeStreamSummary", "ListShards", "PutRecords")
LEASE_ACTIONS = ("DeleteItem", "DescribeTable", "GetItem", "PutItem", "Scan", "UpdateItem")
METRICS_NAMESPACE = "shardfleet"
OBJECT_ACTIONS = ("AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResources:
    """
    What the job's rights are about.

    Attributes:
        source: the stream that is read.
        sink: the stream that is written, if there is one.
        folders: buckets and prefixes in which the job may do everything with objects.
        positions: the lease table that it publishes to, if it does.
        asks_glue: whether it asks for schemas of Glue's registry.
        code: what it loads.
        log_group_arn: where it logs.

    """

    source: kinesis.IStream
    sink: kinesis.IStream | None
    folders: Iterable[tuple[s3.IBucket, str]]
    positions: ddb.ITable | None
    asks_glue: bool
    code: Iterable[assets.Asset]
    log_group_arn: str


def job_role(scope: Construct, construct_id: str, resources: JobResources) -> iam.Role:
    """Make the role that Spark's driver and executors have."""
    return iam.Role(
        scope,
        construct_id,
        assumed_by=of_this_account("emr-serverless"),
        inline_policies={"Job": iam.PolicyDocument(statements=_job_rights(resources))},
    )


def _job_rights(resources: JobResources) -> list[iam.PolicyStatement]:
    found = [_allow("kinesis", SOURCE_ACTIONS, [resources.source.stream_arn])]
    keys = [(resources.source.encryption_key, ["Decrypt"])]
    if resources.sink:
        found.append(_allow("kinesis", SINK_ACTIONS, [resources.sink.stream_arn]))
        keys.append((resources.sink.encryption_key, ["GenerateDataKey"]))
    for bucket, prefix in resources.folders:
        found.append(_allow("s3", OBJECT_ACTIONS, [bucket.arn_for_objects(f"{prefix}/*")]))
        listing = _allow("s3", ["ListBucket"], [bucket.bucket_arn])
        listing.add_condition("StringLike", {"s3:prefix": [prefix, f"{prefix}/*"]})
        found.append(listing)
        keys.append((bucket.encryption_key, ["Decrypt", "GenerateDataKey"]))
    found += [
        _allow("s3", ["GetObject"], [each.bucket.arn_for_objects(each.s3_object_key)])
        for each in resources.code
    ]
    if resources.positions:
        found.append(_allow("dynamodb", LEASE_ACTIONS, [resources.positions.table_arn]))
        keys.append((resources.positions.encryption_key, ["Decrypt", "GenerateDataKey"]))
        # CloudWatch knows no resources for metrics; the namespace is the limit.
        metrics = _allow("cloudwatch", ["PutMetricData"], ["*"])
        metrics.add_condition("StringEquals", {"cloudwatch:namespace": METRICS_NAMESPACE})
        found.append(metrics)
    if resources.asks_glue:
        # A frame names a schema's version by an id alone: AWS documents * for who reads it.
        found.append(_allow("glue", ["GetSchemaVersion"], ["*"]))
    streams = [resources.log_group_arn, f"{resources.log_group_arn}:log-stream:*"]
    found += [
        _allow("logs", ["CreateLogStream", "DescribeLogStreams", "PutLogEvents"], streams),
        # AWS documents * for it: EMR looks for the group by its name.
        _allow("logs", ["DescribeLogGroups"], ["*"]),
    ]
    return found + [_allow("kms", what, [key.key_arn]) for key, what in keys if key]


def runs_of(application_arn: str) -> str:
    """Name all runs of an application: a run's id is known when it is started."""
    return f"{application_arn}/jobruns/*"


def function_role(scope: Construct, construct_id: str, *, log_group_arn: str) -> iam.Role:
    """Make a function's role: it may log; what it is for is added to it."""
    logs = _allow("logs", ["CreateLogStream", "PutLogEvents"], [log_group_arn])
    return iam.Role(
        scope,
        construct_id,
        assumed_by=of_this_account("lambda"),
        inline_policies={"Logs": iam.PolicyDocument(statements=[logs])},
    )


def let_describe_stack(function: lambda_.Function, action: str) -> None:
    """Let a function ask about its own stack."""
    function.add_to_role_policy(_allow("cloudformation", [action], [Aws.STACK_ID]))


def look_rights(application_arn: str, job_role_arn: str) -> list[iam.PolicyStatement]:
    """Look: sees the runs of one application, starts and cancels them, hands over their role."""
    passing = _allow("iam", ["PassRole"], [job_role_arn])
    passing.add_condition("StringEquals", {"iam:PassedToService": "emr-serverless.amazonaws.com"})
    return [
        _allow("emr-serverless", ["ListJobRuns", "StartJobRun"], [application_arn]),
        _allow("emr-serverless", ["CancelJobRun", "GetJobRun"], [runs_of(application_arn)]),
        passing,
    ]


def end_rights(application_arn: str) -> list[iam.PolicyStatement]:
    """End: cancels the runs of one application, and stops it."""
    of_application = ["GetApplication", "ListJobRuns", "StopApplication"]
    return [
        _allow("emr-serverless", of_application, [application_arn]),
        _allow("emr-serverless", ["CancelJobRun", "GetJobRun"], [runs_of(application_arn)]),
    ]


def watch_role(scope: Construct, construct_id: str, *, function_arn: str) -> iam.Role:
    """Make the state machine's role: it invokes the function that looks."""
    return iam.Role(
        scope,
        construct_id,
        assumed_by=of_this_account("states"),
        inline_policies={
            "Look": iam.PolicyDocument(
                statements=[_allow("lambda", ["InvokeFunction"], [function_arn])]
            )
        },
    )


def schedule_role(
    scope: Construct, construct_id: str, *, machine_arn: str, dead_letters: sqs.IQueue
) -> iam.Role:
    """Make the schedule's role; only schedules of this account's default group may assume it."""
    group = Stack.of(scope).format_arn(
        service="scheduler", resource="schedule-group", resource_name="default"
    )
    conditions = {
        "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID, "aws:SourceArn": group},
    }
    statements = [
        _allow("states", ["StartExecution"], [machine_arn]),
        _allow("sqs", ["SendMessage"], [dead_letters.queue_arn]),
    ]
    key = dead_letters.encryption_master_key
    if key:
        statements.append(_allow("kms", ["Decrypt", "GenerateDataKey"], [key.key_arn]))
    return iam.Role(
        scope,
        construct_id,
        assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions=conditions),
        inline_policies={"Watch": iam.PolicyDocument(statements=statements)},
    )


def _allow(service: str, actions: Iterable[str], resources: Iterable[str]) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=[f"{service}:{action}" for action in actions], resources=list(resources)
    )
