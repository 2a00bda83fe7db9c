"""
Whether a state recovers: from now on nothing goes wrong, and everybody does what there is to do.

A lease that nobody can find, a handover that nobody completes, a slot that ended on an assignment:
all of these show as records that are not handled, or a lease without a living owner, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from shardfleet.domain.slots.slot import SlotState
from tests.protocol_model.manager import manager_steps
from tests.protocol_model.rules import Rules
from tests.protocol_model.state import CHILD, RECORDS, Budget, ModelWorld, Phase
from tests.protocol_model.worker import Worker, claims

ROUNDS = 10
"""Each is a renewal of everybody and a turn of the manager; three are enough for most states."""

_STEPS_MOST = 200
_PLENTY = Budget(turns=99, renewals=99)


def obstacle(rules: Rules, world: ModelWorld) -> str | None:
    """Return what is still not as it should be after a time without faults; None: all is well."""
    world = replace(world, mail=(), leader=None, budget=_PLENTY)
    what = None
    for _ in range(ROUNDS):
        world = _everybody_works(rules, world)
        what = _unwell(world)
        if what is None:
            return None
        world = _manager_turn(rules, world)
    return f"does not recover: {what}"


def _unwell(world: ModelWorld) -> str | None:
    parent, child = world.leases
    if world.done != RECORDS:
        return f"of {RECORDS} records only {world.done} are handled"
    if parent is not None and (not parent.is_finished or parent.checkpoint_owner):
        return "the parent's lease is not at its end"
    held = [each.holds[CHILD] for each in world.running if each.holds[CHILD]]
    if (
        child is None
        or child.checkpoint_owner
        or not any(h and h.phase is Phase.HELD for h in held)
    ):
        return "nobody holds the child's lease"
    return None


def _everybody_works(rules: Rules, world: ModelWorld) -> ModelWorld:
    """Let every invocation do everything it can, then renew once."""
    for renewals in range(2):
        for _ in range(_STEPS_MOST):
            following = next(_useful(rules, world), None)
            if following is None:
                break
            world = following
        if renewals == 0:
            for each in world.running:
                steps = Worker(rules, world, each).steps()
                left = world.budget.renewals
                renewed = (w for _, w in steps if w.budget.renewals < left)
                world = next(renewed, world)
    return world


def _useful(rules: Rules, world: ModelWorld) -> Iterator[ModelWorld]:
    steps = chain(
        claims(rules, world),
        *(Worker(rules, world, each).steps() for each in world.running),
    )
    return (w for _, w in steps if w != world and w.budget == world.budget)


def _manager_turn(rules: Rules, world: ModelWorld) -> ModelWorld:
    """Finish the turn that is going on and run another; start a slot if none is running."""
    for _ in range(2):
        while world.manager is not None:
            world = next(w for _, w in manager_steps(rules, world))
        begun = [w for _, w in manager_steps(rules, world)]
        has_ended = all(slot.state is SlotState.ENDED for slot in world.slots)
        world = begun[-1] if has_ended else begun[0]
    while world.manager is not None:
        world = next(w for _, w in manager_steps(rules, world))
    return replace(world, budget=_PLENTY)
