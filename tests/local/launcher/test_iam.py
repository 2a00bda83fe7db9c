"""Enforced IAM: a function may do what its role allows, and nothing else."""

import json

import botocore.session
import pytest
from botocore.config import Config

from shardfleet.adapters.kinesis.wire import open_wire
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_local.aws.launcher import EmbeddedAws

pytestmark = pytest.mark.processes

CODE = """
import boto3

def handler(event, context):
    table = boto3.client("dynamodb")
    key = {"leaseKey": {"S": "one"}}
    if event == "delete":
        return table.delete_item(TableName="leases", Key=key) and "deleted"
    kinesis = boto3.client("kinesis")
    if event == "write":
        return kinesis.put_record(StreamName="clicks", PartitionKey="k", Data=b"1") and "written"
    if event == "list":
        token = kinesis.list_shards(StreamName="clicks", MaxResults=1)["NextToken"]
        return len(kinesis.list_shards(NextToken=token)["Shards"])
    if event == "read":
        arn = kinesis.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]
        arn = arn["StreamARN"]
        shard = kinesis.list_shards(StreamARN=arn)["Shards"][0]["ShardId"]
        iterator = kinesis.get_shard_iterator(
            StreamARN=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
        return len(kinesis.get_records(StreamARN=arn, ShardIterator=iterator)["Records"])
    return table.put_item(TableName="leases", Item=key) and "put"
"""


DOCUMENT = """
import boto3

def handler(kind, context):
    boto3.client("dynamodb").update_item(
        TableName="state",
        Key={"kind": {"S": kind}, "id": {"S": "one"}},
        UpdateExpression="SET body = :body",
        ExpressionAttributeValues={":body": {"M": {}}},
    )
    return "written"
"""


NETWORK = """
import boto3

def handler(event, context):
    return len(boto3.client("ec2").describe_subnets()["Subnets"]) and "described"
"""


def role(service, *statements):
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Action": "sts:AssumeRole",
                        "Principal": {"Service": service},
                    }
                ],
            },
            "Policies": [
                {
                    "PolicyName": "own",
                    "PolicyDocument": {
                        "Version": "2012-10-17",
                        "Statement": [
                            {"Effect": "Allow", "Action": actions, "Resource": resource, **more}
                            for actions, resource, *others in statements
                            for more in others or [{}]
                        ],
                    },
                }
            ],
        },
    }


def function(name, code, of):
    return {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "FunctionName": name,
            "Code": {"ZipFile": code},
            "Handler": "index.handler",
            "Runtime": "python3.13",
            "Timeout": 60,
            "Role": {"Fn::GetAtt": [of, "Arn"]},
        },
    }


READ = [
    f"kinesis:{action}"
    for action in ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords")
]
TEMPLATE = {
    "Resources": {
        "Stream": {
            "Type": "AWS::Kinesis::Stream",
            "Properties": {"Name": "clicks", "ShardCount": 2},
        },
        "Table": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "TableName": "leases",
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            },
        },
        "Role": role(
            "lambda.amazonaws.com",
            (["dynamodb:PutItem"], {"Fn::GetAtt": ["Table", "Arn"]}),
            (READ, {"Fn::GetAtt": ["Stream", "Arn"]}),
        ),
        "Function": function("worker", CODE, "Role"),
        "State": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "TableName": "state",
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [
                    {"AttributeName": name, "AttributeType": "S"} for name in ("kind", "id")
                ],
                "KeySchema": [
                    {"AttributeName": "kind", "KeyType": "HASH"},
                    {"AttributeName": "id", "KeyType": "RANGE"},
                ],
            },
        },
        "Documents": function("documents", DOCUMENT, "DocumentsRole"),
        "Network": function("network", NETWORK, "NetworkRole"),
    }
}


def rights_of_the_worker(make, *arguments, resource):
    """Return the worker's own rights of a kind, as the construct writes them."""
    from aws_cdk import App, Stack  # noqa: PLC0415 - starts Node, which collecting shall not

    from shardfleet_cdk import permissions  # noqa: PLC0415 - imports the former

    written = [each.to_statement_json() for each in getattr(permissions, make)(*arguments)]
    for statement in Stack(App(), "Stack").resolve(written):
        actions = statement["Action"]
        more = {name: statement[name] for name in ("Effect", "Condition") if name in statement}
        yield [actions] if isinstance(actions, str) else actions, resource, more


@pytest.fixture(scope="module")
def enforced():
    state = {"Fn::GetAtt": ["State", "Arn"]}
    documents = rights_of_the_worker("_state_of_worker", "<table>", resource=state)
    network = rights_of_the_worker("_network", resource="*")
    TEMPLATE["Resources"]["DocumentsRole"] = role("lambda.amazonaws.com", *documents)
    TEMPLATE["Resources"]["NetworkRole"] = role("lambda.amazonaws.com", *network)
    with EmbeddedAws(enforce_iam=True) as aws:
        cloudformation = aws.client("cloudformation")
        cloudformation.create_stack(
            StackName="Enforced",
            TemplateBody=json.dumps(TEMPLATE),
            Capabilities=["CAPABILITY_IAM"],
        )
        waiter = cloudformation.get_waiter("stack_create_complete")
        waiter.wait(StackName="Enforced", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        yield aws


def invoke(aws, event, name="worker"):
    answer = aws.client("lambda").invoke(FunctionName=name, Payload=json.dumps(event))
    return json.loads(answer["Payload"].read())


def test_what_the_role_allows_works(enforced):
    assert invoke(enforced, "put") == "put"


def test_reading_a_stream_by_its_arn_works(enforced):
    enforced.client("kinesis").put_record(
        StreamName="clicks", PartitionKey="k", ExplicitHashKey="0", Data=b"1"
    )
    assert invoke(enforced, "read") == 1


def test_a_stream_is_found_in_a_request_in_cbor(enforced):
    kinesis = enforced.client("kinesis")
    arn = kinesis.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]
    session = botocore.session.get_session()
    session.set_credentials(enforced.key.id, enforced.key.secret)
    once = Config(retries={"total_max_attempts": 1})
    where = {"endpoint_url": enforced.endpoint_url, "region_name": enforced.region}
    client = session.create_client("kinesis", config=once, **where)
    wire = open_wire(arn["StreamARN"], client=client, session=session)
    (outcome,) = wire.put_records([OutgoingRecord("k", b"1")])
    assert outcome.error_code is None


def test_a_listing_goes_on_by_its_token_alone_with_the_rights_to_its_stream(enforced):
    # The policy AWS recommends for the KCL names the stream's ARN and nothing else, and the KCL
    # sends the token alone (KinesisShardDetector.listShards).
    assert invoke(enforced, "list") == 1


@pytest.mark.parametrize(
    ("event", "action"), [("delete", "dynamodb:DeleteItem"), ("write", "kinesis:PutRecord")]
)
def test_what_the_role_lacks_is_refused_by_name(enforced, event, action):
    refusal = invoke(enforced, event)
    assert "AccessDeniedException" in refusal["errorMessage"]
    assert action in refusal["errorMessage"]


@pytest.mark.parametrize("kind", ["slot", "note", "tip", "ledger 2026-11-22"])
def test_a_handler_may_write_the_documents_of_the_worker(enforced, kind):
    assert invoke(enforced, kind, "documents") == "written"


# Hostile code in a handler has the worker's rights: it may not stop the fleet by these.
@pytest.mark.parametrize(
    "kind",
    ["lock", "plan", "sightings", "loads", "handovers", "pause", "ledger", "slots"],
)
def test_a_handler_is_refused_the_managers_documents(enforced, kind):
    refusal = invoke(enforced, kind, "documents")
    assert "AccessDeniedException" in refusal["errorMessage"]
    assert "dynamodb:UpdateItem" in refusal["errorMessage"]


def test_a_functions_code_is_refused_what_lambda_may_do_with_interfaces(enforced):
    refusal = invoke(enforced, "describe", "network")
    assert "ec2:DescribeSubnets" in refusal["errorMessage"]
    assert "UnauthorizedOperation" in refusal["errorMessage"]

    (name,) = [
        each["RoleName"]
        for each in enforced.client("iam").list_roles()["Roles"]
        if "NetworkRole" in each["RoleName"]
    ]
    arn = f"arn:aws:iam::{enforced.account_id}:role/{name}"
    session = enforced.client("sts").assume_role(RoleArn=arn, RoleSessionName="lambda")
    key = session["Credentials"]
    client = botocore.session.get_session().create_client(
        "ec2",
        endpoint_url=enforced.endpoint_url,
        region_name=enforced.region,
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
        aws_session_token=key["SessionToken"],
    )
    assert client.describe_subnets()["Subnets"]
