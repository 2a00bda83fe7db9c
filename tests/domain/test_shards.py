"""The shard graph and the arithmetic of hash ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.stream.hash_ranges import (
    HASH_KEY_MAX,
    WHOLE_HASH_SPACE,
    HashKeyRange,
    hash_range_holes,
    tiles_exactly,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph
from tests.domain.builders import a_shard, per_cent
from tests.domain.generators import any_ranges, any_shards

FAMILY = [
    a_shard("2 0-50 closed from 0+1"),
    a_shard("3 0-25 open from 2"),
    a_shard("4 25-50 open from 2"),
    a_shard("0 0-25 closed"),
    a_shard("5 50-100 open from 9"),
]


def test_relatives_are_those_in_the_listing():
    graph = ShardGraph(FAMILY)

    assert graph.parents("2") == ("0",)
    assert graph.children("2") == ("3", "4")
    assert graph.ancestors("4") == {"0", "2"}
    assert graph.roots() == ("0", "5")
    assert list(graph.shards) == ["0", "2", "3", "4", "5"]


def test_a_shard_that_has_aged_out_still_finds_its_children():
    graph = ShardGraph(FAMILY)

    assert graph.children("9") == ("5",)
    assert graph.parents("9") == ()
    assert graph.ancestors("9") == frozenset()


@pytest.mark.parametrize("said", ["", "x", "٣"])
def test_a_shard_whose_beginning_is_no_number_is_older_than_any_other(said):
    first = Shard(shard_id="a", hash_key_range=WHOLE_HASH_SPACE, starting_sequence_number="1")
    unknown = replace(first, shard_id="z", starting_sequence_number=said)

    assert unknown.creation_order < first.creation_order


def test_a_parent_named_twice_counts_once():
    assert a_shard("2 0-50 closed from 1+1").parent_shard_ids == ("1",)


def test_open_children_of_open_parents_are_inconsistent():
    listing = [
        a_shard("0 0-50 open"),
        a_shard("1 0-25 open from 0"),
        a_shard("2 25-50 closed from 0"),
    ]

    assert ShardGraph(listing).inconsistent == ("1",)
    assert ShardGraph(FAMILY).inconsistent == ()


@pytest.mark.parametrize("turn", [1, -1])
def test_a_shard_listed_both_open_and_closed_counts_as_closed(turn):
    listing = [a_shard("0 0-50 open"), a_shard("0 0-50 closed")][::turn]

    assert not ShardGraph(listing).shards["0"].is_open


@given(st.lists(any_shards(), max_size=8))
def test_ancestors_of_any_listing_are_found_even_when_it_goes_round_in_circles(shards):
    graph = ShardGraph(shards)

    for shard_id in graph.shards:
        parents = set(graph.parents(shard_id))
        above = set().union(*(graph.ancestors(parent) for parent in parents), parents)
        assert graph.ancestors(shard_id) == above
        assert all(shard_id in graph.children(parent) for parent in parents)


# --- hash ranges ---


def test_holes_are_what_lies_between_before_and_after():
    holes = hash_range_holes([per_cent("20-40"), per_cent("30-50"), per_cent("60-80")])

    assert holes == (per_cent("0-20"), per_cent("50-60"), per_cent("80-100"))


def test_ranges_that_touch_leave_no_hole():
    assert hash_range_holes([per_cent("50-100"), per_cent("0-50")]) == ()


def test_nothing_covers_nothing():
    assert hash_range_holes([]) == (HashKeyRange(0, HASH_KEY_MAX),)


def test_a_small_range_inside_a_large_one_uncovers_nothing():
    assert hash_range_holes([per_cent("0-100"), per_cent("10-20")]) == ()


def test_a_hole_of_one_key_is_a_hole():
    middle = HASH_KEY_MAX // 2
    ranges = [HashKeyRange(0, middle - 1), HashKeyRange(middle + 1, HASH_KEY_MAX)]

    assert hash_range_holes(ranges) == (HashKeyRange(middle, middle),)
    assert not tiles_exactly(ranges)


def test_holes_can_be_asked_for_inside_a_part():
    whole = per_cent("20-60")

    assert hash_range_holes([per_cent("0-30"), per_cent("50-90")], whole) == (per_cent("30-50"),)
    assert hash_range_holes([per_cent("0-100")], whole) == ()
    assert hash_range_holes([per_cent("60-100")], whole) == (whole,)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (["0-50", "50-100"], True),
        (["50-100", "0-50"], True),
        (["0-100"], True),
        (["0-50", "50-99"], False),
        (["1-50", "50-100"], False),
        (["0-50", "40-100"], False),
        (["0-50", "0-50", "50-100"], False),
        ([], False),
    ],
)
def test_ranges_tile_when_they_leave_no_hole_and_no_overlap(ranges, expected):
    assert tiles_exactly(map(per_cent, ranges)) is expected


def sampled_keys(ranges):
    """Return the keys at which coverage can change."""
    edges = {0, HASH_KEY_MAX}
    for covered in ranges:
        edges |= {covered.start, covered.end, covered.start - 1, covered.end + 1}
    return {key for key in edges if 0 <= key <= HASH_KEY_MAX}


@given(st.lists(any_ranges(), max_size=6))
def test_every_key_is_either_covered_or_in_exactly_one_hole(ranges):
    holes = hash_range_holes(ranges)

    for key in sampled_keys([*ranges, *holes]):
        covered = any(r.start <= key <= r.end for r in ranges)
        assert sum(hole.contains(key) for hole in holes) == (not covered)
    assert list(holes) == sorted(holes)


@given(st.lists(any_ranges(), max_size=6))
def test_ranges_and_their_holes_together_leave_no_hole(ranges):
    assert hash_range_holes([*ranges, *hash_range_holes(ranges)]) == ()


@given(st.integers(0, HASH_KEY_MAX - 1), st.integers(1, HASH_KEY_MAX))
def test_a_range_splits_into_halves_without_hole_or_overlap(start, width):
    """SplitShard: NewStartingHashKey begins the one child, and the other ends just before it."""
    whole = HashKeyRange(start, min(start + width, HASH_KEY_MAX))
    first, second = whole.halves
    assert (first.start, first.end + 1, second.end) == (whole.start, second.start, whole.end)
    assert 0 <= (second.end - second.start) - (first.end - first.start) <= 1 or (
        first.end - first.start == second.end - second.start
    )
