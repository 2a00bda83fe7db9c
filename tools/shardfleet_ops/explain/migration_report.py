"""
What is to be known before leases are moved between Java and a fleet: the report of the preflight.

Pure, as the doctor's rules are: each line says what was looked at and what was found; one that
stops the migration says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import ROLLED_BACK, UPGRADING, Direction
from shardfleet.domain.balance.migration import IndexStatus, MigrationSnapshot
from shardfleet.domain.leases.foreign_leases import REMEDY
from shardfleet.domain.leases.lease import ForeignLease, named_foreign

NAMED_MOST = 5


class ReportMark(StrEnum):
    """What a line means for the migration."""

    GOOD = "good"
    NOTE = "note"
    STOPS = "stops"


class ReportLine(Struct, frozen=True):
    """
    One thing that was looked at.

    Attributes:
        what: a word or two.
        standing: what it means.
        found: in words; one that stops it says what to do, too.

    """

    what: str
    standing: ReportMark
    found: str


class MigrationFacts(Struct, frozen=True, kw_only=True):
    """
    What was looked at.

    Attributes:
        direction: from whom to whom.
        config: of the fleet.
        snapshot: of both tables and what a KCL 3 keeps.
        unreadable: keys of lease items that cannot be read, each with the reason.
        foreign_leases: leases of another stream or mode.
        refusal: why leases may not be written; empty: they may.
        expired: keys of leases after whose checkpoint records have expired.
        per_month: what the fleet costs, dollars.

    """

    direction: Direction
    config: FleetConfig
    snapshot: MigrationSnapshot
    unreadable: Mapping[str, str] = field(default_factory=dict)
    foreign_leases: Sequence[ForeignLease] = ()
    refusal: str = ""
    expired: Sequence[str] = ()
    per_month: float = 0.0


def migration_report(facts: MigrationFacts) -> list[ReportLine]:
    """Return what a person should have read before the first write."""
    return [
        ReportLine(
            "application",
            ReportMark.GOOD,
            f"applicationName of the KCL: {facts.config.lease_table}",
        ),
        *_leases(facts),
        *_foreign(facts),
        *_versions(facts),
        *_mode(facts),
        *_layout(facts),
        *_index(facts),
        *_rights(facts),
        *_retention(facts),
        *_room(facts),
        ReportLine(
            "cost",
            ReportMark.GOOD,
            f"the fleet ${facts.per_month:.2f} a month; while both run, what Java's workers cost "
            "comes on top",
        ),
    ]


def _leases(facts: MigrationFacts) -> Iterator[ReportLine]:
    found = facts.snapshot
    sides = Counter(
        "nobody" if le.effective_owner is None
        else "the fleet" if le.effective_owner in found.ours
        else "Java"
        for le in found.unfinished
    )  # fmt: skip
    told = ", ".join(f"{side} {sides[side]}" for side in ("Java", "the fleet", "nobody"))
    yield ReportLine("leases", ReportMark.GOOD, f"{len(found.unfinished)} unfinished: {told}")
    if facts.unreadable:
        yield ReportLine(
            "leases",
            ReportMark.STOPS,
            f"{_named(sorted(facts.unreadable))} cannot be read, and would be moved by nobody: "
            "shardfleet doctor names the attribute",
        )


def _foreign(facts: MigrationFacts) -> Iterator[ReportLine]:
    if facts.foreign_leases:
        yield ReportLine(
            "leases",
            ReportMark.STOPS,
            f"{named_foreign(facts.foreign_leases)}, and nothing of them is moved: {REMEDY}",
        )


def _versions(facts: MigrationFacts) -> Iterator[ReportLine]:
    found = facts.snapshot
    rows = {row.worker_id: row for row in found.kcl3.rows}
    newer = sorted(each for each in found.java if rows[each].support)
    older = sorted(found.java - set(newer))
    # Who is not shown is of a KCL 2, or gone: then it does not renew.
    owners = {le.effective_owner for le in found.of_java if le.lease_key not in found.expired}
    two = sorted(owner for owner in owners - found.java - found.ours if owner is not None)
    seen = [
        f"{version}: {_named(workers)}"
        for version, workers in (("3.5", newer), ("3.0 to 3.4", older), ("2.x", two))
        if workers
    ]
    yield ReportLine(
        "KCL",
        ReportMark.GOOD if seen else ReportMark.NOTE,
        "; ".join(seen) or "no worker shows itself or renews a lease",
    )
    if two and facts.direction is Direction.FROM_JAVA:
        yield ReportLine(
            "KCL",
            ReportMark.NOTE,
            "a KCL 2 hands nothing over: its leases are taken, what it has not checkpointed comes "
            "again, and until its workers end they take back one each 20 s",
        )


def _mode(facts: MigrationFacts) -> Iterator[ReportLine]:
    version = facts.snapshot.kcl3.version
    if version in (UPGRADING, ROLLED_BACK):
        yield ReportLine(
            "mode",
            ReportMark.NOTE,
            f"{version}: a KCL 3 that works as a KCL 2, and hands nothing over",
        )
    elif facts.snapshot.java:
        yield ReportLine("mode", ReportMark.GOOD, version or "a KCL 3 without a migration item")


def _layout(facts: MigrationFacts) -> Iterator[ReportLine]:
    table = facts.config.lease_table
    if facts.snapshot.kcl3.is_single:
        yield ReportLine("tables", ReportMark.GOOD, f"one, as since 3.5: all rows are in {table}")
    elif facts.snapshot.kcl3.rows:
        yield ReportLine(
            "tables",
            ReportMark.GOOD,
            f"three, as of 3.0 to 3.4: {', '.join((table, *facts.config.kcl_tables))}",
        )
    else:
        yield ReportLine(
            "tables",
            ReportMark.NOTE,
            f"no row of a KCL 3 in {facts.config.kcl_tables[0]} or {table}; if its tables have "
            "other names: kcl_metrics_table, kcl_state_table",
        )


def _index(facts: MigrationFacts) -> Iterator[ReportLine]:
    index = facts.snapshot.index
    if index is IndexStatus.MISSING:
        yield ReportLine(
            "index",
            ReportMark.NOTE,
            "LeaseOwnerToLeaseKeyIndex is missing, as in a table of a KCL 2: it is made first "
            "(dynamodb:UpdateTable)",
        )
    else:
        yield ReportLine("index", ReportMark.GOOD, f"LeaseOwnerToLeaseKeyIndex: {index}")


def _rights(facts: MigrationFacts) -> Iterator[ReportLine]:
    if facts.refusal:
        yield ReportLine("rights", ReportMark.STOPS, f"leases cannot be written: {facts.refusal}")
    else:
        yield ReportLine("rights", ReportMark.GOOD, "you may write leases")


def _retention(facts: MigrationFacts) -> Iterator[ReportLine]:
    if facts.expired:
        yield ReportLine(
            "checkpoints",
            ReportMark.NOTE,
            f"{_named(facts.expired)}: the oldest record that the stream still has comes after the "
            "checkpoint; what may be missing in between is lost to either side",
        )
    else:
        yield ReportLine("checkpoints", ReportMark.GOOD, "none is older than the stream's records")


def _room(facts: MigrationFacts) -> Iterator[ReportLine]:
    config, leases = facts.config, len(facts.snapshot.unfinished)
    room = config.max_workers * config.leases_per_worker
    if facts.direction is Direction.TO_JAVA:
        return
    told = (
        f"{leases} leases, and {config.max_workers} workers (max_workers) with "
        f"{config.leases_per_worker} each (leases_per_worker)"
    )
    if room < leases:
        yield ReportLine("room", ReportMark.STOPS, f"{told}: raise one of the two, and deploy")
    else:
        yield ReportLine("room", ReportMark.GOOD, told)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MOST} more" if len(names) > NAMED_MOST else ""
    return ", ".join(names[:NAMED_MOST]) + more
