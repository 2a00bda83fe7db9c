"""Which shard a listing gives a hash key to, also one read in the middle of a reshard."""

from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.shard_map import ShardMap
from shardfleet.domain.stream.shards import Shard

MIDDLE = HASH_KEY_MAX // 2


def shard(name, start, end, *, parent=None, is_open=True, born="0"):
    return Shard(
        shard_id=name,
        hash_key_range=HashKeyRange(start, end),
        starting_sequence_number=born,
        ending_sequence_number=None if is_open else "9",
        parent_shard_id=parent,
    )


LEFT, RIGHT = shard("left", 0, MIDDLE), shard("right", MIDDLE + 1, HASH_KEY_MAX)


def owner_of(shards, hash_key):
    owner = ShardMap(shards).owner(hash_key)
    return owner.shard_id if owner else None


def test_ranges_include_both_ends():
    keys = (0, MIDDLE, MIDDLE + 1, HASH_KEY_MAX)
    assert [owner_of([RIGHT, LEFT], key) for key in keys] == ["left", "left", "right", "right"]


@given(
    st.lists(st.sampled_from([LEFT, RIGHT, shard("old", 5, MIDDLE - 5, born="-1")]), unique=True),
    st.lists(st.one_of(st.integers(0, HASH_KEY_MAX), st.sampled_from([4, 5, MIDDLE, MIDDLE + 1]))),
)
def test_owners_of_digests_are_those_of_the_numbers(shards, hash_keys):
    found = ShardMap(shards)
    digests = [hash_key.to_bytes(16, "big") for hash_key in hash_keys]
    assert found.owners_of_digests(digests) == [found.owner(each) for each in hash_keys]


def test_only_a_shard_that_owns_every_hash_key_is_the_whole():
    whole = shard("whole", 0, HASH_KEY_MAX)
    assert ShardMap([whole]).whole is whole
    assert ShardMap([LEFT]).whole is None
    assert ShardMap([LEFT, RIGHT]).whole is None
    assert ShardMap().whole is None


def test_without_a_listing_nobody_owns_anything():
    assert owner_of([], 7) is None
    assert not ShardMap().owns("left", 7)


def test_a_closed_shard_takes_no_records_but_still_owns_its_keys():
    parent = shard("parent", 0, HASH_KEY_MAX, is_open=False)
    found = ShardMap([parent, shard("child", 0, MIDDLE, parent="parent")])

    assert found.owner(1).shard_id == "child"
    assert found.owner(HASH_KEY_MAX) is None
    assert found.owns("parent", HASH_KEY_MAX)
    assert not found.takes_records("parent")
    assert found.takes_records("child")


def test_a_parent_still_listed_as_open_gives_way_to_its_children():
    parent = shard("parent", 0, HASH_KEY_MAX)
    child = shard("child", 0, MIDDLE, parent="parent")

    assert owner_of([parent, child], 1) == "child"
    assert owner_of([parent, child], HASH_KEY_MAX) is None


def test_of_two_shards_that_overlap_without_kinship_the_younger_counts():
    old, young = shard("b-old", 0, HASH_KEY_MAX), shard("a-young", 5, HASH_KEY_MAX, born="7")

    assert owner_of([old, young], 9) == owner_of([young, old], 9) == "a-young"
    assert owner_of([old, young], 4) is None


@given(
    st.lists(
        st.builds(
            shard,
            st.sampled_from("abcdef"),
            st.integers(0, 60),
            st.integers(0, 60),
            parent=st.none() | st.sampled_from("abcdef"),
            is_open=st.booleans(),
            born=st.sampled_from("0123"),
        ),
        max_size=8,
    ),
    st.integers(0, 60),
)
def test_no_listing_gives_a_hash_key_two_owners(shards, hash_key):
    found = ShardMap(shards)

    owners = [each for each in found.owners if each.hash_key_range.contains(hash_key)]
    assert len(owners) <= 1
    assert found.owner(hash_key) is (owners[0] if owners else None)
