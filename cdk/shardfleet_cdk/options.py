"""Options of the construct, in groups; every default is written where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs

from shardfleet.errors import ConfigurationError
from shardfleet_ops.template.limits import RESERVED_VARIABLES

LAMBDA_SECONDS_MOST = 900  # Lambda's quota for a synchronous invocation.
LAMBDA_MEMORY_MB = (128, 10_240)  # Lambda's quota.
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]+")  # Lambda's rule for environment variables.
# A standard execution ends at 25,000 history events. The dearest loop has 20 (see
# worker_definition.py), so 1,200 loops always fit.
LOOPS_MOST = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """
    Records are pushed (enhanced fan-out): sooner, and whoever else reads the stream.

    Attributes:
        consumer_arn: of a registered consumer of the stream, which no other fleet reads by; None:
            one is made, named as the fleet, and removed with the stack.

    """

    consumer_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """
    The worker function, in which the user's handler runs.

    Attributes:
        memory_mb: CPU follows memory; 512 suits eight half-full shards.
        timeout_s: how long one invocation may last; the turn inside is shorter by
            ``turn_margin_ms``.
        environment: for the user's handler; names beginning ``SHARDFLEET_`` and those
            that are Lambda's own are refused.
        layers: further layers for the user's handler.
        vpc: run inside a VPC (default: none). It then needs endpoints or a NAT for Kinesis,
            DynamoDB, SQS and S3.
        subnets: which subnets of the VPC (default: the private ones).
        security_groups: default: a new one.
        reserved_concurrency: default: none reserved (a small account cannot, hazard H13).
        max_loops: invocations of one execution before it continues as new.

    """

    memory_mb: int = 512
    timeout_s: int = LAMBDA_SECONDS_MOST
    environment: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[lambda_.ILayerVersion] = ()
    vpc: ec2.IVpc | None = None
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] = ()
    reserved_concurrency: int | None = None
    max_loops: int = 1_000

    def __post_init__(self) -> None:
        """Refuse what Lambda or Step Functions would refuse later."""
        problems = [
            *_outside("worker memory_mb", self.memory_mb, LAMBDA_MEMORY_MB),
            *_outside("worker timeout_s", self.timeout_s, (30, LAMBDA_SECONDS_MOST)),
            *_outside("worker max_loops", self.max_loops, (1, LOOPS_MOST)),
            *(
                f"worker environment {name}: names beginning SHARDFLEET_ are shardfleet's own; "
                "set fleet options through `config`"
                for name in self.environment
                if name.startswith("SHARDFLEET_")
            ),
            *(
                f"worker environment {name}: the name is Lambda's own; choose another"
                for name in self.environment
                if name in RESERVED_VARIABLES
            ),
            *(
                f"worker environment {name!r}: a letter, then letters, digits and underscores, "
                "2 or more in all"
                for name in self.environment
                if not _VARIABLE.fullmatch(name) and name not in RESERVED_VARIABLES
            ),
        ]
        if self.vpc is None and (self.subnets is not None or self.security_groups):
            problems.append("worker subnets and security_groups: only together with `vpc`")
        _refuse(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """
    The lease manager function.

    Attributes:
        memory_mb: 256 suits some thousands of leases.
        timeout_s: one invocation; it runs for ``manager_run_ms`` while anything is awake, and up to
            60 s to wake sleeping shards in time (``max_wake_ms``).
        reserved_concurrency: default: none reserved; a turn lock excludes overlap (hazard H13).

    """

    memory_mb: int = 256
    timeout_s: int = 75
    reserved_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Refuse what Lambda would refuse later."""
        _refuse(
            [
                *_outside("manager memory_mb", self.memory_mb, LAMBDA_MEMORY_MB),
                *_outside("manager timeout_s", self.timeout_s, (10, LAMBDA_SECONDS_MOST)),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTables:
    """
    Where the fleet keeps its state, and what failed records go to.

    Attributes:
        lease_table: an existing lease table, for example a KCL application's, with the index
            ``LeaseOwnerToLeaseKeyIndex`` (default: a new one).
        failed_queue: for ``on_exhausted`` ``sqs`` (default: a new one).
        failed_bucket: for ``on_exhausted`` ``s3`` and ``sns``, and for records that SQS cannot hold
            (default: a new one); with tumbling windows also for states that an item of DynamoDB has
            no room for, whatever ``on_exhausted`` is.
        failed_topic: for ``on_exhausted`` ``sns`` (default: a new one); no FIFO topic.

    """

    lease_table: ddb.ITable | None = None
    failed_queue: sqs.IQueue | None = None
    failed_bucket: s3.IBucket | None = None
    failed_topic: sns.ITopic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """
    How the fleet is kept.

    Attributes:
        removal_policy: of tables, queues, buckets and logs when the stack goes. The default keeps
            them, but for those that a deploy made which then failed.
        deletion_protection: nobody can delete the two tables before it is switched off, not even
            a first deploy that fails (default: on, unless `removal_policy` destroys).
        encryption_key: a customer key for tables, queues, logs, environment and state machine
            (default: keys owned by AWS). Its policy must let this account's IAM decide, as a
            key made by the CDK does.
        permissions_boundary: for every role of the fleet (default: none).
        log_retention: of all logs.
        tracing: X-Ray in functions and state machine (default: off, it is charged).

    """

    removal_policy: RemovalPolicy = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
    deletion_protection: bool | None = None
    encryption_key: kms.IKey | None = None
    permissions_boundary: iam.IManagedPolicy | None = None
    log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    tracing: bool = False

    @property
    def protects_tables(self) -> bool:
        """Whether the two tables are protected from deletion."""
        if self.deletion_protection is None:
            return self.removal_policy is not RemovalPolicy.DESTROY
        return self.deletion_protection


def _outside(name: str, found: int, allowed: tuple[int, int]) -> list[str]:
    low, high = allowed
    return [] if low <= found <= high else [f"{name}: {found} found, {low} to {high} allowed"]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigurationError("; ".join(problems))
