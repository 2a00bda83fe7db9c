"""
What a lease change means: conditions checked and updates made on a lease in memory.

:func:`apply_change` is the reference interpretation: the memory store is nothing else, and the
DynamoDB adapter's compiled expressions are tested against it.
"""

from __future__ import annotations

from dataclasses import fields, replace

from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    ChangeResult,
    CheckpointNotPast,
    Condition,
    FieldAbsent,
    FieldEquals,
    FieldPresent,
    FieldValue,
    Gone,
    Lease,
    LeaseChange,
    LeaseField,
    Lost,
)
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber


def fields_of(lease: Lease) -> dict[LeaseField, FieldValue]:
    """Return the present fields of a lease: None and empty sets are absent."""
    found = {LeaseField(f.name): getattr(lease, f.name) for f in fields(lease)}
    return {name: value for name, value in found.items() if value is not None and value != ()}


def holds(condition: Condition, lease: Lease | None) -> bool:
    """Evaluate one condition against the stored lease (None: no item)."""
    present = {} if lease is None else fields_of(lease)
    match condition:
        case FieldEquals(name, value):
            return name in present and present[name] == value
        case FieldAbsent(name):
            return name not in present
        case FieldPresent(name):
            return name in present
        case CheckpointNotPast(new):
            return lease is not None and _not_past(lease.checkpoint, new)


def _not_past(stored: ExtendedSequenceNumber, new: ExtendedSequenceNumber) -> bool:
    if stored.is_shard_end:
        return False
    return stored.is_sentinel or stored <= new


def failing(change: LeaseChange, current: Lease | None) -> tuple[Condition, ...]:
    """Return the conditions of a change that do not hold on the stored lease."""
    return tuple(c for c in change.conditions if not holds(c, current))


def apply_change(change: LeaseChange, current: Lease | None) -> ChangeResult:
    """Interpret a change against the stored lease: what DynamoDB would answer."""
    failed = failing(change, current)
    if failed:
        return Gone() if current is None else Lost(current, failed)
    if change.kind is ChangeKind.PUT:
        return Applied(Lease(**{f.value: v for f, v in change.sets.items()}))  # type: ignore[arg-type]
    if current is None:
        return Gone()
    if change.kind is ChangeKind.DELETE:
        return Applied(current)
    return Applied(_updated(change, current))


def _updated(change: LeaseChange, current: Lease) -> Lease:
    values: dict[str, object] = {f.value: v for f, v in change.sets.items()}
    for name, amount in change.adds.items():
        values[name.value] = getattr(current, name.value) + amount
    for name in change.removes:
        values[name.value] = None
    return replace(current, **values)  # type: ignore[arg-type]
