"""User records in, one Kinesis record out, never larger than asked."""

import pytest

from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import (
    DEFAULT_MAX_BYTES,
    MAX_RECORD_BYTES,
    AggregateBuilder,
    aggregate,
)

SMALL = OutgoingRecord("k", b"x")


def filled(*records, **limits):
    builder = AggregateBuilder(**limits)
    for record in records:
        builder.add(record)
    return builder


def test_the_aggregate_is_routed_as_its_first_record():
    first = OutgoingRecord("first", b"1", "42")
    built = filled(first, OutgoingRecord("second", b"2", "43")).build()
    assert (built.partition_key, built.explicit_hash_key) == ("first", "42")


def test_without_explicit_hash_key_the_first_partition_key_routes():
    built = filled(OutgoingRecord("first", b"1"), OutgoingRecord("second", b"2", "43")).build()
    assert (built.partition_key, built.explicit_hash_key) == ("first", None)


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 129, 16_000, 16_384, 40_000])
def test_the_size_is_exact_at_every_varint_boundary(length):
    builder = filled(SMALL, OutgoingRecord("other", b"x" * length, "7"))
    assert builder.size_bytes == len(builder.build().data)


def test_the_size_is_exact_when_indexes_grow_to_two_bytes():
    builder = AggregateBuilder()
    for index in range(300):
        builder.add(OutgoingRecord(f"key-{index}", b"x", str(index)))
        assert builder.size_bytes == len(builder.build().data)


def test_each_key_is_written_once():
    data = aggregate([OutgoingRecord("the-key", b"x", "123456789")] * 3)
    assert data.count(b"the-key") == data.count(b"123456789") == 1


def test_a_builder_is_filled_to_the_last_byte_and_not_beyond(read):
    records = [OutgoingRecord(f"key-{i}", b"x" * i) for i in range(50)]
    needed = len(aggregate(records))
    for max_bytes in (needed - 1, needed, needed + 1):
        builder = AggregateBuilder(max_bytes=max_bytes)
        for record in records[:-1]:
            assert not builder.is_full_for(record)
            builder.add(record)
        assert builder.is_full_for(records[-1]) is (max_bytes < needed)
        if max_bytes >= needed:
            builder.add(records[-1])
        assert len(builder.build().data) <= max_bytes
        assert len(read(builder.build().data).records) == len(builder)


def test_adding_to_a_full_builder_is_refused_and_changes_nothing():
    builder = filled(SMALL, SMALL, max_records=2)
    before = builder.build()
    assert builder.is_full_for(SMALL)
    with pytest.raises(InvalidRecord, match="2 records of at most 2"):
        builder.add(SMALL)
    assert (builder.build(), len(builder)) == (before, 2)


def test_what_is_full_was_said_of_is_checked_again_after_another_record():
    large = OutgoingRecord("k", b"x" * 60)
    builder = AggregateBuilder(max_bytes=120)
    assert not builder.is_full_for(large)
    builder.add(large._replace(data=b"y" * 60))
    with pytest.raises(InvalidRecord, match="is full"):
        builder.add(large)


def test_a_key_met_in_a_question_is_written_only_if_its_record_comes():
    builder = filled(SMALL)
    assert not builder.is_full_for(OutgoingRecord("only asked about", b"x", "77"))
    builder.add(OutgoingRecord("added", b"x", "88"))
    data = builder.build().data
    assert b"only asked about" not in data
    assert builder.size_bytes == len(data)


@pytest.mark.parametrize("before", [0, 1], ids=["empty builder", "used builder"])
def test_a_record_too_large_for_any_aggregate_is_refused_with_what_to_do(before):
    builder = filled(*[SMALL] * before, max_bytes=100)
    large = OutgoingRecord("large", b"x" * 100)
    for ask in (builder.is_full_for, builder.add):
        with pytest.raises(InvalidRecord, match=r"has 100 bytes of data|needs 113 more"):
            ask(large)
    with pytest.raises(InvalidRecord, match="send it as a plain record"):
        builder.is_full_for(large)
    assert len(builder) == before


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (OutgoingRecord("", b"x"), "0 characters"),
        (OutgoingRecord("k" * 257, b"x"), "257 characters"),
        (OutgoingRecord("\udfff", b"x"), "lone surrogate"),
        (OutgoingRecord("k", b"x", str(2**128)), "explicit hash key"),
        (OutgoingRecord("k", b"x", "-1"), "explicit hash key"),
        (OutgoingRecord("k", b"x", ""), "explicit hash key"),
        (OutgoingRecord("k", "text"), "expected bytes"),
    ],
)
def test_a_record_that_kinesis_would_refuse_is_refused_here(record, complaint):
    builder = filled(SMALL)
    before = builder.build()
    for ask in (builder.add, builder.is_full_for):
        with pytest.raises(InvalidRecord, match=complaint):
            ask(record)
    assert builder.build() == before


def test_the_extremes_that_kinesis_takes_are_taken(read):
    records = [
        OutgoingRecord("鍵" * 256, b""),
        OutgoingRecord("k", b"x", "0"),
        OutgoingRecord("k", b"x", str(2**128 - 1)),
    ]
    found = read(aggregate(records)).records
    assert [r.explicit_hash_key for r in found] == [None, "0", str(2**128 - 1)]


def test_nothing_cannot_be_aggregated():
    with pytest.raises(InvalidRecord, match="at least one"):
        aggregate([])


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 0}, {"max_bytes": MAX_RECORD_BYTES + 1}, {"max_records": 0}]
)
def test_limits_that_make_no_sense_are_refused_by_name(limits):
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        AggregateBuilder(**limits)


def test_the_default_size_is_the_kpls():
    assert AggregateBuilder().max_bytes == DEFAULT_MAX_BYTES == 51_200


def test_user_records_that_were_read_can_be_written_again(read):
    data = aggregate([SMALL, OutgoingRecord("other", b"y", "7")])
    assert aggregate(read(data).records) == data
