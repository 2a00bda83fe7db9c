"""Both tables, made where no stack has made them: with the KCL's schema, and with ours."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardfleet.adapters.dynamodb.items import LEASE_KEY
from shardfleet.adapters.dynamodb.leases import KEY_ATTRIBUTES, OWNER_INDEX_SCHEMA
from shardfleet.adapters.dynamodb.state import EXPIRES
from shardfleet.adapters.sdk_errors import RefusalIsAnswer, SdkCall

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

_STATE_KEYS = {"kind": "HASH", "id": "RANGE"}


def ensure_lease_table(client: DynamoDBClient, name: str) -> bool:
    """
    Make a lease table unless there is one; return whether it was made.

    The schema is that of KCL's ``DynamoDBLeaseRefresher`` (protocol.md §1.1, §1.3).

    Raises:
        ConfigurationError: a right is missing (DescribeTable, and CreateTable where there is no
            table).
        ShardfleetError: see the message.

    """
    return _ensure(
        client,
        name,
        KeySchema=[{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
        AttributeDefinitions=KEY_ATTRIBUTES,
        GlobalSecondaryIndexes=[OWNER_INDEX_SCHEMA],
    )


def ensure_state_table(client: DynamoDBClient, name: str) -> bool:
    """
    Make a fleet-state table likewise; what expires in one that was made is deleted by DynamoDB.

    Raises:
        ConfigurationError: as above; also without the right to UpdateTimeToLive.
        ShardfleetError: see the message.

    """
    is_new = _ensure(
        client,
        name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in _STATE_KEYS.items()],
        AttributeDefinitions=[{"AttributeName": k, "AttributeType": "S"} for k in _STATE_KEYS],
    )
    if is_new:
        SdkCall(f"UpdateTimeToLive {name}").run(
            client.update_time_to_live,
            TableName=name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRES},
        )
    return is_new


def has_table(client: DynamoDBClient, name: str) -> bool:
    """
    Return whether there is a table.

    Raises:
        ConfigurationError: the right to DescribeTable is missing.
        ShardfleetError: see the message.

    """
    describe = SdkCall(
        f"DescribeTable {name}", codes={"ResourceNotFoundException": RefusalIsAnswer}
    )
    try:
        describe.run(client.describe_table, TableName=name)
    except RefusalIsAnswer:
        return False
    return True


def _ensure(client: DynamoDBClient, name: str, **schema: Any) -> bool:
    if has_table(client, name):
        return False
    make = SdkCall(f"CreateTable {name}", codes={"ResourceInUseException": RefusalIsAnswer})
    with suppress(RefusalIsAnswer):  # Another process makes it just now.
        make.run(client.create_table, TableName=name, BillingMode="PAY_PER_REQUEST", **schema)
    client.get_waiter("table_exists").wait(
        TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    return True
