"""What the resources of a template refer to: ARNs, keys and instants that AWS will not take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.instants import instant_fault
from shardfleet_ops.template import arns
from shardfleet_ops.template.arns import ArnKind, arn_fault
from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    listed,
    number,
    spelled,
    variables_of,
)

_FUNCTION, _ROLE = "AWS::Lambda::Function", "AWS::IAM::Role"
# Of what is encrypted; an alias names a key as well as its ARN does.
_NAMED_KEY = replace(arns.KEY, what="a KMS key", resource="(key|alias)/.+")
_ACTIONS = ("AlarmActions", "OKActions", "InsufficientDataActions")
# Type: (property, kind). All of them must be in the stack's region.
_PLACES: dict[str, tuple[tuple[str, ArnKind], ...]] = {
    _FUNCTION: (("KmsKeyArn", arns.KEY), ("Layers", arns.LAYER)),
    "AWS::Logs::LogGroup": (("KmsKeyId", arns.KEY),),
    _ROLE: (("PermissionsBoundary", arns.POLICY),),
}
# Type: (group of properties, property), where a key may also be named without an ARN.
_KEYS = {
    "AWS::DynamoDB::Table": ("SSESpecification", "KMSMasterKeyId"),
    "AWS::Kinesis::Stream": ("StreamEncryption", "KeyId"),
    "AWS::SNS::Topic": ("", "KmsMasterKeyId"),
    "AWS::SQS::Queue": ("", "KmsMasterKeyId"),
    "AWS::StepFunctions::StateMachine": ("EncryptionConfiguration", "KmsKeyId"),
}
_VARIABLES = {
    "SHARDFLEET_STREAM_ARN": arns.STREAM,
    "SHARDFLEET_CONSUMER_ARN": arns.CONSUMER,
    "SHARDFLEET_HANDLER_FUNCTION": arns.FUNCTION,
    "SHARDFLEET_FAILED_TOPIC_ARN": arns.TOPIC,
    "SHARDFLEET_STATE_MACHINE_ARN": arns.MACHINE,
}
# What a right is on, by its action; what a service calls its own things besides may be behind.
_RIGHTS = {
    "dynamodb:GetItem": replace(arns.TABLE, resource=rf"{arns.TABLE.resource}(/.+)?"),
    "kinesis:GetRecords": arns.STREAM,
    "kinesis:PutRecords": arns.STREAM,
    "kinesis:SubscribeToShard": arns.CONSUMER,
    "lambda:InvokeFunction": replace(
        arns.FUNCTION, resource=rf"{arns.FUNCTION.resource}(:[\w*]+)?"
    ),
    "s3:PutObject": arns.BUCKET,
    "sns:Publish": arns.TOPIC,
    "sqs:SendMessage": arns.QUEUE,
}
_ANYWHERE = {
    *("SHARDFLEET_STREAM_ARN", "SHARDFLEET_CONSUMER_ARN"),
    *("kinesis:GetRecords", "kinesis:PutRecords", "kinesis:SubscribeToShard"),
}
# CloudWatch, PutMetricAlarm: what may be told.
_TOLD = {"sns", "lambda", "autoscaling", "automate", "swf", "ssm", "ssm-incidents", "aiops"}
_DAY_MS = 86_400_000
_INSTANT = "SHARDFLEET_INITIAL_TIMESTAMP_MS"
_ALARM_NAMED = re.compile(r"\((?:\\?\")?(arn:[^\"\\)]+)")


def wrong_references(template: Template) -> Iterator[TemplateFault]:
    """I16: an ARN is of what it is meant for, and of the region where only that is looked in."""
    for where, name, arn, kind in _references(template):
        if arn.startswith("arn:aws:") and template.partition not in ("", "aws"):
            continue  # A19 tells of it.
        region = "" if name in _ANYWHERE else template.region
        if fault := arn_fault(arn, kind, region=region):
            found, _, allowed = fault.partition("), ")
            yield TemplateFault(
                certain=True,
                fact="I16",
                where=where,
                found=f"{name}: {found})",
                allowed=allowed.removesuffix(" allowed"),
                remedy="correct the ARN, or make what it names in this region",
            )


def _references(template: Template) -> Iterator[tuple[str, str, str, ArnKind]]:
    """Yield the construct, the property, what is there and what it must be."""
    for kind, places in _PLACES.items():
        for resource in template.resources(kind):
            for name, wanted in places:
                for each in listed(resource.properties.get(name)):
                    yield resource.path, name, spelled(each), wanted
    yield from _keys(template)
    for function in template.resources(_FUNCTION):
        for name, value in variables_of(function).items():
            # A function may be named without an ARN.
            if name in _VARIABLES and ":" in spelled(value):
                yield function.path, name, spelled(value), _VARIABLES[name]
    yield from _alarms(template)
    yield from _rights(template)


def _rights(template: Template) -> Iterator[tuple[str, str, str, ArnKind]]:
    """Yield what a right is on, where one ARN says it; what is meant by a pattern is not judged."""
    for path, statement in _statements(template):
        if statement.get("Effect") == "Allow":
            for action in listed(statement.get("Action")):
                for each in listed(statement.get("Resource")):
                    kind, text = _RIGHTS.get(str(action)), spelled(each)
                    if kind is arns.BUCKET:
                        text = text.partition("/")[0]  # Objects are behind.
                    if kind and text.startswith("arn:") and "*" not in text:
                        yield path, str(action), text, kind


def _keys(template: Template) -> Iterator[tuple[str, str, str, ArnKind]]:
    for kind, (group, name) in _KEYS.items():
        for store in template.resources(kind):
            inside = (store.properties.get(group) or {}) if group else store.properties
            key = spelled(inside.get(name, ""))
            if key.startswith("arn:"):
                yield store.path, name, key, _NAMED_KEY


def _alarms(template: Template) -> Iterator[tuple[str, str, str, ArnKind]]:
    for alarm in template.resources("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"):
        for name in _ACTIONS:
            for each in listed(alarm.properties.get(name)):
                text = spelled(each)
                service = text.split(":")[2:3]
                if text.startswith("arn:") and (service == ["sns"] or not _TOLD & {*service}):
                    yield alarm.path, name, text, arns.TOPIC
        for arn in _ALARM_NAMED.findall(spelled(alarm.properties.get("AlarmRule", ""))):
            yield alarm.path, "AlarmRule", arn, arns.ALARM


def idle_rights(template: Template) -> Iterator[TemplateFault]:
    """I15: a right to use a key is given on the key; on an alias it gives nothing."""
    for path, statement in _statements(template):
        actions = [str(each) for each in listed(statement.get("Action"))]
        if statement.get("Effect") != "Allow" or not any(
            each.startswith("kms:") for each in actions
        ):
            continue
        for each in listed(statement.get("Resource")):
            text = spelled(each)
            if text.startswith("arn:") and ":alias/" in text and ":alias/aws/" not in text:
                yield TemplateFault(
                    certain=True,
                    fact="I15",
                    where=path,
                    found=f"{', '.join(actions)} on the alias {text!r}",
                    allowed="the ARN of a key: a right on an alias is for the calls about aliases",
                    remedy="name the key, or give the right on * with the condition "
                    "kms:ResourceAliases",
                )


def _statements(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    for role in template.resources(_ROLE):
        for policy in listed(role.properties.get("Policies")):
            for each in listed((policy.get("PolicyDocument") or {}).get("Statement")):
                yield role.path, each
    for policy in template.resources("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for each in listed((policy.properties.get("PolicyDocument") or {}).get("Statement")):
            yield policy.path, each


def unlikely_instants(template: Template) -> Iterator[TemplateFault]:
    """K71: an instant is epoch milliseconds, of which Kinesis knows none before it began."""
    for function in template.resources(_FUNCTION):
        at_ms = int(number(variables_of(function).get(_INSTANT)) or 0)
        fault = instant_fault(at_ms) if at_ms else ""
        is_later = 0 < template.read_ms < at_ms - _DAY_MS
        if fault or is_later:
            fault = fault or f"{at_ms} lies more than a day in the future"
            yield TemplateFault(
                certain=is_later,
                fact="K71",
                where=function.path,
                found=f"{_INSTANT}: {fault}",
                allowed="epoch milliseconds: Kinesis begins at the oldest record for what is "
                "earlier, and refuses what lies in the future",
                remedy="write milliseconds, of an instant that is past",
            )
