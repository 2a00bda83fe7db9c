"""Windows of a shard, decided: which records one has, when it is over, what a note counts for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.delivery.windows import (
    EMPTY,
    GRACE_MS,
    STATE_BYTES_MOST,
    ShardWindow,
    WindowNote,
    fits_item,
    state_of,
    too_large,
)
from shardfleet.domain.item_size import DOCUMENT_BYTES_MOST, ITEM_BYTES_MOST, value_bytes
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.errors import InvalidReply
from shardfleet.records import Record

NOW_MS = 1_700_000_000_000


def a_record(arrival_ms, number=1):
    return Record(
        data=b"",
        partition_key="k",
        sequence_number=str(number),
        shard_id="shardId-000000000000",
        approximate_arrival_ms=arrival_ms,
    )


def at(number):
    return ExtendedSequenceNumber(str(number), 0)


@given(st.integers(1, 900), st.lists(st.integers(1, 10**7), min_size=1, max_size=30).map(sorted))
def test_records_in_order_of_arrival_are_dealt_out_as_division_says(length_s, arrivals):
    window, left, found = ShardWindow(length_s * 1_000), [a_record(a) for a in arrivals], {}
    while left:
        count = window.fitting(left, now_ms=NOW_MS)
        if not count:
            window.close()
            continue
        found.setdefault(window.start_ms, []).extend(r.approximate_arrival_ms for r in left[:count])
        del left[:count]

    wanted = {}
    for arrival_ms in arrivals:
        start_ms = arrival_ms // (length_s * 1_000) * length_s * 1_000
        wanted.setdefault(start_ms, []).append(arrival_ms)
    assert found == wanted


def test_an_arrival_before_the_open_window_counts_in_it():
    window = ShardWindow(5_000)

    assert window.fitting([a_record(7_000), a_record(3_000), a_record(10_000)], now_ms=NOW_MS) == 2
    assert (window.start_ms, window.end_ms) == (5_000, 10_000)


@pytest.mark.parametrize(
    ("arrivals", "start_ms", "count"),
    [
        ([0], NOW_MS, 1),  # Nobody says: this moment.
        ([0, 0], NOW_MS, 2),
        ([0, 7_000, 0, 9_999, 10_000], 5_000, 4),
        ([7_000, 0, 12_000, 0], 5_000, 2),
    ],
)
def test_an_arrival_that_kinesis_did_not_tell_is_of_the_open_window(arrivals, start_ms, count):
    window = ShardWindow(5_000)

    assert window.fitting([a_record(each) for each in arrivals], now_ms=NOW_MS) == count
    assert window.start_ms == start_ms
    assert window.fitting([a_record(0)], now_ms=NOW_MS + 10**9) == 1  # It stays open.


def test_a_window_is_over_when_the_tip_was_read_long_enough_after_its_end():
    window = ShardWindow(5_000)
    assert not window.is_over(10**12)  # None is open.
    window.fitting([a_record(7_000)], now_ms=NOW_MS)

    assert not window.is_over(10_000 + GRACE_MS - 1)
    assert window.is_over(10_000 + GRACE_MS)


def test_an_outgrown_window_takes_nothing_more_and_its_last_call_says_so():
    window = ShardWindow(5_000)
    window.fitting([a_record(7_000)], now_ms=NOW_MS)
    assert not window.outgrow()  # There is nothing yet that could be told.
    window.state = '{"n":1}'
    assert window.outgrow()

    assert window.fitting([a_record(7_000)], now_ms=NOW_MS) == 0
    assert window.call(is_final=True).is_terminated_early
    window.close()
    assert (window.is_open, window.state) == (False, EMPTY)
    assert window.fitting([a_record(7_000)], now_ms=NOW_MS) == 1


@pytest.mark.parametrize(
    ("checkpoint", "counts"),
    [(at(10), True), (at(15), True), (at(20), True), (at(9), False), (at(21), False)],
)
def test_a_note_counts_for_the_checkpoints_that_there_may_have_been(checkpoint, counts):
    note = WindowNote(lease_key="s", since="10:0", through="20:0", start_ms=0, between=("15:0",))

    assert note.is_for(checkpoint) == counts
    assert not note.is_for(at(14))
    # An earlier release has not kept which they were.
    assert replace(note, between=None).is_for(checkpoint) == counts
    assert replace(note, between=None).is_for(at(14))


def test_a_note_of_an_earlier_release_before_the_first_checkpoint_counts_behind_it():
    note = WindowNote(lease_key="s", since="TRIM_HORIZON:0", through="20:0", start_ms=0)

    assert note.is_for(AT_TRIM_HORIZON)
    assert note.is_for(at(3))
    assert not note.is_for(AT_SHARD_END)
    assert not note.is_for(at(21))


def test_a_note_without_a_window_counts_for_nothing():
    assert not WindowNote(lease_key="s", since="10:0", through="20:0").is_for(at(10))


def test_a_state_is_what_json_makes_of_it_and_the_rest_of_the_reply_is_left():
    reply = {"state": {1: "ä", "b": [None, True]}, "batchItemFailures": []}

    assert state_of(reply) == ('{"1":"ä","b":[null,true]}', {"batchItemFailures": []})


@pytest.mark.parametrize("reply", [None, {}, [], "state", {"State": {}}, {"state": "text"}, 7])
def test_a_reply_without_a_state_is_refused(reply):
    with pytest.raises(InvalidReply, match="state"):
        state_of(reply)


def test_a_state_has_one_mebibyte_of_utf_8_at_most():
    assert too_large("ä" * (STATE_BYTES_MOST // 2)) == ""
    assert too_large("ä" * (STATE_BYTES_MOST // 2) + "x") != ""


def test_what_fits_an_item_does_so_with_everything_beside_it():
    largest = "x" * next(n for n in range(400_000, 0, -1) if fits_item("x" * n))
    assert len(largest) == DOCUMENT_BYTES_MOST
    number = "9" * 128
    body = {
        "since": f"{number}:0",
        "through": f"{number}:0",
        "start_ms": 10**13,
        "state": largest,
        "kept_at": "",
    }

    assert value_bytes({"kind": "window", "id": "s" * 128, "body": body}) < ITEM_BYTES_MOST
