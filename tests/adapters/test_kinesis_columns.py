"""Pages in CBOR, held against cbor2, and columns against pages that are read value by value."""

import copy
import json
import pickle
import random

import boto3
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.kpl.envelope import MAGIC
from shardfleet.records import StreamRecord
from shardfleet_spark.aws import columns as kinesis_columns
from shardfleet_spark.aws.columns import (
    FEWEST,
    RecordColumns,
    decode_columns,
    encode_get_records,
)

MANY = FEWEST + 3
ARN = "arn:aws:kinesis:eu-central-1:000000000000:stream/orders"
FIRST_MS = 1_800_000_000_000
# On both sides of each length at which the head of a value grows.
SIZES = [0, 1, 23, 24, 255, 256, 1_024, 65_535, 65_536]
KEYS = ["k", "é€\U0001f600", "k" * 23, "k" * 24, "€" * 85, "k" * 256]


def counted(value):
    return cbor2.dumps(value)


def marked(value):
    """Encode with the ends of structures marked, and times tagged, as the Java SDK does."""
    if isinstance(value, dict):
        pairs = (cbor2.dumps(name) + _member(name, each) for name, each in value.items())
        return b"\xbf" + b"".join(pairs) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(map(marked, value)) + b"\xff"
    return cbor2.dumps(value)


def _member(name, value):
    tagged = name == "ApproximateArrivalTimestamp"
    return cbor2.dumps(cbor2.CBORTag(1, value)) if tagged else marked(value)


ENCODINGS = pytest.mark.parametrize("encode", [counted, marked])


def records_of(chance, number, *, sizes=SIZES, keys=KEYS, **more):
    """Return wire records of one layout."""
    names = ["Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp", *more]
    order = chance.sample(names, len(names))
    found = []
    for index in range(number):
        record = {
            "Data": chance.randbytes(chance.choice(sizes)),
            "PartitionKey": chance.choice(keys),
            "SequenceNumber": str(10**55 + chance.randrange(10**40) * number + index),
            "ApproximateArrivalTimestamp": FIRST_MS + chance.randrange(10**9),
            **more,
        }
        found.append({name: record[name] for name in order})
    return found


def plain(number, **other):
    """Return wire records of one layout, the one in the middle with something else."""
    found = [
        {
            "SequenceNumber": str(10**55 + index),
            "ApproximateArrivalTimestamp": FIRST_MS + index,
            "Data": b"x" * (index % 300),
            "PartitionKey": f"key-{index}",
        }
        for index in range(number)
    ]
    found[number // 2] = {
        name: value for name, value in (found[number // 2] | other).items() if value is not None
    }
    return found


def answer_of(records):
    return {"Records": records, "NextShardIterator": "AAA", "MillisBehindLatest": 7}


def expected(records):
    """What cbor2 read, as stream records."""
    return [
        StreamRecord(
            each["Data"],
            each["PartitionKey"],
            each["SequenceNumber"],
            each.get("ApproximateArrivalTimestamp", 0),
            each.get("EncryptionType"),
        )
        for each in records
    ]


def outcome(body):
    try:
        page = decode_columns(body)
    except UnreadableAnswer:
        return "unreadable"
    return replace(page, size_bytes=page.size)


def value_by_value(body):
    """The same outcome without columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinesis_columns, "FEWEST", 10**9)
        patch.setattr(kinesis_columns, "_layout_of", lambda *_: None)
        return outcome(body)


@ENCODINGS
@given(seed=st.integers(0, 2**32), more=st.sampled_from([{}, {"EncryptionType": "KMS"}]))
def test_records_of_one_layout_are_columns_that_say_what_cbor2_reads(encode, seed, more):
    chance = random.Random(seed)
    answer = answer_of(records_of(chance, MANY, **more))
    body = encode(answer)
    assert cbor2.loads(body, semantic_decoders={1: lambda value, _: value}) == answer

    page = decode_columns(bytearray(body) if seed % 2 else body)

    assert isinstance(page.records, RecordColumns)
    assert list(page.records) == expected(answer["Records"])
    assert (page.resume_token, page.millis_behind_latest) == ("AAA", 7)
    assert page.size == sum(len(e["Data"]) + len(e["PartitionKey"]) for e in answer["Records"])


@ENCODINGS
@pytest.mark.parametrize("number", [0, 1, FEWEST - 1, FEWEST])
def test_a_short_page_is_read_value_by_value(encode, number):
    records = plain(number) if number else []
    page = decode_columns(encode(answer_of(records)))
    assert list(page.records) == expected(records)
    assert isinstance(page.records, RecordColumns) == (number == FEWEST)


@ENCODINGS
@pytest.mark.parametrize(
    "other",
    [
        {"SequenceNumber": "4950"},
        {"SequenceNumber": "x" * 56},
        {"SequenceNumber": "٣" * 28},
        {"ApproximateArrivalTimestamp": 1},
        {"ApproximateArrivalTimestamp": None},
        {"EncryptionType": "KMS"},
        {"PartitionKey": ""},
        {"Member": "of tomorrow"},
        {"Data": MAGIC + b"not really"},
    ],
    ids=str,
)
def test_a_record_that_is_otherwise_is_read_all_the_same(encode, other):
    records = plain(MANY, **other)
    page = decode_columns(encode(answer_of(records)))
    assert list(page.records) == expected(records)


@pytest.mark.parametrize(
    "other",
    [
        {"Data": "te!t"},
        {"Data": None},
        {"PartitionKey": b"bytes"},
        {"PartitionKey": None},
        {"SequenceNumber": 1},
        {"SequenceNumber": None},
        {"ApproximateArrivalTimestamp": -1},
        {"ApproximateArrivalTimestamp": -(2**40)},
        {"ApproximateArrivalTimestamp": "\x1b" + "\0" * 7 + "\1"},
        {"ApproximateArrivalTimestamp": 253_402_300_800_000},
        {"ApproximateArrivalTimestamp": 1_800_000_000_000.5},
        {"EncryptionType": 1},
        {"EncryptionType": b"KMS"},
    ],
    ids=str,
)
@ENCODINGS
@pytest.mark.parametrize("number", [1, MANY])
def test_a_record_that_is_none_makes_the_answer_unreadable(encode, other, number):
    assert outcome(encode(answer_of(plain(number, **other)))) == "unreadable"
    everywhere = [each | other for each in plain(number)]
    of_all = [{k: v for k, v in each.items() if v is not None} for each in everywhere]
    assert outcome(encode(answer_of(of_all))) == "unreadable"


@ENCODINGS
@pytest.mark.parametrize(
    "other",
    [
        {"ApproximateArrivalTimestamp": 1},
        {"ApproximateArrivalTimestamp": 253_402_300_799_999},
        {"EncryptionType": None},
        {"Member": ["of tomorrow"]},
        {"PartitionKey": ""},
    ],
    ids=str,
)
def test_what_all_records_have_is_read_of_each(encode, other):
    records = [each | other for each in plain(MANY)]
    assert list(decode_columns(encode(answer_of(records))).records) == expected(records)


def test_an_array_with_fewer_records_than_it_says_is_unreadable():
    records = b"".join(map(counted, plain(MANY - 1)))
    head = counted("Records") + cbor2.dumps([0] * MANY)[:2]
    for end in (b"\xff", b"\xff\xff", b""):
        assert outcome(b"\xbf" + head + records + end) == "unreadable"


@pytest.mark.parametrize("number", [1, MANY])
def test_data_in_base64_is_read_as_the_sdk_for_java_reads_it(number):
    page = decode_columns(counted(answer_of(plain(number, Data="eHl6"))))
    assert page.records[number // 2].data == b"xyz"


def test_a_key_that_is_no_utf_8_makes_the_answer_unreadable():
    body = marked(answer_of(plain(MANY, PartitionKey="key-zz")))
    assert outcome(body.replace(b"key-zz", b"key-\xff\xff")) == "unreadable"


@pytest.mark.parametrize("body", [b"\xa0", b"\xbf\xff", b"\xa1gRecords\x01", b"\xa1gRecords\xa0"])
def test_an_answer_without_records_is_unreadable(body):
    assert outcome(body) == "unreadable"


@ENCODINGS
@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), seed=st.integers(0, 99))
def test_one_changed_byte_is_never_read_as_anything_else(encode, place, byte, seed):
    records = records_of(random.Random(seed), MANY, sizes=[3, 30], keys=KEYS[:3])
    body = bytearray(encode(answer_of(records)))
    body[place % len(body)] = byte
    assert outcome(bytes(body)) == value_by_value(bytes(body))


@ENCODINGS
@given(share=st.floats(0, 1, exclude_max=True))
def test_an_answer_that_is_cut_off_is_unreadable(encode, share):
    body = encode(answer_of(plain(MANY)))
    assert outcome(body[: max(1, int(share * len(body)))]) == "unreadable"


@ENCODINGS
def test_behind_records_that_are_columns_the_answer_goes_on(encode):
    child = {
        "ShardId": "shardId-000000000001",
        "ParentShards": ["shardId-000000000000"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
    }
    answer = {"MillisBehindLatest": 0, "Records": plain(MANY), "ChildShards": [child], "New": [1]}
    page = decode_columns(encode(answer))
    assert isinstance(page.records, RecordColumns)
    assert page.resume_token is None
    assert page.child_shards == [
        ChildShard(
            shard_id="shardId-000000000001",
            parent_shard_ids=("shardId-000000000000",),
            hash_key_range=HashKeyRange(0, 2**128 - 1),
        )
    ]


@pytest.mark.parametrize("number", [1, MANY])
def test_a_child_without_a_hash_key_makes_the_answer_unreadable(number):
    keys = {"StartingHashKey": "none", "EndingHashKey": "1"}
    child = {"ShardId": "shardId-1", "ParentShards": [], "HashKeyRange": keys}
    assert outcome(counted(answer_of(plain(number)) | {"ChildShards": [child]})) == "unreadable"


def test_an_answer_in_json_is_read_too():
    """Fact K100: an answer may come in JSON all the same."""
    body = b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Data":"eA=="}]}'
    assert decode_columns(body) == decode_page(body)
    assert outcome(b"<html>") == outcome(b"") == "unreadable"


def test_aggregates_stay_records():
    records = [each | {"Data": MAGIC + each["Data"]} for each in plain(MANY)]
    found = decode_columns(counted(answer_of(records))).records
    assert not isinstance(found, RecordColumns)
    assert found == expected(records)


def test_the_request_says_what_botocores_says():
    client = boto3.client("kinesis", region_name="eu-central-1")
    bodies = []

    def catch(request, **_):
        bodies.append(request.body)
        raise InterruptedError

    client.meta.events.register("before-send.kinesis.GetRecords", catch)
    with pytest.raises(InterruptedError):
        client.get_records(ShardIterator="AAAé" * 90, Limit=10_000, StreamARN=ARN)
    assert cbor2.loads(encode_get_records("AAAé" * 90, 10_000, ARN)) == json.loads(bodies[0])


def test_columns_are_a_sequence_of_their_records():
    wire = plain(MANY, PartitionKey="é", Data=MAGIC, EncryptionType=None)
    found, records = decode_columns(counted(answer_of(wire))).records, expected(wire)

    assert isinstance(found, RecordColumns)
    assert found == records
    assert len(found) == MANY
    assert [found[0], found[-1]] == [records[0], records[-1]]
    assert found[3:9] == records[3:9]
    assert found[9:3] == []
    assert found[::2] == records[::2]
    assert found != records[1:]
    assert copy.copy(found[3:9]) == records[3:9]
    assert len(pickle.dumps(found[3:4])) < len(pickle.dumps(found)) / 9
    assert found.sequence_numbers == [each.sequence_number for each in records]
    assert found.data_sizes == [len(each.data) for each in records]
    assert found.last_arrival_ms == max(each.approximate_arrival_ms for each in records)
    assert found.size == sum(len(each.data) + len(each.partition_key) for each in records)
    assert found.have_aggregates
    assert not found[: MANY // 2].have_aggregates
    assert found[:0].size == found[:0].last_arrival_ms == 0
    assert "key-" not in repr(found)
