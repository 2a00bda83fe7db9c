"""
The bucket and the stack of a run: made, deployed anew, destroyed, and what is left of it.

CloudFormation is called with the template that the repository's own app gives, and the assets lie
in the run's own bucket. The CDK's command line would do the same through its bootstrap stack, which
an account need not have, and which would keep what was uploaded.

Afterwards each service is asked for all that it has: found is what bears the run's name, in
whichever spelling, and what the stack had made under another name (a layer's has nothing of the
stack's).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from botocore.config import Config
from botocore.exceptions import ClientError

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_local.acceptance.plan import DESTROY_MS, TAG, AcceptanceSize, bucket_name
from shardfleet_local.aws.deploy import AT_ONCE, DeployWait, StackOutputs, deploy
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.rig.fleet import needing_the_cdk
from shardfleet_local.rig.ledger import PROBE_FOLDER
from shardfleet_local.rig.probe.s3_probe import BUCKET_VARIABLE, HUNG, NOTES, VERSION_VARIABLE

ON_AWS = DeployWait(limit_s=600.0, look_every_s=5.0)
_EMPTIED_ROUNDS = 5


class NotDestroyed(ShardfleetError):
    """Something of the run could not be removed; the message says what, and why."""


@dataclass(frozen=True, slots=True)
class AcceptanceAccount:
    """
    An account to run in: the embedded AWS, or the one that the environment's credentials are of.

    Attributes:
        account_id: 12 digits.
        region: of everything.
        variables: what another process needs in its environment to use it.
        make: makes a boto3 client, which takes up to a second.

    """

    account_id: str
    region: str
    variables: Mapping[str, str]
    make: Callable[..., Any]
    _made: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def embedded(cls, aws: EmbeddedAws) -> Self:
        """Return the account of an embedded AWS."""
        return cls(aws.account_id, aws.region, aws.environment(), aws.client)

    @classmethod
    def of_environment(cls) -> Self:
        """
        Ask AWS whose account it is; this is a read.

        Raises:
            ConfigurationError: there is no region.

        """
        import boto3  # noqa: PLC0415 - with its session come the credentials

        session = boto3.session.Session()
        region = session.region_name
        if not region:
            raise ConfigurationError(
                "no region: set AWS_REGION, or name one in your AWS configuration; --local needs "
                "neither region nor account"
            )
        account_id = session.client("sts").get_caller_identity()["Account"]
        variables = {**os.environ, "AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        return cls(account_id, region, variables, session.client)

    def client(self, service: str, config: Config | None = None) -> Any:
        """Return a client, which threads may share unless it is of a config of its own."""
        if config is not None:
            return self.make(service, config=config)
        if service not in self._made:
            self._made[service] = self.make(service)
        return self._made[service]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """
    What bears the name of a run.

    Attributes:
        account: where.
        name: of the stack, and the beginning of the bucket's.
        embedded: whether the account is the embedded AWS.

    """

    account: AcceptanceAccount
    name: str
    embedded: bool

    @property
    def bucket(self) -> str:
        """The bucket."""
        return bucket_name(
            self.name, account_id=self.account.account_id, region=self.account.region
        )

    @property
    def wait(self) -> DeployWait:
        """How patiently stacks are waited for."""
        return AT_ONCE if self.embedded else ON_AWS

    def make_bucket(self) -> None:
        """Make the bucket, tagged; nobody but this account can have access to it."""
        client, region = self.account.client("s3"), self.account.region
        where = {} if region == "us-east-1" else {"LocationConstraint": region}
        asked = {"CreateBucketConfiguration": where} if where else {}
        client.create_bucket(Bucket=self.bucket, **asked)
        tags = [{"Key": TAG, "Value": self.name}]
        client.put_bucket_tagging(Bucket=self.bucket, Tagging={"TagSet": tags})

    def deploy(self, size: AcceptanceSize, folder: Path, *, version: str) -> StackOutputs:
        """
        Synthesize the stack and create or update it.

        Args:
            size: of the fleet.
            folder: for what is synthesized.
            version: what the handler notes as its version.

        Raises:
            ConfigurationError: the CDK or Node is missing.
            DeploymentFailed: the stack did not settle.

        """
        with needing_the_cdk():
            from shardfleet_cdk.acceptance import synthesize_acceptance  # noqa: PLC0415 - Node
        handler = folder / "handler"
        if not handler.exists():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(PROBE_FOLDER, handler / "probe", ignore=ignored)
        environment = {BUCKET_VARIABLE: self.bucket, VERSION_VARIABLE: version}
        assembly = synthesize_acceptance(
            folder / f"cdk.out-{version}",
            name=self.name,
            bucket=self.bucket,
            writes=(f"{NOTES}*", f"{HUNG}*"),
            context=size.context(str(handler), environment),
            bundle=not self.embedded,
        )
        tags = {TAG: self.name}
        return deploy(assembly, self.name, self.account, tags=tags, wait=self.wait)

    def resources(self) -> dict[str, str]:
        """Return the physical ids of what the stack has made, and their types; none without it."""
        client = self.account.client("cloudformation")
        try:
            pages = client.get_paginator("list_stack_resources").paginate(StackName=self.name)
            found = [each for page in pages for each in page["StackResourceSummaries"]]
        except ClientError:
            return {}
        return {
            each["PhysicalResourceId"]: each["ResourceType"]
            for each in found
            if each.get("PhysicalResourceId")
        }

    def destroy(self, say: Callable[[str], None] = lambda _: None) -> None:
        """
        Remove the stack and then the bucket; what is not there is passed over.

        Raises:
            NotDestroyed: the stack is not this run's, or it or the bucket stays.

        """
        stack = self._stack()
        if stack is not None:
            say(f"deleting the stack {self.name}")
            self._delete_stack(stack)
        client = self.account.client("s3")
        try:
            client.head_bucket(Bucket=self.bucket)
        except ClientError:
            return
        say("emptying and deleting the bucket")
        refused: ClientError | None = None
        for _ in range(_EMPTIED_ROUNDS):
            _empty(client, self.bucket)
            try:
                client.delete_bucket(Bucket=self.bucket)
            except ClientError as error:
                refused = error  # A last invocation may have noted something meanwhile.
                time.sleep(self.wait.look_every_s)
            else:
                return
        raise NotDestroyed(f"bucket {self.bucket}: {refused}")

    def _delete_stack(self, stack: Mapping[str, Any]) -> None:
        tags = {each["Key"]: each["Value"] for each in stack.get("Tags", ())}
        if tags.get(TAG) != self.name:
            raise NotDestroyed(
                f"stack {self.name}: it has no tag {TAG}={self.name}, so it was not made by "
                "shardfleet acceptance; delete it yourself if it is to go"
            )
        deadline = time.monotonic() + min(self.wait.limit_s, DESTROY_MS / 1000)
        is_asked = False
        while (now := self._stack()) is not None:
            status = now["StackStatus"]
            # An update must have ended; a creation is cut off.
            if not is_asked and not status.startswith("UPDATE_IN_PROGRESS"):
                self.account.client("cloudformation").delete_stack(StackName=self.name)
                is_asked = True
            elif status == "DELETE_FAILED" or time.monotonic() > deadline:
                why = now.get("StackStatusReason", "no reason given")
                raise NotDestroyed(f"stack {self.name} is {status}: {why}")
            time.sleep(self.wait.look_every_s)

    def _stack(self) -> dict[str, Any] | None:
        """Look for the stack; a deleted one is not there."""
        try:
            found = self.account.client("cloudformation").describe_stacks(StackName=self.name)
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        stacks: list[dict[str, Any]] = found["Stacks"]
        return next((s for s in stacks if s["StackStatus"] != "DELETE_COMPLETE"), None)


def _empty(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        keys = [{"Key": each["Key"]} for each in page.get("Contents", ())]
        if keys:
            # It answers 200 also where it has deleted nothing: the bucket's deletion tells.
            client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})


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


def left_behind(account: AcceptanceAccount, name: str, made: Mapping[str, str]) -> list[str]:
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


def _listed(account: AcceptanceAccount, kind: Inventory, name: str) -> Iterator[str]:
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
