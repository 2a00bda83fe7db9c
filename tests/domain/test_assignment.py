"""Assignment as properties: over any table, both strategies, and turn after turn to a rest."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.balance.by_count import (
    AssignmentKind,
    WorkerView,
    plan_balanced,
    plan_greedy,
)
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied
from tests.domain.builders import a_lease, a_worker
from tests.domain.generators import SHARD_IDS, WORKERS, lease_tables

EXPIRED = st.frozensets(st.sampled_from(SHARD_IDS))
LIMITS = st.integers(0, 4)


def workers():
    """Draw views of some of the workers."""
    views = st.builds(
        WorkerView,
        worker_id=st.sampled_from(WORKERS),
        leases_most=LIMITS,
        recently_ended=st.frozensets(st.sampled_from(SHARD_IDS)),
    )
    return st.lists(views, unique_by=lambda view: view.worker_id)


def in_key_order(leases):
    return leases


def load_of(leases, expired):
    return Counter(
        lease.lease_owner
        for lease in leases
        if not lease.is_finished and lease.lease_owner and lease.lease_key not in expired
    )


def check_plan(plan, leases, expired, views, *, donors):
    """Check what holds for either strategy."""
    by_key = {lease.lease_key: lease for lease in leases}
    load = load_of(leases, expired)
    keys = [a.lease.lease_key for a in plan.assignments]
    assert len(set(keys)) == len(keys)
    assert sum(a.kind is AssignmentKind.STEAL for a in plan.assignments) <= 1
    for a in plan.assignments:
        lease = a.lease
        assert lease == by_key[lease.lease_key]
        assert not lease.is_finished
        assert a.reason
        parents = [by_key[p] for p in lease.parent_shard_ids if p in by_key]
        assert all(parent.is_finished for parent in parents)
        if a.kind is AssignmentKind.STEAL:
            assert lease.lease_key not in expired
            assert lease.lease_owner in donors
            assert lease.checkpoint_owner is None
            assert load[lease.lease_owner] - load[a.worker_id] >= 2
            load[lease.lease_owner] -= 1
        elif a.kind is AssignmentKind.EXPIRED:
            assert lease.lease_owner is not None
            assert lease.lease_key in expired
        else:
            assert lease.lease_owner is None
        load[a.worker_id] += 1
        assert load[a.worker_id] <= views[a.worker_id].leases_most
    free = {
        lease.lease_key
        for lease in leases
        if not lease.is_finished and (lease.lease_owner is None or lease.lease_key in expired)
    }
    given_free = {a.lease.lease_key for a in plan.assignments if a.kind is not AssignmentKind.STEAL}
    assert [key for key, _ in plan.left] == sorted(free - given_free)


@given(lease_tables(), EXPIRED, workers(), st.randoms())
def test_any_table_is_balanced_within_the_rules(leases, expired, views, shuffler):
    plan = plan_balanced(leases, expired=expired, workers=views)

    by_id = {view.worker_id: view for view in views}
    check_plan(plan, leases, expired, by_id, donors=by_id.keys())
    shuffler.shuffle(leases)
    shuffler.shuffle(views)
    assert plan_balanced(leases, expired=expired, workers=views) == plan


@given(lease_tables(), EXPIRED, workers().filter(bool), st.integers(0, 4), st.randoms())
def test_any_worker_is_greedy_within_the_rules(leases, expired, views, acquire, shuffler):
    view = views[0]
    settings = {"worker": view, "leases_to_acquire": acquire, "order": in_key_order}
    plan = plan_greedy(leases, expired=expired, **settings)

    others = {lease.lease_owner for lease in leases} - {view.worker_id, None}
    check_plan(plan, leases, expired, {view.worker_id: view}, donors=others)
    assert len(plan.assignments) <= acquire
    if any(a.kind is AssignmentKind.STEAL for a in plan.assignments):
        assert len(plan.assignments) == 1
    shuffler.shuffle(leases)
    assert plan_greedy(leases, expired=expired, **settings) == plan


def carried_out(leases, plan):
    """Apply a plan as the engine does."""
    table = {lease.lease_key: lease for lease in leases}
    for a in plan.assignments:
        expired = a.kind is AssignmentKind.EXPIRED
        change = lease_changes.assign(a.lease, a.worker_id, expired=expired)
        result = lease_changes.apply_change(change, table[a.lease.lease_key])
        assert isinstance(result, Applied)
        table[a.lease.lease_key] = result.lease
    return list(table.values())


@given(lease_tables(), EXPIRED, workers())
def test_balancing_comes_to_rest(leases, expired, views):
    """Loads that differ by two are evened out, one lease a turn, and then nothing moves."""
    for _ in range(3 * len(SHARD_IDS)):
        plan = plan_balanced(leases, expired=expired, workers=views)
        if not plan.assignments:
            break
        leases = carried_out(leases, plan)
        expired -= {a.lease.lease_key for a in plan.assignments}
    else:
        pytest.fail("balancing never comes to rest")


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 8))
def test_at_rest_no_two_workers_with_room_differ_by_two(count, workers_count, most):
    views = [a_worker(f"w{i} most {most}") for i in range(workers_count)]
    leases = [a_lease(f"{i:03}" + (" by w0" if i % 2 else "")) for i in range(count)]
    for _ in range(count + 2):
        leases = carried_out(leases, plan_balanced(leases, expired=frozenset(), workers=views))
    load = load_of(leases, frozenset())
    roomy = [view.worker_id for view in views if load[view.worker_id] < most]

    assert not plan_balanced(leases, expired=frozenset(), workers=views).assignments
    assert all(max(load.values(), default=0) - load[worker_id] < 2 for worker_id in roomy)


@given(st.integers(1, 20), st.integers(2, 4), st.integers(1, 5))
def test_greedy_workers_taking_turns_come_to_rest_evenly(count, workers_count, acquire):
    leases = [a_lease(f"{i:03}") for i in range(count)]
    for _ in range(count + 2):
        for index in range(workers_count):
            plan = plan_greedy(
                leases,
                expired=frozenset(),
                worker=a_worker(f"w{index} most 99"),
                leases_to_acquire=acquire,
                order=in_key_order,
            )
            leases = carried_out(leases, plan)
    load = load_of(leases, frozenset())

    assert sum(load.values()) == count
    assert max(load.values()) - min(load[f"w{i}"] for i in range(workers_count)) < 2


def test_what_a_plan_assigns_is_what_the_table_then_says():
    leases = [a_lease("0"), a_lease("1 by z counter 3")]
    plan = plan_balanced(leases, expired=frozenset("1"), workers=[a_worker("a most 4")])

    after = carried_out(leases, plan)

    assert after == [
        a_lease("0 by a counter 1"),
        replace(a_lease("1 by a counter 4"), owner_switches_since_checkpoint=1),
    ]
