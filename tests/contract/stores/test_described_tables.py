"""A table is described alike whoever made it: a KCL reads the description before it begins."""

import json
from types import SimpleNamespace

import pytest

from tests.adapters.tables import create_lease_table

pytestmark = pytest.mark.processes

# What differs from one table to the next.
OWN = {"TableName", "TableArn", "TableId", "CreationDateTime", "IndexArn"}
# What DynamoDBLeaseRefresher of KCL 3.5 reads of the table and of its index.
READ_BY_KCL = ("TableStatus", "TableSizeBytes", "GlobalSecondaryIndexes")
READ_OF_INDEX = ("IndexName", "IndexStatus")


def described(dynamodb, name):
    return without_own(dynamodb.describe_table(TableName=name)["Table"])


def without_own(found):
    if isinstance(found, list):
        return [without_own(each) for each in found]
    if isinstance(found, dict):
        return {name: without_own(value) for name, value in found.items() if name not in OWN}
    return found


def make_by_api(dynamodb, name):
    create_lease_table(dynamodb, name)
    dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})


def make_by_template(account, name):
    """Make it from what CreateTable is sent, which has the names of the template's properties."""
    asked = {}
    create_lease_table(SimpleNamespace(create_table=lambda **request: asked.update(request)), name)
    resource = {"Type": "AWS::DynamoDB::Table", "Properties": asked}
    cloudformation = account.client("cloudformation")
    cloudformation.create_stack(
        StackName=name, TemplateBody=json.dumps({"Resources": {"Table": resource}})
    )
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=name, WaiterConfig={"Delay": 1}
    )


@pytest.fixture
def both(account, unique):
    """The description of a table that the API has made, and of one that a template has."""
    dynamodb = account.client("dynamodb")
    make_by_api(dynamodb, f"{unique}-api")
    make_by_template(account, unique)
    yield described(dynamodb, f"{unique}-api"), described(dynamodb, unique)
    dynamodb.delete_table(TableName=f"{unique}-api")
    account.client("cloudformation").delete_stack(StackName=unique)


def test_a_table_of_a_template_is_described_like_one_of_the_api(both):
    of_api, of_template = both
    assert of_template == of_api


def test_what_a_kcl_reads_of_a_table_is_as_amazons_own_code_says_it(both, dynamodb_local, unique):
    dynamodb = dynamodb_local.client("dynamodb")
    make_by_api(dynamodb, unique)
    wanted = described(dynamodb, unique)
    for found in both:
        assert read_by_kcl(found) == read_by_kcl(wanted)


def read_by_kcl(table):
    indexes = [
        {name: index.get(name) for name in READ_OF_INDEX}
        for index in table["GlobalSecondaryIndexes"]
    ]
    return {name: table.get(name) for name in READ_BY_KCL} | {"GlobalSecondaryIndexes": indexes}
