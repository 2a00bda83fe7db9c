"""Hypothesis strategies for the words of the lease protocol."""

from hypothesis import strategies as st

from shardfleet.domain.leases import HASH_KEY_MAX, HashKeyRange, Lease
from shardfleet.domain.sequence import ExtendedSequenceNumber
from shardfleet.domain.shards import Shard

SENTINELS = ("AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "SHARD_END")
WORKERS = ("a", "b", "c")


def real_numbers():
    """Draw sequence numbers: near each other, of lengths around powers of ten, and 56 digits."""
    values = st.one_of(
        st.integers(min_value=0, max_value=12),
        st.integers(min_value=95, max_value=105),
        st.integers(min_value=10**55, max_value=10**56),
    )
    return st.builds(
        lambda value, sub: ExtendedSequenceNumber(str(value), sub),
        values,
        st.integers(min_value=0, max_value=12),
    )


def any_numbers():
    """Draw sequence numbers and sentinels, sentinels with sub-sequence numbers too (kcl-rust)."""
    sentinels = st.builds(
        ExtendedSequenceNumber, st.sampled_from(SENTINELS), st.integers(min_value=0, max_value=2)
    )
    return st.one_of(real_numbers(), sentinels)


def any_ranges():
    """Draw hash ranges that often touch, overlap, or are reversed."""
    edges = st.one_of(
        st.sampled_from([0, 1, 2, HASH_KEY_MAX // 2, HASH_KEY_MAX - 1, HASH_KEY_MAX]),
        st.integers(min_value=0, max_value=HASH_KEY_MAX),
    )
    return st.builds(HashKeyRange, edges, edges)


SHARD_IDS = ("0", "1", "2", "3", "4", "5")


@st.composite
def any_shards(draw):
    """Draw one shard of a listing that need not make sense at all."""
    parents = draw(st.lists(st.sampled_from((*SHARD_IDS, None)), min_size=2, max_size=2))
    return Shard(
        shard_id=draw(st.sampled_from(SHARD_IDS)),
        hash_key_range=draw(any_ranges()),
        starting_sequence_number=draw(st.sampled_from(["0", "9", "10", "", "x", "²"])),
        ending_sequence_number=draw(st.sampled_from([None, "99"])),
        parent_shard_id=parents[0],
        adjacent_parent_shard_id=parents[1],
    )


@st.composite
def any_leases(draw):
    """Draw one lease that need not make sense at all."""
    relatives = st.lists(st.sampled_from(SHARD_IDS), max_size=2, unique=True)
    return Lease(
        lease_key=draw(st.sampled_from(SHARD_IDS)),
        checkpoint=draw(any_numbers()),
        lease_owner=draw(st.sampled_from((None, *WORKERS))),
        lease_counter=draw(st.integers(min_value=0, max_value=3)),
        owner_switches_since_checkpoint=draw(st.integers(min_value=0, max_value=3)),
        checkpoint_owner=draw(st.sampled_from((None, None, *WORKERS))),
        parent_shard_ids=tuple(sorted(draw(relatives))),
        child_shard_ids=tuple(sorted(draw(relatives))),
        hash_key_range=draw(st.one_of(st.none(), any_ranges())),
    )


def lease_tables():
    """Draw tables: at most one lease per key."""
    return st.lists(any_leases(), unique_by=lambda lease: lease.lease_key, max_size=6)
