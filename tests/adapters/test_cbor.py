"""What is read of CBOR, held against cbor2."""

import struct

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.adapters.http.cbor import (
    bytes_head,
    decode,
    is_cbor,
    members,
    number,
    text,
    text_head,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | TEXTS | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(TEXTS, inner, max_size=30),
    max_leaves=40,
)
OUTCOME = st.fixed_dictionaries(
    {
        "SequenceNumber": st.sampled_from(["4950", "4951", "é950", "49505"]),
        "ShardId": st.sampled_from(["shardId-000000000000", "shardId-000000000001", "é" * 10]),
    }
)


def marked(value):
    """Encode a value with the ends of its structures marked, as the Java SDK does."""
    if isinstance(value, dict):
        pairs = (cbor2.dumps(name) + marked(each) for name, each in value.items())
        return b"\xbf" + b"".join(pairs) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(map(marked, value)) + b"\xff"
    return cbor2.dumps(value)


@pytest.mark.parametrize("encode", [cbor2.dumps, marked])
@given(value=VALUES)
def test_a_value_is_read_however_its_end_is_told(encode, value):
    assert decode(encode(value)) == value


def test_a_timestamp_is_the_number_that_aws_counts_tagged_or_not():
    """Milliseconds, where RFC 8949 has seconds (fact K100)."""
    at_ms = 1_800_000_000_123
    assert decode(cbor2.dumps({"at": cbor2.CBORTag(1, at_ms)})) == {"at": at_ms}


@pytest.mark.parametrize("encode", [cbor2.dumps, marked])
@given(value=st.dictionaries(TEXTS, VALUES, max_size=5), behind=st.binary(max_size=9))
def test_the_members_of_a_structure_are_found_at_their_places(encode, value, behind):
    body = b"!" + encode(value) + behind
    values, places, end = members(body, 1)
    assert values == value
    assert body[end:] == behind
    assert {name: body[at.start : at.stop] for name, at in places.items()} == {
        name: encode(each) for name, each in value.items()
    }


@given(value=st.integers(0, 2**64 - 1), words=TEXTS)
def test_numbers_and_texts_are_written_as_cbor2_does(value, words):
    assert number(value) == cbor2.dumps(value)
    assert text(words) == cbor2.dumps(words)
    assert bytes_head(value)[1:] == text_head(value)[1:] == number(value)[1:]
    assert bytes_head(3) + b"abc" == cbor2.dumps(b"abc")


@pytest.mark.parametrize("encode", [cbor2.dumps, marked])
@given(
    outcomes=st.lists(OUTCOME, max_size=20) | st.lists(st.just({"a": "b"}), max_size=20),
    last=st.none() | st.integers(0, 9) | st.fixed_dictionaries({"ErrorCode": TEXTS}) | OUTCOME,
    behind=st.text("x\xff", max_size=600),
)
def test_structures_that_are_alike_but_for_their_texts_are_read_each(
    encode, outcomes, last, behind
):
    answer = {"Records": [*outcomes * 3, last], "EncryptionType": behind}
    assert decode(encode(answer)) == answer


@given(number=st.integers(1, 119), place=st.integers(0, 30 * 38), byte=st.integers(0, 255))
def test_one_changed_byte_is_never_read_as_another_value_than_cbor2_reads(number, place, byte):
    outcomes = [{"ShardId": f"shard-{n:02}", "SequenceNumber": f"{n:04}"} for n in range(30)]
    body = bytearray(cbor2.dumps({"n": number, "Records": outcomes}))
    body[place % len(body)] = byte
    try:
        found = decode(bytes(body))
    except ValueError:
        return
    assert found == cbor2.loads(bytes(body))


@given(value=VALUES, share=st.floats(0, 1, exclude_max=True))
def test_a_value_that_is_cut_off_is_an_error(value, share):
    body = marked(value)
    with pytest.raises(ValueError, match=r".+"):
        decode(body[: int(share * len(body))])


@pytest.mark.parametrize(
    "body",
    [
        cbor2.dumps(1) * 2,
        cbor2.dumps(1.5),
        *map(cbor2.dumps, map(cbor2.CBORTag, (1, 1, 2), (1.5, "1", 1))),
        cbor2.dumps(cbor2.CBORTag(1, cbor2.CBORTag(1, 1))),
        cbor2.dumps({1: "a name that is none"}),
        b"\xff",
        b"\x1c",
        b"\x7f\x61a\xff",
        b"\x61\xff",
        b"\x7b" + struct.pack(">Q", 2**63),
        b"\x9f" * 100_000,
        b"\x81" * 100_000,
    ],
    ids=lambda body: body[:12].hex(),
)
def test_what_no_answer_has_is_an_error(body):
    with pytest.raises(ValueError, match=r".+"):
        decode(body)


@given(value=VALUES)
def test_a_structure_is_told_from_json(value):
    for body in (cbor2.dumps({"a": value}), marked({"a": value})):
        assert is_cbor(body)
        assert is_cbor(bytearray(body))
    assert not any(
        map(is_cbor, (b"", b"{}", b" {", b"[", "é".encode(), b"<html>", b"\xef\xbb\xbf"))
    )
