"""ListShards read without botocore's parser: what it makes of an answer is the measure."""

import json
import threading

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX
from shardfleet.errors import StreamGone, Throttled

ARN = "arn:aws:kinesis:us-east-1:111122223333:stream/clicks"
JSON = "application/x-amz-json-1.1"


class Body:
    def __init__(self, body):
        self._body = body

    def stream(self, **_):
        yield self._body


def answering(*bodies, status=200, content_type=JSON):
    """Return a client whose requests are answered by these bodies, and no server."""
    client = boto3.client(
        "kinesis",
        region_name="us-east-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"total_max_attempts": 1}),
    )
    left = list(bodies)

    def answer(request, **_):
        body = left.pop(0) if len(left) > 1 else left[0]
        return AWSResponse(request.url, status, {"content-type": content_type}, Body(body))

    client.meta.events.register("before-send.kinesis.ListShards", answer)
    return client


def listing(*shards, **more):
    return json.dumps({"Shards": shards, **more}).encode()


def shard(number, **more):
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(HASH_KEY_MAX)},
        "SequenceNumberRange": {"StartingSequenceNumber": f"4959{number}"},
        **more,
    }


ENDED = {"StartingSequenceNumber": "49591", "EndingSequenceNumber": "49592"}
ORDINARY = {
    "open": listing(shard(0)),
    "none": listing(),
    "closed": listing(shard(0, SequenceNumberRange=ENDED)),
    "of a split": listing(shard(1, ParentShardId="shardId-000000000000")),
    "of a merge": listing(shard(2, ParentShardId="a", AdjacentParentShardId="b")),
    "nulls are absent": listing(shard(3, ParentShardId=None), NextToken=None),
    "escapes": listing(shard(4, ParentShardId="\u00e9\n")),
    "more members": listing(shard(5, Colour={"a": [1]}), Colour="red"),
    "blanks": json.dumps(json.loads(listing(shard(6))), indent=2).encode(),
}


@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
@pytest.mark.parametrize("body", ORDINARY.values(), ids=ORDINARY)
def test_a_listing_is_read_as_botocore_reads_it(body, content_type):
    client = answering(body, content_type=content_type)
    told = client.list_shards(StreamARN=ARN)["Shards"]
    assert [
        (
            each.shard_id,
            {
                "StartingHashKey": str(each.hash_key_range.start),
                "EndingHashKey": str(each.hash_key_range.end),
            },
            each.starting_sequence_number,
            each.ending_sequence_number,
            each.parent_shard_id,
            each.adjacent_parent_shard_id,
        )
        for each in list_shards(client, ARN)
    ] == [
        (
            each["ShardId"],
            each["HashKeyRange"],
            each["SequenceNumberRange"]["StartingSequenceNumber"],
            each["SequenceNumberRange"].get("EndingSequenceNumber"),
            each.get("ParentShardId"),
            each.get("AdjacentParentShardId"),
        )
        for each in told
    ]


def test_a_shard_that_has_ended_since_the_last_listing_is_closed():
    client = answering(listing(shard(0)), listing(shard(0, SequenceNumberRange=ENDED)))
    first, then = list_shards(client, ARN), list_shards(client, ARN)
    assert [first[0].is_open, then[0].is_open] == [True, False]


def test_a_listing_of_the_same_text_is_the_same_shards():
    client = answering(listing(shard(0), NextToken="a"), listing(shard(1)), listing(shard(0)))
    first, then = list_shards(client, ARN), list_shards(client, ARN)
    assert then == first[:1]
    assert then[0] is first[0]


def test_pages_follow_the_token():
    client = answering(listing(shard(0), NextToken="more"), listing(shard(1)))
    assert [each.shard_id[-1] for each in list_shards(client, ARN)] == ["0", "1"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"<html>",
        b'{"Shards": [{"ShardId": "a"}]}',
        listing(shard(0, HashKeyRange={"StartingHashKey": "x", "EndingHashKey": "1"})),
        listing(shard(0, ShardId=7)),
    ],
)
@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
def test_what_cannot_be_read_is_asked_for_again_and_not_quoted(body, content_type):
    with pytest.raises(Throttled, match=r"^ListShards of .*clicks: the answer cannot be read"):
        list_shards(answering(body, content_type=content_type), ARN)


def test_refusals_are_botocores():
    body = json.dumps({"__type": "ResourceNotFoundException", "message": "no clicks"}).encode()
    with pytest.raises(StreamGone, match="no clicks"):
        list_shards(answering(body, status=400), ARN)


def test_whoever_else_uses_the_client_gets_botocores_answer():
    client = answering(listing(shard(0)))
    found = []

    def ask(*_, **__):
        thread = threading.Thread(target=lambda: found.append(client.list_shards(StreamARN=ARN)))
        thread.start()
        thread.join()

    client.meta.events.register("provide-client-params.kinesis.ListShards", ask_once := Once(ask))
    assert len(list_shards(client, ARN)) == 1
    assert ask_once.was
    assert found[0]["Shards"] == client.list_shards(StreamARN=ARN)["Shards"]
    assert found[0]["Shards"][0]["ShardId"] == "shardId-000000000000"


class Once:
    """Calls another the first time."""

    def __init__(self, call):
        self._call = call
        self.was = False

    def __call__(self, **given):
        if not self.was:
            self.was = True
            self._call(**given)
