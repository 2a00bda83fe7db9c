"""
The steps of a manager turn, and of a foreign leader that begins handovers and steals.

The manager plans with the domain's planners on a snapshot that is as old as the search likes, and
writes as :mod:`shardfleet.engine.manager.assigner` does: announce, write, look at the slot again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from shardfleet.domain.balance.by_count import Assignment, AssignmentKind, WorkerView, plan_balanced
from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.expiry import Reading, sighted
from shardfleet.domain.leases.lease import Applied, ChangeResult, Lease, LeaseChange
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.reasons import Quoted
from shardfleet.domain.slots.slot import SlotState, intend_start
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.protocol_model.checks import ModelViolation
from tests.protocol_model.outcomes import send
from tests.protocol_model.rules import Rules
from tests.protocol_model.state import (
    KEYS,
    SHARDS,
    Letter,
    Manager,
    ModelWorld,
    letter,
)

Steps = Iterator[tuple[str, ModelWorld]]

_NOW_MS, _FAILOVER_MS = 10_000, 5_000  # A counter seen twice stood still for long enough.


def manager_steps(rules: Rules, world: ModelWorld) -> Steps:
    """Yield every step of the manager."""
    turn = world.manager
    if turn is None:
        if world.budget.turns:
            yield from _begin(rules, world)
            yield from _start_ended(world)
        return
    if world.budget.crashes:
        poorer = dataclasses.replace(world, budget=world.budget.less("crashes"), manager=None)
        yield "the manager dies", poorer
    if turn.todo:
        for how, after, result in send(world, turn.todo[0].change):
            following = None if result is None else dataclasses.replace(turn, todo=turn.todo[1:])
            change = turn.todo[0].change
            yield f"manager: {change.operation} of {change.lease_key}{how}", _on(after, following)
    else:
        yield from _give(rules, world, turn)


def _on(world: ModelWorld, turn: Manager | None) -> ModelWorld:
    """Go on with a turn, or end it when nothing is left to do."""
    is_over = turn is None or not (turn.todo or turn.give)
    return dataclasses.replace(world, manager=None if is_over else turn)


def _begin(rules: Rules, world: ModelWorld) -> Steps:
    leases = [lease for lease in world.leases if lease is not None]
    previous = {key: seen for key, seen in zip(KEYS, world.sightings, strict=True) if seen}
    reading = Reading(began_ms=_NOW_MS, ended_ms=_NOW_MS)
    sightings, expired = sighted(
        previous, leases, reading=reading, failover_ms=_FAILOVER_MS, graces={}
    )
    ended = {slot.worker_id for slot in world.slots if slot.state is SlotState.ENDED}
    unfinished = [lease for lease in leases if not lease.is_finished]
    expired |= {lease.lease_key for lease in unfinished if lease.effective_owner in ended}
    remembered = tuple(
        replace(seen, first_seen_ms=0) if (seen := sightings.get(key)) else None for key in KEYS
    )
    turn = Manager(_table_work(rules, leases), _assignments(world, leases, expired))
    begun = dataclasses.replace(world, budget=world.budget.less("turns"), sightings=remembered)
    yield "the manager reads everything and plans", _on(begun, turn)
    forced = tuple(
        letter(rules.assign(lease, lease.lease_owner))
        for lease in unfinished
        if lease.checkpoint_owner is not None and lease.lease_key not in expired
    )
    if forced:
        # Without time in the model, any pending handover may have taken too long.
        label = "the manager finds handovers overdue and plans"
        yield label, _on(begun, dataclasses.replace(turn, todo=(*forced, *turn.todo)))


def _table_work(rules: Rules, leases: Sequence[Lease]) -> tuple[Letter, ...]:
    sync = plan_lease_sync(
        SHARDS,
        leases,
        initial=ExtendedSequenceNumber("TRIM_HORIZON"),
        listed_at_initial=None if leases else SHARDS[:1],
    )
    cleanup = plan_lease_cleanup(SHARDS, leases)
    changes = [rules.create(wanted.lease) for wanted in sync.create]
    changes += [rules.set_children(lease, ids) for lease, ids in cleanup.learn_children]
    changes += [rules.delete(gone.lease) for gone in cleanup.delete]
    return tuple(letter(change) for change in changes)


def _assignments(
    world: ModelWorld, leases: Sequence[Lease], expired: frozenset[str]
) -> tuple[Assignment, ...]:
    able = [s.worker_id for s in world.slots if s.state is SlotState.RUNNING and not s.drain]
    losers = {lease.effective_owner for lease in leases if lease.lease_key in expired}
    able = [worker_id for worker_id in able if worker_id not in losers] or able
    views = [WorkerView(worker_id=worker_id, leases_most=2) for worker_id in able]
    plan = plan_balanced(leases, expired=expired, workers=views).assignments
    return tuple(replace(each, reason=Quoted("")) for each in plan)


def _start_ended(world: ModelWorld) -> Steps:
    for number, slot in enumerate(world.slots):
        if slot.state is SlotState.ENDED:
            intended = intend_start(
                slot,
                slot_id=slot.slot_id,
                worker_id=slot.worker_id,
                name_prefix="fleet",
                now_ms=0,
            )
            begun = dataclasses.replace(world, budget=world.budget.less("turns"))
            yield f"the manager starts {slot.worker_id} again", begun.with_slot(intended, number)


def _give(rules: Rules, world: ModelWorld, turn: Manager) -> Steps:
    """Carry out the first assignment: announce, write, look again."""
    given = turn.give[0]
    key, worker_id = given.lease.lease_key, given.worker_id
    number = [slot.worker_id for slot in world.slots].index(worker_id)
    following = Manager((), turn.give[1:])
    if not turn.announced:
        announced = rules.announce(world.slots[number], (key,))
        if announced is None:
            yield f"manager: {worker_id} takes no leases", _on(world, following)
        else:
            after = world.with_slot(announced, number)
            label = f"manager: announces {key} to {worker_id}"
            yield label, _on(after, dataclasses.replace(turn, announced=True))
    elif given.kind is AssignmentKind.STEAL and turn.stolen is None:
        current = world.leases[KEYS.index(key)]
        if current is None or current.effective_owner != given.lease.effective_owner:
            yield f"manager: {key} has another owner now", _on(world, following)
        elif current.is_finished or current.checkpoint_owner is not None:
            yield f"manager: {key} moves already, or is at its end", _on(world, following)
        else:
            label = f"manager: reads {key} at {current.lease_counter}"
            yield label, _on(world, dataclasses.replace(turn, stolen=current))
    elif turn.given is None:
        for change in _assignment(rules, given, turn.stolen):
            yield from _write(world, turn, change)
    else:
        yield from _look_again(rules, world, turn.given)


def _write(world: ModelWorld, turn: Manager, change: LeaseChange) -> Steps:
    given = turn.give[0]
    following = Manager((), turn.give[1:])
    for how, after, result in send(world, change):
        _check_robbery(world, given, result)
        what = f"{change.operation} of {change.lease_key} ({given.kind}) to {given.worker_id}"
        if isinstance(result, Applied):
            yield f"manager: {what}{how}", _on(after, dataclasses.replace(turn, given=result.lease))
        else:
            yield f"manager: {what}{how}", _on(after, None if result is None else following)


def _look_again(rules: Rules, world: ModelWorld, given: Lease) -> Steps:
    """Release what was given to a slot that ended in between."""
    turn = world.manager
    assert turn is not None
    key, worker_id = turn.give[0].lease.lease_key, turn.give[0].worker_id
    number = [slot.worker_id for slot in world.slots].index(worker_id)
    following = Manager((), turn.give[1:])
    if world.slots[number].state is SlotState.ENDED and given.checkpoint_owner is None:
        for how, after, _ in send(world, rules.evict(given)):
            yield f"manager: {worker_id} has ended, {key} is released{how}", _on(after, following)
    else:
        yield f"manager: {worker_id} still runs", _on(world, following)


def _assignment(rules: Rules, given: Assignment, stolen: Lease | None) -> tuple[LeaseChange, ...]:
    """Return how a lease may be given: what is stolen may be handed over gracefully instead."""
    if stolen is not None:
        handover = rules.initiate_handover(stolen, given.worker_id, as_read=True)
        return (handover, rules.take(stolen, given.worker_id))
    is_expired = given.kind is AssignmentKind.EXPIRED
    return (rules.assign(given.lease, given.worker_id, expired=is_expired),)


def _check_robbery(world: ModelWorld, given: Assignment, result: ChangeResult | None) -> None:
    """Check that nobody loses a lease who has renewed it since it was read (hazard H15)."""
    before = world.leases[KEYS.index(given.lease.lease_key)]
    if not isinstance(result, Applied) or before is None or given.kind is AssignmentKind.STEAL:
        return
    if before.lease_counter != given.lease.lease_counter and before.effective_owner is not None:
        raise ModelViolation(
            f"{before.effective_owner} is robbed of {given.lease.lease_key}: read at "
            f"{given.lease.lease_counter}, now at {before.lease_counter}"
        )


def leader_steps(rules: Rules, world: ModelWorld) -> Steps:
    """
    Yield the steps of a foreign leader: it reads a lease, then hands it over or takes it.

    It is careless: it also tries on a lease that is being handed over, or whose parent is not done.
    """
    if not world.budget.handovers:
        return
    seen = world.leader
    if seen is None:
        for lease in world.leases:
            if lease is not None and not lease.is_finished:
                label = f"the leader reads {lease.lease_key} at {lease.lease_counter}"
                yield label, dataclasses.replace(world, leader=lease)
        return
    begun = dataclasses.replace(world, budget=world.budget.less("handovers"), leader=None)
    for slot in world.slots:
        if slot.worker_id == seen.lease_owner:
            continue
        changes: list[LeaseChange] = [rules.take(seen, slot.worker_id)]
        if seen.lease_owner is not None:
            changes.append(rules.initiate_handover(seen, slot.worker_id))
        for change in changes:
            for how, after, _ in send(begun, change):
                what = f"{change.operation} of {seen.lease_key} to {slot.worker_id}"
                yield f"the leader: {what}{how}", after
