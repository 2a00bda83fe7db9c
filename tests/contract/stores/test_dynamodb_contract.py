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


@pytest.fixture
def heavy(dynamodb, table):
    """Four leases of 390 KB each, alone in the index of their owner."""
    owner = f"worker-{uuid.uuid4().hex[:8]}"
    several = [LeaseItem(dynamodb, table) for _ in range(4)]
    for each in several:
        each.put(leaseOwner=text(owner), pendingCheckpointState={"B": b"x" * 390_000})
    yield sorted(each.key for each in several)
    for each in several:
        dynamodb.delete_item(TableName=table, Key={"leaseKey": text(each.key)})


def test_a_page_ends_at_1_mb_though_nothing_was_asked_for(dynamodb, table, heavy):
    """Scan: "If the total size of scanned items exceeds the maximum dataset size limit of 1 MB"."""
    first = dynamodb.scan(TableName=table, ConsistentRead=True)
    assert "LastEvaluatedKey" in first
    pages = dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    found = [item["leaseKey"]["S"] for page in pages for item in page["Items"]]
    assert set(heavy) <= set(found)


def test_a_page_may_be_empty_and_not_the_last(dynamodb, table, heavy):
    """Scan: the filter is applied after the page was read, so a page says nothing of the next."""
    first, *others = dynamodb.get_paginator("scan").paginate(
        TableName=table,
        FilterExpression="attribute_exists(nobodyHasIt)",
        PaginationConfig={"PageSize": 1},
    )
    assert (first["Count"], first["ScannedCount"]) == (0, 1)
    assert len(others) >= len(heavy) - 1


@pytest.mark.parametrize("size", [400 * 1024, 400 * 1024 + 1])
def test_an_item_has_at_most_400_kb_with_its_names(lease, dynamodb, size):
    """Quotas: "The maximum item size in DynamoDB is 400 KB", names and values in UTF-8."""
    named = len("leaseKey") + len(lease.key) + len("pendingCheckpointState")
    body = {"B": b"x" * (size - named)}
    if size <= 400 * 1024:
        lease.put(pendingCheckpointState=body)
        assert lease.get() == {"pendingCheckpointState": body}
        dynamodb.delete_item(TableName=lease.table, Key={"leaseKey": text(lease.key)})
        return
    with pytest.raises(dynamodb.exceptions.ClientError, match="size has exceeded"):
        lease.put(pendingCheckpointState=body)
    lease.put(leaseCounter=number(1))
    with pytest.raises(dynamodb.exceptions.ClientError, match="size"):
        lease.update("SET pendingCheckpointState = :b", "attribute_exists(leaseKey)", b=body)
    assert lease.get() == {"leaseCounter": number(1)}


@pytest.mark.parametrize("several", [26, [0, 0]])
def test_a_batch_takes_25_items_and_none_twice(dynamodb, table, several):
    """BatchWriteItem: the list of rejections of an entire batch."""
    numbers = several if isinstance(several, list) else range(several)
    keys = [{"leaseKey": text(f"shardId-{each:012d}")} for each in numbers]
    requests = [{"DeleteRequest": {"Key": key}} for key in keys]
    with pytest.raises(dynamodb.exceptions.ClientError, match="ValidationException"):
        dynamodb.batch_write_item(RequestItems={table: requests})


def test_a_batch_deletes_what_is_there_and_says_nothing_of_what_is_not(dynamodb, table, lease):
    lease.put(leaseCounter=number(0))
    keys = [lease.key, "shardId-nowhere"]
    requests = [{"DeleteRequest": {"Key": {"leaseKey": text(key)}}} for key in keys]
    answer = dynamodb.batch_write_item(RequestItems={table: requests})
    assert answer["UnprocessedItems"] == {}
    assert lease.get() is None


REFUSED = {
    "an empty key": {"Item": {"leaseKey": text("")}},
    "an empty key of the index": {"Item": {"leaseKey": text("a"), "leaseOwner": text("")}},
    "a key of the index of another type": {
        "Item": {"leaseKey": text("a"), "leaseOwner": number(1)},
    },
    "a number of 39 digits": {"Item": {"leaseKey": text("a"), "leaseCounter": number("1" * 39)}},
    "a set with a member twice": {
        "Item": {"leaseKey": text("a"), "parentShardId": {"SS": ["b"] * 2}}
    },
    "a reserved word": {
        "Item": {"leaseKey": text("a")},
        "ConditionExpression": "attribute_not_exists(items)",
    },
    "a name that is not used": {
        "Item": {"leaseKey": text("a")},
        "ConditionExpression": "attribute_not_exists(leaseKey)",
        "ExpressionAttributeNames": {"#n": "leaseCounter"},
    },
    "a value that is not used": {
        "Item": {"leaseKey": text("a")},
        "ConditionExpression": "attribute_not_exists(leaseKey)",
        "ExpressionAttributeValues": {":v": number(1)},
    },
    "no names": {
        "Item": {"leaseKey": text("a")},
        "ConditionExpression": "attribute_not_exists(leaseKey)",
        "ExpressionAttributeNames": {},
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_put_is_refused_with(dynamodb, table, what):
    with pytest.raises(dynamodb.exceptions.ClientError, match="ValidationException"):
        dynamodb.put_item(TableName=table, **REFUSED[what])


@pytest.mark.fails_on("embedded", "D35", "it does one of the two, and says nothing")
def test_one_update_names_an_attribute_once(lease, dynamodb):
    """UpdateItem: "Two document paths overlap with each other"."""
    lease.put(leaseCounter=number(1))
    with pytest.raises(dynamodb.exceptions.ClientError, match="overlap"):
        lease.update(
            "SET leaseCounter = :one ADD leaseCounter :one",
            "attribute_exists(leaseKey)",
            one=number(1),
        )


def test_a_number_cannot_be_added_to_a_text(lease, dynamodb):
    lease.put(leaseCounter=text("1"))
    with pytest.raises(dynamodb.exceptions.ClientError, match="ValidationException"):
        lease.update("ADD leaseCounter :one", "attribute_exists(leaseKey)", one=number(1))


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(
            "size(checkpoint) < :nine",
            marks=pytest.mark.fails_on("embedded", "D36", "it measures a number's digits"),
        ),
        "checkpoint < :text",
    ],
)
def test_a_condition_on_an_attribute_of_another_type_is_false(lease, dynamodb, condition):
    """A checkpoint that a foreign tool stored as a number is no text of some length."""
    lease.put(checkpoint=number(5), leaseCounter=number(1))
    value = {"nine": number(9)} if ":nine" in condition else {"text": text("9")}
    with pytest.raises(condition_failure(dynamodb)):
        lease.update("REMOVE leaseOwner", condition, **value)


def test_an_index_that_is_not_there_is_named(dynamodb, table):
    with pytest.raises(dynamodb.exceptions.ClientError, match="does not have the specified index"):
        dynamodb.query(
            TableName=table,
            IndexName="nobodysIndex",
            KeyConditionExpression="leaseOwner = :me",
            ExpressionAttributeValues={":me": text("me")},
        )
