"""The transitions under test: the domain's own; a mutant is this table with one entry replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Condition, Lease, LeaseChange
from shardfleet.domain.slots import slot as slots

Change = Callable[..., LeaseChange]


@dataclass(frozen=True, slots=True)
class Rules:
    """
    What the model runs.

    The first part are the domain's functions. The flags are the engine's obligations that are no
    function of the domain: what it must look at, and in which order it must write.

    Attributes:
        looks_at_epoch: after an unknown outcome, the slot's epoch decides (hazard H1).
        needs_doubt: only an unknown outcome makes a foreign counter possibly our own (H1).
        fears_counter: a counter that has moved means a lost lease, also for a write without it.
        children_first: the child's lease is created before SHARD_END (protocol.md §4.6).
        waits_for_parents: a child's records wait for the parent's end (§4.7).

    """

    create: Change = lease_changes.create
    renew: Change = lease_changes.renew
    checkpoint: Change = lease_changes.checkpoint
    take: Change = lease_changes.take
    assign: Change = lease_changes.assign
    evict: Change = lease_changes.evict
    delete: Change = lease_changes.delete
    set_children: Change = lease_changes.set_children
    initiate_handover: Change = lease_changes.initiate_handover
    claim: Callable[..., slots.Slot | slots.ClaimRefused] = slots.claim
    end: Callable[..., slots.Slot | None] = slots.end
    announce: Callable[..., slots.Slot | None] = slots.announce_assignment
    looks_at_epoch: bool = True
    needs_doubt: bool = True
    fears_counter: bool = True
    children_first: bool = True
    waits_for_parents: bool = True


def without(build: Change, unwanted: Callable[[Condition, Lease], bool]) -> Change:
    """Return a builder of changes that lacks the conditions named."""

    def mutant(lease: Lease, *given: object, **named: object) -> LeaseChange:
        change = build(lease, *given, **named)
        kept = tuple(c for c in change.conditions if not unwanted(c, lease))
        return replace(change, conditions=kept)

    return mutant
