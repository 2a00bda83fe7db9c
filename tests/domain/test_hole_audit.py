"""Suspicion grows with sightings that are apart, and holes are what no unfinished lease covers."""

import pytest

from shardfleet.domain.leases.holes import (
    APART_MS,
    FORGET_MS,
    SIGHTINGS,
    Suspicion,
    suspicions,
    unread_ranges,
)
from tests.domain.builders import a_lease, a_shard, per_cent


def test_a_suspect_is_certain_at_its_third_sighting():
    found = {}
    for turn in range(SIGHTINGS):
        assert not any(each.is_proof for each in found.values())
        found = suspicions(found, ["1"], now_ms=turn * APART_MS)
    assert found == {"1": Suspicion(SIGHTINGS, (SIGHTINGS - 1) * APART_MS)}
    assert found["1"].is_proof


def test_turns_that_follow_at_once_count_as_one():
    found = {}
    for now_ms in range(0, APART_MS, 1_000):
        found = suspicions(found, ["1"], now_ms=now_ms)
    assert found == {"1": Suspicion(1, 0)}


def test_who_is_no_suspect_any_more_is_forgotten_and_others_are_kept():
    found = suspicions({"1": Suspicion(2, 0), "2": Suspicion(2, 0)}, ["2"], now_ms=APART_MS)
    assert found == {"2": Suspicion(3, APART_MS)}


@pytest.mark.parametrize("now_ms", [FORGET_MS + 1, -1])
def test_a_sighting_long_ago_or_of_a_clock_that_went_back_counts_for_nothing(now_ms):
    assert suspicions({"1": Suspicion(2, 0)}, ["1"], now_ms=now_ms) == {"1": Suspicion(1, now_ms)}


SHARDS = ["0 0-50 closed", "1 50-100 open", "2 0-25 open from 0", "3 25-50 open from 0"]


@pytest.mark.parametrize(
    ("leases", "holes"),
    [
        (["0 at 5", "1 at 5"], []),
        (["0 at SHARD_END", "1 at 5", "2", "3"], []),
        (["0 at SHARD_END", "1 at 5", "2"], ["25-50"]),
        (["0 at SHARD_END", "1 at SHARD_END", "2", "3"], ["50-100"]),
        ([], ["0-100"]),
        (["7 at 5"], []),  # an old row of a shard that has aged out: its range is unknown
        (["7 at 5 range 0-60"], ["60-100"]),
    ],
)
def test_what_no_unfinished_lease_covers_is_a_hole(leases, holes):
    found = unread_ranges([a_lease(line) for line in leases], [a_shard(line) for line in SHARDS])
    assert list(found) == [per_cent(text) for text in holes]


def test_an_empty_listing_proves_nothing():
    assert unread_ranges([], []) == ()
