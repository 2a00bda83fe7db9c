"""
What an account still has of a run after its end: each service is asked for all that it has.

Found is what bears the run's name, in whichever spelling, and what the stack had made under another
name (a layer's has nothing of the stack's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet_local.acceptance.deployment import Account


@dataclass(frozen=True, slots=True)
class Inventory:
    """
    A kind of thing that a run makes.

    Attributes:
        service: as boto3 calls it.
        operation: that lists all of them; a paginator's, where there is one.
        types: CloudFormation's, of which it is the list.
        names: picks the names out of one answer.

    """

    service: str
    operation: str
    types: tuple[str, ...]
    names: Callable[[Any], Iterable[str]]


KINDS = (
    Inventory(
        "cloudformation",
        "describe_stacks",
        ("AWS::CloudFormation::Stack",),
        lambda page: [each["StackName"] for each in page["Stacks"]],
    ),
    Inventory(
        "s3",
        "list_buckets",
        ("AWS::S3::Bucket",),
        lambda page: [b["Name"] for b in page["Buckets"]],
    ),
    Inventory(
        "kinesis", "list_streams", ("AWS::Kinesis::Stream",), lambda page: page["StreamNames"]
    ),
    Inventory(
        "dynamodb", "list_tables", ("AWS::DynamoDB::Table",), lambda page: page["TableNames"]
    ),
    Inventory(
        "lambda",
        "list_functions",
        ("AWS::Lambda::Function",),
        lambda page: [each["FunctionName"] for each in page["Functions"]],
    ),
    Inventory(
        "lambda",
        "list_layers",
        ("AWS::Lambda::LayerVersion",),
        lambda page: [each["LayerName"] for each in page["Layers"]],
    ),
    Inventory(
        "stepfunctions",
        "list_state_machines",
        ("AWS::StepFunctions::StateMachine",),
        lambda page: [each["name"] for each in page["stateMachines"]],
    ),
    Inventory(
        "logs",
        "describe_log_groups",
        ("AWS::Logs::LogGroup",),
        lambda page: [each["logGroupName"] for each in page["logGroups"]],
    ),
    Inventory(
        "sqs",
        "list_queues",
        ("AWS::SQS::Queue",),
        lambda page: [url.rpartition("/")[2] for url in page.get("QueueUrls", ())],
    ),
    Inventory(
        "iam",
        "list_roles",
        ("AWS::IAM::Role",),
        lambda page: [each["RoleName"] for each in page["Roles"]],
    ),
    Inventory(
        "scheduler",
        "list_schedules",
        ("AWS::Scheduler::Schedule",),
        lambda page: [each["Name"] for each in page["Schedules"]],
    ),
    Inventory(
        "cloudwatch",
        "describe_alarms",
        ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"),
        lambda page: [
            each["AlarmName"]
            for each in (*page.get("MetricAlarms", ()), *page.get("CompositeAlarms", ()))
        ],
    ),
    Inventory(
        "cloudwatch",
        "list_dashboards",
        ("AWS::CloudWatch::Dashboard",),
        lambda page: [each["DashboardName"] for each in page["DashboardEntries"]],
    ),
)

LISTED = frozenset(each for kind in KINDS for each in kind.types)

PARTS = frozenset(
    {
        *("AWS::IAM::Policy", "AWS::Lambda::Alias", "AWS::Lambda::EventInvokeConfig"),
        *("AWS::Lambda::Version", "AWS::Lambda::Permission", "AWS::SQS::QueuePolicy"),
        "Custom::ShardFleetFirstRun",
    }
)
"""Types of what goes with what it is a part of: a role, a function, a queue."""


def left_behind(account: Account, name: str, made: Mapping[str, str]) -> list[str]:
    """
    Return what is still there of a run, as ``<service>: <name>``, sorted.

    What there is no list for is not known to be gone.

    Args:
        account: where.
        name: of the run.
        made: what its stack had made: types by physical id; a layer's is its version's ARN.

    """
    unlisted = {
        f"{kind}: {made_id}" for made_id, kind in made.items() if kind not in LISTED | PARTS
    }
    known = {_plain(_own_name(each)) for each in made}
    wanted = _plain(name)
    return sorted(
        unlisted.union(
            f"{kind.service}: {found}"
            for kind in KINDS
            for found in _listed(account, kind, name)
            if wanted in _plain(found) or _plain(found) in known
        )
    )


def _listed(account: Account, kind: Inventory, name: str) -> Iterator[str]:
    client = account.client(kind.service)
    more = {"AlarmTypes": ["MetricAlarm", "CompositeAlarm"]} if "alarms" in kind.operation else {}
    try:
        if not client.can_paginate(kind.operation):
            yield from kind.names(getattr(client, kind.operation)(**more))
            return
        for page in client.get_paginator(kind.operation).paginate(**more):
            yield from kind.names(page)
    except ClientError as error:
        # What cannot be looked at is not known to be gone.
        yield f"{kind.operation} was refused, so {name} may have some left: {error}"


def _own_name(physical_id: str) -> str:
    """Return the name within an ARN or a URL."""
    if physical_id.startswith("arn:"):
        parts = physical_id.split(":")
        return parts[6] if len(parts) > 6 else parts[-1]  # noqa: PLR2004 - an ARN's name
    return physical_id.rpartition("/")[2] if "://" in physical_id else physical_id


def _plain(name: str) -> str:
    """Return a name without what services change in it: letters' case, and all but letters."""
    return "".join(each for each in name.lower() if each.isalnum())
