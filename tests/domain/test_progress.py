"""Which records of a batch are safe to checkpoint: never past one that is not done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.progress import BatchProgress
from shardfleet.errors import ProtocolError
from tests.domain.builders import number

POSITIONS = [number(text) for text in ("5", "9:0", "9:1", "10", "11")]


def test_nothing_done_is_nothing_safe():
    assert BatchProgress(POSITIONS).safe() is None
    assert BatchProgress([]).safe() is None
    assert BatchProgress([]).is_complete


def test_done_in_order_each_is_safe_at_once():
    progress = BatchProgress(POSITIONS)
    for index, position in enumerate(POSITIONS):
        progress.complete(index)
        assert progress.safe() == position
    assert progress.is_complete


def test_what_is_done_out_of_order_waits_for_what_lies_before_it():
    progress = BatchProgress(POSITIONS)
    progress.complete(1)
    progress.complete(3)
    assert progress.safe() is None

    progress.complete(0)
    assert progress.safe() == number("9:0")

    progress.complete(2)
    assert progress.safe() == number("10")
    assert not progress.is_complete


def test_leading_records_can_be_done_at_once_and_never_less_than_before():
    progress = BatchProgress(POSITIONS)
    progress.complete(3)
    progress.complete_through(3)
    assert (progress.done_count, progress.safe()) == (4, number("10"))

    progress.complete_through(1)
    progress.complete(0)
    assert progress.done_count == 4


@pytest.mark.parametrize("index", [-1, 5])
def test_a_record_that_is_not_there_cannot_be_done(index):
    with pytest.raises(IndexError, match="batch of 5"):
        BatchProgress(POSITIONS).complete(index)


@pytest.mark.parametrize("count", [-1, 6])
def test_more_records_than_there_are_cannot_be_done(count):
    with pytest.raises(IndexError, match="batch of 5"):
        BatchProgress(POSITIONS).complete_through(count)


@pytest.mark.parametrize("texts", [("9", "9"), ("10", "9"), ("9:1", "9:0"), ("5", "SHARD_END")])
def test_positions_that_do_not_ascend_or_are_no_numbers_are_refused(texts):
    with pytest.raises(ProtocolError, match="batch position"):
        BatchProgress([number(text) for text in texts])


@given(
    st.integers(0, 8).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, max(n - 1, 0))))
    )
)
def test_everything_up_to_the_safe_position_is_done_and_the_next_is_not(drawn):
    size, completions = drawn
    positions = [number(str(index + 1)) for index in range(size)]
    progress = BatchProgress(positions)
    done = set()
    for index in completions if size else ():
        before = progress.done_count
        progress.complete(index)
        done.add(index)
        assert progress.done_count >= before
        assert set(range(progress.done_count)) <= done
        assert progress.done_count not in done
        expected = positions[progress.done_count - 1] if progress.done_count else None
        assert progress.safe() == expected
