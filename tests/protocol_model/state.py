"""The state of the modelled world: leases, slots, invocations, a manager, letters on their way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.balance.by_count import Assignment
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.slots.usage import HandlerSigns
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard

PARENT, CHILD = 0, 1
KEYS = ("parent", "child")
RECORDS = (2, 1)
"""How many records each shard has. The parent is closed, the child stays open."""

_WHOLE = HashKeyRange(0, HASH_KEY_MAX)
SHARDS = (
    Shard(
        shard_id="parent",
        hash_key_range=_WHOLE,
        starting_sequence_number="1",
        ending_sequence_number="2",
    ),
    Shard(
        shard_id="child",
        hash_key_range=_WHOLE,
        starting_sequence_number="3",
        parent_shard_id="parent",
    ),
)


class _NoLags(dict[str, int]):
    """An empty mapping that can be hashed: heartbeats carry no lags here."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0


NO_LAGS: Mapping[str, int] = _NoLags()
NO_SIGNS = HandlerSigns(calls_ms=NO_LAGS, ways=NO_LAGS)


def at(record: int) -> ExtendedSequenceNumber:
    """Return the checkpoint that stands for so many handled records."""
    return ExtendedSequenceNumber(str(record) if record else "TRIM_HORIZON")


def handled_by(checkpoint: ExtendedSequenceNumber, shard: int) -> int:
    """Return how many records of a shard a checkpoint covers."""
    if checkpoint.is_shard_end:
        return RECORDS[shard]
    return 0 if checkpoint.is_sentinel else int(checkpoint.sequence_number)


class Phase(StrEnum):
    """How far an invocation has come with a lease."""

    READ = "READ"  # the row names us: to be renewed
    RENEWED = "RENEWED"  # renewed: to look at the epoch once more
    HELD = "HELD"


@dataclass(frozen=True, slots=True)
class Held:
    """
    One lease in an invocation's memory.

    Attributes:
        lease: as the table answered last.
        done: records of the shard that this invocation knows to be handled.
        phase: of the adoption.
        unsure: checkpoints that writes without an answer may have left.
        suspect: read after an unknown outcome; the epoch decides whether the write was ours.
        ending: steps done at the end of the shard: 1 child created, 2 child ids stored.

    """

    lease: Lease
    done: int
    phase: Phase
    unsure: tuple[ExtendedSequenceNumber, ...] = ()
    suspect: Lease | None = None
    ending: int = 0


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """
    One running invocation of a worker.

    Attributes:
        slot: its number.
        epoch: as claimed.
        served: the last `assign_seq` that it needs not look for any more.
        holds: per shard.
        wanted: the child's lease as read, to be taken.

    """

    slot: int
    epoch: int
    served: int = 0
    holds: tuple[Held | None, ...] = (None, None)
    wanted: Lease | None = None

    def with_held(self, shard: int, held: Held | None) -> WorkerRun:
        """Return the invocation with another memory of one shard."""
        holds = list(self.holds)
        holds[shard] = held
        return dataclasses.replace(self, holds=tuple(holds))


@dataclass(frozen=True, slots=True)
class Letter:
    """A lease write on its way; told apart by its text, because changes cannot be hashed."""

    text: str
    change: LeaseChange = field(compare=False)


def letter(change: LeaseChange) -> Letter:
    """Wrap a change."""
    return Letter(repr(change), change)


@dataclass(frozen=True, slots=True)
class Manager:
    """
    A manager in the middle of a turn.

    Attributes:
        todo: creations and deletions still to be written.
        give: assignments still to be carried out.
        announced: the slot knows of the first of `give`.
        stolen: the lease as read again, for a steal.
        given: the lease as written, until the slot has been looked at once more.

    """

    todo: tuple[Letter, ...]
    give: tuple[Assignment, ...]
    announced: bool = False
    stolen: Lease | None = None
    given: Lease | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may still happen; what is unlimited would make the search endless."""

    turns: int = 0
    renewals: int = 0
    crashes: int = 0
    doubles: int = 0
    lost: int = 0
    handovers: int = 0
    ends: int = 0

    def less(self, name: str) -> Budget:
        """Return what is left after one more of a kind."""
        values: dict[str, Any] = {name: getattr(self, name) - 1}
        return dataclasses.replace(self, **values)


@dataclass(frozen=True, slots=True)
class ModelWorld:
    """
    Everything.

    Attributes:
        leases: as stored, per shard.
        slots: as stored.
        running: the invocations.
        manager: its turn, if one is going on.
        sightings: what it remembers between turns, per shard.
        leader: a lease as the foreign leader has read it.
        mail: late writes.
        done: records that were handled at least once, per shard.
        budget: what may still go wrong.

    """

    leases: tuple[Lease | None, ...]
    slots: tuple[Slot, ...]
    running: tuple[WorkerRun, ...] = ()
    manager: Manager | None = None
    sightings: tuple[Sighting | None, ...] = (None, None)
    leader: Lease | None = None
    mail: tuple[Letter, ...] = ()
    done: tuple[int, ...] = (0, 0)
    budget: Budget = Budget()

    def with_lease(self, shard: int, lease: Lease | None) -> ModelWorld:
        """Return the world with another row in the table."""
        leases = list(self.leases)
        leases[shard] = lease
        return dataclasses.replace(self, leases=tuple(leases))

    def with_slot(self, slot: Slot, number: int) -> ModelWorld:
        """Return the world with another slot record; what charges crashes is left out."""
        slots = list(self.slots)
        slots[number] = replace(
            slot, lags_ms=NO_LAGS, signs=NO_SIGNS, turn_open=False, open_turns=0
        )
        return dataclasses.replace(self, slots=tuple(slots))

    def with_invocation(self, old: WorkerRun, new: WorkerRun | None) -> ModelWorld:
        """Return the world with one invocation changed or gone."""
        left = list(self.running)
        left.remove(old)
        if new is not None:
            left.append(new)
        left.sort(key=lambda each: (each.slot, each.epoch))
        return dataclasses.replace(self, running=tuple(left))
