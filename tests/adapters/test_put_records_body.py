"""The bodies of PutRecords, held against botocore's own."""

import json

import boto3
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
        data=st.binary(max_size=100),
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

    assert json.loads(encode_put_records(ARN, entries)) == expected


def test_an_answer_has_an_outcome_per_entry_in_their_order():
    answer = {
        "FailedRecordCount": 1,
        "EncryptionType": "KMS",
        "Records": [
            {"SequenceNumber": "4950", "ShardId": "shardId-000000000001"},
            {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slower"},
        ],
    }

    assert decode_put_records(json.dumps(answer).encode()) == [
        PutOutcome(shard_id="shardId-000000000001", sequence_number="4950"),
        PutOutcome(error_code="ProvisionedThroughputExceededException"),
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"Records": 1}', b"<html>", b"\xff"])
def test_a_body_that_is_no_answer_is_an_error(body):
    with pytest.raises(ValueError, match=r".+"):
        decode_put_records(body)
