"""Lease cleanup and expiry as properties over any nonsense."""

from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.expiry import Reading, sighted
from tests.domain.generators import any_shards, lease_tables


@given(st.lists(any_shards(), max_size=8), lease_tables(), st.randoms())
def test_only_finished_leases_without_parents_and_with_started_children_are_deleted(
    shards, leases, shuffler
):
    plan = plan_lease_cleanup(shards, leases)

    by_key = {lease.lease_key: lease for lease in leases}
    for gone in plan.delete:
        assert gone.lease.is_finished
        assert not set(gone.lease.parent_shard_ids) & by_key.keys()
        for child in gone.lease.child_shard_ids:
            assert by_key[child].checkpoint.sequence_number not in ("TRIM_HORIZON", "AT_TIMESTAMP")
    deleted = {gone.lease.lease_key for gone in plan.delete}
    kept = dict(plan.kept)
    assert not deleted & kept.keys()
    assert {lease.lease_key for lease in leases if lease.is_finished} <= deleted | kept.keys()
    assert all(not lease.child_shard_ids and ids for lease, ids in plan.learn_children)
    shuffler.shuffle(shards)
    shuffler.shuffle(leases)
    assert plan_lease_cleanup(shards, leases) == plan


@given(lease_tables(), lease_tables(), st.lists(st.integers(0, 40_000), min_size=4, max_size=4))
def test_nothing_expires_unless_two_readings_far_apart_show_the_same_counter(first, second, times):
    start, started, later, finished = sorted(times)
    often = {"failover_ms": 10_000, "graces": {}}
    reading = Reading(began_ms=start, ended_ms=started, skew_ms=2_000)
    seen, _ = sighted({}, first, reading=reading, **often)
    reading = Reading(began_ms=later, ended_ms=finished, skew_ms=2_000)
    _, expired = sighted(seen, second, reading=reading, **often)

    before = {lease.lease_key: lease for lease in first}
    for lease in second:
        old = before.get(lease.lease_key)
        stood_still = (
            old is not None
            and not old.is_finished
            and (old.lease_counter, old.effective_owner)
            == (lease.lease_counter, lease.effective_owner)
        )
        owned = lease.effective_owner is not None and not lease.is_finished
        assert (lease.lease_key in expired) == (owned and stood_still and later - started > 12_000)
