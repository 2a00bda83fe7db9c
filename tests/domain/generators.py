"""Hypothesis strategies for the words of the lease protocol."""

from hypothesis import strategies as st

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard

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
_IDS = st.sampled_from(SHARD_IDS)
_MAYBE_ID = st.sampled_from((None, *SHARD_IDS))
_RELATIVES = st.frozensets(_IDS, max_size=2).map(lambda ids: tuple(sorted(ids)))
_EDGES = (0, HASH_KEY_MAX // 2, HASH_KEY_MAX // 2 + 1, HASH_KEY_MAX)
_RANGES = st.sampled_from([HashKeyRange(a, b) for a in _EDGES for b in _EDGES])
_CHECKPOINTS = [ExtendedSequenceNumber(text) for text in (*SENTINELS, "SHARD_END", "5", "15")]


def any_shards():
    """Draw one shard of a listing that need not make sense at all."""
    return st.builds(
        Shard,
        shard_id=_IDS,
        hash_key_range=_RANGES,
        starting_sequence_number=st.sampled_from(["0", "9", "10", "", "x", "\u00b2"]),
        ending_sequence_number=st.sampled_from([None, "99"]),
        parent_shard_id=_MAYBE_ID,
        adjacent_parent_shard_id=_MAYBE_ID,
    )


def any_leases():
    """Draw one lease that need not make sense at all."""
    return st.builds(
        Lease,
        lease_key=_IDS,
        checkpoint=st.sampled_from(_CHECKPOINTS),
        lease_owner=st.sampled_from((None, *WORKERS)),
        lease_counter=st.integers(min_value=0, max_value=3),
        owner_switches_since_checkpoint=st.integers(min_value=0, max_value=3),
        checkpoint_owner=st.sampled_from((None, None, *WORKERS)),
        parent_shard_ids=_RELATIVES,
        child_shard_ids=_RELATIVES,
        hash_key_range=st.sampled_from([None, *(HashKeyRange(0, edge) for edge in _EDGES)]),
    )


def lease_tables():
    """Draw tables: at most one lease per key."""
    return st.lists(any_leases(), unique_by=lambda lease: lease.lease_key, max_size=6)
