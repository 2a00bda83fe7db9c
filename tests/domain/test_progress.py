"""Where the records of a batch stand: in order, or the batch is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.progress import check_order, position_of
from shardfleet.errors import ProtocolError
from shardfleet.records import Record
from tests.domain.builders import number


def a_record(text):
    sequence, _, sub = text.partition(":")
    return Record(
        data=b"",
        partition_key="k",
        sequence_number=sequence,
        shard_id="s",
        approximate_arrival_ms=0,
        sub_sequence_number=int(sub or 0),
    )


@pytest.mark.parametrize(
    "texts",
    [
        *(("9", "9"), ("10", "9"), ("9:1", "9:0"), ("5", "SHARD_END")),
        *(("50", "5x", "60"), ("5\u0663", "5\u0664"), ("1", "2", "3", "3"), ("11", "12", "9")),
    ],
)
def test_positions_that_do_not_ascend_or_are_no_numbers_are_refused(texts):
    with pytest.raises(ProtocolError, match="batch position"):
        check_order([a_record(text) for text in texts])


@given(
    st.lists(
        st.tuples(st.one_of(st.integers(0, 10**60), st.integers(8, 30)), st.integers(0, 3)),
        max_size=6,
    )
)
def test_what_is_in_the_order_of_the_protocol_is_in_order_and_nothing_else(places):
    records = [a_record(f"{sequence}:{sub}") for sequence, sub in places]
    positions = [position_of(record) for record in records]
    if all(a < b for a, b in itertools.pairwise(positions)):
        check_order(records)
    else:
        with pytest.raises(ProtocolError, match="expected ascending"):
            check_order(records)


def test_a_record_stands_at_its_number_and_its_place_in_an_aggregate():
    assert position_of(a_record("10:2")) == number("10:2")
