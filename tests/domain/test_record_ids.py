"""Ids in front of payloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.record_ids import MAGIC, SeenIds, split_record_id, with_record_id
from shardfleet.errors import InvalidRecord

IDS = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable())


@given(IDS, st.binary(max_size=200))
def test_an_id_and_its_payload_come_back(record_id, payload):
    assert split_record_id(with_record_id(record_id, payload)) == (record_id, payload)


@given(st.binary(max_size=50))
def test_any_bytes_are_split_without_an_error_and_nothing_is_lost(data):
    record_id, payload = split_record_id(data)

    if record_id is None:
        assert payload == data
    else:
        assert with_record_id(record_id, payload) == data


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", MAGIC, MAGIC + b"\x00x", MAGIC + b"\x05abc", MAGIC + b"\x01\xff", b"\xf3\x89\x9a"],
)
def test_what_is_no_frame_is_left_as_it_is(data):
    assert split_record_id(data) == (None, data)


@pytest.mark.parametrize("record_id", ["", "x" * 256, "ü" * 128])
def test_an_id_that_does_not_fit_is_refused(record_id):
    with pytest.raises(InvalidRecord, match="1 to 255"):
        with_record_id(record_id, b"")


def test_an_aggregate_of_the_kpl_is_no_frame():
    assert not bytes.fromhex("F3899AC2").startswith(MAGIC[:1])


def test_a_repeat_is_seen_as_long_as_it_is_remembered():
    seen = SeenIds(most=2)

    assert [seen.is_new(each) for each in ("a", "b", "a", "c", "b", None, None)] == [
        *(True, True, False),
        *(True, True),  # "b" was the one not seen for longest when "c" came.
        *(True, True),
    ]
