"""
What AWS is asked to confirm: behaviour that the fleet relies on, asked of the services themselves.

Each question is a call or two; none changes what the fleet works on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet_local.acceptance.deployment import AcceptanceAccount

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactPlaces:
    """
    Where the questions are asked.

    Attributes:
        account: the account.
        stream: ARN of a stream with two shards at least.
        state_table: the fleet's; a document is written there, and removed.
        machine: ARN of the state machine.
        bucket: an object is written there.

    """

    account: AcceptanceAccount
    stream: str
    state_table: str
    machine: str
    bucket: str


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
    ask: Callable[[FactPlaces], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFound:
    """A fact, and what was answered."""

    text: str
    expected: str
    answered: str


def ask_all(places: FactPlaces) -> list[FactFound]:
    """Ask every question."""
    return [
        FactFound(text=fact.text, expected=fact.answer, answered=fact.ask(places)) for fact in FACTS
    ]


def _answer(call: Callable[..., Any], **arguments: Any) -> str:
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ACCEPTED


def _token(places: FactPlaces, **beside: Any) -> str:
    kinesis = places.account.client("kinesis")
    token = kinesis.list_shards(StreamARN=places.stream, MaxResults=1)["NextToken"]
    return _answer(kinesis.list_shards, NextToken=token, **beside)


def _iterator(places: FactPlaces, kind: str, **more: Any) -> str:
    kinesis = places.account.client("kinesis")
    first = kinesis.list_shards(StreamARN=places.stream)["Shards"][0]["ShardId"]
    asked = {"StreamARN": places.stream, "ShardId": first, "ShardIteratorType": kind, **more}
    return _answer(kinesis.get_shard_iterator, **asked)


def _foreign_number(places: FactPlaces) -> str:
    shards = places.account.client("kinesis").list_shards(StreamARN=places.stream)["Shards"]
    number = shards[1]["SequenceNumberRange"]["StartingSequenceNumber"]
    return _iterator(places, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)


def _read_nonsense(places: FactPlaces) -> str:
    return _answer(places.account.client("kinesis").get_records, ShardIterator="A" * 64)


def _missing_shard(places: FactPlaces) -> str:
    return _iterator(places, "LATEST", ShardId="shardId-000000999999")


_DOCUMENT = {"kind": {"S": "acceptance"}, "id": {"S": "fact"}}


def _second_put(places: FactPlaces) -> str:
    """Make an item, and make it again on the condition that there is none; then remove it."""
    client = places.account.client("dynamodb")
    asked: Mapping[str, Any] = {
        "TableName": places.state_table,
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
        client.delete_item(TableName=places.state_table, Key=_DOCUMENT)
    return ACCEPTED


def _second_object(places: FactPlaces) -> str:
    client = places.account.client("s3")
    asked = {"Bucket": places.bucket, "Key": "fact", "Body": b"1", "IfNoneMatch": "*"}
    client.put_object(**asked)
    return _answer(client.put_object, **asked)


def _missing_execution(places: FactPlaces) -> str:
    arn = places.machine.replace(":stateMachine:", ":execution:") + ":nobody"
    return _answer(places.account.client("stepfunctions").describe_execution, executionArn=arn)


FACTS = (
    Fact("ListShards goes on from a token alone", ACCEPTED, _token),
    Fact(
        "ListShards refuses a token and a stream together",
        "InvalidArgumentException",
        lambda places: _token(places, StreamARN=places.stream),
    ),
    Fact(
        "GetShardIterator at TRIM_HORIZON with a number",
        "InvalidArgumentException",
        lambda places: _iterator(places, "TRIM_HORIZON", StartingSequenceNumber="0"),
    ),
    Fact(
        "GetShardIterator AT_SEQUENCE_NUMBER without a number",
        "InvalidArgumentException",
        lambda places: _iterator(places, "AT_SEQUENCE_NUMBER"),
    ),
    Fact(
        "GetShardIterator AT_TIMESTAMP without an instant",
        "InvalidArgumentException",
        lambda places: _iterator(places, "AT_TIMESTAMP"),
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
