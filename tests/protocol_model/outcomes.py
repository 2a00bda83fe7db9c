"""How a write to the lease table may turn out: answered, carried out unheard, or late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardfleet.domain.leases.changes import apply_change
from shardfleet.domain.leases.lease import Applied, ChangeKind, ChangeResult, LeaseChange
from tests.protocol_model.checks import check_write
from tests.protocol_model.state import KEYS, ModelWorld, letter

Sent = tuple[str, ModelWorld, ChangeResult | None]
"""What to add to the step's name, the world after it, and the answer (None: none came)."""


def carry_out(world: ModelWorld, change: LeaseChange) -> tuple[ModelWorld, ChangeResult]:
    """Carry out one write in the table, checked."""
    shard = KEYS.index(change.lease_key)
    result = apply_change(change, world.leases[shard])
    if isinstance(result, Applied):
        check_write(world, change, result.lease)
        is_deleted = change.kind is ChangeKind.DELETE
        world = world.with_lease(shard, None if is_deleted else result.lease)
    return world, result


def send(world: ModelWorld, change: LeaseChange) -> Iterator[Sent]:
    """Yield every way in which one write may turn out."""
    after, result = carry_out(world, change)
    outcome = "" if isinstance(result, Applied) else f": {type(result).__name__.lower()}"
    yield outcome, after, result
    if world.budget.lost:
        left = world.budget.less("lost")
        if isinstance(result, Applied):
            yield ", the reply is lost", replace(after, budget=left), None
        mail = tuple(sorted((*world.mail, letter(change)), key=lambda each: each.text))
        yield ", to land late", replace(world, budget=left, mail=mail), None


def deliveries(world: ModelWorld) -> Iterator[tuple[str, ModelWorld]]:
    """Let each late write land, in any order."""
    for place, late in enumerate(world.mail):
        left = replace(world, mail=world.mail[:place] + world.mail[place + 1 :])
        after, result = carry_out(left, late.change)
        what = f"a late {late.change.operation} of {late.change.lease_key} lands"
        yield f"{what}: {type(result).__name__.lower()}", after
