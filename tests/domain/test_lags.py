"""Lag over all unfinished leases, and shards that nobody will read (hazard H18)."""

import pytest

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.lags import lag_now, lags_of, unread_shards
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard

NOW_MS = 1_000_000
STILL_MS = 20_000


def a_lease(key, *, finished=False):
    return Lease(lease_key=key, checkpoint=AT_SHARD_END if finished else AT_TRIM_HORIZON)


def a_slot(lags_ms, *, age_ms=0, state=SlotState.RUNNING):
    return Slot(
        slot_id="s0001",
        worker_id="f-s0001",
        state=state,
        name="f-s0001-1",
        start_epoch=1,
        heartbeat_ms=NOW_MS - age_ms,
        lags_ms=lags_ms,
    )


def lags(*slots, leases=("a",), stopped=None):
    return lags_of(
        [a_lease(key) for key in leases],
        slots,
        stopped_since_ms=stopped or {},
        now_ms=NOW_MS,
        still_ms=STILL_MS,
    )


def a_shard(key, *parents, is_open=True):
    return Shard(
        shard_id=key,
        hash_key_range=HashKeyRange(0, 9),
        ending_sequence_number=None if is_open else "9",
        parent_shard_id=parents[0] if parents else None,
        adjacent_parent_shard_id=parents[1] if len(parents) > 1 else None,
    )


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "expected"),
    [(0, 20_000, 0), (0, 20_001, 20_001), (500, 30_000, 30_500), (-1, 90_000, -1)],
)
def test_a_lag_that_is_no_news_any_more_grows_with_time(lag_ms, age_ms, expected):
    assert lag_now(lag_ms, age_ms, still_ms=STILL_MS) == expected


def test_the_lag_of_a_worker_that_fell_silent_grows():
    assert lags(a_slot({"a": 300}, age_ms=60_000)) == {"a": 60_300}


def test_a_stopped_shard_is_as_far_behind_as_its_stop_is_old():
    assert lags(stopped={"a": NOW_MS - 90_000}) == {"a": 90_000}


def test_a_lag_that_nobody_told_is_unknown_and_not_zero():
    assert lags(a_slot({"a": -1})) == {}
    assert lags(a_slot({"a": 5}, state=SlotState.ENDED)) == {}


def test_of_a_lease_between_two_workers_the_greater_lag_counts():
    assert lags(a_slot({"a": 5}), a_slot({"a": 7})) == {"a": 7}


def test_finished_leases_have_no_lag():
    assert lags(a_slot({"b": 5}), stopped={"c": 0}) == {}


def test_an_open_shard_that_no_lease_leads_to_is_unread():
    shards = [a_shard("a"), a_shard("b")]

    assert unread_shards(shards, [a_lease("a")]) == ("b",)
    assert unread_shards(shards, [a_lease("a"), a_lease("b")]) == ()
    assert unread_shards(shards, [a_lease("a"), a_lease("b", finished=True)]) == ("b",)


def test_a_child_is_led_to_by_the_unfinished_lease_of_any_ancestor():
    shards = [a_shard("a", is_open=False), a_shard("b", "a", is_open=False), a_shard("c", "b")]

    assert unread_shards(shards, [a_lease("a")]) == ()
    assert unread_shards(shards, [a_lease("a", finished=True)]) == ("c",)
    assert unread_shards(shards[1:], [a_lease("a")]) == ()


def test_a_closed_shard_without_a_lease_is_not_unread():
    assert unread_shards([a_shard("a", is_open=False)], []) == ()
