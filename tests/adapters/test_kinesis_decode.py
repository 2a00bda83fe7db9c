"""The quick decoder gives what botocore gives, whatever the body."""

import base64
import json
import os
import random
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfleet.adapters.kinesis import decode as kinesis_decode
from shardfleet.adapters.kinesis.decode import decode_page, decode_page_slowly
from shardfleet.adapters.sdk_errors import UnreadableAnswer

# `DECODE_BODIES=60000 make test ARGS="-k every_body"` takes more.
BODIES = int(os.environ.get("DECODE_BODIES", "3000"))
HOSTILE_TEXT = [
    *("", "k", '"', "\\", '"Data":"', '\\"Data\\":\\"QUJD', "~cut~", '"~cut~"', "é", "\U0001f600"),
    *("\u2028", "\x7f", "a/b", "\t\n", "Records", "null", "QUJD", "\\u0022", "x" * 300),
]
# Around the size from which data is cut out: 1,050 bytes are 1,400 characters.
SIZES = [0, 1, 2, 3, 30, 1048, 1049, 1050, 1051, 1100, 3000]
HOSTILE_VALUES = [
    *(None, True, 0, -1, 1.5, 10**30, "", "text", [], {}, [1], {"Data": "QUJD"}),
    *({"Records": [{"Data": ""}]}, "~cut~", "QR==", "QUJD\n", "QUJ", "!", "QUJDQQ==QUJD"),
    *("1700000000", "2023-11-14T22:13:20Z", 1700000000.0005, 1e300, -5.5, 253402300800),
]


def outcome(decode, body):
    try:
        return decode(body)
    except UnreadableAnswer:
        return "unreadable"


def text_of(chance):
    return "".join(chance.choices(HOSTILE_TEXT, k=chance.choice([1, 1, 2, 3])))


def timestamp(chance):
    whole = chance.randrange(1_500_000_000, 1_900_000_000)
    return chance.choice(
        [whole, whole + chance.randrange(1000) / 1000, whole + chance.random(), float(whole)]
    )


def record(chance, size):
    found = {
        "SequenceNumber": str(chance.randrange(10**56)),
        "ApproximateArrivalTimestamp": timestamp(chance),
        "Data": base64.b64encode(chance.randbytes(size)).decode(),
        "PartitionKey": text_of(chance),
    }
    if chance.random() < 0.2:
        found["EncryptionType"] = chance.choice(["NONE", "KMS"])
    return found


def answer(chance):
    size = chance.choice(SIZES)
    mixed = chance.random() < 0.3
    count = chance.choice([0, 1, 2, 3, 5])
    found = {
        "Records": [record(chance, chance.choice(SIZES) if mixed else size) for _ in range(count)],
        "MillisBehindLatest": chance.choice([0, 5, 10**9]),
        "NextShardIterator": text_of(chance),
    }
    if chance.random() < 0.2:
        child = {
            "ShardId": "shardId-000000000001",
            "ParentShards": ["shardId-000000000000", "a"][: chance.randrange(3)],
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
        }
        found["ChildShards"] = [child]
        del found["NextShardIterator"]
    return found


def spoiled(found, chance):
    """Change members somewhere: missing, unknown, of another type, in another order."""
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        places = [found, *(each for each in found["Records"] or () if isinstance(each, dict))]
        place = chance.choice(places)
        names = list(place)
        match chance.randrange(4):
            case 0 if names and place is not found:
                del place[chance.choice(names)]
            case 1 if names and place is not found:
                place[chance.choice(names)] = chance.choice(HOSTILE_VALUES)
            case 2:
                place[chance.choice(["New", '"Data', "data", "Data\\"])] = chance.choice(
                    HOSTILE_VALUES
                )
            case _:
                items = list(place.items())
                chance.shuffle(items)
                place.clear()
                place.update(items)
    return found


def written(found, chance):
    """Write JSON in one of the ways it may be written."""
    text = json.dumps(
        found,
        ensure_ascii=chance.random() < 0.5,
        separators=chance.choice([(",", ":"), (",", ":"), (", ", ": "), (",", ": ")]),
        indent=chance.choice([None, None, None, 1]),
    )
    match chance.randrange(12):
        case 0:
            text = text.replace("/", "\\/")
        case 1:
            text = text.replace('"Data"', '"\\u0044ata"', 1)
        case 2:
            text = text.replace('"Data":', '"Data":"QUJD","Data":', 1)
        case 3:
            text = text.replace('"Data":"', '"Data" : "', 1)
    return text.encode(errors="surrogatepass")


def damaged(body, chance):
    """Cut, overwrite, insert or remove some bytes."""
    found = bytearray(body)
    for _ in range(chance.choice([1, 1, 2])):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                del found[at:]
            case 1:
                found[at : at + 1] = chance.choice([b'"', b"\\", b"}", b",", b"\x00", b"\xff"])
            case 2:
                found[at:at] = chance.choice([b'"', b"\n", b"\xc3", b"=", b'"Data":"', b"{"])
            case _:
                del found[at : at + chance.randrange(1, 5)]
    return bytes(found)


def generated(seed):
    chance = random.Random(seed)
    body = written(spoiled(answer(chance), chance), chance)
    return damaged(body, chance) if chance.random() < 0.3 else body


def test_every_body_is_decoded_as_botocore_does(seed):
    quick = 0
    for number in range(BODIES):
        body = generated(f"{seed}-{number}")
        expected = outcome(decode_page_slowly, body)
        found = outcome(decode_page, body)
        assert found == expected, (number, body)
        quick += expected != "unreadable"
    assert quick > BODIES / 3, "most bodies should be readable, or this compares nothing"


@settings(max_examples=300, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=4000), max_size=5),
    key=st.text(min_size=1),
    instant=st.floats(min_value=0, max_value=4e9),
)
def test_any_payload_key_and_instant_are_decoded_as_botocore_does(payloads, key, instant):
    records = [
        {
            "SequenceNumber": "1",
            "ApproximateArrivalTimestamp": instant,
            "Data": base64.b64encode(payload).decode(),
            "PartitionKey": key,
        }
        for payload in payloads
    ]
    body = json.dumps({"Records": records}, separators=(",", ":")).encode()
    page = decode_page(body)
    assert page == decode_page_slowly(body)
    assert [each.data for each in page.records] == payloads


@pytest.fixture
def no_botocore(monkeypatch):
    def refused(body):
        pytest.fail(f"needed botocore's parser for {body[:200]!r}")

    monkeypatch.setattr(kinesis_decode, "decode_page_slowly", refused)


@pytest.mark.parametrize("size", [10, 5000])
def test_an_ordinary_answer_needs_nothing_of_botocore(size, seed, no_botocore):
    chance = random.Random(seed)
    records = [record(chance, size) for _ in range(3)]
    body = json.dumps({"Records": records}, separators=(",", ":")).encode()
    assert len(decode_page(body).records) == 3


@pytest.mark.parametrize("size", [10, 5000])
def test_a_member_that_kinesis_adds_one_day_does_not_make_decoding_slow(size, seed, no_botocore):
    chance = random.Random(seed)
    records = [record(chance, size) | {"Added": {"Data": ["x"]}} for _ in range(3)]
    body = json.dumps({"Records": records, "More": 1}, separators=(",", ":")).encode()
    assert len(decode_page(body).records) == 3


@pytest.mark.parametrize("size", [10, 5000])
def test_a_record_without_an_arrival_time_is_decoded(size, seed, no_botocore):
    found = record(random.Random(seed), size)
    del found["ApproximateArrivalTimestamp"]
    body = json.dumps({"Records": [found]}, separators=(",", ":")).encode()
    assert decode_page(body).records[0].approximate_arrival_ms == 0


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"<html>", b'{"Records":null}', b"\xff"])
def test_what_is_no_answer_is_said_to_be_unreadable(body):
    with pytest.raises(UnreadableAnswer, match="GetRecords"):
        decode_page(body)


@pytest.mark.parametrize(
    "body",
    [
        b"jane.doe@example.org\xff",
        b'{"Records":[{"PartitionKey":"jane.doe@example.org\xff"}]}',
        b'{"Records":[{"Data":"!","jane.doe@example.org":1}]}',
        (
            b'{"Records":[],"ChildShards":[{"ShardId":"x","ParentShards":[],"HashKeyRange":'
            b'{"StartingHashKey":"jane.doe@example.org","EndingHashKey":"1"}}]}'
        ),
    ],
)
def test_what_cannot_be_read_is_in_no_text_of_the_error(body):
    with pytest.raises(UnreadableAnswer) as caught:
        decode_page(body)
    text = "".join(traceback.format_exception(caught.value))
    assert "jane" not in repr(caught.value) + text


def test_data_given_twice_is_never_taken_for_the_data_of_the_next_record(seed):
    first = base64.b64encode(random.Random(seed).randbytes(2000)).decode()
    name = '"SequenceNumber":"1","PartitionKey":"k"'
    twice = f'{{{name},"Data":"{first}","Data":"QUJD"}}'
    body = f'{{"Records":[{twice},{{{name},"Data" : "~cut~"}}]}}'.encode()
    assert outcome(decode_page, body) == outcome(decode_page_slowly, body) == "unreadable"


@pytest.mark.parametrize(
    "seconds", ["1.797693134862316e305", "1e308", "-1", "253402300800", "1e999"]
)
def test_an_arrival_beyond_all_times_is_botocores_to_refuse(seconds):
    body = (
        '{"Records":[{"SequenceNumber":"1","Data":"","PartitionKey":"k",'
        f'"ApproximateArrivalTimestamp":{seconds}}}],"MillisBehindLatest":0}}'
    ).encode()

    assert outcome(decode_page, body) == outcome(decode_page_slowly, body)
