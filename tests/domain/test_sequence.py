"""Extended sequence numbers and positions: their order is total and never that of text."""

import pytest
from hypothesis import given

from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.errors import ProtocolError
from tests.domain.builders import number
from tests.domain.generators import any_numbers, real_numbers

STREAM = StreamIncarnation("arn:aws:kinesis:eu-central-1:111111111111:stream/s", 1_700_000_000_000)
SEQUENCE = "49590338271490256608559692538361571095921575989136588898"  # 56 digits, as in life


def test_the_sentinels_are_in_javas_order_and_shard_end_is_after_everything():
    ordered = [
        number("AT_TIMESTAMP"),
        number("TRIM_HORIZON"),
        number("LATEST"),
        number("0"),
        number(SEQUENCE),
        number(f"{SEQUENCE}:1"),
        number("SHARD_END"),
    ]

    assert sorted([*ordered[4:], *ordered[:4]]) == ordered
    assert len(set(ordered)) == len(ordered)


@pytest.mark.parametrize(("less", "more"), [("9", "10"), ("99", "100"), ("2", "1" + 56 * "0")])
def test_numbers_of_different_length_do_not_compare_as_text(less, more):
    assert less > more  # As text.
    assert number(less) < number(more)


def test_ties_go_to_the_sub_sequence_number_as_a_number():
    assert number("7:2") < number("7:10") < number("8")


def test_shard_end_is_equal_only_to_itself():
    assert number("SHARD_END") == AT_SHARD_END
    assert number(SEQUENCE) < AT_SHARD_END
    assert number("9" * 129) < AT_SHARD_END


@given(any_numbers(), any_numbers())
def test_exactly_one_of_less_equal_greater_holds(a, b):
    assert [a < b, a == b, a > b].count(True) == 1
    assert (a <= b) == (a < b or a == b)
    assert (a >= b) == (b <= a)


@given(any_numbers(), any_numbers(), any_numbers())
def test_the_order_is_transitive(a, b, c):
    low, middle, high = sorted([a, b, c])

    assert low <= middle <= high
    assert low <= high


@given(real_numbers(), real_numbers())
def test_real_numbers_compare_as_pairs_of_integers(a, b):
    def pair(x):
        return (int(x.sequence_number), x.sub_sequence_number)

    assert (a < b) == (pair(a) < pair(b))


@given(any_numbers())
def test_the_text_form_reads_back(value):
    if not value.is_sentinel:
        assert number(str(value)) == value
    else:
        assert str(value) == value.sequence_number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "1.0", " 1", "1 ", "1\n", "0x1", "007", "latest", "None", "٣", "²", "1" * 130],
)
def test_what_is_neither_digits_nor_a_sentinel_is_refused(text):
    with pytest.raises(ProtocolError, match="sequence number"):
        ExtendedSequenceNumber(text)


def test_a_negative_sub_sequence_number_is_refused():
    with pytest.raises(ProtocolError, match="sub-sequence number -1"):
        ExtendedSequenceNumber("5", -1)


@pytest.mark.parametrize("sentinel", [AT_TRIM_HORIZON, AT_LATEST, AT_SHARD_END])
def test_sentinels_know_that_they_are(sentinel):
    assert sentinel.is_sentinel
    assert sentinel.is_shard_end == (sentinel is AT_SHARD_END)


def test_it_does_not_compare_with_text():
    with pytest.raises(TypeError):
        assert number("5") < "6"


# --- positions ---


def at(kind, **more):
    """Build a position of one shard."""
    return Position(incarnation=STREAM, shard_id="shardId-000000000000", kind=kind, **more)


@pytest.mark.parametrize(
    "point",
    [
        {"kind": PointKind.SEQUENCE},
        {"kind": PointKind.SEQUENCE, "done": AT_LATEST},
        {"kind": PointKind.SEQUENCE, "done": number("5"), "instant_ms": 7},
        {"kind": PointKind.END, "done": AT_SHARD_END},
        {"kind": PointKind.END, "done": number("5")},
        {"kind": PointKind.TRIM_HORIZON, "done": AT_TRIM_HORIZON},
        {"kind": PointKind.TRIM_HORIZON, "instant_ms": 7},
        {"kind": PointKind.INSTANT, "instant_ms": 7, "done": number("5")},
        {"kind": PointKind.INSTANT, "instant_ms": -1},
    ],
)
def test_a_position_that_contradicts_itself_is_refused(point):
    with pytest.raises(ProtocolError, match="position"):
        at(**point)
