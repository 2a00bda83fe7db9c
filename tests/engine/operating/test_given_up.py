"""What was given up is read back as it was kept, and nothing else passes for it."""

import json

import pytest
from msgspec import structs
from msgspec.structs import replace

from shardfleet.adapters.dead_letters import invocation_record, object_key
from shardfleet.errors import ConfigurationError
from shardfleet.runtime.redrive import records_of
from shardfleet_ops.operate.given_up import (
    FailedBucket,
    RefusedDocument,
    by_shard,
    event_of,
    given_up_of,
    sorted_out,
)
from tests.adapters.test_dead_letters import INVOCATION, STREAM, failed

SHARD = "shardId-000000000001"


def document(*payloads, **changes):
    found = invocation_record(failed(*(payloads or (b"one",))), INVOCATION)
    return json.dumps({**found, **changes})


def test_a_document_says_what_it_holds():
    found = given_up_of(document(b"one", b"two"), where="s3://b/k")

    assert (found.where, found.stream_arn, found.shard_id) == ("s3://b/k", STREAM, SHARD)
    assert (found.place, found.count) == ((100, 7), 2)
    assert (found.first_ms, found.last_ms) == (1_700_000_000_123, 1_700_000_000_124)
    assert [r["kinesis"]["sequenceNumber"] for r in event_of(found)["Records"]] == ["100", "101"]


def test_of_records_that_kinesis_gave_no_arrival_nobody_says_when_they_came():
    kept = failed(b"one")
    undated = [structs.replace(each, approximate_arrival_ms=0) for each in kept.records]
    kept = replace(kept, records=undated)
    found = given_up_of(json.dumps(invocation_record(kept, INVOCATION)), where="s3://b/k")

    assert (found.first_ms, found.last_ms) == (0, 0)
    key = object_key(kept, INVOCATION)
    assert key.endswith(f"/{SHARD}/undated/100-7-100-7.json")
    own = FailedBucket(bucket="b", folder=key.partition("orders/")[0])
    assert own.location_of(found) == f"s3://b/{key}"
    assert [each.approximate_arrival_ms for each in records_of(event_of(found))] == [0]


def test_what_a_topic_wraps_around_it_is_taken_off():
    wrapped = json.dumps({"Type": "Notification", "Message": document()})
    assert given_up_of(wrapped, where="q") == given_up_of(document(), where="q")


def test_what_the_mapping_keeps_in_s3_has_no_part_of_ours_and_is_read():
    text = json.loads(document())
    del text["shardfleet"]
    assert given_up_of(json.dumps(text), where="k").place == (100, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"\x00\xff",
        "no JSON",
        "[]",
        "5",
        "[" * 100_000,
        document(
            KinesisBatchInfo={
                **json.loads(document())["KinesisBatchInfo"],
                "startSequenceNumber": "9" * 10_000,
            }
        ),
        document(
            KinesisBatchInfo={**json.loads(document())["KinesisBatchInfo"], "batchSize": 1e999}
        ),
        document(
            KinesisBatchInfo={
                **json.loads(document())["KinesisBatchInfo"],
                "approximateArrivalOfFirstRecord": "0001-01-01T00:00:00+14:00",
            }
        ),
        "{}",
        '{"Type": "Notification", "Message": "hello"}',
        '{"KinesisBatchInfo": {}}',
        '{"KinesisBatchInfo": []}',
        document(KinesisBatchInfo={**json.loads(document())["KinesisBatchInfo"], "batchSize": "x"}),
        document(
            KinesisBatchInfo={
                **json.loads(document())["KinesisBatchInfo"],
                "approximateArrivalOfFirstRecord": "yesterday",
            }
        ),
    ],
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match=r"s3://b/k: it is no record of what was given up"):
        given_up_of(text, where="s3://b/k")


def test_a_pointer_without_records_says_how_they_come_again():
    text = json.loads(document())
    del text["payload"]
    with pytest.raises(ConfigurationError, match=r"does not have them; .*shardfleet rewind"):
        given_up_of(json.dumps(text), where="q")


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("no JSON", "its payload is no event"),
        ('{"Records": ' + "[" * 100_000, "its payload is no event"),
        ("{}", "its payload is no event"),
        ('{"Records": []}', "its payload has 0 records, its batchSize is 1"),
        ('{"Records": [1, 2]}', "its payload has 2 records, its batchSize is 1"),
    ],
)
def test_a_payload_that_is_not_what_the_document_says_is_refused(payload, told):
    with pytest.raises(ConfigurationError, match=f"k: {told}"):
        event_of(given_up_of(document(payload=payload), where="k"))


def test_each_shards_go_in_the_order_in_which_they_were_put():
    """By number: "99" comes before "100", and a sub-sequence number tells within one record."""

    def at(shard, number, sub):
        text = json.loads(document())
        text["KinesisBatchInfo"] |= {"shardId": shard, "startSequenceNumber": number}
        text["shardfleet"]["startSubSequenceNumber"] = sub
        return given_up_of(json.dumps(text), where=f"{shard} {number} {sub}")

    documents = [at("b", "100", 0), at("a", "7", 10), at("b", "99", 0), at("a", "7", 9)]

    found = {shard: [each.where for each in own] for shard, own in by_shard(documents).items()}
    assert found == {"a": ["a 7 9", "a 7 10"], "b": ["b 99 0", "b 100 0"]}


def test_another_streams_is_refused_beside_what_is_ours():
    ours, unreadable = (
        given_up_of(document(), where="k"),
        RefusedDocument(where="q", reason="q: no"),
    )
    another = given_up_of(document(KinesisBatchInfo=_of_another_stream()), where="k-2")

    documents, refused = sorted_out([another, ours, unreadable], STREAM)
    assert documents == [ours]
    assert [each.where for each in refused] == ["k-2", "q"]
    assert refused[0].reason.startswith(f"k-2: it is of the stream {STREAM}-2, and the fleet reads")


def _of_another_stream():
    return {**json.loads(document())["KinesisBatchInfo"], "streamArn": f"{STREAM}-2"}


@pytest.mark.parametrize("shard_id", ["", ".", "..", "a/b", "../x", "a b", "ä", "x" * 129, "a\n"])
def test_a_shard_that_kinesis_could_not_have_named_is_no_record(shard_id):
    batch = {**json.loads(document())["KinesisBatchInfo"], "shardId": shard_id}
    with pytest.raises(ConfigurationError, match="it is no record of what was given up"):
        given_up_of(document(KinesisBatchInfo=batch), where="q")
