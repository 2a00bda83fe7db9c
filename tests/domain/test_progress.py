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


def test_the_last_of_the_leading_done_records_is_safe_and_none_behind_it():
    progress = BatchProgress(POSITIONS)
    for count, position in enumerate(POSITIONS, start=1):
        assert not progress.is_complete
        progress.complete_through(count)
        assert (progress.done_count, progress.safe()) == (count, position)
    assert progress.is_complete


def test_leading_records_can_be_done_at_once_and_never_less_than_before():
    progress = BatchProgress(POSITIONS)
    progress.complete_through(4)
    assert (progress.done_count, progress.safe()) == (4, number("10"))

    progress.complete_through(1)
    assert (progress.done_count, progress.safe()) == (4, number("10"))
    assert not progress.is_complete


@pytest.mark.parametrize("count", [-1, 6])
def test_more_records_than_there_are_cannot_be_done(count):
    with pytest.raises(IndexError, match="batch of 5"):
        BatchProgress(POSITIONS).complete_through(count)


@pytest.mark.parametrize("texts", [("9", "9"), ("10", "9"), ("9:1", "9:0"), ("5", "SHARD_END")])
def test_positions_that_do_not_ascend_or_are_no_numbers_are_refused(texts):
    with pytest.raises(ProtocolError, match="batch position"):
        BatchProgress([number(text) for text in texts])


@given(st.integers(0, 8).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n)))))
def test_everything_up_to_the_safe_position_is_done_and_the_next_is_not(drawn):
    size, counts = drawn
    positions = [number(str(index + 1)) for index in range(size)]
    progress = BatchProgress(positions)
    most = 0
    for count in counts:
        progress.complete_through(count)
        most = max(most, count)
        assert progress.done_count == most
        assert progress.safe() == (positions[most - 1] if most else None)
        assert progress.is_complete is (most == size)
