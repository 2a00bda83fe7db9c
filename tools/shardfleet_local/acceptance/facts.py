"""
What AWS is asked to confirm: behaviour that the fleet relies on, asked of the services themselves.

Each question is a call or two; none changes what the fleet works on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet_local.acceptance.scene import Scene

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Fact:
    """
    One behaviour.

    Attributes:
        text: what is so.
        answer: error code, or other word, that shows it.
        ask: returns the answer.

    """

    text: str
    answer: str
    ask: Callable[[Scene], str]


def _answer(call: Callable[..., Any], **arguments: Any) -> str:
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ACCEPTED


def _token(scene: Scene, **beside: Any) -> str:
    kinesis = scene.client("kinesis")
    token = kinesis.list_shards(StreamARN=scene.output("StreamArn"), MaxResults=1)["NextToken"]
    return _answer(kinesis.list_shards, NextToken=token, **beside)


def _iterator(scene: Scene, kind: str, **more: Any) -> str:
    kinesis = scene.client("kinesis")
    first = kinesis.list_shards(StreamARN=scene.output("StreamArn"))["Shards"][0]["ShardId"]
    asked = {
        "StreamARN": scene.output("StreamArn"),
        "ShardId": first,
        "ShardIteratorType": kind,
        **more,
    }
    return _answer(kinesis.get_shard_iterator, **asked)


def _foreign_number(scene: Scene) -> str:
    shards = scene.client("kinesis").list_shards(StreamARN=scene.output("StreamArn"))["Shards"]
    number = shards[1]["SequenceNumberRange"]["StartingSequenceNumber"]
    return _iterator(scene, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)


def _read_nonsense(scene: Scene) -> str:
    return _answer(scene.client("kinesis").get_records, ShardIterator="A" * 64)


def _missing_shard(scene: Scene) -> str:
    return _iterator(scene, "LATEST", ShardId="shardId-000000999999")


_DOCUMENT = {"kind": {"S": "acceptance"}, "id": {"S": "fact"}}


def _second_put(scene: Scene) -> str:
    """Make an item, and make it again on the condition that there is none; then remove it."""
    client = scene.client("dynamodb")
    asked: Mapping[str, Any] = {
        "TableName": scene.output("StateTable"),
        "Item": {**_DOCUMENT, "mine": {"S": "first"}},
        "ConditionExpression": "attribute_not_exists(kind)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    client.put_item(**asked)
    try:
        client.put_item(**asked)
    except ClientError as error:
        item: dict[str, Any] = error.response.get("Item", {})  # type: ignore[assignment]
        found = item.get("mine", {}).get("S", "no item")
        return f"{error.response['Error']['Code']}, {found}"
    finally:
        client.delete_item(TableName=scene.output("StateTable"), Key=_DOCUMENT)
    return ACCEPTED


def _second_object(scene: Scene) -> str:
    client = scene.client("s3")
    asked = {"Bucket": scene.deployment.bucket, "Key": "fact", "Body": b"1", "IfNoneMatch": "*"}
    client.put_object(**asked)
    return _answer(client.put_object, **asked)


def _missing_execution(scene: Scene) -> str:
    arn = scene.output("StateMachineArn").replace(":stateMachine:", ":execution:") + ":nobody"
    return _answer(scene.client("stepfunctions").describe_execution, executionArn=arn)


FACTS = (
    Fact("ListShards goes on from a token alone", ACCEPTED, _token),
    Fact(
        "ListShards refuses a token and a stream together",
        "InvalidArgumentException",
        lambda scene: _token(scene, StreamARN=scene.output("StreamArn")),
    ),
    Fact(
        "GetShardIterator at TRIM_HORIZON with a number",
        "InvalidArgumentException",
        lambda scene: _iterator(scene, "TRIM_HORIZON", StartingSequenceNumber="0"),
    ),
    Fact(
        "GetShardIterator AT_SEQUENCE_NUMBER without a number",
        "InvalidArgumentException",
        lambda scene: _iterator(scene, "AT_SEQUENCE_NUMBER"),
    ),
    Fact(
        "GetShardIterator AT_TIMESTAMP without an instant",
        "InvalidArgumentException",
        lambda scene: _iterator(scene, "AT_TIMESTAMP"),
    ),
    Fact("A number of another shard", "InvalidArgumentException", _foreign_number),
    Fact("An iterator for a shard that there is not", "ResourceNotFoundException", _missing_shard),
    Fact("An iterator that Kinesis never gave", "InvalidArgumentException", _read_nonsense),
    Fact(
        "A conditional write that fails brings the item along",
        "ConditionalCheckFailedException, first",
        _second_put,
    ),
    Fact("S3 writes an object only where there is none", "PreconditionFailed", _second_object),
    Fact("An execution that there is not", "ExecutionDoesNotExist", _missing_execution),
)
"""Sources: aws-cli #9635 (tokens), localstack #635 (iterators), botocore's models (the errors)."""
