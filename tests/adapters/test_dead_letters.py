"""Given-up records: in full, in the shape that re-drive tools know, in SQS or S3."""

import asyncio
import json
import uuid

import pytest
from aws_lambda_powertools.utilities.data_classes import KinesisStreamEvent
from aws_lambda_powertools.utilities.parser.models import KinesisDataStreamModel
from botocore.stub import Stubber
from msgspec.structs import replace

from shardfleet.adapters.dead_letters import (
    SQS_BYTES_MOST,
    Invocation,
    S3DeadLetters,
    SnsDeadLetters,
    SqsDeadLetters,
)
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import FailedRecords
from shardfleet.errors import ConfigurationError, RightMissing
from shardfleet.records import Record
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from tests.adapters.loopback import doubted

run = asyncio.run
STREAM = "arn:aws:kinesis:eu-central-1:111122223333:stream/orders"
FUNCTION = "arn:aws:lambda:eu-central-1:111122223333:function:worker:live"
SOURCE = EventSource.of(STREAM, function_arn=FUNCTION)
INVOCATION = Invocation(
    fleet="fulfilment",
    function_arn=FUNCTION,
    request_id="request-1",
    as_event=lambda records: kinesis_event(records, SOURCE),
)


def failed(*payloads):
    return FailedRecords(
        stream_arn=STREAM,
        records=[
            Record(
                data=data,
                partition_key="käfer",
                sequence_number=str(100 + n),
                sub_sequence_number=7,
                aggregated=True,
                shard_id="shardId-000000000001",
                approximate_arrival_ms=1_700_000_000_123 + n,
                explicit_hash_key="5",
            )
            for n, data in enumerate(payloads)
        ],
        error="ValueError: no",
        attempts=5,
        worker_id="orders-s0001",
        at_ms=1_700_000_100_456,
    )


@pytest.fixture(params=["moto", pytest.param("embedded", marks=pytest.mark.processes)])
def clients(request):
    return request.getfixturevalue(f"{request.param}_clients")


@pytest.fixture
def places(clients):
    name = f"failed-{uuid.uuid4().hex[:8]}"
    url = clients.sqs.create_queue(QueueName=name)["QueueUrl"]
    region = clients.s3.meta.region_name
    where = {} if region == "us-east-1" else {"LocationConstraint": region}
    clients.s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": where} if where else {}))
    pool = ThreadPool("streams", threads=2)
    bucket = S3DeadLetters(name, client=clients.s3, pool=pool, invocation=INVOCATION)
    queue = SqsDeadLetters(
        url, client=clients.sqs, pool=pool, invocation=INVOCATION, overflow=bucket
    )
    return clients, queue, bucket, url


def received(clients, url):
    answer = clients.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    return [json.loads(message["Body"]) for message in answer.get("Messages", ())]


def stored(clients, place):
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return json.loads(clients.s3.get_object(Bucket=bucket, Key=key)["Body"].read())


def test_a_message_is_the_invocation_record_with_the_event_in_it(places):
    clients, queue, _, url = places
    place = run(queue.record(failed(b"\x00one", b"two")))
    (message,) = received(clients, url)
    payload = json.loads(message.pop("payload"))
    assert message == {
        "requestContext": {
            "requestId": "request-1",
            "functionArn": FUNCTION,
            "condition": "RetryAttemptsExhausted",
            "approximateInvokeCount": 5,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
        "version": "1.0",
        "timestamp": "2023-11-14T22:15:00.456Z",
        "KinesisBatchInfo": {
            "shardId": "shardId-000000000001",
            "startSequenceNumber": "100",
            "endSequenceNumber": "101",
            "approximateArrivalOfFirstRecord": "2023-11-14T22:13:20.123Z",
            "approximateArrivalOfLastRecord": "2023-11-14T22:13:20.124Z",
            "batchSize": 2,
            "streamArn": STREAM,
        },
        "shardfleet": {
            "workerId": "orders-s0001",
            "error": "ValueError: no",
            "startSubSequenceNumber": 7,
            "endSubSequenceNumber": 7,
        },
    }
    assert place.startswith(f"{url}#")
    assert [r.kinesis.data_as_bytes() for r in KinesisStreamEvent(payload).records] == [
        b"\x00one",
        b"two",
    ]


def test_what_was_too_old_is_told_in_the_mappings_word(places):
    clients, queue, _, url = places
    run(queue.record(replace(failed(b"one"), is_too_old=True)))
    (message,) = received(clients, url)

    assert message["requestContext"]["condition"] == "RecordAgeExceeded"


def test_the_event_in_it_is_one_that_powertools_parser_accepts(places):
    clients, queue, _, url = places
    run(queue.record(failed(b"one")))
    (message,) = received(clients, url)
    (record,) = KinesisDataStreamModel.model_validate(json.loads(message["payload"])).Records
    assert (record.kinesis.partitionKey, record.kinesis.sequenceNumber) == ("käfer", "100")
    assert record.eventID == "shardId-000000000001:100"
    assert record.kinesis.data == b"one"


def test_an_object_has_the_same_record_and_a_repeat_replaces_it(places):
    clients, _, bucket, _ = places
    place = run(bucket.record(failed(b"one")))
    assert run(bucket.record(failed(b"one"))) == place
    fleet = "/shardfleet/failed/111122223333/eu-central-1/fulfilment/"
    assert place.endswith(f"{fleet}orders/shardId-000000000001/2023/11/14/100-7-100-7.json")
    (event,) = json.loads(stored(clients, place)["payload"])["Records"]
    assert event["kinesis"]["subSequenceNumber"] == 7
    assert event["kinesis"]["explicitHashKey"] == "5"


@pytest.mark.parametrize(
    "other",
    [
        {"fleet": "billing"},
        {"function_arn": FUNCTION.replace("111122223333", "444455556666")},
        {"function_arn": FUNCTION.replace("eu-central-1", "us-east-1")},
    ],
)
def test_two_fleets_on_one_stream_and_bucket_keep_both_objects(places, other):
    clients, _, bucket, _ = places
    second = S3DeadLetters(
        bucket.bucket,
        client=clients.s3,
        pool=ThreadPool("streams", threads=2),
        invocation=replace(INVOCATION, **other),
    )

    first_place = run(bucket.record(failed(b"one")))
    second_place = run(second.record(failed(b"one")))

    assert first_place != second_place
    kept = [stored(clients, place)["KinesisBatchInfo"] for place in (first_place, second_place)]
    assert kept[0] == kept[1]


def test_what_a_message_cannot_hold_is_in_the_bucket_and_the_message_says_where(places):
    clients, queue, _, url = places
    data = b"x" * SQS_BYTES_MOST
    run(queue.record(failed(data)))
    (message,) = received(clients, url)
    assert "payload" not in message
    assert message["KinesisBatchInfo"]["startSequenceNumber"] == "100"
    whole = stored(clients, message["shardfleet"]["payloadLocation"])
    (record,) = KinesisStreamEvent(json.loads(whole["payload"])).records
    assert record.kinesis.data_as_bytes() == data


def test_a_message_may_have_a_mebibyte(places):
    """SendMessage: "The maximum size is 1 MiB or 1,048,576 bytes"."""
    clients, queue, _, url = places
    place = run(queue.record(failed(b"x" * 700_000)))  # Four thirds of it in base64.
    (message,) = received(clients, url)
    assert place.startswith(url)
    assert len(json.loads(message["payload"])["Records"][0]["kinesis"]["data"]) > 900_000


def test_what_this_queue_does_not_take_is_in_the_bucket(places):
    """CreateQueue: a queue may take less, by MaximumMessageSize."""
    clients, queue, bucket, url = places
    clients.sqs.set_queue_attributes(
        QueueUrl=url, Attributes={"MaximumMessageSize": str(256 * 1024)}
    )
    run(queue.record(failed(b"x" * 300_000)))
    (message,) = received(clients, url)
    assert message["shardfleet"]["payloadLocation"].startswith(f"s3://{bucket.bucket}/")

    alone = SqsDeadLetters(url, client=clients.sqs, pool=bucket.pool, invocation=INVOCATION)
    with pytest.raises(ConfigurationError, match=r"262144.*failed_bucket"):
        run(alone.record(failed(b"x" * 300_000)))


def test_what_a_message_cannot_hold_without_a_bucket_is_refused_and_nothing_is_sent(places):
    clients, _, _, url = places
    pool = ThreadPool("streams", threads=1)
    queue = SqsDeadLetters(url, client=clients.sqs, pool=pool, invocation=INVOCATION)
    with pytest.raises(ConfigurationError, match="failed_bucket"):
        run(queue.record(failed(b"x" * SQS_BYTES_MOST)))
    assert received(clients, url) == []


def test_a_missing_queue_or_bucket_is_a_matter_of_configuration(places):
    clients, _, _, url = places
    pool = ThreadPool("streams", threads=1)
    queue = SqsDeadLetters(f"{url}-x", client=clients.sqs, pool=pool, invocation=INVOCATION)
    with pytest.raises(ConfigurationError, match="SendMessage"):
        run(queue.record(failed(b"x")))
    bucket = S3DeadLetters(
        f"x-{uuid.uuid4().hex}", client=clients.s3, pool=pool, invocation=INVOCATION
    )
    with pytest.raises(ConfigurationError, match="PutObject"):
        run(bucket.record(failed(b"x")))


# --- a topic that is told


@pytest.fixture
def told(places):
    """Return a topic over the bucket, and what its subscriber, the queue, gets."""
    clients, _, bucket, url = places
    topic = clients.sns.create_topic(Name=f"given-up-{uuid.uuid4().hex[:8]}")["TopicArn"]
    queue = clients.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    clients.sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue["Attributes"]["QueueArn"],
        Attributes={"RawMessageDelivery": "true"},
    )
    letters = SnsDeadLetters(
        topic, client=clients.sns, pool=bucket.pool, invocation=INVOCATION, kept=bucket
    )
    return clients, letters, url


def test_a_topic_is_told_what_the_bucket_has(told):
    clients, letters, url = told
    place = run(letters.record(failed(b"one", b"two")))
    (message,) = received(clients, url)
    assert message["shardfleet"].pop("payloadLocation") == place
    assert message == stored(clients, place)
    assert [
        r.kinesis.data_as_bytes()
        for r in KinesisStreamEvent(json.loads(message["payload"])).records
    ] == [b"one", b"two"]


def test_what_a_topic_does_not_take_is_in_the_bucket_and_the_message_says_where(told):
    """Publish: "By default, a message can be at most 256 KiB in size"."""
    clients, letters, url = told
    data = b"x" * 300_000
    place = run(letters.record(failed(data)))
    (message,) = received(clients, url)
    assert "payload" not in message
    assert message["KinesisBatchInfo"]["startSequenceNumber"] == "100"
    assert message["shardfleet"]["payloadLocation"] == place
    (record,) = KinesisStreamEvent(json.loads(stored(clients, place)["payload"])).records
    assert record.kinesis.data_as_bytes() == data


def test_a_missing_topic_is_a_matter_of_configuration_and_the_record_is_kept(told):
    clients, letters, url = told
    letters.topic_arn += "-x"
    with pytest.raises(ConfigurationError, match="Publish"):
        run(letters.record(failed(b"one")))
    assert received(clients, url) == []
    assert letters.kept.bucket in {each["Name"] for each in clients.s3.list_buckets()["Buckets"]}
    assert clients.s3.list_objects_v2(Bucket=letters.kept.bucket)["KeyCount"] == 1


@pytest.mark.parametrize("code", ["AuthorizationError", "KMSAccessDenied"])
def test_a_topic_that_may_not_be_told_is_a_right_that_is_missing(places, code):
    clients, _, bucket, _ = places
    topic = "arn:aws:sns:eu-central-1:111122223333:given-up"
    letters = SnsDeadLetters(
        topic, client=clients.sns, pool=bucket.pool, invocation=INVOCATION, kept=bucket
    )
    with Stubber(clients.sns) as stubber:
        stubber.add_client_error("publish", code, http_status_code=403)
        with doubted(RightMissing):
            run(letters.record(failed(b"one")))
