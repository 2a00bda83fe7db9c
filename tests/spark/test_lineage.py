"""Where a query begins, and when a child is let in; a fleet's positions as a start."""

import pytest

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import PIN_BACK_MS
from shardfleet.domain.positions.positions import position_text
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_LATEST, AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.engine.ports import ListingFilter
from shardfleet.errors import ConfigurationError
from shardfleet_spark.offsets.lineage import Family, Listing, admit, needs_listing
from shardfleet_spark.options.starting import Start, start_of
from shardfleet_spark.plan.beginning import begin, common_start, opening_of
from shardfleet_spark.plan.fleet_positions import start_after
from tests.spark.memory_seals import INCARNATION, stand

NOW = 1_700_000_000_000
MINUTE_MS = 60_000


def shard(shard_id, *parents, closed=False):
    return Shard(
        shard_id=shard_id,
        hash_key_range=HashKeyRange(0, 1),
        ending_sequence_number="9" if closed else None,
        parent_shard_id=parents[0] if parents else None,
        adjacent_parent_shard_id=parents[1] if len(parents) > 1 else None,
    )


# a was split into b and c; c and d were merged into e.
LISTING = ShardGraph(
    [
        shard("a", closed=True),
        shard("b", "a"),
        shard("c", "a", closed=True),
        shard("d", closed=True),
        shard("e", "c", "d"),
    ]
)

AT_NOW = Listing(LISTING, NOW)


def texts(family):
    return {shard_id: position_text(each.position) for shard_id, each in family.stands.items()}


def family(*stands, **waiting):
    return Family({each.position.shard_id: each for each in stands}, waiting)


def beginning(start, begun):
    return begin(start, LISTING, begun, now_ms=NOW, incarnation=INCARNATION)


def test_from_the_trim_horizon_the_oldest_begin_and_their_descendants_wait():
    found = beginning(Start("TRIM_HORIZON"), ["a", "d"])

    assert texts(found) == {"a": "TRIM_HORIZON", "d": "TRIM_HORIZON"}
    assert found.waiting == {"b": ("a",), "c": ("a",), "e": ("c", "d")}


def test_from_latest_the_open_shards_begin_at_a_pinned_instant_and_the_rest_is_done():
    found = beginning(Start("LATEST"), ["b", "e"])

    pin = f"AT:{NOW - PIN_BACK_MS}"
    assert texts(found) == {"a": "END", "b": pin, "c": "END", "d": "END", "e": pin}
    assert not found.waiting


def test_from_an_instant_later_shards_wait_and_start_at_their_beginning():
    found = beginning(Start("INSTANT", instant_ms=5), ["b", "c", "d"])

    assert texts(found) == {"a": "END", "b": "AT:5", "c": "AT:5", "d": "AT:5"}
    assert found.waiting == {"e": ("c", "d")}


def test_a_parent_and_its_child_that_count_as_open_both_are_not_read_at_once():
    found = beginning(Start("TRIM_HORIZON"), ["a", "b", "c", "d"])

    assert found.live == ("a", "d")


def test_an_instant_in_the_future_is_refused():
    with pytest.raises(ConfigurationError, match="lies in the future"):
        beginning(Start("INSTANT", instant_ms=NOW + 1), ["b"])


def test_positions_of_named_shards_and_a_default_for_the_rest():
    found = beginning(start_of('{"c": "AFTER:5:2", "default": "TRIM_HORIZON"}'), ["a", "d"])

    assert texts(found) == {"a": "END", "c": "AFTER:5:2", "d": "TRIM_HORIZON", "b": "END"}
    assert found.waiting == {"e": ("c", "d")}


def test_shards_that_are_not_there_and_shards_without_a_position_are_named():
    with pytest.raises(ConfigurationError, match="names z; the stream has a, b, c, d, e"):
        beginning(start_of('{"z": "LATEST"}'), ["b"])
    with pytest.raises(ConfigurationError, match="no position for d"):
        beginning(start_of('{"a": "AFTER:5"}'), ["a", "d"])


@pytest.mark.parametrize(
    ("text", "listing", "instant_ms"),
    [
        ("TRIM_HORIZON", ListingFilter.AT_TRIM_HORIZON, None),
        ("LATEST", ListingFilter.AT_LATEST, None),
        ("1700000000005", ListingFilter.AT_TIMESTAMP, 1_700_000_000_005),
        ('{"a": 1700000000005}', ListingFilter.AT_TRIM_HORIZON, None),
        ('{"a": 1700000000005, "default": "LATEST"}', ListingFilter.AT_LATEST, None),
    ],
)
def test_each_start_asks_for_the_shards_that_were_open_then(text, listing, instant_ms):
    opening = opening_of(common_start(start_of(text)))

    assert (opening.listing, opening.instant_ms) == (listing, instant_ms)


def test_a_child_of_a_split_waits_for_its_parent():
    held = admit(family(stand("a", 3)), AT_NOW, INCARNATION)
    let_in = admit(family(stand("a", "END")), AT_NOW, INCARNATION)

    assert "b" not in held.stands
    assert texts(let_in)["b"] == "TRIM_HORIZON"


def test_a_child_waits_for_both_parents_of_a_merge():
    one = family(stand("a", "END"), stand("b", 1), stand("c", "END"), stand("d", 3))
    both = family(stand("a", "END"), stand("b", 1), stand("c", "END"), stand("d", "END"))

    assert "e" not in admit(one, AT_NOW, INCARNATION).stands
    assert "e" in admit(both, AT_NOW, INCARNATION).stands


def test_a_child_that_only_its_parent_named_waits_for_a_parent_that_the_list_is_too_old_for():
    # f is a child of e and of g, and g was born after the listing.
    known = family(stand("e", "END"), f=("e", "g"))

    assert needs_listing(known)
    assert "f" not in admit(known, AT_NOW, INCARNATION).stands
    assert "f" not in admit(known, None, INCARNATION).stands


def test_a_parent_that_aged_out_of_the_list_counts_as_done():
    listing = Listing(ShardGraph([shard("e", "c", "d")]), NOW)

    found = admit(family(stand("d", "END")), listing, INCARNATION)

    assert found.live == ("e",)


def test_finished_shards_are_kept_while_listed_and_then_forgotten():
    known = family(stand("a", "END"), stand("old", "END"), stand("b", 4))

    found = admit(known, AT_NOW, INCARNATION)

    assert "a" in found.stands
    assert "old" not in found.stands
    assert "old" in admit(known, None, INCARNATION).stands


def test_a_finished_shard_is_not_forgotten_by_a_list_that_is_older_than_its_end():
    ended = family(stand("new", "END", tip=NOW - MINUTE_MS), stand("b", 4))

    assert "new" in admit(ended, Listing(LISTING, NOW), INCARNATION).stands
    assert "new" not in admit(ended, Listing(LISTING, NOW + 1), INCARNATION).stands


def test_a_child_is_as_old_as_its_youngest_parent():
    known = family(stand("c", "END", arrived=40), stand("d", "END", arrived=70))

    assert admit(known, AT_NOW, INCARNATION).stands["e"].arrived_ms == 70


def lease(key, checkpoint, **fields):
    return Lease(lease_key=key, checkpoint=checkpoint, **fields)


def test_a_drained_fleet_is_followed_to_the_user_record():
    leases = [
        lease("a", AT_SHARD_END, lease_owner="gone"),
        lease("b", ExtendedSequenceNumber("70", 3)),
        lease("c", ExtendedSequenceNumber("TRIM_HORIZON")),
    ]

    found = beginning(start_after("orders", leases), ["a", "d"])

    assert texts(found) == {
        "a": "END",
        "b": "AFTER:70:3",
        "c": "TRIM_HORIZON",
        "d": "TRIM_HORIZON",
    }
    assert found.waiting == {"e": ("c", "d")}


def test_a_child_that_was_leased_early_waits_for_its_parent_all_the_same():
    leases = [
        lease("a", ExtendedSequenceNumber("7")),
        lease("b", ExtendedSequenceNumber("TRIM_HORIZON")),
    ]

    found = beginning(start_after("orders", leases), ["d"])

    assert found.live == ("a", "d")
    assert set(found.waiting) == {"b", "c", "e"}


@pytest.mark.parametrize(
    ("leases", "said"),
    [
        ([], "is empty"),
        ([lease("b", ExtendedSequenceNumber("7"), lease_owner="w1")], r"not drained.*b \(w1\)"),
        ([lease("b", AT_LATEST)], "nothing was ever checkpointed in b"),
    ],
)
def test_a_fleet_that_works_or_says_nothing_is_no_start(leases, said):
    with pytest.raises(ConfigurationError, match=said):
        start_after("orders", leases)
