"""
A lease, and the rules for changing one, as data.

Every write to the lease table is a :class:`LeaseChange`: conditions and updates over named
fields. The DynamoDB adapter and the memory store both interpret it, so no rule exists twice.
The builders of the changes are in :mod:`shardfleet.domain.leases.changes`
(conditions of protocol.md §1.6). Behaves like Java's ``Lease``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from shardfleet.domain.reasons import Reason
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import SHARD_END, ExtendedSequenceNumber
from shardfleet.errors import ConfigurationError, MalformedLease


class Lease(Struct, frozen=True, kw_only=True, gc=False):
    """
    One row of the lease table, in KCL's words (attributes of protocol.md §1.2).

    Attributes:
        lease_key: the shard id (single-stream mode).
        checkpoint: how far the shard is done.
        lease_owner: worker id, None when unowned; during a handover the *next* owner.
        lease_counter: heartbeat and compare-and-set version.
        owner_switches_since_checkpoint: changes of owner since the last checkpoint.
        checkpoint_owner: only during a graceful handover: the old owner, which still renews.
        parent_shard_ids: sorted ids of the parents (0, 1 or 2).
        child_shard_ids: sorted ids of the children, once known.
        hash_key_range: of the shard; None in old rows.
        pending_checkpoint: of a two-phase checkpoint by a Java worker.
        pending_checkpoint_state: opaque bytes beside it.
        throughput_kbps: average consumed KB/s (KCL 3.x), None until known.

    """

    lease_key: str
    checkpoint: ExtendedSequenceNumber
    lease_owner: str | None = None
    lease_counter: int = 0
    owner_switches_since_checkpoint: int = 0
    checkpoint_owner: str | None = None
    parent_shard_ids: tuple[str, ...] = ()
    child_shard_ids: tuple[str, ...] = ()
    hash_key_range: HashKeyRange | None = None
    pending_checkpoint: ExtendedSequenceNumber | None = None
    pending_checkpoint_state: bytes | None = None
    throughput_kbps: float | None = None

    @property
    def effective_owner(self) -> str | None:
        """Return who still renews and checkpoints: the old owner during a handover."""
        return self.checkpoint_owner or self.lease_owner

    @property
    def is_finished(self) -> bool:
        """Return whether the shard is done to its end."""
        # Planners ask this of each lease some twenty times a turn: one call, not two.
        return self.checkpoint.sequence_number == SHARD_END


class ForeignLease(Struct, frozen=True):
    """
    A lease that is not provably of this stream and this mode: named, and never written (H23).

    Attributes:
        lease_key: of the item.
        kind: what shows it, in words (`domain/leases/foreign_leases.py`).
        stream: whose it is, as the item says; empty: it says nothing.
        owner: its ``leaseOwner``; None: nobody, or nobody can read it.

    """

    lease_key: str
    kind: str
    stream: str = ""
    owner: str | None = None

    def __str__(self) -> str:
        """Return the lease key, its kind and its stream."""
        of = f", stream {self.stream}" if self.stream else ""
        return f"{self.lease_key} ({self.kind}{of})"


FOREIGN_NAMED_MOST = 5


def named_foreign(foreign: Sequence[ForeignLease]) -> str:
    """Return how many foreign leases there are, and which: of more than five, the first five."""
    count = "1 lease is" if len(foreign) == 1 else f"{len(foreign)} leases are"
    more = len(foreign) - FOREIGN_NAMED_MOST
    told = ", ".join(str(each) for each in foreign[:FOREIGN_NAMED_MOST])
    return f"{count} not this fleet's: {told}" + (f" and {more} more" if more > 0 else "")


class Survey(Struct, frozen=True, kw_only=True):
    """
    What a scan of the lease table found.

    Attributes:
        leases: those that can be read, ordered by key.
        unreadable: keys of items that claim to be leases and cannot be read, each with the reason.
        foreign: keys of items that are no leases, sorted.
        foreign_leases: leases that are not ours, ordered by key.

    """

    leases: tuple[Lease, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    foreign_leases: tuple[ForeignLease, ...] = ()

    def whole(self) -> tuple[Lease, ...]:
        """
        Return the leases, for whom one is not enough.

        Raises:
            MalformedLease: names every item that cannot be read.
            ConfigurationError: there are leases, and all of them are foreign.

        """
        if self.foreign_leases and not self.leases:
            raise ConfigurationError(f"lease table: {named_foreign(self.foreign_leases)}")
        if self.unreadable:
            raise MalformedLease("; ".join(self.unreadable.values()))
        return self.leases


class LeaseAndWhy(Struct, frozen=True):
    """A lease to create, as it should be written, or to delete; and why."""

    lease: Lease
    reason: Reason


def keys_by_owner(leases: Iterable[Lease]) -> dict[str, list[str]]:
    """Return the keys of the unfinished leases of everybody who has any, owners and keys sorted."""
    held = [lease for lease in leases if lease.effective_owner and not lease.is_finished]
    found: dict[str, list[str]] = {}
    for lease in sorted(held, key=lambda le: (le.effective_owner or "", le.lease_key)):
        found.setdefault(lease.effective_owner or "", []).append(lease.lease_key)
    return found


class LeaseField(StrEnum):
    """The fields of a lease that conditions and updates name (wire names live in the adapter)."""

    LEASE_KEY = "lease_key"
    LEASE_OWNER = "lease_owner"
    LEASE_COUNTER = "lease_counter"
    OWNER_SWITCHES = "owner_switches_since_checkpoint"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_OWNER = "checkpoint_owner"
    PARENT_SHARD_IDS = "parent_shard_ids"
    CHILD_SHARD_IDS = "child_shard_ids"
    HASH_KEY_RANGE = "hash_key_range"
    PENDING_CHECKPOINT = "pending_checkpoint"
    PENDING_CHECKPOINT_STATE = "pending_checkpoint_state"
    THROUGHPUT_KBPS = "throughput_kbps"


FieldValue = str | int | float | bytes | tuple[str, ...] | ExtendedSequenceNumber | HashKeyRange


class FieldEquals(Struct, frozen=True):
    """The field is present and has this value."""

    field: LeaseField
    value: FieldValue


class FieldAbsent(Struct, frozen=True):
    """The field is absent (absence is the protocol's null, protocol.md §0.3)."""

    field: LeaseField


class FieldPresent(Struct, frozen=True):
    """The field is present."""

    field: LeaseField


class CheckpointNotPast(Struct, frozen=True):
    """
    The stored checkpoint is not past the new one (the monotonic guard of hazard H8).

    Holds when the stored checkpoint is not ``SHARD_END`` and is a sentinel, a shorter decimal
    string, one of equal length that is less, or an equal one with a sub-sequence number that is
    not greater.
    """

    checkpoint: ExtendedSequenceNumber


Condition = FieldEquals | FieldAbsent | FieldPresent | CheckpointNotPast


class ChangeKind(StrEnum):
    """How a change touches its item."""

    PUT = "PUT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class LeaseChange(Struct, frozen=True, kw_only=True):
    """
    One conditional write of one lease: all conditions AND-ed, then all updates at once.

    Attributes:
        operation: the row of protocol.md §1.6 this is, e.g. ``"renew"``; for logs and tests.
        lease_key: which lease.
        kind: put a whole new item, update some fields, or delete.
        conditions: all must hold; each is checked against the stored item.
        sets: fields to write (for ``PUT`` the whole item, ``lease_key`` included).
        adds: integer fields to increment.
        removes: fields to delete.

    """

    operation: str
    lease_key: str
    kind: ChangeKind
    conditions: tuple[Condition, ...]
    sets: Mapping[LeaseField, FieldValue] = field(default_factory=dict)
    adds: Mapping[LeaseField, int] = field(default_factory=dict)
    removes: tuple[LeaseField, ...] = ()


class Applied(Struct, frozen=True):
    """The write was made; ``lease`` is the item after it (for a delete: before it)."""

    lease: Lease


class Lost(Struct, frozen=True):
    """A condition failed on an existing item; ``failed`` are those that do not hold on it."""

    current: Lease
    failed: tuple[Condition, ...]


class Gone(Struct, frozen=True):
    """The item does not exist."""


ChangeResult = Applied | Lost | Gone
