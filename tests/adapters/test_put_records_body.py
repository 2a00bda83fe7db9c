"""The bodies of PutRecords, held against botocore's own and those of the AWS SDK for Java."""

import base64
import hashlib
import json

import boto3
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.adapters.kinesis.put_records_body import decode_put_records, encode_put_records
from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.packing import OutgoingRecord

ARN = "arn:aws:kinesis:eu-central-1:000000000000:stream/orders"
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ENTRIES = st.lists(
    st.builds(
        OutgoingRecord,
        data=st.binary(max_size=300) | st.just(bytes(70_000)),
        partition_key=KEYS,
        explicit_hash_key=st.none() | st.integers(0, 2**128 - 1).map(str),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def botocore_body():
    """Return the body botocore would send, caught before it is."""
    client = boto3.client("kinesis", region_name="eu-central-1")
    bodies = []

    def catch(request, **_):
        bodies.append(request.body)
        raise InterruptedError

    client.meta.events.register("before-send.kinesis.PutRecords", catch)

    def body_of(entries):
        records = []
        for entry in entries:
            record = {"Data": entry.data, "PartitionKey": entry.partition_key}
            if entry.explicit_hash_key is not None:
                record["ExplicitHashKey"] = entry.explicit_hash_key
            records.append(record)
        with pytest.raises(InterruptedError):
            client.put_records(StreamARN=ARN, Records=records)
        return bodies.pop()

    return body_of


@given(entries=ENTRIES)
def test_the_body_says_what_botocores_says(botocore_body, entries):
    expected = json.loads(botocore_body(entries))

    found = cbor2.loads(encode_put_records(ARN, entries))
    assert all(type(entry["Data"]) is bytes for entry in found["Records"])
    for entry in found["Records"]:
        entry["Data"] = base64.b64encode(entry["Data"]).decode()
    assert found == expected


# What software.amazon.awssdk:kinesis:2.41.21 sent for the same, caught on a socket.
OF_JAVA = (
    b"\xbfgRecords\x9f"
    b"\xbfdDataAxlPartitionKeyaa\xff"
    b"\xffiStreamARNx4arn:aws:kinesis:us-east-1:000000000000:stream/orders\xff"
)
# SHA-256 of what it sent for `of_all_lengths`, from its own header `x-amz-content-sha256`.
OF_JAVA_SHA256 = "5c57591477069f7185f530667985b0f2bae4d2aa5f00cb0e0dccd7ad6aeb0531"
JAVA_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"


def of_all_lengths():
    """Return entries on both sides of each length at which a head grows."""
    for size in (0, 1, 23, 24, 255, 256, 3_000, 65_535, 65_536, 70_000):
        data = bytes((place * 31 + size) % 256 for place in range(size))
        yield OutgoingRecord("k" * max(1, min(256, size)), data)
    yield OutgoingRecord("é€\U0001f600" * 64, b"x", str(2**128 - 1))
    for characters in (7, 8, 15, 40, 64, 85, 86, 128):
        yield OutgoingRecord("€" * characters, b"x", "0")
    for characters in (12, 11, 13, 127, 128):
        yield OutgoingRecord("é" * characters, b"x")


def test_the_body_is_byte_for_byte_that_of_the_sdk_for_java():
    """Fact K100."""
    assert encode_put_records(JAVA_ARN, [OutgoingRecord("a", b"x")]) == OF_JAVA
    body = encode_put_records(JAVA_ARN, list(of_all_lengths()))
    assert hashlib.sha256(body).hexdigest() == OF_JAVA_SHA256


@pytest.mark.parametrize("encode", [lambda answer: json.dumps(answer).encode(), cbor2.dumps])
def test_an_answer_has_an_outcome_per_entry_in_their_order(encode):
    answer = {
        "FailedRecordCount": 1,
        "EncryptionType": "KMS",
        "Records": [
            {"SequenceNumber": "4950", "ShardId": "shardId-000000000001"},
            {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slower"},
        ],
    }

    assert decode_put_records(encode(answer)) == [
        PutOutcome(shard_id="shardId-000000000001", sequence_number="4950"),
        PutOutcome(error_code="ProvisionedThroughputExceededException"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"Records": 1}', b"<html>", b"\xff", b"\xa0", b"\xbf", b"\x80"),
        *map(cbor2.dumps, ({"Records": 1}, {"Records": [1]}, {"Records": [{"ShardId": 1}]})),
    ],
)
def test_a_body_that_is_no_answer_is_an_error(body):
    with pytest.raises(ValueError, match=r".+"):
        decode_put_records(body)
