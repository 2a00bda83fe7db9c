"""Bodies in JSON and CBOR, and the frames of an event stream."""

import cbor2
import pytest
from botocore.eventstream import EventStreamBuffer

from shardfleet_local.kinesis import wire
from shardfleet_local.kinesis.errors import KinesisError

JSON, CBOR = wire.JSON, wire.CBOR


def test_json_is_the_default_and_cbor_is_told_by_its_content_type():
    assert wire.content_type_of({}) == JSON
    assert wire.content_type_of({"content-type": "application/x-amz-json-1.1"}) == JSON
    assert wire.content_type_of({"content-type": "application/x-amz-cbor-1.1"}) == CBOR


def test_an_empty_body_is_an_empty_request():
    assert wire.decode(b"", JSON) == wire.decode(b"", CBOR) == {}


@pytest.mark.parametrize("content_type", [JSON, CBOR])
@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xff"])
def test_a_body_that_is_no_structure_is_refused(content_type, body):
    with pytest.raises(KinesisError, match="SerializationException"):
        wire.decode(body, content_type)


def test_cbor_data_are_bytes_outside_and_base64_inside():
    body = cbor2.dumps({"Records": [{"Data": b"hello", "PartitionKey": "k"}]})
    request = wire.decode(body, CBOR)
    assert request == {"Records": [{"Data": "aGVsbG8=", "PartitionKey": "k"}]}
    assert cbor2.loads(wire.encode(request, CBOR)) == cbor2.loads(body)


@pytest.mark.parametrize("tagged", [False, True])
def test_cbor_timestamps_are_milliseconds_tagged_as_epochs_or_not(tagged):
    # The Java SDK tags them (RFC 8949 tag 1, which means seconds) and yet sends milliseconds.
    at_ms = 1_800_000_000_123
    value = cbor2.CBORTag(1, at_ms) if tagged else at_ms
    body = cbor2.dumps({"ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": value}})
    assert wire.decode(body, CBOR)["ShardFilter"]["Timestamp"] == at_ms / 1000


def test_cbor_answers_have_whole_milliseconds_and_do_not_touch_what_is_stored():
    record = {"ApproximateArrivalTimestamp": 1_800_000_000.123, "Data": "aGVsbG8="}
    answer = {"Records": [record]}
    assert cbor2.loads(wire.encode(answer, CBOR))["Records"] == [
        {"ApproximateArrivalTimestamp": 1_800_000_000_123, "Data": b"hello"}
    ]
    assert record["Data"] == "aGVsbG8="


@pytest.mark.parametrize("content_type", [JSON, CBOR])
def test_an_error_has_its_code_as_type(content_type):
    body = wire.error_body(KinesisError("LimitExceededException", "slow down"), content_type)
    assert wire.decode(body, content_type) == {
        "__type": "LimitExceededException",
        "message": "slow down",
    }


def frames(data):
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(message.headers, message.payload) for message in buffer]


def test_frames_are_what_botocore_reads():
    data = wire.event_frame("initial-response", {}, content_type=JSON)
    data += wire.event_frame("SubscribeToShardEvent", {"Records": []}, content_type=JSON)
    first, second = frames(data)
    assert first[0][":event-type"] == "initial-response"
    assert second == (
        {
            ":message-type": "event",
            ":event-type": "SubscribeToShardEvent",
            ":content-type": JSON,
        },
        b'{"Records":[]}',
    )


def test_an_exception_frame_names_the_exception():
    ((headers, payload),) = frames(
        wire.exception_frame(KinesisError("ResourceInUseException", "taken"), JSON)
    )
    assert headers[":message-type"] == "exception"
    assert headers[":exception-type"] == "ResourceInUseException"
    assert payload == b'{"message":"taken"}'
