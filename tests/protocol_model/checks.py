"""What must hold after each write and in each state; a breach is a `ModelViolation`, with why."""

from __future__ import annotations

from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.domain.slots.slot import SlotState
from tests.protocol_model.state import (
    CHILD,
    KEYS,
    PARENT,
    RECORDS,
    ModelWorld,
    Phase,
    WorkerRun,
    handled_by,
)

_COUNTER_STAYS = frozenset({"set_children", "set_hash_range", "initiate_handover"})


class ModelViolation(AssertionError):
    """An invariant does not hold; the message says which and where."""


def check_write(world: ModelWorld, change: LeaseChange, after: Lease) -> None:
    """
    Check one applied write against the state before it.

    Raises:
        ModelViolation: the counter moved wrongly, the checkpoint went back or too far, or the end
            of the parent was stored before its child was there.

    """
    before = world.leases[KEYS.index(change.lease_key)]
    what = f"{change.operation} of {change.lease_key}"
    if change.operation == "create":
        if before is not None:
            raise ModelViolation(f"{what}: it existed at counter {before.lease_counter}")
    elif change.operation == "delete":
        if before is not None and not before.is_finished:
            raise ModelViolation(f"{what}: it was not finished")
    elif before is not None:
        _check_update(world, change, before=before, after=after)


def _check_update(world: ModelWorld, change: LeaseChange, *, before: Lease, after: Lease) -> None:
    shard = KEYS.index(change.lease_key)
    what = f"{change.operation} of {change.lease_key}"
    steps = after.lease_counter - before.lease_counter
    if steps != (0 if change.operation in _COUNTER_STAYS else 1):
        raise ModelViolation(f"{what}: the counter moved by {steps}")
    if after.checkpoint < before.checkpoint:
        raise ModelViolation(f"{what}: the checkpoint went back from {before.checkpoint}")
    if handled_by(after.checkpoint, shard) > world.done[shard]:
        raise ModelViolation(
            f"{what}: checkpoint {after.checkpoint}, but only {world.done[shard]} records are done"
        )
    if shard == PARENT and after.is_finished and not before.is_finished:
        if world.leases[CHILD] is None:
            raise ModelViolation(f"{what}: SHARD_END before the child's lease exists")
        if not before.child_shard_ids:
            raise ModelViolation(f"{what}: SHARD_END before the child's id is stored")


def check_delivery(world: ModelWorld, shard: int, record: int) -> None:
    """
    Check a record that is about to be handled.

    Raises:
        ModelViolation: a record before it was never handled, or its parent shard is not done.

    """
    if record > world.done[shard] + 1:
        raise ModelViolation(f"{KEYS[shard]}: record {record} handled, {record - 1} never was")
    if shard == CHILD and world.done[PARENT] < RECORDS[PARENT]:
        raise ModelViolation("a record of the child was handled before the parent was done")


def check_state(world: ModelWorld) -> None:
    """
    Check what must hold at any moment.

    Raises:
        ModelViolation: two invocations could write to one lease, one could that is not its
            effective owner, or a slot has ended on an assignment that it was told of and never
            served.

    """
    for shard, lease in enumerate(world.leases):
        if lease is None:
            continue
        able = [each for each in world.running if _could_write(each, shard, lease)]
        if len(able) > 1:
            names = " and ".join(name_of(each) for each in able)
            raise ModelViolation(
                f"{names} can both write to {KEYS[shard]} at {lease.lease_counter}"
            )
        for each in able:
            if lease.effective_owner != world.slots[each.slot].worker_id:
                raise ModelViolation(
                    f"{name_of(each)} can write to {KEYS[shard]} of {lease.effective_owner}"
                )
    for slot in world.slots:
        if slot.state is SlotState.ENDED and slot.assigned:
            raise ModelViolation(f"{slot.worker_id} has ended, {', '.join(slot.assigned)} unserved")


def _could_write(invocation: WorkerRun, shard: int, lease: Lease) -> bool:
    held = invocation.holds[shard]
    return (
        held is not None
        and held.phase is Phase.HELD
        and held.lease.lease_counter == lease.lease_counter
        and not lease.is_finished
    )


def name_of(invocation: WorkerRun) -> str:
    """Return how traces call an invocation."""
    return f"w{invocation.slot}/{invocation.epoch}"
