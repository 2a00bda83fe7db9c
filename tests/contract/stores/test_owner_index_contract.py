"""The lease table's index by owner: made where a KCL 2 has made none (protocol.md §1.3)."""

import asyncio
import time

import pytest

from shardfleet.domain.balance.migration import IndexStatus
from shardfleet.errors import ConfigurationError
from shardfleet_ops.aws.owner_index import DynamoDBOwnerIndex


def without_index(tables):
    """Leave the table as a KCL 2 makes it."""
    tables.clients.table_writes.update_table(
        TableName=tables.lease_table,
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "LeaseOwnerToLeaseKeyIndex"}}],
    )


def index_of(tables):
    return DynamoDBOwnerIndex(tables.lease_table, tables.pools)


def comes_to_be(index, status):
    """Wait until it is so: Amazon's own code takes its time to make an index, and to delete one."""
    deadline_s = time.monotonic() + 120
    while asyncio.run(index.status()) is not status:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def described(tables):
    found = tables.clients.table_reads.describe_table(TableName=tables.lease_table)["Table"]
    return found.get("GlobalSecondaryIndexes", [])


def test_the_index_is_made_as_a_kcl_3_makes_it(tables):
    without_index(tables)
    index = index_of(tables)
    comes_to_be(index, IndexStatus.MISSING)
    asyncio.run(index.make())
    comes_to_be(index, IndexStatus.ACTIVE)
    (made,) = described(tables)
    # DynamoDBLeaseRefresher.createLeaseOwnerToLeaseKeyIndexIfNotExists; protocol.md §1.3.
    assert made["KeySchema"] == [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
    ]
    assert made["Projection"]["ProjectionType"] == "KEYS_ONLY"
    assert asyncio.run(tables.leases.keys_owned_by("f-s0001")) == []


def test_an_index_of_a_table_with_provisioned_capacity_gets_as_much_as_the_table(tables):
    name = f"{tables.lease_table}-provisioned"
    tables.clients.table_writes.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        ProvisionedThroughput={"ReadCapacityUnits": 7, "WriteCapacityUnits": 9},
    )
    asked = {}
    events = tables.clients.table_writes.meta.events
    events.register(
        "provide-client-params.dynamodb.UpdateTable", lambda params, **_: asked.update(params)
    )
    asyncio.run(DynamoDBOwnerIndex(name, tables.pools).make())
    made = asked["GlobalSecondaryIndexUpdates"][0]["Create"]
    assert made["ProvisionedThroughput"] == {"ReadCapacityUnits": 7, "WriteCapacityUnits": 9}


def test_whether_leases_may_be_written_is_asked_without_writing(tables):
    assert asyncio.run(index_of(tables).refusal()) == ""
    assert tables.clients.table_reads.scan(TableName=tables.lease_table)["Items"] == []


def test_a_table_with_other_keys_is_no_lease_table(tables):
    with pytest.raises(ConfigurationError, match="its key is"):
        asyncio.run(DynamoDBOwnerIndex(tables.state_table, tables.pools).status())
