"""
DynamoDB, as the lease protocol needs it (protocol.md §1.6): conditions, races, index, reads.

Expectations are as AWS documents them.
"""

import threading
import uuid

import pytest

pytestmark = pytest.mark.processes

INDEX = "LeaseOwnerToLeaseKeyIndex"


def condition_failure(dynamodb):
    return dynamodb.exceptions.ConditionalCheckFailedException


@pytest.fixture(scope="session")
def table(dynamodb):
    name = f"shardfleet-contract-{uuid.uuid4().hex[:12]}"
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": INDEX,
                "KeySchema": [
                    {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                    {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    yield name
    dynamodb.delete_table(TableName=name)


class LeaseItem:
    """One item of the table, its requests with as few words as possible."""

    def __init__(self, dynamodb, table):
        self.client = dynamodb
        self.table = table
        self.key = f"shardId-{uuid.uuid4().hex[:12]}"

    def put(self, *, condition=None, **attributes):
        item = {"leaseKey": {"S": self.key}, **attributes}
        extra = {"ConditionExpression": condition} if condition else {}
        return self.client.put_item(
            TableName=self.table,
            Item=item,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **extra,
        )

    def update(self, update, condition, **values):
        typed = {f":{name}": value for name, value in values.items()}
        return self.client.update_item(
            TableName=self.table,
            Key={"leaseKey": {"S": self.key}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=typed,
            ReturnValues="ALL_NEW",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )["Attributes"]

    def get(self):
        answer = self.client.get_item(
            TableName=self.table, Key={"leaseKey": {"S": self.key}}, ConsistentRead=True
        )
        item = answer.get("Item")
        return item and {name: value for name, value in item.items() if name != "leaseKey"}


@pytest.fixture
def lease(dynamodb, table):
    return LeaseItem(dynamodb, table)


def number(value):
    return {"N": str(value)}


def text(value):
    return {"S": value}


def test_create_succeeds_once_and_returns_what_is_there(lease, dynamodb):
    absent = "attribute_not_exists(leaseKey)"
    lease.put(condition=absent, leaseCounter=number(0))
    with pytest.raises(condition_failure(dynamodb)) as refused:
        lease.put(condition=absent, leaseCounter=number(9))
    assert refused.value.response["Item"]["leaseCounter"] == number(0)
    assert lease.get() == {"leaseCounter": number(0)}


def test_renew_moves_the_counter_only_from_the_value_seen(lease, dynamodb):
    lease.put(leaseCounter=number(7), leaseOwner=text("me"))
    condition = "leaseCounter = :seen AND attribute_not_exists(checkpointOwner)"
    new = lease.update("SET leaseCounter = :next", condition, seen=number(7), next=number(8))
    assert new["leaseCounter"] == number(8)
    with pytest.raises(condition_failure(dynamodb)) as refused:
        lease.update("SET leaseCounter = :next", condition, seen=number(7), next=number(8))
    assert refused.value.response["Item"]["leaseOwner"] == text("me")


def test_renew_is_refused_while_a_handover_is_pending(lease, dynamodb):
    lease.put(leaseCounter=number(7), checkpointOwner=text("me"), leaseOwner=text("you"))
    condition = "leaseCounter = :seen AND attribute_not_exists(checkpointOwner)"
    with pytest.raises(condition_failure(dynamodb)):
        lease.update("SET leaseCounter = :next", condition, seen=number(7), next=number(8))


def test_an_update_of_a_deleted_lease_does_not_bring_it_back(lease, dynamodb):
    with pytest.raises(condition_failure(dynamodb)) as refused:
        lease.update("SET leaseOwner = :me", "attribute_exists(leaseKey)", me=text("me"))
    assert "Item" not in refused.value.response
    assert lease.get() is None


def test_take_sets_adds_and_removes_in_one_request(lease):
    lease.put(leaseCounter=number(3), leaseOwner=text("old"), checkpointOwner=text("old"))
    new = lease.update(
        "SET leaseOwner = :me, leaseCounter = :next "
        "ADD ownerSwitchesSinceCheckpoint :one REMOVE checkpointOwner",
        "leaseCounter = :seen",
        me=text("me"),
        next=number(4),
        one=number(1),
        seen=number(3),
    )
    del new["leaseKey"]
    assert new == lease.get()
    assert new == {
        "leaseCounter": number(4),
        "leaseOwner": text("me"),
        "ownerSwitchesSinceCheckpoint": number(1),
    }


def test_assign_tells_an_absent_owner_from_another_one(lease, dynamodb):
    lease.put(leaseCounter=number(0))
    unowned = (
        "attribute_not_exists(leaseOwner) AND attribute_not_exists(checkpointOwner) "
        "AND attribute_exists(leaseKey)"
    )
    change = "SET leaseOwner = :new ADD leaseCounter :one"
    lease.update(change, unowned, new=text("a"), one=number(1))
    with pytest.raises(condition_failure(dynamodb)):
        lease.update(change, unowned, new=text("b"), one=number(1))
    owned = "leaseOwner = :old AND attribute_exists(leaseKey)"
    assert lease.update(change, owned, new=text("b"), one=number(1), old=text("a"))[
        "leaseCounter"
    ] == number(2)


def test_evict_removes_the_owner_and_moves_the_counter(lease):
    lease.put(leaseCounter=number(5), leaseOwner=text("me"))
    lease.update(
        "REMOVE leaseOwner ADD leaseCounter :one",
        "leaseOwner = :me AND attribute_exists(leaseKey)",
        one=number(1),
        me=text("me"),
    )
    assert lease.get() == {"leaseCounter": number(6)}


GUARD = (
    "leaseCounter = :seen AND #c <> :end AND (#c IN (:trim, :latest) OR size(#c) < :size "
    "OR (size(#c) = :size AND #c < :new) OR (#c = :new AND checkpointSubSequenceNumber <= :sub))"
)


@pytest.mark.parametrize(
    ("stored", "stored_sub", "new", "new_sub", "accepted"),
    [
        ("TRIM_HORIZON", 0, "5", 0, True),
        ("LATEST", 0, "5", 0, True),
        ("9", 0, "10", 0, True),
        ("10", 0, "9", 0, False),
        ("10", 0, "11", 0, True),
        ("11", 0, "10", 0, False),
        ("10", 3, "10", 4, True),
        ("10", 4, "10", 4, True),
        ("10", 4, "10", 3, False),
        ("SHARD_END", 0, "4" * 56, 0, False),
    ],
)
def test_the_monotonic_guard_compares_by_length_then_text(
    lease, dynamodb, *, stored, stored_sub, new, new_sub, accepted
):
    lease.put(
        leaseCounter=number(1),
        checkpoint=text(stored),
        checkpointSubSequenceNumber=number(stored_sub),
    )
    request = {
        "TableName": lease.table,
        "Key": {"leaseKey": {"S": lease.key}},
        "UpdateExpression": "SET #c = :new, checkpointSubSequenceNumber = :sub",
        "ConditionExpression": GUARD,
        "ExpressionAttributeNames": {"#c": "checkpoint"},
        "ExpressionAttributeValues": {
            ":seen": number(1),
            ":end": text("SHARD_END"),
            ":trim": text("TRIM_HORIZON"),
            ":latest": text("LATEST"),
            ":size": number(len(new)),
            ":new": text(new),
            ":sub": number(new_sub),
        },
    }
    if accepted:
        dynamodb.update_item(**request)
    else:
        with pytest.raises(condition_failure(dynamodb)):
            dynamodb.update_item(**request)
    assert lease.get()["checkpoint"] == text(new if accepted else stored)


def test_string_sets_keep_their_members_and_may_not_be_empty(lease, dynamodb):
    lease.put(leaseCounter=number(0), parentShardId={"SS": ["shardId-1", "shardId-2"]})
    assert sorted(lease.get()["parentShardId"]["SS"]) == ["shardId-1", "shardId-2"]
    with pytest.raises(dynamodb.exceptions.ClientError, match="may not be empty"):
        lease.put(parentShardId={"SS": []})


def test_of_many_writers_with_the_same_counter_exactly_one_wins(lease, dynamodb):
    lease.put(leaseCounter=number(0))
    won, lost = [], []

    def write(worker):
        for _ in range(10):
            seen = lease.get()["leaseCounter"]
            try:
                lease.update(
                    "SET leaseOwner = :me ADD leaseCounter :one",
                    "leaseCounter = :seen",
                    me=text(worker),
                    one=number(1),
                    seen=seen,
                )
            except condition_failure(dynamodb):
                lost.append(worker)
            else:
                won.append(worker)

    writers = [threading.Thread(target=write, args=(f"w{each}",)) for each in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
    assert len(won) + len(lost) == 60
    assert lease.get()["leaseCounter"] == number(len(won))


def test_the_index_lists_the_leases_of_an_owner_in_order_and_in_pages(dynamodb, table, eventually):
    owner = f"worker-{uuid.uuid4().hex[:8]}"
    keys = sorted(f"shardId-{uuid.uuid4().hex[:12]}" for _ in range(5))
    for key in keys:
        item = {"leaseKey": text(key), "leaseOwner": text(owner), "leaseCounter": number(0)}
        dynamodb.put_item(TableName=table, Item=item)

    def listed():
        pages = dynamodb.get_paginator("query").paginate(
            TableName=table,
            IndexName=INDEX,
            KeyConditionExpression="leaseOwner = :me",
            ExpressionAttributeValues={":me": text(owner)},
            PaginationConfig={"PageSize": 2},
        )
        return [item for page in pages for item in page["Items"]]

    found = eventually(lambda: len(listed()) == len(keys) and listed())
    assert found == [{"leaseKey": text(key), "leaseOwner": text(owner)} for key in keys]


def test_an_item_without_an_owner_is_not_in_the_index(lease, dynamodb, table):
    lease.put(leaseCounter=number(0), leaseOwner=text(lease.key))
    lease.update(
        "REMOVE leaseOwner ADD leaseCounter :one", "attribute_exists(leaseKey)", one=number(1)
    )
    answer = dynamodb.query(
        TableName=table,
        IndexName=INDEX,
        KeyConditionExpression="leaseOwner = :me",
        ExpressionAttributeValues={":me": text(lease.key)},
    )
    assert answer["Items"] == []


def test_an_index_cannot_be_read_consistently(dynamodb, table):
    with pytest.raises(dynamodb.exceptions.ClientError, match="onsistent"):
        dynamodb.query(
            TableName=table,
            IndexName=INDEX,
            ConsistentRead=True,
            KeyConditionExpression="leaseOwner = :me",
            ExpressionAttributeValues={":me": text("me")},
        )


def test_a_scan_is_read_in_pages(dynamodb, table, lease):
    for _ in range(3):
        LeaseItem(dynamodb, table).put(leaseCounter=number(0))
    pages = list(
        dynamodb.get_paginator("scan").paginate(
            TableName=table, ConsistentRead=True, PaginationConfig={"PageSize": 1}
        )
    )
    assert len(pages) >= 3
    assert all(len(page["Items"]) <= 1 for page in pages)


def test_a_transaction_tells_which_condition_failed_and_changes_nothing(lease, dynamodb, table):
    other = LeaseItem(dynamodb, table)
    lease.put(leaseCounter=number(1))
    update = {
        "TableName": table,
        "UpdateExpression": "ADD leaseCounter :one",
        "ConditionExpression": "attribute_exists(leaseKey)",
        "ExpressionAttributeValues": {":one": number(1)},
    }
    with pytest.raises(dynamodb.exceptions.TransactionCanceledException) as refused:
        dynamodb.transact_write_items(
            TransactItems=[
                {"Update": {**update, "Key": {"leaseKey": text(each.key)}}}
                for each in (lease, other)
            ]
        )
    codes = [reason["Code"] for reason in refused.value.response["CancellationReasons"]]
    assert codes == ["None", "ConditionalCheckFailed"]
    assert lease.get() == {"leaseCounter": number(1)}
