"""Planners take steps in proportion to what they plan: counted in lines run, not in time."""

import sys

import pytest

from shardfleet.domain.balance.by_count import WorkerView, plan_balanced
from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.expiry import Reading, sighted
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotFacts, plan_slots
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import AT_LATEST, AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard

SMALL, FACTOR = 60, 8
# Eight times as much takes eight times as many steps, and a little for sorting; the square of
# that is 64 times.
GROWTH_MOST = 16
READ = ExtendedSequenceNumber("100")


def steps_of(work):
    """Count the lines that run inside the domain."""
    count = 0

    def trace(frame, event, _argument):
        nonlocal count
        if "/domain/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def part(index, of):
    width = (HASH_KEY_MAX + 1) // of
    end = HASH_KEY_MAX if index == of - 1 else (index + 1) * width - 1
    return HashKeyRange(index * width, end)


def workers(count, *, most=20):
    return [WorkerView(worker_id=f"w{n:05d}", leases_most=most) for n in range(count)]


def leases(count, **fields):
    return [Lease(lease_key=f"shard-{n:06d}", checkpoint=READ, **fields) for n in range(count)]


def unowned_leases(n):
    plan = plan_balanced(leases(n), expired=frozenset(), workers=workers(n // 10))
    assert len(plan.assignments) == n


def full_workers(n):
    plan = plan_balanced(leases(n), expired=frozenset(), workers=workers(n // 10, most=5))
    assert len(plan.left) == n - 5 * (n // 10)


def donors_with_nothing_to_give(n):
    held = [
        Lease(
            lease_key=f"shard-{i:06d}",
            checkpoint=READ,
            lease_owner=f"w{i % (n // 4):05d}",
            checkpoint_owner="java",
        )
        for i in range(n)
    ]
    plan = plan_balanced(held, expired=frozenset(), workers=workers(n // 4 + 1))
    assert not plan.assignments


def leases_to_create(n):
    shards = [Shard(shard_id=f"s{i:06d}", hash_key_range=part(i, n)) for i in range(n)]
    known = [Lease(lease_key="other", checkpoint=AT_LATEST)]
    plan = plan_lease_sync(
        shards, known, initial=ExtendedSequenceNumber("LATEST"), listed_at_initial=None
    )
    assert len(plan.create) == n


def suspects_in_long_lines(n):
    """Nothing of four long lines has a lease, nor of many short ones, though others were read."""
    known = [Lease(lease_key="other", checkpoint=READ)]
    shards = [Shard(shard_id=f"s{i:06d}", hash_key_range=part(i, n)) for i in range(n)]
    shards += [
        Shard(
            shard_id=f"l{i:06d}",
            hash_key_range=part(i % 4, 4),
            parent_shard_id=f"l{i - 4:06d}" if i >= 4 else None,
            ending_sequence_number="9" if i < n - 4 else None,
        )
        for i in range(n)
    ]
    known += [
        Lease(lease_key=f"x{i:06d}", checkpoint=READ, parent_shard_ids=(f"l{n - 8 + i:06d}",))
        for i in range(4)
    ]
    plan = plan_lease_sync(
        shards, known, initial=ExtendedSequenceNumber("LATEST"), listed_at_initial=None
    )
    assert len(plan.suspects) == n
    assert len(plan.create) == 4


def siblings_of_what_was_lost(n):
    """Every other child of a split has no lease, though its sibling was read."""
    shards, known = [], []
    for i in range(n):
        shards += [
            Shard(
                shard_id=f"child-{i:06d}-{side}",
                hash_key_range=part(2 * i + side, 2 * n),
                parent_shard_id=f"parent-{i:06d}",
            )
            for side in (0, 1)
        ]
        known.append(
            Lease(
                lease_key=f"child-{i:06d}-0",
                checkpoint=READ,
                parent_shard_ids=(f"parent-{i:06d}",),
            )
        )
    plan = plan_lease_sync(
        shards, known, initial=ExtendedSequenceNumber("LATEST"), listed_at_initial=None
    )
    assert all(wanted.lease.checkpoint != AT_LATEST for wanted in plan.create)
    assert len(plan.create) == n


def finished_parents(n):
    shards, known = [], []
    for i in range(n):
        parent = Shard(shard_id=f"a{i:06d}", hash_key_range=part(i, n), ending_sequence_number="9")
        child = Shard(
            shard_id=f"b{i:06d}", hash_key_range=part(i, n), parent_shard_id=parent.shard_id
        )
        shards += [parent, child]
        known += [
            Lease(
                lease_key=parent.shard_id,
                checkpoint=AT_SHARD_END,
                hash_key_range=parent.hash_key_range,
            ),
            Lease(
                lease_key=child.shard_id,
                checkpoint=READ,
                parent_shard_ids=(parent.shard_id,),
                hash_key_range=child.hash_key_range,
            ),
        ]
    assert len(plan_lease_cleanup(shards, known).delete) == n


def shards_that_have_aged_out(n):
    shards = [Shard(shard_id=f"b{i:06d}", hash_key_range=part(i, n)) for i in range(n)]
    known = [
        Lease(lease_key=f"a{i:06d}", checkpoint=AT_SHARD_END, hash_key_range=part(i, n))
        for i in range(n)
    ]
    assert len(plan_lease_cleanup(shards, known).delete) == n


def sightings(n):
    held = leases(n, lease_owner="gone")
    often = {"failover_ms": 10_000, "graces": {}}
    seen, _ = sighted({}, held, reading=Reading(began_ms=0, ended_ms=10), **often)
    _, found = sighted(seen, held, reading=Reading(began_ms=20_000, ended_ms=20_010), **often)
    assert len(found) == n


def slots_to_start(n):
    slots = [
        Slot(
            slot_id=f"s{i:04d}",
            worker_id=f"w{i}",
            state=SlotState.RUNNING,
            name="n",
            start_epoch=1,
        )
        for i in range(n)
    ]
    limits = SizingLimits(
        leases_per_worker=1,
        min_workers=1,
        max_workers=10**6,
        target=0.7,
        lag_most_ms=1,
        scale_down_ms=1,
    )
    needs = [SlotNeed(slot_id=slot.slot_id, leases=1, used=0.7) for slot in slots]
    sizing = plan_size(needs, unfinished=2 * n, pace=Pace(), limits=limits, now_ms=1)
    plan = plan_slots(slots, sizing=sizing, facts=SlotFacts(now_ms=1, silent_ms=10**9))
    assert len(plan.decisions) == 2 * n


@pytest.mark.parametrize(
    "plan",
    [
        unowned_leases,
        full_workers,
        donors_with_nothing_to_give,
        leases_to_create,
        suspects_in_long_lines,
        siblings_of_what_was_lost,
        finished_parents,
        shards_that_have_aged_out,
        sightings,
        slots_to_start,
    ],
)
def test_the_steps_of_a_planner_grow_no_faster_than_what_it_plans(plan):
    few, many = (steps_of(lambda n=n: plan(n)) for n in (SMALL, FACTOR * SMALL))

    assert few > SMALL
    assert many < GROWTH_MOST * few
