"""Lanes: one key one lane, in order; done without a gap; nothing is done twice by who goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.delivery.lanes import DoneAhead, LanesNote, OpenLanes, lane_of
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.records import Record, place_of

ROOM = {"records_most": 1_000, "bytes_most": 1_000_000}
PLENTY = 1_000_000


def at(number, sub=0):
    return ExtendedSequenceNumber(str(number), sub)


def a_record(number, key="k", *, sub=0, size=1):
    return Record(
        data=b"x" * size,
        partition_key=key,
        sequence_number=str(number),
        sub_sequence_number=sub,
        shard_id="shardId-000000000000",
        approximate_arrival_ms=0,
    )


@st.composite
def shards(draw):
    """Draw a shard's records: numbers with gaps, some of them aggregates, few keys."""
    records, number = [], 0
    for _ in range(draw(st.integers(1, 25))):
        number += draw(st.integers(1, 3))
        keys = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        records += [a_record(number, f"key {key}", sub=sub) for sub, key in enumerate(keys)]
    return records


def key_apart(lane, count):
    return next(f"k{n}" for n in range(1_000) if lane_of(f"k{n}", count) == lane)


def through_by_hand(records, done):
    """Return the last record before the first that is not done; None: there is none."""
    last = None
    for record in records:
        if place_of(record) not in done:
            break
        last = record
    return last and at(record_number(last), last.sub_sequence_number)


def record_number(record):
    return int(record.sequence_number)


@given(st.text(min_size=1, max_size=256), st.integers(1, 100))
def test_a_key_has_one_lane_of_those_there_are(key, count):
    assert lane_of(key, count) == lane_of(key, count)
    assert 0 <= lane_of(key, count) < count


def test_keys_are_dealt_out_evenly():
    lanes = [lane_of(f"customer-{n}", 16) for n in range(16_000)]
    assert all(800 < lanes.count(lane) < 1_200 for lane in range(16))


@given(shards(), st.integers(1, 5), st.data())
def test_whatever_the_lanes_do_all_is_done_once_in_order_of_its_key(records, count, data):
    lanes = OpenLanes(count, **ROOM)
    assert lanes.take(records) == len(records)
    seen, done = [], set()
    while len(lanes):
        busy = [lane for lane in range(count) if lanes.waiting(lane, 1)]
        lane = data.draw(st.sampled_from(busy))
        waiting = lanes.waiting(lane, PLENTY)
        part = data.draw(st.integers(1, len(waiting)))
        seen += waiting[:part]
        done |= {place_of(record) for record in waiting[:part]}
        lanes.done(lane, part)
        assert lanes.through == through_by_hand(records, done)
    assert sorted(map(place_of, seen)) == list(map(place_of, records))
    for key in {record.partition_key for record in records}:
        places = [place_of(record) for record in seen if record.partition_key == key]
        assert places == sorted(places)
    assert not lanes.ahead


@given(shards(), st.lists(st.integers(1, 5), min_size=2, max_size=4), st.data())
def test_who_goes_on_with_any_number_of_lanes_does_what_was_not_done_and_nothing_else(
    records, counts, data
):
    checkpoint, ahead, seen = None, DoneAhead(), []
    for life, count in enumerate(counts):
        left = [r for r in records if checkpoint is None or place_of(r) > checkpoint]
        lanes = OpenLanes(count, **ROOM, ahead=ahead)
        lanes.take(left)
        for _ in range(data.draw(st.integers(0, 10))) if life < len(counts) - 1 else range(PLENTY):
            busy = [lane for lane in range(count) if lanes.waiting(lane, 1)]
            if not busy:
                break
            lane = data.draw(st.sampled_from(busy))
            seen += lanes.waiting(lane, 1)
            lanes.done(lane, 1)
        # It dies here; what is stored is a checkpoint and a note.
        if lanes.through is not None:
            checkpoint = (int(lanes.through.sequence_number), lanes.through.sub_sequence_number)
        ahead = DoneAhead.of(lanes.ahead.body())
    assert sorted(map(place_of, seen)) == list(map(place_of, records))


def test_no_more_is_taken_than_there_is_room_for_and_one_larger_record_goes_alone():
    lanes = OpenLanes(2, records_most=3, bytes_most=10)
    assert lanes.take([a_record(n) for n in range(1, 9)]) == 3
    lanes.done(lane_of("k", 2), 3)
    assert lanes.take([a_record(n, size=4) for n in range(9, 20)]) == 2
    assert lanes.take([a_record(20, size=4)]) == 0
    lanes.done(lane_of("k", 2), 2)
    assert lanes.take([a_record(21, size=99), a_record(22)]) == 1


def test_what_no_handler_gets_is_passed_once_nothing_before_it_is_open():
    lanes = OpenLanes(2, **ROOM)
    lanes.take([a_record(1), a_record(2)])
    lanes.pass_by(at(7))
    assert lanes.through is None
    lanes.done(lane_of("k", 2), 1)
    assert lanes.through == at(1)
    lanes.done(lane_of("k", 2), 1)
    assert lanes.through == at(7)


def a_note(since, through):
    ahead = DoneAhead()
    ahead.note(2, 1, (9, 0))
    return LanesNote.of("shard", since=since, through=through, ahead=ahead, between=("4:0",))


@pytest.mark.parametrize(
    ("checkpoint", "counts"),
    [
        (AT_TRIM_HORIZON, False),
        (at(2), False),
        (at(3), True),
        (at(4), True),
        (at(4, 7), False),
        (at(5), True),
        (at(5, 1), False),
        (ExtendedSequenceNumber("SHARD_END"), False),
    ],
)
def test_a_note_counts_for_the_checkpoints_that_it_was_made_for_alone(checkpoint, counts):
    done = a_note(at(3), at(5)).done_ahead(checkpoint)
    key = key_apart(1, 2)
    assert done.has(key, (9, 0)) == counts
    assert not done.has(key, (9, 1))
    assert not done.has(key_apart(0, 2), (9, 0))


def test_a_note_made_at_a_sentinel_counts_there_and_where_the_checkpoint_was_to_be():
    note = a_note(AT_TRIM_HORIZON, at(5))
    assert note.done_ahead(AT_TRIM_HORIZON)
    assert note.done_ahead(at(5))
    assert not note.done_ahead(at(1))
    # An earlier release has not kept what was on its way.
    assert replace(note, between=None).done_ahead(at(1))
    instant = ExtendedSequenceNumber("AT_TIMESTAMP", 17)
    assert a_note(instant, instant).done_ahead(instant)
    assert not a_note(instant, instant).done_ahead(ExtendedSequenceNumber("AT_TIMESTAMP", 18))
