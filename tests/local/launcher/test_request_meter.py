"""What is counted at the door of the embedded AWS."""

import pytest

from shardfleet_local.aws.request_meter import units_of


def counted(aws):
    found = aws.admin("GET", "requests")
    return found["requests"], found["units"]


def test_requests_are_counted_by_operation_and_units_as_the_table_says(embedded_aws):
    tables = embedded_aws.client("dynamodb")
    tables.create_table(
        TableName="metered",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
    )
    before, units_before = counted(embedded_aws)
    item = {"k": {"S": "a"}, "v": {"S": "x" * 1_500}}  # Two units of a kilobyte.
    tables.put_item(TableName="metered", Item=item, ReturnConsumedCapacity="TOTAL")
    with pytest.raises(tables.exceptions.ConditionalCheckFailedException):
        tables.put_item(
            TableName="metered", Item=item, ConditionExpression="attribute_not_exists(k)"
        )
    found, units = counted(embedded_aws)

    assert found["DynamoDB.PutItem"] - before.get("DynamoDB.PutItem", 0) == 2
    assert units["write"] - units_before.get("write", 0) == 2 + 1


def test_units_are_those_of_all_tables_and_one_where_none_are_said():
    told = [{"CapacityUnits": 2.0}, {"CapacityUnits": 0.5}]
    assert units_of({"ConsumedCapacity": told}) == 2.5
    assert units_of({"ConsumedCapacity": told[0]}) == 2.0
    assert units_of({}) == 1.0
