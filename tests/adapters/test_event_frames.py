"""Messages of an event stream: taken apart as botocore does it, and refused where it refuses."""

import os
import zlib
from random import Random

import pytest
from botocore.eventstream import EventStreamBuffer, ParserError
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.adapters.kinesis.event_frames import MESSAGE_BYTES_MOST, EventFrame, take_frame
from shardfleet.adapters.sdk_errors import UnreadableAnswer

# Types of values (Smithy specification), and how long those without a length of their own are.
FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
BYTES, STRING = 6, 7
names = st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) < 256)
strings = st.tuples(names, st.just(STRING), st.text(max_size=40).map(str.encode))
others = st.sampled_from(sorted(FIXED)).flatmap(
    lambda kind: st.tuples(
        names, st.just(kind), st.binary(min_size=FIXED[kind], max_size=FIXED[kind])
    )
)
blobs = st.tuples(names, st.just(BYTES), st.binary(max_size=40))
headers = st.lists(strings | others | blobs, max_size=6, unique_by=lambda each: each[0])
messages = st.lists(st.tuples(headers, st.binary(max_size=200)), min_size=1, max_size=4)


def crc(data):
    return zlib.crc32(data).to_bytes(4, "big")


def message(raw_headers, payload):
    size = 16 + len(raw_headers) + len(payload)
    prelude = size.to_bytes(4, "big") + len(raw_headers).to_bytes(4, "big")
    whole = prelude + crc(prelude) + raw_headers + payload
    return whole + crc(whole)


def header(name, kind, value):
    size = len(value).to_bytes(2, "big") if kind in (BYTES, STRING) else b""
    return bytes([len(name.encode())]) + name.encode() + bytes([kind]) + size + value


def written(found):
    return b"".join(message(b"".join(header(*each) for each in h), body) for h, body in found)


def ours(data, pieces=()):
    """Return the messages in data that comes in pieces, up to a refusal, and whether there was."""
    buffer, found, at = bytearray(), [], 0
    try:
        for after in (*pieces, len(data)):
            buffer += data[at:after]
            at = max(at, after)
            while (frame := take_frame(buffer)) is not None:
                found.append(frame)
    except UnreadableAnswer:
        return found, True
    return found, False


def botocores(data):
    buffer, found = EventStreamBuffer(), []
    buffer.add_data(data)
    try:
        for each in buffer:
            texts = {name: value for name, value in each.headers.items() if isinstance(value, str)}
            found.append(EventFrame(texts, each.payload))
    except Exception as error:  # noqa: BLE001 - it lets through what its helpers raise
        return found, isinstance(error, Exception)
    return found, False


@given(messages, st.lists(st.integers(0, 800), max_size=5).map(sorted))
def test_messages_are_what_botocore_makes_of_them_in_whatever_pieces_they_come(found, pieces):
    data = written(found)
    expected = [
        EventFrame({name: v.decode() for name, kind, v in h if kind == STRING}, body)
        for h, body in found
    ]
    assert ours(data, pieces) == botocores(data) == (expected, False)


def hostile(random, data):
    """Return data with something wrong in it, or none of what it was."""
    damaged = bytearray(data)
    match random.randrange(4):
        case 0:
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        case 1:
            del damaged[random.randrange(len(damaged)) :]
        case 2:
            damaged = bytearray(random.randbytes(random.randrange(64)))
        case _:
            # Headers that were never any, and yet every checksum is right.
            damaged = bytearray(message(random.randbytes(random.randrange(24)), b"x"))
    return bytes(damaged)


# `make whole` draws a million.
HOSTILE = 1_000 * int(os.environ.get("SHARDFLEET_TEST_DRAWN", "3"))


def judge(seed, count):
    """Give both so much that is hostile; what we take, botocore takes, and the same."""
    random = Random(seed)
    good = written(
        [([(":event-type", STRING, b"A"), ("n", 4, b"1234")], b"payload"), ([], b"second")]
    )
    for _ in range(count):
        data = hostile(random, good)
        found, is_refused = ours(data)
        others_found, is_refused_by_botocore = botocores(data)
        assert found == others_found[: len(found)], data
        assert is_refused or not is_refused_by_botocore, data
        assert is_refused or len(found) == len(others_found), data


def test_what_is_hostile_is_refused_or_understood_as_botocore_does(seed):
    judge(seed, HOSTILE)


def test_a_length_is_refused_before_anything_is_kept():
    prelude = (MESSAGE_BYTES_MOST + 1).to_bytes(4, "big") + bytes(4)
    with pytest.raises(UnreadableAnswer, match="16777217"):
        take_frame(bytearray(prelude + crc(prelude)))
    for total, headers_size in ((15, 0), (20, 5), (2**20, 2**19)):
        prelude = total.to_bytes(4, "big") + headers_size.to_bytes(4, "big")
        with pytest.raises(UnreadableAnswer):
            take_frame(bytearray(prelude + crc(prelude)))


def test_a_type_of_header_that_nobody_knows_is_refused():
    with pytest.raises(UnreadableAnswer, match="type 10"):
        take_frame(bytearray(message(header("a", 10, b""), b"")))


@pytest.mark.parametrize("kind", [0, STRING])
def test_a_name_that_is_no_text_is_refused_whatever_its_value_is(kind):
    value = b"" if kind == 0 else b"\0\0"
    with pytest.raises(UnreadableAnswer):
        take_frame(bytearray(message(b"\x01\xa5" + bytes([kind]) + value, b"")))


def test_a_header_that_comes_twice_is_refused():
    twice = header("a", STRING, b"1") + header("a", BYTES, b"2")
    with pytest.raises(UnreadableAnswer):
        take_frame(bytearray(message(twice, b"")))
    buffer = EventStreamBuffer()
    buffer.add_data(message(twice, b""))
    with pytest.raises(ParserError):
        next(buffer)
