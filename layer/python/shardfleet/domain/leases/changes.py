"""
The operations on leases with their exact conditions, as data.

Rules: docs/protocol.md L1-L13 (§1.6). Behaves like Java's ``DynamoDBLeaseSerializer``
and ``DynamoDBLeaseRefresher``. :func:`apply_change` is what a change means: the memory store is
nothing else, and the DynamoDB adapter's compiled expressions are tested against it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

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
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError

_EXISTS = FieldPresent(LeaseField.LEASE_KEY)
_PENDING = (LeaseField.PENDING_CHECKPOINT, LeaseField.PENDING_CHECKPOINT_STATE)


def _as_seen(name: LeaseField, value: str | None) -> Condition:
    return FieldAbsent(name) if value is None else FieldEquals(name, value)


def create(lease: Lease) -> LeaseChange:
    """Create a lease that must not exist yet; absent fields are not written."""
    return LeaseChange(
        operation="create",
        lease_key=lease.lease_key,
        kind=ChangeKind.PUT,
        conditions=(FieldAbsent(LeaseField.LEASE_KEY),),
        sets=fields_of(lease),
    )


def renew(
    lease: Lease, *, throughput_kbps: float | None = None, in_handover: bool = False
) -> LeaseChange:
    """
    Renew (heartbeat) with the 3.x condition: a handover must not have begun unknown to us.

    Args:
        lease: as last seen by the owner.
        throughput_kbps: consumed KB/s, written when known.
        in_handover: this worker already knows that a handover is pending.

    """
    conditions: tuple[Condition, ...] = (
        FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),
    )
    if not in_handover:
        conditions += (FieldAbsent(LeaseField.CHECKPOINT_OWNER),)
    sets: dict[LeaseField, FieldValue] = {LeaseField.LEASE_COUNTER: lease.lease_counter + 1}
    if throughput_kbps is not None:
        sets[LeaseField.THROUGHPUT_KBPS] = throughput_kbps
    return _update("renew", lease, conditions=conditions, sets=sets)


def take(lease: Lease, worker_id: str) -> LeaseChange:
    """Take or steal (2.x): by the counter as seen; also what robs nobody that renewed (H15)."""
    return _update(
        "take",
        lease,
        conditions=(FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),),
        sets={
            LeaseField.LEASE_COUNTER: lease.lease_counter + 1,
            LeaseField.LEASE_OWNER: worker_id,
        },
        adds=_switch(lease, worker_id),
        removes=(LeaseField.CHECKPOINT_OWNER,),
    )


def assign(lease: Lease, worker_id: str, *, expired: bool = False) -> LeaseChange:
    """
    Assign (3.x leader, and the old owner that finishes a handover).

    Args:
        lease: as read; both owner fields must still be so.
        worker_id: the new owner.
        expired: it is taken because it expired, so nor may the counter have moved (H15).

    """
    conditions: tuple[Condition, ...] = (
        _EXISTS,
        _as_seen(LeaseField.LEASE_OWNER, lease.lease_owner),
        _as_seen(LeaseField.CHECKPOINT_OWNER, lease.checkpoint_owner),
    )
    if expired:
        conditions += (FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),)
    return _update(
        "assign",
        lease,
        conditions=conditions,
        sets={LeaseField.LEASE_OWNER: worker_id},
        adds={LeaseField.LEASE_COUNTER: 1, **_switch(lease, worker_id)},
        removes=(LeaseField.CHECKPOINT_OWNER,),
    )


def initiate_handover(lease: Lease, worker_id: str, *, as_read: bool = False) -> LeaseChange:
    """
    Begin a graceful handover to ``worker_id``: the only owner change without a counter move.

    Args:
        lease: as read.
        worker_id: who is to have it next.
        as_read: nor may the counter have moved, as when its owner ends the shard (ours only).

    Raises:
        ProtocolError: nobody owns the lease, or ``worker_id`` does: nothing to hand over.

    """
    owner = lease.lease_owner
    if owner is None or owner == worker_id:
        raise ProtocolError(
            f"handover of {lease.lease_key} from {owner} to {worker_id}: needs two owners"
        )
    conditions: tuple[Condition, ...] = (
        _EXISTS,
        FieldEquals(LeaseField.LEASE_OWNER, owner),
        FieldAbsent(LeaseField.CHECKPOINT_OWNER),
    )
    if as_read:
        conditions += (FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),)
    return _update(
        "initiate_handover",
        lease,
        conditions=conditions,
        sets={LeaseField.LEASE_OWNER: worker_id, LeaseField.CHECKPOINT_OWNER: owner},
    )


def evict(lease: Lease, *, expired: bool = False) -> LeaseChange:
    """
    Release a lease (3.x): the owner goes unless a handover is pending; the counter moves.

    Args:
        lease: as read; both owner fields must still be so.
        expired: it is taken because it expired, so nor may the counter have moved (H15).

    """
    removes: tuple[LeaseField, ...] = (LeaseField.CHECKPOINT_OWNER,)
    if lease.checkpoint_owner is None:
        removes += (LeaseField.LEASE_OWNER,)
    conditions: tuple[Condition, ...] = (
        _EXISTS,
        _as_seen(LeaseField.LEASE_OWNER, lease.lease_owner),
        _as_seen(LeaseField.CHECKPOINT_OWNER, lease.checkpoint_owner),
    )
    if expired:
        conditions += (FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),)
    return _update(
        "evict",
        lease,
        conditions=conditions,
        adds={LeaseField.LEASE_COUNTER: 1},
        removes=removes,
    )


def checkpoint(
    lease: Lease, to: ExtendedSequenceNumber, *, throughput_kbps: float | None = None
) -> LeaseChange:
    """
    Store a checkpoint: counter as seen, and never backwards (H8). It counts as a renewal.

    Child ids and hash range are repeated when known, as Java does (protocol.md §1.2); throughput
    is written as by :func:`renew`, which a busy lease hardly ever needs.
    """
    sets: dict[LeaseField, FieldValue] = {
        LeaseField.LEASE_COUNTER: lease.lease_counter + 1,
        LeaseField.CHECKPOINT: to,
        LeaseField.OWNER_SWITCHES: 0,
    }
    if lease.child_shard_ids:
        sets[LeaseField.CHILD_SHARD_IDS] = lease.child_shard_ids
    if lease.hash_key_range is not None:
        sets[LeaseField.HASH_KEY_RANGE] = lease.hash_key_range
    if throughput_kbps is not None:
        sets[LeaseField.THROUGHPUT_KBPS] = throughput_kbps
    return _update(
        "checkpoint",
        lease,
        conditions=(
            FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),
            CheckpointNotPast(to),
        ),
        sets=sets,
        removes=_PENDING,
    )


def set_children(lease: Lease, child_shard_ids: Iterable[str]) -> LeaseChange:
    """
    Write the child ids (meta-info update): the counter stays.

    Raises:
        ProtocolError: no ids; an empty set cannot be stored, absence is the null.

    """
    ids = tuple(sorted(set(child_shard_ids)))
    if not ids:
        raise ProtocolError(f"children of {lease.lease_key}: none given, nothing to write")
    return _update(
        "set_children", lease, conditions=(_EXISTS,), sets={LeaseField.CHILD_SHARD_IDS: ids}
    )


def set_hash_range(lease: Lease, hash_key_range: HashKeyRange) -> LeaseChange:
    """Write the hash range that an old row lacks (meta-info update): the counter stays."""
    return _update(
        "set_hash_range",
        lease,
        conditions=(_EXISTS,),
        sets={LeaseField.HASH_KEY_RANGE: hash_key_range},
    )


def delete(lease: Lease) -> LeaseChange:
    """
    Delete a lease that has not changed since it was read.

    Java deletes unconditionally; the counter keeps us from deleting under a live owner
    (protocol.md §8 row 9).
    """
    return LeaseChange(
        operation="delete",
        lease_key=lease.lease_key,
        kind=ChangeKind.DELETE,
        conditions=(FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),),
    )


def rewind(lease: Lease, to: ExtendedSequenceNumber) -> LeaseChange:
    """Move an *unowned* lease to another position: the only backward write there is (H8)."""
    return _update(
        "rewind",
        lease,
        conditions=(
            FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),
            FieldAbsent(LeaseField.LEASE_OWNER),
            FieldAbsent(LeaseField.CHECKPOINT_OWNER),
        ),
        sets={
            LeaseField.LEASE_COUNTER: lease.lease_counter + 1,
            LeaseField.CHECKPOINT: to,
            LeaseField.OWNER_SWITCHES: 0,
        },
        removes=_PENDING,
    )


def _switch(lease: Lease, worker_id: str) -> dict[LeaseField, int]:
    """Count a change of owner as Java does (protocol.md §1.2, ownerSwitchesSinceCheckpoint)."""
    changed = lease.lease_owner is not None and lease.lease_owner != worker_id
    if changed or lease.checkpoint_owner == worker_id:
        return {LeaseField.OWNER_SWITCHES: 1}
    return {}


def _update(
    operation: str,
    lease: Lease,
    *,
    conditions: tuple[Condition, ...],
    sets: dict[LeaseField, FieldValue] | None = None,
    adds: dict[LeaseField, int] | None = None,
    removes: tuple[LeaseField, ...] = (),
) -> LeaseChange:
    return LeaseChange(
        operation=operation,
        lease_key=lease.lease_key,
        kind=ChangeKind.UPDATE,
        conditions=conditions,
        sets=sets or {},
        adds=adds or {},
        removes=removes,
    )


def fields_of(lease: Lease) -> dict[LeaseField, FieldValue]:
    """Return the present fields of a lease: None and empty sets are absent."""
    return {name: value for name in LeaseField if (value := _present(lease, name)) is not None}


def _present(lease: Lease | None, name: LeaseField) -> FieldValue | None:
    """Return a present field, None if it is absent."""
    value: FieldValue | None = getattr(lease, name, None)
    return None if value == () else value


def holds(condition: Condition, lease: Lease | None) -> bool:
    """Evaluate one condition against the stored lease (None: no item)."""
    match condition:
        case FieldEquals(name, value):
            found = _present(lease, name)
            return found is not None and found == value
        case FieldAbsent(name):
            return _present(lease, name) is None
        case FieldPresent(name):
            return _present(lease, name) is not None
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
    return replace(current, **values)
