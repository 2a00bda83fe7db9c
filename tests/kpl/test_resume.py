"""Going on inside an aggregate, from a checkpoint at any of its user records (hazard H4)."""

import pytest

from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.kpl.deaggregate import ExpansionLimits, UserRecord, records_after
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate

HERE = "49590338271490256608559692538361571095921575989136588898"
BEFORE, BEHIND = str(int(HERE) - 1), str(int(HERE) + 1)
FIVE = aggregate([OutgoingRecord(f"key-{i}", b"%d" % i) for i in range(5)])


def left(found, sequence_number, sub_sequence_number=0):
    done = ExtendedSequenceNumber(sequence_number, sub_sequence_number)
    return [r.data for r in records_after(found, sequence_number=HERE, done=done)]


@pytest.mark.parametrize("sub", range(5))
def test_a_checkpoint_at_each_sub_sequence_number_leaves_exactly_the_rest(sub, read):
    assert left(read(FIVE), HERE, sub) == [b"%d" % i for i in range(sub + 1, 5)]


@pytest.mark.parametrize("data", [FIVE, b"plain"], ids=["aggregate", "plain"])
def test_the_last_sub_sequence_number_is_the_end_of_the_record(data, read):
    found = read(data)
    assert left(found, HERE, found.last_sub_sequence) == []


def test_the_remaining_records_keep_their_sub_sequence_numbers(read):
    done = ExtendedSequenceNumber(HERE, 2)
    rest = records_after(read(FIVE), sequence_number=HERE, done=done)
    assert [r.sub_sequence_number for r in rest] == [3, 4]


def test_a_sub_sequence_number_says_nothing_about_other_records(read):
    assert len(left(read(FIVE), BEFORE, 3)) == 5
    assert left(read(FIVE), BEHIND, 3) == []


@pytest.mark.parametrize(("shorter", "longer"), [("9", "10"), ("99", "100")])
def test_numbers_of_different_length_are_compared_as_numbers(shorter, longer, read):
    found = read(b"plain")
    before, behind = map(ExtendedSequenceNumber, (shorter, longer))
    assert len(records_after(found, sequence_number=longer, done=before)) == 1
    assert records_after(found, sequence_number=shorter, done=behind) == ()


def test_sentinels_leave_everything_and_shard_end_nothing(read):
    found = read(FIVE)
    for done in (AT_TRIM_HORIZON, AT_LATEST):
        assert len(records_after(found, sequence_number=HERE, done=done)) == 5
    assert records_after(found, sequence_number=HERE, done=AT_SHARD_END) == ()


def test_a_discarded_aggregate_stays_discarded_when_resumed(read):
    found = read(FIVE, hash_range=(0, 0), policy="kpl")
    assert left(found, HERE, 2) == []
    assert left(found, BEFORE) == []


@pytest.mark.parametrize("sub", range(5))
def test_what_is_left_of_an_aggregate_goes_on_behind_the_checkpoint_too(sub, read):
    mixed = [OutgoingRecord(f"key-{i}", b"%d" % i, str(i % 2)) for i in range(5)]
    found = read(aggregate(mixed), hash_range=(0, 0), policy="in-range")
    assert left(found, HERE, sub) == [b"%d" % i for i in range(sub + 1, 5) if i % 2 == 0]


def test_an_aggregate_that_can_no_longer_be_read_is_delivered_raw_behind_the_checkpoint(read):
    found = read(FIVE, limits=ExpansionLimits(max_sub_records=1))
    done = ExtendedSequenceNumber(HERE, 2)
    rest = records_after(found, sequence_number=HERE, done=done)
    assert rest == [UserRecord("outer", None, FIVE, 3)]
    assert ExtendedSequenceNumber(HERE, rest[0].sub_sequence_number) > done
