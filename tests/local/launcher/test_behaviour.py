"""An embedded AWS whose pages are small, whose indexes take their time, and whose streams lag."""

import time

import pytest
from botocore.exceptions import ClientError

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

pytestmark = pytest.mark.processes

ITEMS = 7
INDEX = "by-owner"


@pytest.fixture(scope="module")
def aws():
    with EmbeddedAws(behaviour=AwsBehaviour(page_items=3, unkind=7, index_built_s=5.0)) as started:
        yield started


def pages(client, operation, found, **request):
    """Return how many items each page has; each is a request of its own."""
    answers = client.get_paginator(operation).paginate(**request)
    return [len(answer.get(found, ())) for answer in answers]


def fill_table(dynamodb):
    dynamodb.create_table(
        TableName="items",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "kind", "KeyType": "HASH"},
            {"AttributeName": "id", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "kind", "AttributeType": "S"},
            {"AttributeName": "id", "AttributeType": "S"},
        ],
    )
    for number in range(ITEMS):
        item = {"kind": {"S": "k"}, "id": {"S": str(number)}, "owner": {"S": "me"}}
        dynamodb.put_item(TableName="items", Item=item)


@pytest.fixture(scope="module")
def table(aws):
    fill_table(aws.client("dynamodb"))
    return aws.client("dynamodb")


def test_a_scan_and_a_query_come_in_pages_of_three(table):
    condition = {
        "KeyConditionExpression": "kind = :k",
        "ExpressionAttributeValues": {":k": {"S": "k"}},
    }
    assert pages(table, "scan", "Items", TableName="items") == [3, 3, 1]
    assert pages(table, "query", "Items", TableName="items", **condition) == [3, 3, 1]
    assert len(table.scan(TableName="items", Limit=2)["Items"]) == 2
    # A filter is applied to a page that was read, so that a page can be empty (D17).
    found = pages(
        table,
        "scan",
        "Items",
        TableName="items",
        FilterExpression="id = :six",
        ExpressionAttributeValues={":six": {"S": "6"}},
    )
    assert found == [0, 0, 1]


def test_shards_streams_and_consumers_come_in_pages_of_three(aws):
    kinesis = aws.client("kinesis")
    for number in range(4):
        kinesis.create_stream(StreamName=f"s{number}", ShardCount=ITEMS)
    answer = kinesis.list_shards(StreamName="s0")  # Not by boto3's paginator: it names both (K01).
    listed = [len(answer["Shards"])]
    while "NextToken" in answer:
        answer = kinesis.list_shards(NextToken=answer["NextToken"], MaxResults=1_000)
        listed.append(len(answer["Shards"]))
    assert listed == [3, 3, 1]
    streams = pages(kinesis, "list_streams", "StreamNames")
    assert streams == [3, 1]
    described = kinesis.describe_stream(StreamName="s0")["StreamDescription"]
    assert (len(described["Shards"]), described["HasMoreShards"]) == (3, True)
    arn = described["StreamARN"]
    for number in range(4):
        kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=f"c{number}")
    assert pages(kinesis, "list_stream_consumers", "Consumers", StreamARN=arn) == [3, 1]


def test_queues_objects_log_groups_alarms_and_machines_come_in_pages_of_three(aws):
    sqs, s3, logs = aws.client("sqs"), aws.client("s3"), aws.client("logs")
    cloudwatch = aws.client("cloudwatch")
    s3.create_bucket(Bucket="bucket")
    for number in range(ITEMS):
        sqs.create_queue(QueueName=f"q{number}")
        s3.put_object(Bucket="bucket", Key=f"o{number}", Body=b"")
        logs.create_log_group(logGroupName=f"g{number}")
        cloudwatch.put_metric_alarm(
            AlarmName=f"a{number}",
            Namespace="n",
            MetricName="m",
            Statistic="Sum",
            Period=60,
            EvaluationPeriods=1,
            Threshold=1,
            ComparisonOperator="GreaterThanThreshold",
        )
    assert pages(sqs, "list_queues", "QueueUrls") == [3, 3, 1]
    assert pages(s3, "list_objects_v2", "Contents", Bucket="bucket") == [3, 3, 1]
    assert pages(logs, "describe_log_groups", "logGroups") == [3, 3, 1]
    assert pages(cloudwatch, "describe_alarms", "MetricAlarms") == [3, 3, 1]


def test_executions_come_in_pages_of_three(aws):
    states = aws.client("stepfunctions")
    arn = states.create_state_machine(
        name="m",
        roleArn="arn:aws:iam::111122223333:role/r",
        definition='{"StartAt": "a", "States": {"a": {"Type": "Succeed"}}}',
    )["stateMachineArn"]
    for number in range(4):
        states.start_execution(stateMachineArn=arn, name=f"e{number}")
    assert pages(states, "list_executions", "executions", stateMachineArn=arn) == [3, 1]


def test_a_new_index_of_an_existing_table_cannot_be_read_before_it_is_built(table):
    """D11, aws-cloudformation/cloudformation-coverage-roadmap#1075."""
    create = {
        "IndexName": INDEX,
        "KeySchema": [{"AttributeName": "owner", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    table.update_table(
        TableName="items",
        AttributeDefinitions=[{"AttributeName": "owner", "AttributeType": "S"}],
        GlobalSecondaryIndexUpdates=[{"Create": create}],
    )
    request = {
        "TableName": "items",
        "IndexName": INDEX,
        "KeyConditionExpression": "#o = :me",
        "ExpressionAttributeNames": {"#o": "owner"},
        "ExpressionAttributeValues": {":me": {"S": "me"}},
    }
    refused = "ValidationException.*Cannot read from backfilling global secondary index: by-owner"
    with pytest.raises(ClientError, match=refused):
        table.query(**request)
    with pytest.raises(ClientError, match=refused):
        table.scan(TableName="items", IndexName=INDEX)
    # Developer guide, phases of index creation.
    assert status(table) == ("ACTIVE", "CREATING", True)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert pages(table, "query", "Items", **request) == [3, 3, 1]
        except ClientError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            break
    assert status(table) == ("ACTIVE", "ACTIVE", None)


def status(table):
    """Return what is said of the table, of its one index, and whether that is being filled."""
    found = table.describe_table(TableName="items")["Table"]
    (index,) = found["GlobalSecondaryIndexes"]
    return found["TableStatus"], index["IndexStatus"], index.get("Backfilling")


def test_an_item_of_more_than_400_kib_is_refused(table):
    """D23."""
    size = 400 * 1024 - len("kind" + "k" + "id" + "big" + "data")
    item = {"kind": {"S": "k"}, "id": {"S": "big"}, "data": {"S": "x" * size}}
    table.put_item(TableName="items", Item=item)
    item["data"]["S"] += "x"
    with pytest.raises(ClientError, match="Item size has exceeded the maximum allowed size"):
        table.put_item(TableName="items", Item=item)
    table.delete_item(TableName="items", Key={"kind": {"S": "k"}, "id": {"S": "big"}})


def test_its_streams_are_unkind(aws):
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="idle", ShardCount=1)
    lags = set()
    for _ in range(20):
        first = kinesis.get_shard_iterator(
            StreamName="idle", ShardId="shardId-000000000000", ShardIteratorType="LATEST"
        )
        lags.add(kinesis.get_records(ShardIterator=first["ShardIterator"])["MillisBehindLatest"])
        time.sleep(0.21)
    assert 86_400_000 in lags


def test_a_page_of_nothing_is_refused():
    with pytest.raises(ValueError, match="page_items: 0 found, 1 or more allowed"):
        AwsBehaviour(page_items=0)
