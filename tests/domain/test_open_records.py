"""Records that stay open: bounds that count each, and a checkpoint behind what is done alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.open_records import OpenRecords
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.records import Record


def record(number, size=1, sub=0):
    return Record(
        data=b"x" * size,
        partition_key="k",
        sequence_number=str(number),
        sub_sequence_number=sub,
        shard_id="s",
        approximate_arrival_ms=0,
    )


def at(number, sub=0):
    return ExtendedSequenceNumber(str(number), sub)


def opened(*records, records_most=10, bytes_most=100, age_most_ms=1_000, now_ms=0):
    found = OpenRecords(records_most=records_most, bytes_most=bytes_most, age_most_ms=age_most_ms)
    found.add(records, now_ms=now_ms)
    return found


def test_each_record_and_each_byte_counts_until_it_is_closed():
    found = opened(record(1, 30), record(2, 20))
    assert (len(found), found.records_left, found.bytes_left) == (2, 8, 50)
    found.add([record(3, 50)], now_ms=5)
    assert (len(found), found.records_left, found.bytes_left) == (3, 7, 0)
    assert found.close(at(2)) == at(2)
    assert (len(found), found.records_left, found.bytes_left) == (1, 9, 50)


@pytest.mark.parametrize(
    ("adding", "now_ms", "is_full"),
    [
        ([], 999, False),
        ([], 1_000, True),  # The oldest is open for so long.
        ([record(9)] * 7, 0, False),
        ([record(9)] * 8, 0, True),
        ([record(9, 49)], 0, False),
        ([record(9, 50)], 0, True),
    ],
)
def test_it_is_full_where_a_bound_is_reached(adding, now_ms, is_full):
    found = opened(record(1, 30), record(2, 20))
    found.add([], now_ms=500)
    assert found.is_full(now_ms, adding=adding) == is_full


def test_nothing_open_is_never_too_old():
    found = opened()
    assert not found.is_full(10**9)
    found.add([record(1)], now_ms=10**9)
    assert not found.is_full(10**9 + 999)
    found.close(at(1))
    assert not found.is_full(10**12)


def test_what_nobody_gets_is_passed_only_once_nothing_before_it_is_open():
    found = opened(record(1), record(1, sub=1), record(2))
    found.pass_by(at(5))
    assert found.close(None) is None
    assert found.close(at(1)) == at(1)
    assert found.close(at(1)) is None
    assert found.close(at(2)) == at(5)
    found = opened(record(7))
    found.pass_by(at(5))
    # What was checkpointed lies behind it.
    assert found.close(at(9)) == at(7)
    assert opened().close(at(9)) is None


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 13))
def test_everything_closed_is_as_if_it_had_never_been_opened(sizes, through):
    found = opened(*(record(n, size) for n, size in enumerate(sizes)))
    closed = min(through + 1, len(sizes))
    assert found.close(at(through)) == (at(closed - 1) if closed else None)
    assert len(found) == len(sizes) - closed
    assert found.bytes_left == 100 - sum(sizes[closed:])
