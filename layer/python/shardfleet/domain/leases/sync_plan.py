"""What lease sync is given and what it answers: :mod:`shardfleet.domain.leases.sync` decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_TIMESTAMP,
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """
    Where the leases of a new application begin.

    Attributes:
        kind: ``TRIM_HORIZON``, ``LATEST`` or ``AT_TIMESTAMP``; the instant of ``AT_TIMESTAMP`` is
            configuration, a lease holds the word only (protocol.md §1.5).

    Raises:
        ProtocolError: another word.

    """

    kind: str

    def __post_init__(self) -> None:
        """Refuse what no lease can begin with."""
        if self.kind not in (TRIM_HORIZON, LATEST, AT_TIMESTAMP):
            message = (
                f"initial position {self.kind!r}: expected {TRIM_HORIZON}, {LATEST} or "
                f"{AT_TIMESTAMP}"
            )
            raise ProtocolError(message)

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        """Return the checkpoint of a lease that begins here."""
        return ExtendedSequenceNumber(self.kind)

    @property
    def reads_history(self) -> bool:
        """Tell whether shards that are closed already are wanted too."""
        return self.kind != LATEST


class CreateReason(StrEnum):
    """Why a lease is created."""

    EMPTY_TABLE = "the lease table is empty and the initial listing shows the shard"
    NO_LEASED_RELATIVE = "an open shard of which no ancestor has a lease"
    OLDEST_OF_ITS_LINE = "the oldest listed ancestor of an open shard without a lease"
    OTHER_PARENT = "the other parent of a merge whose first parent is covered"
    CHILD_OF_FINISHED = "its parent's lease is at SHARD_END and nobody created the child"
    HOLE_BESIDE_SIBLING = "its sibling's lease has been read, so this one was lost, not new"
    LOST = "others have been read and no lease leads to this shard: its lease was lost"


@dataclass(frozen=True, slots=True)
class LeaseToCreate:
    """A lease that should exist, as it should be written, and why."""

    lease: Lease
    reason: CreateReason


@dataclass(frozen=True, slots=True)
class LeaseSyncPlan:
    """
    What to create.

    Attributes:
        create: in write order (starting sequence number, then shard id), so that a crash midway
            leaves a prefix that the next sync completes.
        problems: why nothing could be concluded from the listing, for a person; then ``create``
            is empty and the listing wants to be read again.
        suspects: shards whose lease seems lost; the audit counts how often (S10), sorted.
        repairs: keys of those to create whose lease was lost, not new.

    """

    create: tuple[LeaseToCreate, ...] = ()
    problems: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    repairs: frozenset[str] = frozenset()

    @property
    def begins_late(self) -> bool:
        """Tell whether a lease is to begin at the tip of a fleet that has begun already."""
        return any(
            wanted.lease.checkpoint == AT_LATEST and wanted.reason is not CreateReason.EMPTY_TABLE
            for wanted in self.create
        )

    def generations(self) -> Iterator[tuple[LeaseToCreate, ...]]:
        """Return ``create`` in parts, of which no lease is a parent of another in its part."""
        part: dict[str, LeaseToCreate] = {}
        for wanted in self.create:
            if not part.keys().isdisjoint(wanted.lease.parent_shard_ids):
                yield tuple(part.values())
                part = {}
            part[wanted.lease.lease_key] = wanted
        if part:
            yield tuple(part.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """
    What is known of shards that were found without a lease before (S10).

    Attributes:
        lost: suspects that have been so for long enough.
        readable: shards that had records since the fleet began; None: nobody knows, so all may
            have had that are suspects.

    """

    lost: frozenset[str] = frozenset()
    readable: frozenset[str] | None = None
