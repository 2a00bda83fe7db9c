"""Many records at once into an aggregate: the same bytes as one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.errors import InvalidRecord
from shardfleet.kpl import packing
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import AggregateBuilder

KEYS = st.one_of(
    st.integers(0, 400).map("key-{}".format),
    st.integers(0, 9).map(str),
    st.just("k" * 200),
    st.just("kĸ" * 100),
)
RECORDS = st.lists(
    st.builds(
        OutgoingRecord,
        KEYS,
        st.integers(0, 300).map(lambda size: b"x" * size),
        st.none() | st.none() | st.none() | st.sampled_from(["0", "7", "123456789"]),
    ),
    max_size=120,
)


def one_by_one(records, start=0, **limits):
    builder = AggregateBuilder(**limits)
    for place in range(start, len(records)):
        try:
            if builder.is_full_for(records[place]):
                return builder, place
        except InvalidRecord:
            return builder, place
        builder.add(records[place])
    return builder, len(records)


def same(builder, other):
    assert len(builder) == len(other)
    assert builder.size_bytes == other.size_bytes
    assert list(builder.partition_keys) == list(other.partition_keys)
    if len(other):
        assert builder.build() == other.build()
        assert len(builder.build().data) == builder.size_bytes


@given(RECORDS, st.sampled_from([100, 1_000, 3_000, 20_000]), st.sampled_from([1, 20, 1_000]))
def test_filling_is_adding_one_by_one(records, max_bytes, max_records):
    limits = {"max_bytes": max_bytes, "max_records": max_records}
    place = 0
    while place < len(records):
        builder = AggregateBuilder(**limits)
        filled = builder.fill(records, place)
        expected, stopped = one_by_one(records, place, **limits)
        assert filled == stopped
        same(builder, expected)
        place = max(filled, place + 1)


@given(RECORDS, st.integers(0, 120))
def test_filling_goes_on_after_other_records(records, first):
    builder = AggregateBuilder()
    for record in records[:first]:
        builder.add(record)
    assert builder.fill(records, first) == max(first, len(records))
    builder.add(OutgoingRecord("last", b"x", "7"))
    expected, _ = one_by_one([*records, OutgoingRecord("last", b"x", "7")])
    same(builder, expected)


@pytest.mark.parametrize("sizes", [(20, 20), (100, 40, 300), (300, 1, 16, 200)])
@pytest.mark.parametrize("different", [7, 150, 1_000])
def test_filling_in_portions_is_filling_at_once(sizes, different):
    """A table of keys grows from portion to portion, and a key keeps its index."""
    every = [OutgoingRecord(f"k{n % different}", b"x" * (n % 9)) for n in range(sum(sizes))]
    builder, begin = AggregateBuilder(max_bytes=1_000_000), 0
    for size in sizes:
        assert builder.fill(every[begin : begin + size]) == size
        begin += size
    same(builder, one_by_one(every, max_bytes=1_000_000)[0])


class Watched(list):
    """Records that know how many of them were asked for at once."""

    most = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        if isinstance(place, slice):
            self.most = max(self.most, len(found))
        return found


def test_filling_from_a_long_sequence_looks_at_no_more_than_an_aggregate_may_hold():
    records = Watched(OutgoingRecord(f"key-{n}", b"x") for n in range(1_000))
    places = [0]
    while places[-1] < len(records):
        places.append(AggregateBuilder(max_records=20).fill(records, places[-1]))

    assert places == list(range(0, 1_001, 20))
    assert records.most == 20


def test_lengths_that_are_forgotten_are_found_again(monkeypatch):
    monkeypatch.setattr(packing, "_TABLE_MOST", 4)
    records = [OutgoingRecord(f"k{n}", b"x" * (n % 20)) for n in range(100)]
    builder = AggregateBuilder()
    assert builder.fill(records) == 100
    same(builder, one_by_one(records)[0])
    assert len(packing._BEHIND_INDEX._made) == 20
    assert builder.fill([OutgoingRecord("k", b"y" * 300)] * 16) == 16
    assert len(packing._BEHIND_INDEX._made) == 1


@pytest.mark.parametrize("count", [127, 128, 129, 16_383, 16_384, 16_385, 20_000])
@pytest.mark.parametrize("repeated", [False, True])
def test_indexes_are_right_where_they_grow(count, repeated):
    records = [OutgoingRecord(f"key-{number:06d}", b"x") for number in range(count)]
    records += records[::50] if repeated else []
    records += [OutgoingRecord("new", b"x" * 130)] * 20

    builder = AggregateBuilder(max_bytes=10_000_000)
    assert builder.fill(records) == len(records)

    same(builder, one_by_one(records, max_bytes=10_000_000)[0])


@pytest.mark.parametrize(
    "wrong",
    [
        OutgoingRecord("", b"x"),
        OutgoingRecord("k" * 257, b"x"),
        OutgoingRecord("k", "text"),
        OutgoingRecord("k", bytearray(b"x")),
        OutgoingRecord("\ud800", b"x"),
        OutgoingRecord("k", b"x", "-1"),
    ],
    ids=repr,
)
def test_a_wrong_record_is_refused_and_those_before_it_are_inside(wrong):
    records = [*(OutgoingRecord(f"k{n}", b"x") for n in range(30)), wrong]
    builder = AggregateBuilder()

    with pytest.raises(InvalidRecord):
        builder.fill(records)
    same(builder, one_by_one(records[:-1])[0])


def test_a_record_too_large_for_any_aggregate_stays_outside():
    records = [OutgoingRecord("k", b"x" * 1_000)] * 40

    assert AggregateBuilder(max_bytes=500).fill(records) == 0
