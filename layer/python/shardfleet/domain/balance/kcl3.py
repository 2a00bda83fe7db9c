"""
Beside the KCL 3: whether its leader gives out the leases, and what our workers show it.

The leader moves leases only to workers that show a fresh row of metrics (protocol.md §2.6). So each
slot that works has one, beside Java, and the manager gives out nothing: two that balance would move
leases to and fro. Rows without metrics are legal, and are balanced by throughput. That our manager
leads beside Java is not built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import UNKNOWN

# A row is active for twice the time after which the KCL writes it anew (§2.6).
FRESH_MS = 60_000
# Written anew by each turn of 20 s; by one that is prompted not.
RENEWED_MS = 10_000
# Who crashed so often in a row does not work.
CRASHES_MOST = 2
# A leader that died is replaced after 120 s and its next run of 20 s (§1.7); what nobody has had
# for longer is given out by us.
LEADERLESS_MS = 180_000
# It looks each 9,975 ms for what it was given, and renews each 3,308 ms (§1.7, §3.5).
BEGINS_MS = 13_283
# Migration3.0, ``cv``: these work as the KCL 2, though some write rows already (§2.3).
UPGRADING = "CLIENT_VERSION_UPGRADE_FROM_2X"
ROLLED_BACK = "CLIENT_VERSION_2X"


class Direction(StrEnum):
    """Of a migration between Java and the fleet; the values are the command's options."""

    FROM_JAVA = "from-java"
    TO_JAVA = "to-java"


class WorkerRow(Struct, frozen=True):
    """
    A worker's row of metrics.

    Attributes:
        worker_id: its ``leaseOwner``.
        updated_s: ``lut``, epoch seconds.
        support: ``sup``, which a KCL 3.5 writes; 0: it has none.
        cpu: of ours: utilisation of where its process runs, thousandths; -1 unknown, as in Lambda.

    """

    worker_id: str
    updated_s: int
    support: int = 0
    cpu: int = UNKNOWN

    def is_fresh(self, now_ms: int) -> bool:
        """Return whether the KCL takes its worker for active."""
        return now_ms - 1000 * self.updated_s <= FRESH_MS


class Kcl3(Struct, frozen=True):
    """
    What a KCL 3 keeps beside the leases.

    Attributes:
        rows: of all workers, ours among them.
        version: ``cv`` of its migration item; empty: there is none.
        is_single: its rows are in the lease table itself, as since 3.5.

    """

    rows: Sequence[WorkerRow] = ()
    version: str = ""
    is_single: bool = False


class Kcl3Plan(Struct, frozen=True, kw_only=True):
    """
    What a turn does about it.

    Attributes:
        leads: its leader gives out the leases.
        others: ids of its workers that are about.
        graceful: ids of those that hand over when asked.
        write: our rows to be written.
        delete: our rows that are to go, lest a lease is given to who is gone.
        waiting: ids of slots that are to be given leases and have nothing yet: they are to stay.

    """

    leads: bool = False
    others: frozenset[str] = frozenset()
    graceful: frozenset[str] = frozenset()
    write: Sequence[WorkerRow] = ()
    delete: Sequence[WorkerRow] = ()
    waiting: Sequence[str] = ()


class BesideFacts(Struct, frozen=True, kw_only=True):
    """
    What a turn knows of itself and its neighbours.

    Attributes:
        now_ms: epoch milliseconds.
        holders: worker id to the number of unfinished leases that it holds or is to get.
        expired: keys of leases whose owner is lost.
        losers: worker ids that let a lease expire: whatever their row says, they are gone.
        migrates: while leases are handed over in a direction no slot is shown, and on the way from
            Java those that have nothing are to stay.
        is_paused: the whole fleet is: what its slots were given they would give up again.

    """

    now_ms: int
    holders: Mapping[str, int]
    losers: Collection[str]
    expired: frozenset[str] = frozenset()
    migrates: Direction | None = None
    is_paused: bool = False


def of_our_application(found: Kcl3, survey: Survey, *, ours: Collection[str]) -> Kcl3:
    """
    Return what a KCL 3 keeps, without the rows of another application's workers (H23).

    Where a table has foreign leases, a row counts once its worker has a lease of ours: a slot that
    is shown to another application's leader would be given leases that it cannot read.

    Args:
        found: what a KCL 3 keeps.
        survey: of the lease table.
        ours: the worker ids of our slots.

    """
    if not survey.foreign_leases:
        return found
    known = {lease.lease_owner for lease in survey.leases}
    known |= {lease.checkpoint_owner for lease in survey.leases} | set(ours)
    return replace(found, rows=tuple(row for row in found.rows if row.worker_id in known))


def plan_beside(
    config: FleetConfig, found: Kcl3, slots: Sequence[Slot], *, facts: BesideFacts
) -> Kcl3Plan:
    """
    Plan by what was found.

    Args:
        config: tells whether a KCL 3 may lead.
        found: what a KCL 3 keeps.
        slots: all of ours.
        facts: what else is known.

    """
    now_ms, migrates = facts.now_ms, facts.migrates
    ours = {slot.worker_id for slot in slots}
    others = frozenset(
        row.worker_id
        for row in found.rows
        if row.worker_id not in ours and row.worker_id not in facts.losers and row.is_fresh(now_ms)
    )
    is_kcl_3 = bool(others) and found.version not in (UPGRADING, ROLLED_BACK)
    hides = migrates is not None or facts.is_paused or found.version == ROLLED_BACK
    shows = bool(others) and config.kcl_leads and not hides
    able = _able(slots, now_ms=now_ms, silent_ms=2 * config.failover_ms)
    shown = able if shows else []
    wanted = able if migrates is Direction.FROM_JAVA else shown
    known = {row.worker_id: row for row in found.rows if row.worker_id in ours}
    return Kcl3Plan(
        leads=is_kcl_3 and config.kcl_leads,
        others=others,
        graceful=others if is_kcl_3 else frozenset(),
        write=[
            WorkerRow(slot.worker_id, now_ms // 1000)
            for slot in shown
            if _is_due(known.get(slot.worker_id), now_ms)
        ],
        delete=[known[w] for w in sorted(known.keys() - {slot.worker_id for slot in shown})],
        waiting=[slot.slot_id for slot in wanted if slot.worker_id not in facts.holders],
    )


def slow_to_begin(found: Kcl3, *, ours: Collection[str], now_ms: int) -> dict[str, int]:
    """
    Return the KCL 3's workers that are about, each with the time it needs to begin with a lease.

    That is longer than the failover time: who goes by that alone takes a lease from a worker that
    was just given it, and takes the worker for gone (E8).
    """
    return {
        row.worker_id: BEGINS_MS
        for row in found.rows
        if row.worker_id not in ours and row.is_fresh(now_ms)
    }


def _able(slots: Iterable[Slot], *, now_ms: int, silent_ms: int) -> list[Slot]:
    return [
        slot
        for slot in slots
        if slot.state is SlotState.RUNNING
        and now_ms - slot.heartbeat_ms <= silent_ms
        and slot.open_turns <= CRASHES_MOST
        and not slot.drain
        and not slot.leaving_ms
    ]


def _is_due(row: WorkerRow | None, now_ms: int) -> bool:
    return row is None or not 0 <= now_ms - 1000 * row.updated_s < RENEWED_MS
