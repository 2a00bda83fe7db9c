"""Whatever botocore's model of DynamoDB forbids the embedded AWS refuses, and in AWS's words."""

import json

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from tests.local.kinesis.test_model import forbidden

pytestmark = pytest.mark.processes

MODEL = botocore.session.get_session().get_service_model("dynamodb")
TABLE, KEY = "modelled", {"id": {"S": "1"}}
HERE = {"TableName": TABLE}
VALID = {
    "BatchGetItem": {"RequestItems": {TABLE: {"Keys": [KEY]}}},
    "BatchWriteItem": {"RequestItems": {TABLE: [{"PutRequest": {"Item": KEY}}]}},
    "DeleteItem": {**HERE, "Key": KEY},
    "DescribeTable": HERE,
    "GetItem": {**HERE, "Key": KEY},
    "PutItem": {**HERE, "Item": KEY},
    "Query": {
        **HERE,
        "KeyConditionExpression": "id = :i",
        "ExpressionAttributeValues": {":i": {"S": "1"}},
    },
    "Scan": HERE,
    "TransactWriteItems": {"TransactItems": [{"Put": {**HERE, "Item": KEY}}]},
    "UpdateItem": {**HERE, "Key": KEY},
}


@pytest.fixture(scope="module")
def ask(embedded_aws):
    """Return a function that sends a request as it is, and gives the code and text of an error."""
    key = Credentials(embedded_aws.key.id, embedded_aws.key.secret)
    session = URLLib3Session(proxies={})

    def send(operation, body):
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
        }
        data = json.dumps(body).encode()
        request = AWSRequest("POST", embedded_aws.endpoint_url, headers=headers, data=data)
        SigV4Auth(key, "dynamodb", embedded_aws.region).add_auth(request)
        answer = json.loads(session.send(request.prepare()).text)
        return answer.get("__type", "").rpartition("#")[2], answer.get("message", "")

    embedded_aws.client("dynamodb").create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    return send


@pytest.mark.parametrize("operation", sorted(VALID))
def test_what_the_model_forbids_is_refused_and_what_it_allows_is_not(ask, operation):
    assert ask(operation, VALID[operation]) == ("", "")
    for member, of in MODEL.operation_model(operation).input_shape.members.items():
        for value in forbidden(of):
            code, _ = ask(operation, VALID[operation] | {member: value})
            assert code in {"ValidationException", "SerializationException"}, (member, value)


def test_the_refusal_names_the_member_the_value_and_what_is_allowed(ask):
    """K60; inside a list, too."""
    code, text = ask("Scan", {**HERE, "Select": "ALL"})
    assert code == "ValidationException"
    assert text.startswith(
        "1 validation error detected: Value 'ALL' at 'select' failed to satisfy constraint: Member "
        "must satisfy enum value set: [ALL_ATTRIBUTES, "
    )
    put = {"Put": {**HERE, "Item": KEY, "ReturnValuesOnConditionCheckFailure": "ALL"}}
    _, text = ask("TransactWriteItems", {"TransactItems": [put]})
    assert "at 'transactItems.1.member.put.returnValuesOnConditionCheckFailure'" in text
    _, text = ask("TransactWriteItems", {"TransactItems": [{"Put": {**HERE, "Item": KEY}}] * 101})
    assert text.endswith("Member must have length less than or equal to 100")
