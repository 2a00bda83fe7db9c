"""
CloudFormation in the embedded AWS: the resource types that ministack lacks or does elsewhere.

A provisioner's `create(logical_id, properties, stack_name)` returns the physical id (what Ref
gives) and the attributes (what GetAtt gives); `update` and `delete` take the physical id first.
"""

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from ministack.services import cloudwatch, dynamodb
from ministack.services.cloudformation import provisioners

from shardfleet_local.aws import kinesis_service
from shardfleet_local.aws.alarms import as_metric_math
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings
from shardfleet_local.kinesis.engine import RATE_TEXT
from shardfleet_local.kinesis.errors import KinesisError

Properties = Mapping[str, Any]
Created = tuple[str, dict[str, Any]]

ON_DEMAND = "ON_DEMAND"
CALLS_MOST, CALL_AGAIN_S = 20, 0.1  # ours: with all quotas full, the next call is a second away


def create_stream(logical_id: str, properties: Properties, stack_name: str) -> Created:
    """Create an AWS::Kinesis::Stream."""
    name = properties.get("Name") or provisioners._physical_name(
        stack_name,
        logical_id,
        max_len=128,  # fact K94
    )
    request: dict[str, Any] = {"StreamName": name}
    if "StreamModeDetails" in properties:
        request["StreamModeDetails"] = properties["StreamModeDetails"]
    if _mode(properties) != ON_DEMAND:
        request["ShardCount"] = int(properties.get("ShardCount") or 1)
    _call("CreateStream", request)
    _set_retention(name, _retention_hours(properties))
    _set_encryption(name, {}, properties)
    _set_tags(name, {}, properties)
    return name, {"Arn": _stream(name)["StreamARN"]}


def update_stream(
    physical_id: str, old: Properties, new: Properties, *, stack_name: str, logical_id: str
) -> Created:
    """Update an AWS::Kinesis::Stream in place; another Name makes another stream."""
    if new.get("Name", physical_id) != physical_id:
        return create_stream(logical_id, new, stack_name)
    arn = _stream(physical_id)["StreamARN"]
    if _mode(old) != _mode(new):
        mode = {"StreamMode": _mode(new)}
        _call("UpdateStreamMode", {"StreamARN": arn, "StreamModeDetails": mode})
    wanted = int(new.get("ShardCount") or 1)
    if _mode(new) != ON_DEMAND and wanted != _stream(physical_id)["OpenShardCount"]:
        _call(
            "UpdateShardCount",
            {
                "StreamName": physical_id,
                "TargetShardCount": wanted,
                "ScalingType": "UNIFORM_SCALING",
            },
        )
    _set_retention(physical_id, _retention_hours(new))
    _set_encryption(physical_id, old, new)
    _set_tags(physical_id, old, new)
    return physical_id, {"Arn": arn}


def delete_stream(physical_id: str, _: Properties) -> None:
    """Delete an AWS::Kinesis::Stream with its consumers; one that is gone is fine."""
    _call_unless_gone("DeleteStream", {"StreamName": physical_id, "EnforceConsumerDeletion": True})


def create_consumer(logical_id: str, properties: Properties, stack_name: str) -> Created:
    """Create an AWS::Kinesis::StreamConsumer."""
    name = properties.get("ConsumerName") or provisioners._physical_name(
        stack_name,
        logical_id,
        max_len=128,  # fact K94
    )
    request = {"StreamARN": properties["StreamARN"], "ConsumerName": name}
    consumer = _call("RegisterStreamConsumer", request)["Consumer"]
    return consumer["ConsumerARN"], {**consumer, "StreamARN": properties["StreamARN"]}


def update_consumer(
    _: str, __: Properties, new: Properties, *, stack_name: str, logical_id: str
) -> Created:
    """Register the consumer under its new name or stream: every property needs replacement."""
    return create_consumer(logical_id, new, stack_name)


def delete_consumer(physical_id: str, _: Properties) -> None:
    """Deregister an AWS::Kinesis::StreamConsumer; one that is gone is fine."""
    _call_unless_gone("DeregisterStreamConsumer", {"ConsumerARN": physical_id})


def create_table(logical_id: str, properties: Properties, stack_name: str) -> Created:
    """
    Create an AWS::DynamoDB::Table as CreateTable does, which fills in what nobody said.

    ministack keeps the properties as they are: no index had a status, for which a KCL waits.
    """
    name = properties.get("TableName") or provisioners._physical_name(
        stack_name,
        logical_id,
        max_len=255,  # fact D33
    )
    # The request has the properties' names, but for the encryption's; it is filled in, in place.
    request = {**copy.deepcopy(dict(properties)), "TableName": name}
    for member in ("ProvisionedThroughput", "OnDemandThroughput"):
        if member in request:
            request[member] = {unit: int(value) for unit, value in request[member].items()}
    if "DeletionProtectionEnabled" in request:
        request["DeletionProtectionEnabled"] = _is_true(request["DeletionProtectionEnabled"])
    if encryption := request.get("SSESpecification"):
        encryption["Enabled"] = _is_true(encryption.pop("SSEEnabled", False))
    if stream := request.get("StreamSpecification"):
        stream["StreamEnabled"] = True
    status, _, body = dynamodb._create_table(request)
    if status != HTTPStatus.OK:
        raise ValueError(json.loads(body).get("message", "CreateTable failed"))  # fact D33
    return name, provisioners._ddb_attrs(dynamodb._tables[name])


def create_composite_alarm(logical_id: str, properties: Properties, stack_name: str) -> Created:
    """Create an AWS::CloudWatch::CompositeAlarm."""
    name = properties.get("AlarmName") or provisioners._physical_name(
        stack_name,
        logical_id,
        max_len=255,  # fact C09
    )
    request = {
        **properties,
        "AlarmName": name,
        "ActionsEnabled": _is_true(properties.get("ActionsEnabled", True)),
    }
    is_cbor, is_json = False, True
    status, _, body = cloudwatch._put_composite_alarm({}, request, is_cbor, is_json)
    if status != HTTPStatus.OK:
        raise ValueError(json.loads(body).get("message", "PutCompositeAlarm failed"))  # fact C09
    return name, {"Arn": cloudwatch._composite_alarms[name]["AlarmArn"]}


def update_composite_alarm(
    physical_id: str, _: Properties, new: Properties, *, stack_name: str, logical_id: str
) -> Created:
    """Update an AWS::CloudWatch::CompositeAlarm; it keeps its state."""
    named = {"AlarmName": physical_id, **new}
    return create_composite_alarm(logical_id, named, stack_name)


def delete_composite_alarm(physical_id: str, _: Properties) -> None:
    """Delete an AWS::CloudWatch::CompositeAlarm."""
    cloudwatch._composite_alarms.pop(physical_id, None)


def _call(operation: str, request: dict[str, Any]) -> dict[str, Any]:
    """Call the engine, and again where an account's rate of calls is exceeded, as on AWS."""
    for _ in range(CALLS_MOST - 1):
        try:
            return kinesis_service.engine().call(operation, request)
        except KinesisError as error:
            if error.code != "LimitExceededException" or RATE_TEXT not in str(error):
                raise
            time.sleep(CALL_AGAIN_S)
    return kinesis_service.engine().call(operation, request)


def _call_unless_gone(operation: str, request: dict[str, Any]) -> None:
    try:
        _call(operation, request)
    except KinesisError as error:
        if error.code != "ResourceNotFoundException":
            raise


def _stream(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _call("DescribeStreamSummary", {"StreamName": name})[
        "StreamDescriptionSummary"
    ]
    return found


def _mode(properties: Properties) -> str:
    return str((properties.get("StreamModeDetails") or {}).get("StreamMode", "PROVISIONED"))


def _retention_hours(properties: Properties) -> int:
    return int(properties.get("RetentionPeriodHours") or 24)


def _set_retention(name: str, hours: int) -> None:
    now = _stream(name)["RetentionPeriodHours"]
    if hours != now:
        verb = "Increase" if hours > now else "Decrease"
        request = {"StreamName": name, "RetentionPeriodHours": hours}
        _call(f"{verb}StreamRetentionPeriod", request)


def _set_encryption(name: str, old: Properties, new: Properties) -> None:
    before, after = old.get("StreamEncryption"), new.get("StreamEncryption")
    if before == after:
        return
    if before:
        _call("StopStreamEncryption", {"StreamName": name, **before})
    if after:
        _call("StartStreamEncryption", {"StreamName": name, **after})


def _set_tags(name: str, old: Properties, new: Properties) -> None:
    before, after = _tags(old.get("Tags")), _tags(new.get("Tags"))
    gone = [key for key in before if key not in after]
    if gone:
        _call("RemoveTagsFromStream", {"StreamName": name, "TagKeys": gone})
    if after:
        _call("AddTagsToStream", {"StreamName": name, "Tags": after})


def _tags(tags: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: str(tag.get("Value", "")) for tag in tags or []}


def _provisioner(
    create: Callable[..., Created], update: Callable[..., Created], delete: Callable[..., None]
) -> dict[str, Any]:
    return {
        "create": create,
        "update": lambda physical_id, old, new, stack_name, logical_id: update(
            physical_id, old, new, stack_name=stack_name, logical_id=logical_id
        ),
        "update_with_logical_id": True,
        "delete": delete,
    }


def _register_types(_: ServerSettings) -> None:
    provisioners._RESOURCE_HANDLERS.update(
        {
            "AWS::Kinesis::Stream": _provisioner(create_stream, update_stream, delete_stream),
            "AWS::Kinesis::StreamConsumer": _provisioner(
                create_consumer, update_consumer, delete_consumer
            ),
            "AWS::CloudWatch::CompositeAlarm": _provisioner(
                create_composite_alarm, update_composite_alarm, delete_composite_alarm
            ),
        }
    )


def _make_tables_by_the_api(_: ServerSettings) -> None:
    # A GlobalTable is made through this name, a Table through the registry.
    provisioners._ddb_create = create_table
    provisioners._RESOURCE_HANDLERS["AWS::DynamoDB::Table"]["create"] = create_table


def _take_metric_math_alarms(_: ServerSettings) -> None:
    stock = provisioners._cw_metric_alarm_record

    def record(name: str, properties: Properties) -> dict[str, Any]:
        metrics = properties.get("Metrics")
        if not metrics:
            plain: dict[str, Any] = stock(name, properties)
            return plain
        single = {**properties, "Metrics": None, "MetricName": "-", "Namespace": "-"}
        alarm: dict[str, Any] = stock(name, single)
        as_metric_math(alarm, [_typed(metric) for metric in metrics])
        return alarm

    provisioners._cw_metric_alarm_record = record


def _is_true(value: object) -> bool:
    """Return whether a value is true, which a template may write as a string."""
    return str(value).lower() == "true"


def _typed(metric: Mapping[str, Any]) -> dict[str, Any]:
    """Give numbers and truth values their types: a template may write them as strings."""
    typed = dict(metric)
    if "ReturnData" in typed:
        typed["ReturnData"] = _is_true(typed["ReturnData"])
    if "Period" in typed:
        typed["Period"] = int(typed["Period"])
    if "MetricStat" in typed:
        typed["MetricStat"] = {**typed["MetricStat"], "Period": int(typed["MetricStat"]["Period"])}
    return typed


_PROVISIONERS = "ministack.services.cloudformation.provisioners:"

PATCHES = (
    Patch(
        gap="AWS::Kinesis::Stream is made in ministack's own Kinesis; StreamConsumer and "
        "CompositeAlarm are unknown types",
        touches=(
            _PROVISIONERS + "_RESOURCE_HANDLERS",
            _PROVISIONERS + "_physical_name",
            "ministack.services.cloudwatch:_put_composite_alarm",
            "ministack.services.cloudwatch:_composite_alarms",
        ),
        apply=_register_types,
    ),
    Patch(
        gap="A table of a template is kept as it was written: its index has no status",
        touches=(
            _PROVISIONERS + "_ddb_create",
            _PROVISIONERS + "_ddb_attrs",
            "ministack.services.dynamodb:_create_table",
            "ministack.services.dynamodb:_tables",
        ),
        apply=_make_tables_by_the_api,
    ),
    Patch(
        gap="An alarm over metric math is refused in a template",
        touches=(_PROVISIONERS + "_cw_metric_alarm_record",),
        apply=_take_metric_math_alarms,
    ),
)
"""What this module corrects in ministack."""
