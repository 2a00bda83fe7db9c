"""
Making a lease table, as a KCL application makes its own: key, index by owner, paid per request.

Fleets do not need it: their table is made by the stack that deploys them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardfleet.adapters.dynamodb.items import LEASE_KEY, LEASE_OWNER, OWNER_INDEX
from shardfleet.adapters.sdk_errors import RefusalIsAnswer, SdkCall

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


def ensure_lease_table(client: DynamoDBClient, name: str) -> bool:
    """
    Make a lease table unless there is one; return whether it was made.

    The schema is that of KCL's ``DynamoDBLeaseRefresher`` (protocol.md §1.1, §1.3).

    Raises:
        ConfigurationError: a right is missing (DescribeTable, and CreateTable where there is no
            table).
        ShardfleetError: see the message.

    """
    describe = SdkCall(
        f"DescribeTable {name}", codes={"ResourceNotFoundException": RefusalIsAnswer}
    )
    try:
        describe.run(client.describe_table, TableName=name)
    except RefusalIsAnswer:
        pass
    else:
        return False
    make = SdkCall(f"CreateTable {name}", codes={"ResourceInUseException": RefusalIsAnswer})
    with suppress(RefusalIsAnswer):
        make.run(
            client.create_table,
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
            AttributeDefinitions=[
                {"AttributeName": LEASE_KEY, "AttributeType": "S"},
                {"AttributeName": LEASE_OWNER, "AttributeType": "S"},
            ],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": OWNER_INDEX,
                    "KeySchema": [
                        {"AttributeName": LEASE_OWNER, "KeyType": "HASH"},
                        {"AttributeName": LEASE_KEY, "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
        )
    client.get_waiter("table_exists").wait(
        TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    return True
