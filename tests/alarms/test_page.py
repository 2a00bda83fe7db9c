"""The shortest way from a bad record to a page and back; the other alarms: `make alarms`."""

import json

import pytest

from tests.alarms.watched import eventually, watched

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("page"), shards=1) as found:
        yield found


def pager_queue(fleet):
    """Subscribe a queue to the topic of the pages; return its URL."""
    sqs, sns = fleet.client("sqs"), fleet.client("sns")
    allow = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    queue = sqs.create_queue(QueueName="paged", Attributes={"Policy": policy})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    topic = sns.create_topic(Name="pager")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])
    return queue


def told(sqs, queue):
    """Return alarm and state of the messages that have come since the last look."""
    messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
    bodies = [json.loads(json.loads(message["Body"])["Message"]) for message in messages]
    return [(body["AlarmName"], body["NewStateValue"]) for body in bodies]


def test_a_stopped_shard_pages_and_its_resumption_ends_the_page(fleet):
    sqs, queue = fleet.client("sqs"), pager_queue(fleet)
    fleet.wait_for("OK", "stopped_shards", "page", "handler_errors")
    fleet.put(b"poison", keys=("a",))

    fleet.wait_for("ALARM", "stopped_shards", "page")
    paged = (fleet.names["page"], "ALARM")
    eventually(lambda: paged in told(sqs, queue), what="a page")

    (fleet.steer / "cured").touch()
    assert "goes on from" in fleet.resume()
    fleet.wait_for("OK", "stopped_shards", "page")
