"""From headers and a body to an answer: accounts, errors, admin operations, ministack's shape."""

import asyncio
import json

import cbor2
import pytest

from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.service import KinesisService, ministack_handler

PATIENCE_S = 30
SIGNATURE = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261120/eu-west-1/kinesis/aws4_..."


@pytest.fixture
def service(clock):
    return KinesisService(
        lambda account_id, region: KinesisEngine(
            AccountSettings(account_id=account_id, region=region, quotas=False), clock=clock
        )
    )


@pytest.fixture
def call(service):
    """Return a function that sends one JSON request and returns status and decoded body."""

    def send(target, body=None, *, account=None, region="us-east-1", **headers):
        target = target if "." in target else f"Kinesis_20131202.{target}"
        request = service.handle(
            {"x-amz-target": target, **headers},
            json.dumps(body or {}).encode(),
            account=account and (account, region),
        )
        response = asyncio.run(request)
        return response.status, json.loads(response.body) if response.body else {}

    return send


def test_an_operation_without_output_answers_with_an_empty_body(call):
    assert call("CreateStream", {"StreamName": "s", "ShardCount": 1}) == (200, {})


def test_a_refusal_is_a_400_with_its_type_in_body_and_header(service):
    response = asyncio.run(
        service.handle({"x-amz-target": "Kinesis_20131202.ListShards"}, b'{"StreamName": "no"}')
    )
    assert response.status == 400
    assert json.loads(response.body)["__type"] == "ResourceNotFoundException"
    assert response.headers["x-amzn-ErrorType"] == "ResourceNotFoundException"
    assert response.headers["Content-Type"] == "application/x-amz-json-1.1"
    assert response.headers["x-amzn-RequestId"]


def test_cbor_is_answered_in_cbor(service, call):
    call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    headers = {
        "x-amz-target": "Kinesis_20131202.PutRecord",
        "content-type": "application/x-amz-cbor-1.1",
    }
    body = cbor2.dumps({"StreamName": "s", "PartitionKey": "k", "Data": b"hello"})
    response = asyncio.run(service.handle(headers, body))
    assert response.headers["Content-Type"] == "application/x-amz-cbor-1.1"
    assert cbor2.loads(response.body)["ShardId"] == "shardId-000000000000"


def test_a_bug_is_a_500_and_a_trace(service, call, monkeypatch, capsys):
    def fail(*_):
        message = "oh no"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(KinesisEngine, "call", fail)
    status, body = call("ListStreams")
    assert (status, body["__type"]) == (500, "InternalFailure")
    assert "oh no" in capsys.readouterr().err


def test_accounts_and_regions_are_apart(call):
    for account, region in (("111111111111", "us-east-1"), ("222222222222", "us-east-1")):
        call("CreateStream", {"StreamName": "s", "ShardCount": 1}, account=account, region=region)
    status, body = call("DescribeStreamSummary", {"StreamName": "s"}, account="111111111111")
    arn = body["StreamDescriptionSummary"]["StreamARN"]
    assert (status, arn) == (200, "arn:aws:kinesis:us-east-1:111111111111:stream/s")
    elsewhere = call("ListStreams", account="111111111111", region="eu-west-1")
    assert elsewhere[1]["StreamNames"] == []
    assert call("ListStreams")[1]["StreamNames"] == []
    call("CreateStream", {"StreamName": "here", "ShardCount": 1}, authorization=SIGNATURE)
    there = call("ListStreams", account="000000000000", region="eu-west-1")
    assert there[1]["StreamNames"] == ["here"], "the region is the signature's"


def test_an_arn_of_another_account_leads_to_that_account(call):
    call("CreateStream", {"StreamName": "s", "ShardCount": 1}, account="111111111111")
    arn = "arn:aws:kinesis:us-east-1:111111111111:stream/s"
    status, body = call("ListShards", {"StreamARN": arn}, account="222222222222")
    assert (status, len(body["Shards"])) == (200, 1)


def test_a_token_alone_leads_to_the_account_of_its_stream(call):
    """The KCL pages through streams of other accounts by it (KinesisShardDetector.listShards)."""
    call("CreateStream", {"StreamName": "s", "ShardCount": 2}, account="111111111111")
    first = {"StreamARN": "arn:aws:kinesis:us-east-1:111111111111:stream/s", "MaxResults": 1}
    _, body = call("ListShards", first, account="222222222222")
    status, body = call("ListShards", {"NextToken": body["NextToken"]}, account="222222222222")
    assert (status, [each["ShardId"] for each in body.get("Shards", ())]) == (
        200,
        ["shardId-000000000001"],
    )


def test_a_delayed_answer_comes_all_the_same(call):
    call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    fault = {"Kind": "Latency", "Operation": "ListShards", "DelayMs": 1, "DurationMs": 60_000}
    call("ShardfleetLocal.Faults", {"Action": "Inject", "Fault": fault})
    assert call("ListShards", {"StreamName": "s"})[0] == 200


def test_faults_are_driven_over_the_wire(call):
    call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    fault = {"Kind": "ThrottleWrites", "StreamName": "s", "DurationMs": 60_000}
    _, body = call("ShardfleetLocal.Faults", {"Action": "Inject", "Fault": fault})
    assert body["Active"][0]["Kind"] == "ThrottleWrites"
    put = ("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": ""})
    assert call(*put)[1]["__type"] == "ProvisionedThroughputExceededException"
    assert call("ShardfleetLocal.Faults", {"Action": "Clear"})[1] == {"Active": []}
    assert call(*put)[0] == 200
    trim = {"Action": "Trim", "StreamName": "s", "ShardId": "shardId-000000000000"}
    assert call("ShardfleetLocal.Faults", trim) == (200, {"Active": []})
    assert call("ShardfleetLocal.Faults", {"Action": "Explode"})[0] == 400
    assert call("ShardfleetLocal.Nothing")[1]["__type"] == "UnknownOperationException"


def test_metrics_are_drained_over_the_wire(call):
    call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    call("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": ""})
    _, body = call("ShardfleetLocal.Metrics")
    assert body["Namespace"] == "AWS/Kinesis"
    by_name = {
        (datum["MetricName"], len(datum["Dimensions"])): datum for datum in body["MetricData"]
    }
    datum = by_name["IncomingRecords", 2]
    assert datum["Dimensions"] == [
        {"Name": "StreamName", "Value": "s"},
        {"Name": "ShardId", "Value": "shardId-000000000000"},
    ]
    assert datum["StatisticValues"]["Sum"] == 1
    assert call("ShardfleetLocal.Metrics")[1]["MetricData"] == []


class FakeStreaming:
    def __init__(self, run):
        self.run = run


def headers_of(operation):
    return {"X-Amz-Target": f"Kinesis_20131202.{operation}"}


@pytest.fixture
def handler(service):
    return ministack_handler(
        service, account=lambda: ("333333333333", "eu-west-1"), streaming=FakeStreaming
    )


def test_the_handler_for_ministack_takes_and_returns_what_it_expects(service, handler):
    body = b'{"StreamName": "s", "ShardCount": 1}'
    answer = asyncio.run(handler("POST", "/", headers_of("CreateStream"), body, {}))
    assert answer[0] == 200
    assert answer[2] == b""
    assert list(service.engines) == [("333333333333", "eu-west-1")]


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_subscription_is_streamed_until_it_ends_or_the_client_hangs_up(
    service, handler, hangs_up
):
    engine = service.engine("333333333333", "eu-west-1")
    engine.call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    arn = "arn:aws:kinesis:eu-west-1:333333333333:stream/s"
    consumer = engine.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "c"})
    request = {
        "ConsumerARN": consumer["Consumer"]["ConsumerARN"],
        "ShardId": "shardId-000000000000",
        "StartingPosition": {"Type": "LATEST"},
    }
    sent = []

    async def scenario():
        gone = asyncio.Event()
        status, _, streaming = await handler(
            "POST", "/", headers_of("SubscribeToShard"), json.dumps(request).encode(), {}
        )

        async def send(message):
            sent.append(message)
            if len(sent) == 2 and hangs_up:
                gone.set()
            elif len(sent) == 2:
                split = {"ShardToSplit": "shardId-000000000000", "NewStartingHashKey": "5"}
                engine.call("SplitShard", {"StreamName": "s", **split})

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        assert status == 200
        await streaming.run(send, receive)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    if hangs_up:
        assert [message["more_body"] for message in sent] == [True, True]
    else:
        assert b"ChildShards" in sent[-2]["body"]
        assert sent[-1]["more_body"] is False
