"""Whatever botocore's model of Kinesis forbids the engine refuses, member by member."""

import botocore.session
import pytest

from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import OPERATIONS, KinesisEngine
from shardfleet_local.kinesis.errors import KinesisError

MODEL = botocore.session.get_session().get_service_model("kinesis")
ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
# A request that is served, of what each operation demands.
VALID = {
    "AdjacentShardToMerge": SECOND,
    "ConsumerARN": f"{ARN}/consumer/c:1800000000",
    "ConsumerName": "new",
    "Data": "",
    "EncryptionType": "KMS",
    "KeyId": "k",
    "MaxRecordSizeInKiB": 1024,
    "NewStartingHashKey": "10",
    "PartitionKey": "k",
    "Policy": "{}",
    "Records": [{"PartitionKey": "k", "Data": ""}],
    "ResourceARN": ARN,
    "RetentionPeriodHours": 24,
    "ScalingType": "UNIFORM_SCALING",
    "ShardId": FIRST,
    "ShardIteratorType": "TRIM_HORIZON",
    "ShardLevelMetrics": ["ALL"],
    "ShardToMerge": FIRST,
    "ShardToSplit": FIRST,
    "StreamARN": ARN,
    "StreamModeDetails": {"StreamMode": "PROVISIONED"},
    "StreamName": "s",
    "TagKeys": ["a"],
    "Tags": {"a": "b"},
    "TargetShardCount": 2,
}
# A policy's text is not looked at here; AWS reads it.
UNCHECKED = {("PutResourcePolicy", "Policy")}
MUCH = 1 << 20  # A value of more is not built for a test.
REFUSALS = {"ValidationException", "SerializationException", "InvalidArgumentException"}


def of_size(type_name, size):
    """Return a value of that length, or that number itself."""
    if type_name == "string":
        return "x" * size
    if type_name == "list":
        return [f"x{number}" for number in range(size)]
    return {f"k{number}": "v" for number in range(size)} if type_name == "map" else size


def forbidden(shape):
    """Return values that break a member's type, length, range, pattern or set of values."""
    limits, is_number = shape.metadata, shape.type_name in {"integer", "long"}
    found = [5 if shape.type_name == "string" else "yesterday"]
    if limits.get("max", MUCH) < MUCH or (is_number and "max" in limits):
        found.append(of_size(shape.type_name, limits["max"] + 1))
    if limits.get("min") or (is_number and "min" in limits):
        found.append(of_size(shape.type_name, limits["min"] - 1))
    if "enum" in limits or "pattern" in limits:
        found.append("é !")
    return found


def cases():
    for operation in sorted(OPERATIONS):
        shape = MODEL.operation_model(operation).input_shape
        for member, of in shape.members.items() if shape else ():
            if (operation, member) in UNCHECKED:
                continue
            for value in forbidden(of):
                yield pytest.param(
                    operation, member, value, id=f"{operation}-{member}-{value!r:.20}"
                )


@pytest.fixture(scope="module")
def request_of():
    """Return a function of an operation that gives an engine's call and a request it serves."""

    def make(operation):
        engine = KinesisEngine(AccountSettings(quotas=False), clock=lambda: 1_800_000_000.0)
        engine.call("CreateStream", {"StreamName": "s", "ShardCount": 2})
        engine.call("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"})
        engine.call("PutResourcePolicy", {"ResourceARN": ARN, "Policy": "{}"})
        shape = MODEL.operation_model(operation).input_shape
        request = {name: VALID[name] for name in shape.required_members if name in VALID}
        if operation == "GetRecords":
            at = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
            request["ShardIterator"] = engine.call("GetShardIterator", at)["ShardIterator"]
        elif operation == "CreateStream":
            request |= {"StreamName": "new", "ShardCount": 1}
        elif operation == "DeleteStream":
            request |= {"StreamName": "s", "EnforceConsumerDeletion": True}
        elif operation in {"DescribeStreamConsumer", "DeregisterStreamConsumer"}:
            request |= {"StreamARN": ARN, "ConsumerName": "c"}
        elif "StreamName" in shape.members:
            request["StreamName"] = "s"
        elif operation == "UpdateMaxRecordSize":
            request["StreamARN"] = ARN
        if operation == "PutRecord":
            request["PartitionKey"] = "k"
        return engine, request

    return make


@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - {"DescribeLimits"}))
def test_what_the_cases_begin_with_is_served(request_of, operation):
    engine, request = request_of(operation)
    if operation != "UpdateStreamMode":  # ON_DEMAND is left as it is: the mode is what is changed.
        engine.call(operation, request)


@pytest.mark.parametrize(("operation", "member", "value"), list(cases()))
def test_what_the_model_forbids_is_refused(request_of, operation, member, value):
    engine, request = request_of(operation)
    if member in {"StreamARN", "ConsumerARN"}:
        request = {name: of for name, of in request.items() if name != "StreamName"}
    with pytest.raises(KinesisError) as refused:
        engine.call(operation, {**request, member: value})
    assert refused.value.code in REFUSALS
