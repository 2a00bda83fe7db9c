"""
What the options refer to by an ARN, a key or an instant, looked at before it leaves synth.

Of a value that is known only at the deploy, the parts that are known are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aws_cdk import Stack, Token
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.options import FanOut, FleetTables, Operations, WorkerOptions
from shardfleet_ops.template import arns
from shardfleet_ops.template.reading import spelled

_AWS_KEY = "alias/aws/"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """
    One thing that an option refers to.

    Attributes:
        option: as the user writes it.
        arn: may hold tokens.
        kind: what it must be.
        own_region: whether it must be in the region of the stack.
        own_account: whether it must be of the stack's account.
        region_of: another ARN, in whose region it must be.
        consumer_of: the ARN of the stream that it must be a consumer of.

    """

    option: str
    arn: str
    kind: arns.ArnKind
    own_region: bool = True
    own_account: bool = False
    region_of: str = ""
    consumer_of: str = ""


def references_of_fleet(
    stream: kinesis.IStream,
    function: lambda_.IFunction | None,
    *,
    reading: FanOut | None,
    worker: WorkerOptions,
    tables: FleetTables,
    operations: Operations,
) -> Iterator[Reference]:
    """Yield what the options of a fleet refer to, but for those of its monitoring."""
    yield from _of_stream("stream", stream)
    if reading and reading.consumer_arn is not None:
        yield Reference(
            option="reading.consumer_arn",
            arn=reading.consumer_arn,
            kind=arns.CONSUMER,
            own_region=False,
            consumer_of=stream.stream_arn,
        )
    if function:
        yield Reference(option="handler", arn=function.function_arn, kind=arns.FUNCTION)
    if reading and reading.consumer_arn:
        option, arn = "reading.consumer_arn", reading.consumer_arn
        of = stream.stream_arn
        yield Reference(option=option, arn=arn, kind=arns.CONSUMER, own_region=False, region_of=of)
    for layer in worker.layers:
        yield Reference(option="worker.layers", arn=layer.layer_version_arn, kind=arns.LAYER)
    if table := tables.lease_table:
        option = "tables.lease_table"
        # The fleet asks for it by its name.
        yield Reference(option=option, arn=table.table_arn, kind=arns.TABLE, own_account=True)
        yield from _of_key(option, table.encryption_key)
    if queue := tables.failed_queue:
        yield Reference(option="tables.failed_queue", arn=queue.queue_arn, kind=arns.QUEUE)
        yield from _of_key("tables.failed_queue", queue.encryption_master_key)
    yield from _of_bucket("tables.failed_bucket", tables.failed_bucket)
    yield from of_topics("tables.failed_topic", [tables.failed_topic])
    if topic := tables.failed_topic:
        yield from _of_key("tables.failed_topic", topic.master_key)
    yield from references_of_operations(operations)


def references_of_operations(operations: Operations) -> Iterator[Reference]:
    """Yield what the options of keeping refer to."""
    if key := operations.encryption_key:
        yield _key("operations.encryption_key", key)
    if boundary := operations.permissions_boundary:
        arn = boundary.managed_policy_arn
        option = "operations.permissions_boundary"
        yield Reference(option=option, arn=arn, kind=arns.POLICY, own_account=True)


def references_of_pipeline(
    *,
    streams: dict[str, kinesis.IStream | None],
    buckets: dict[str, s3.IBucket | None],
    operations: Operations,
) -> Iterator[Reference]:
    """Yield what the options of a Spark pipeline refer to, but for its alarms."""
    for option, stream in streams.items():
        if stream:
            yield from _of_stream(option, stream)
    for option, bucket in buckets.items():
        yield from _of_bucket(option, bucket)
    yield from references_of_operations(operations)


def of_topics(option: str, topics: Iterable[sns.ITopic | None]) -> Iterator[Reference]:
    """Yield what is told: SNS and CloudWatch take topics of their own region only."""
    for topic in topics:
        if topic:
            yield Reference(option=option, arn=topic.topic_arn, kind=arns.TOPIC)


def of_alarm(option: str, alarm: cw.IAlarm | None) -> Iterator[Reference]:
    """Yield the alarm that a rule names: of the same region and account."""
    if alarm:
        yield Reference(option=option, arn=alarm.alarm_arn, kind=arns.ALARM, own_account=True)


def refuse_wrong_references(scope: Construct, references: Iterable[Reference]) -> None:
    """
    Refuse what AWS will refuse, or never match, in the stack of a construct.

    Raises:
        ConfigurationError: names each option, what was found and what is allowed.

    """
    stack = Stack.of(scope)
    known = {
        f"<AWS::{name}>": value
        for name, value in (("Region", stack.region), ("AccountId", stack.account))
        if not Token.is_unresolved(value)
    }

    def text_of(value: Any) -> str:
        text = spelled(stack.resolve(value))
        for name, found in known.items():
            text = text.replace(name, found)
        return text

    region, account = known.get("<AWS::Region>", ""), known.get("<AWS::AccountId>", "")
    problems = [f"region: {fault}"] if (fault := arns.region_fault(region)) and region else []
    for each in references:
        there = arns.region_in(text_of(each.region_of)) if each.region_of else ""
        fault = arns.arn_fault(
            text_of(each.arn),
            each.kind,
            region=there or (region if each.own_region else ""),
            account=account if each.own_account else "",
        )
        if not fault and each.consumer_of:
            fault = arns.consumer_fault(text_of(each.arn), text_of(each.consumer_of))
        if fault:
            problems.append(f"{each.option}: {fault}")
    if problems:
        raise ConfigurationError("; ".join(problems))


def refuse_future(option: str, at_ms: int, *, now_ms: int) -> None:
    """
    Refuse an instant that is not past when the fleet is deployed, within a day of its synthesis.

    Raises:
        ConfigurationError: Kinesis refuses to read from an instant in the future.

    """
    if at_ms > now_ms + _DAY_MS:
        raise ConfigurationError(
            f"{option}: {at_ms} found, at most {now_ms + _DAY_MS} allowed, a day from now: Kinesis "
            "refuses an instant in the future"
        )


def is_alias(key: object) -> bool:
    """Return whether a key is known by an alias: a right on that gives nothing."""
    return hasattr(key, "alias_name")


def _of_stream(option: str, stream: kinesis.IStream) -> Iterator[Reference]:
    arn = stream.stream_arn
    yield Reference(option=option, arn=arn, kind=arns.STREAM, own_region=False)
    if key := stream.encryption_key:
        yield _key(f"{option}'s encryption_key", key, region_of=arn)


def _of_bucket(option: str, bucket: s3.IBucket | None) -> Iterator[Reference]:
    if bucket:
        yield Reference(option=option, arn=bucket.bucket_arn, kind=arns.BUCKET)
        if key := bucket.encryption_key:  # In the bucket's region, which its ARN does not name.
            yield _key(f"{option}'s encryption_key", key, own_region=False)


def _of_key(option: str, key: kms.IKey | None) -> Iterator[Reference]:
    if key:
        yield _key(f"{option}'s encryption_key", key)


def _key(option: str, key: kms.IKey, *, own_region: bool = True, region_of: str = "") -> Reference:
    arn = key.key_arn
    alias = getattr(key, "alias_name", "")
    if alias and Token.is_unresolved(alias):  # One that is made here: its ARN does not tell.
        arn = f"arn:aws:kms:<AWS::Region>:<AWS::AccountId>:alias/{key.node.id}"
    return Reference(
        option=option, arn=arn, kind=arns.KEY, own_region=own_region, region_of=region_of
    )
