"""Rules that are wrong on purpose: each must lead the search to a counterexample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Condition, FieldAbsent, FieldEquals, Lease, LeaseField
from shardfleet.domain.slots import slot as slots
from tests.protocol_model.rules import Rules, without


def _on(*fields: LeaseField) -> Any:
    def unwanted(condition: Condition, _: Lease) -> bool:
        return isinstance(condition, FieldEquals | FieldAbsent) and condition.field in fields

    return unwanted


def _same_epoch(slot: slots.Slot, *given: Any, **named: Any) -> slots.Slot | slots.ClaimRefused:
    claimed = slots.claim(slot, *given, **named)
    return claimed if isinstance(claimed, slots.ClaimRefused) else replace(claimed, epoch=1)


def _end_whatever_was_announced(slot: slots.Slot, *, served_seq: int, now_ms: int) -> slots.Slot:
    assert served_seq >= 0
    return replace(slot, state=slots.SlotState.ENDED, heartbeat_ms=now_ms, turn_open=False)


_COUNTER, _OWNER = LeaseField.LEASE_COUNTER, LeaseField.LEASE_OWNER
_CHECKPOINT_OWNER, _KEY = LeaseField.CHECKPOINT_OWNER, LeaseField.LEASE_KEY

_END, _TWO = "the end of a shard, a lost reply", "two invocations of one worker, a lost reply"

MUTANTS: Mapping[str, tuple[str, Rules]] = {
    "renew without the counter": (
        _END,
        Rules(renew=without(lease_changes.renew, _on(_COUNTER))),
    ),
    "checkpoint without the counter": (
        _END,
        Rules(checkpoint=without(lease_changes.checkpoint, _on(_COUNTER))),
    ),
    "take without the counter": (
        _END,
        Rules(take=without(lease_changes.take, _on(_COUNTER))),
    ),
    "assign an expired lease without the counter": (
        "expiry",
        Rules(assign=without(lease_changes.assign, _on(_COUNTER))),
    ),
    "assign without the owner as seen": (
        _END,
        Rules(assign=without(lease_changes.assign, _on(_OWNER))),
    ),
    "hand over without the owner as seen": (
        "a late handover",
        Rules(initiate_handover=without(lease_changes.initiate_handover, _on(_OWNER))),
    ),
    "hand over in the middle of a handover": (
        "two handovers",
        Rules(initiate_handover=without(lease_changes.initiate_handover, _on(_CHECKPOINT_OWNER))),
    ),
    "create over a lease that exists": (
        _END,
        Rules(create=without(lease_changes.create, _on(_KEY))),
    ),
    "evict without the owner as seen": (
        "a steal, a drain",
        Rules(evict=without(lease_changes.evict, _on(_OWNER))),
    ),
    "an invocation that raises no epoch": (_TWO, Rules(claim=_same_epoch)),
    "no look at the epoch after an unknown outcome": (_TWO, Rules(looks_at_epoch=False)),
    "one more of the counter is mine without a doubt": (
        _TWO,
        Rules(needs_doubt=False, looks_at_epoch=False),
    ),
    "a refused release takes over the counter that it sees": (
        "two invocations, a handover, a drain",
        Rules(fears_counter=False),
    ),
    "SHARD_END before the child": (_END, Rules(children_first=False)),
    "a child does not wait for its parent": (
        "a child that is there already",
        Rules(waits_for_parents=False),
    ),
    "a slot ends whatever was announced": (
        "the first assignment, a slot that ends",
        Rules(end=_end_whatever_was_announced),
    ),
}
"""Name → the scenario that shows it, and the rules."""
