"""
What is wrong with a deployed fleet, and how to mend it: the rules of `shardfleet doctor`.

Pure: from facts about tables, functions, stream and clock to findings, the gravest first. A
finding names what was found and what to do; what could not be looked at is a finding too.
Longer than most modules, and one idea: each rule is a few lines over the same facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import partial

from msgspec import Struct, field

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import ROLLED_BACK, UPGRADING, Kcl3
from shardfleet.domain.balance.strategy import STRATEGIES
from shardfleet.domain.delivery.stops import MissingShard, StopNote
from shardfleet.domain.leases.foreign_leases import REMEDY
from shardfleet.domain.leases.lease import named_foreign
from shardfleet.domain.slots.slot import SlotState
from shardfleet_ops.explain.fleet_view import (
    PLAN_STILL_MS,
    FleetReading,
    LeaseRow,
    LeaseState,
    failures,
    lease_rows,
    remarks,
    said_of_way,
    summary,
)
from shardfleet_ops.explain.handler_cures import cure_of
from shardfleet_ops.migrate.kcl2 import elected

OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"  # protocol.md §1.3
_NO_KCL_3 = Kcl3()
_START_MS = 30_000  # of a worker, generously (architecture.md, "A crash is seen at once")
# What KCL 3.5 keeps in the lease table beside leases (protocol.md §0.7).
KNOWN_NEIGHBOURS = frozenset(
    {"LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "STREAM", "WORKER_METRIC_STATS"}
)


class TableFacts(Struct, frozen=True, kw_only=True):
    """
    A DynamoDB table.

    Attributes:
        name: of the table.
        wanted: the keys it must have, attribute name and ``HASH`` or ``RANGE``, in order.
        keys: the keys it has; empty when there is no table.
        indexes: index name to status.

    """

    name: str
    wanted: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)


class FunctionFacts(Struct, frozen=True, kw_only=True):
    """
    A Lambda function.

    Attributes:
        name: of the function.
        timeout_ms: its time-out, 0 when there is no such function.
        concurrency: reserved concurrent executions, None when not reserved.

    """

    name: str
    timeout_ms: int
    concurrency: int | None


class StreamFacts(Struct, frozen=True, kw_only=True):
    """
    The stream.

    Attributes:
        status: ``ACTIVE``, ``UPDATING``, ...
        created_ms: creation time, epoch milliseconds.
        distribution: how records are spread, ``""`` when the service did not say.

    """

    status: str
    created_ms: int
    distribution: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """
    Everything that was looked at.

    Attributes:
        config: as the manager has it.
        lease_table: the lease table.
        state_table: the fleet-state table.
        neighbours: items of the lease table that are no leases, by ``entityType``.
        stream: None when there is no such stream.
        known_created_ms: creation time of the stream the fleet began with, 0 unknown.
        clock_ahead_ms: how far this machine's clock is ahead of the service's.
        manager: the manager's function.
        worker: the worker's function.
        schedule: ``ENABLED``, ``DISABLED``, or ``""`` when there is none.
        machine: status of the state machine, ``""`` when there is none.
        failed_queue_exists: None when the policy needs none.
        reading: of both tables; None when a table could not be read.
        unread_shards: open shards to which no lease leads.
        unreserved_concurrency: how many invocations of functions without a reservation may run at
            once in the account; None unknown.
        unseen: what could not be looked at, and why.
        kcl3: what a KCL 3 keeps beside the leases.
        kcl_tables: where one until 3.4 would: its metrics' table and its coordinator's.

    """

    config: FleetConfig
    lease_table: TableFacts
    state_table: TableFacts
    neighbours: Mapping[str, int]
    stream: StreamFacts | None
    known_created_ms: int
    clock_ahead_ms: int
    manager: FunctionFacts
    worker: FunctionFacts
    schedule: str
    machine: str
    failed_queue_exists: bool | None
    reading: FleetReading | None
    unread_shards: Sequence[str]
    unreserved_concurrency: int | None = None
    unseen: Sequence[tuple[str, str]] = ()
    kcl3: Kcl3 = _NO_KCL_3
    kcl_tables: Sequence[TableFacts] = ()


class Severity(StrEnum):
    """``ERROR``: records are not, or will not be, processed. ``WARNING``: they may not be."""

    ERROR = "ERROR"
    WARNING = "WARNING"


class Finding(Struct, frozen=True):
    """
    One thing that is wrong.

    Attributes:
        severity: see :class:`Severity`.
        code: stable, for programs, e.g. ``"schedule-disabled"``.
        found: what was found, in a sentence.
        remedy: what to do about it.

    """

    severity: Severity
    code: str
    found: str
    remedy: str


_error = partial(Finding, Severity.ERROR)
_warning = partial(Finding, Severity.WARNING)


def diagnose(facts: Facts) -> list[Finding]:
    """Return everything that is wrong, errors first."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def _tables(facts: Facts) -> Iterator[Finding]:
    for table, word in ((facts.lease_table, "lease"), (facts.state_table, "fleet-state")):
        if not table.keys:
            found = f"the {word} table {table.name} does not exist"
            yield _error(f"{word}-table-missing", found, "deploy the stack again")
        elif table.keys != table.wanted:
            yield _error(
                f"{word}-table-keys",
                f"the {word} table {table.name} has the keys {_words(table.keys)}",
                f"name a table with the keys {_words(table.wanted)} in the configuration",
            )
    status = facts.lease_table.indexes.get(OWNER_INDEX, "missing")
    if facts.lease_table.keys and status != "ACTIVE":
        yield _error(
            "owner-index",
            f"the index {OWNER_INDEX} of {facts.lease_table.name} is {status.lower()}",
            "add it as the KCL defines it, or wait until it is built: without it a worker does not "
            "find its leases",
        )


def _words(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in keys)


def _items(facts: Facts) -> Iterator[Finding]:
    for why in facts.reading.unreadable.values() if facts.reading else ():
        yield _error(
            "malformed-lease",
            why,
            "mend that item, or delete it and its lease is made again, so that records come twice: "
            "until then neither its shard is read nor what descends from it",
        )
    if facts.reading and facts.reading.foreign_leases:
        yield _foreign_leases(facts, facts.reading)
    for name, why in facts.reading.unreadable_documents.items() if facts.reading else ():
        yield _error(
            "unreadable-document",
            f"{name} of {facts.state_table.name} cannot be read: {why}",
            f"`shardfleet documents {name}` says what holds meanwhile, and what mends it",
        )
    for entity, count in facts.neighbours.items():
        if entity not in KNOWN_NEIGHBOURS:
            yield _warning(
                "foreign-item",
                f"{count} items of {facts.lease_table.name} are no leases: entityType "
                f"{entity or 'missing'}",
                "find out who writes them; the KCL for Java stops at items that it does not know",
            )


def _foreign_leases(facts: Facts, reading: FleetReading) -> Finding:
    """Return what a manager refuses to begin beside, or goes on beside (H23)."""
    has_begun = bool(reading.leases or reading.slots)
    finding = _warning if has_begun else _error
    so = "the fleet leaves them alone" if has_begun else "the fleet does not begin beside them"
    return finding(
        "foreign-leases",
        f"{facts.lease_table.name}: {named_foreign(reading.foreign_leases)}; {so}",
        f"{REMEDY}; a table is for one application of one stream",
    )


def _stream(facts: Facts) -> Iterator[Finding]:
    arn, stream = facts.config.stream_arn, facts.stream
    if stream is None:
        yield _error("stream-missing", f"the stream {arn} does not exist", "name another stream")
        return
    if facts.known_created_ms and stream.created_ms != facts.known_created_ms:
        yield _error(
            "stream-replaced",
            f"the stream {arn} was deleted and created again since the fleet began: its shard ids "
            "repeat, its records do not",
            "deploy a fleet with new tables, or delete the leases and the fleet state",
        )
    if stream.status not in ("ACTIVE", "UPDATING"):
        yield _error("stream-status", f"the stream {arn} is {stream.status}", "wait or restore it")
    if stream.distribution == "AUTO":
        yield _warning(
            "stream-distribution",
            f"the stream {arn} spreads records by AUTO distribution and ignores partition keys",
            "set its record distribution back to partition keys if order per key matters",
        )


def _functions(facts: Facts) -> Iterator[Finding]:
    for function, role in ((facts.manager, "manager"), (facts.worker, "worker")):
        if not function.timeout_ms:
            found = f"the {role}'s function {function.name} does not exist"
            yield _error(f"{role}-missing", found, "deploy the stack again")
        elif function.concurrency == 0:
            yield _error(
                f"{role}-concurrency",
                f"the {role}'s function {function.name} has a reserved concurrency of 0: it "
                "cannot run",
                "raise or remove its reserved concurrency",
            )
    config, worker = facts.config, facts.worker
    if worker.concurrency and worker.concurrency < config.max_workers:
        yield _warning(
            "worker-concurrency",
            f"the worker's reserved concurrency is {worker.concurrency}, but max_workers is "
            f"{config.max_workers}: the slots beyond it are throttled",
            "raise the reserved concurrency, or lower max_workers",
        )
    needed_ms = config.handler_timeout_ms + config.turn_margin_ms
    if 0 < worker.timeout_ms < needed_ms:
        yield _error(
            "worker-timeout",
            f"the worker's time-out is {worker.timeout_ms} ms, but handler_timeout_ms and "
            f"turn_margin_ms together are {needed_ms} ms: slow handler calls are cut off",
            "raise the worker's time-out, or lower handler_timeout_ms",
        )


def _account(facts: Facts) -> Iterator[Finding]:
    """
    Compare what may run at once with what the account allows.

    A new account has a concurrency of 10 (fact L08: awslabs/fhir-works-on-aws-deployment issue
    691); a fleet that uses it up keeps its own manager from running.
    """
    found = facts.unreserved_concurrency
    workers = 0 if facts.worker.concurrency else facts.config.max_workers
    needed = workers + (0 if facts.manager.concurrency else 1)
    if found is not None and found < needed:
        yield _warning(
            "account-concurrency",
            f"Lambda runs at most {found} invocations at once of the account's functions without a "
            f"reservation, but the fleet alone may need {needed} (max_workers {workers}, and the "
            "manager): the manager, too, is throttled then",
            "ask for a higher quota of Lambda's concurrent executions (Service Quotas "
            f"L-B99A9384), or set max_workers to less than {max(found, 2)}, minus what else runs "
            "in the account",
        )


def _machinery(facts: Facts) -> Iterator[Finding]:
    if facts.schedule != "ENABLED":
        word = facts.schedule.lower() or "missing"
        yield _error(
            "schedule-disabled",
            f"the manager's schedule is {word}: no lease is assigned and no lost worker replaced",
            "enable the schedule, or deploy the stack again",
        )
    if facts.machine != "ACTIVE":
        word = facts.machine.lower() or "missing"
        found = f"the worker's state machine is {word}"
        yield _error("machine-missing", found, "deploy the stack again")
    if facts.failed_queue_exists is False:
        yield _error(
            "failed-queue-missing",
            f"the queue for given-up records does not exist: {facts.config.failed_queue_url}",
            "create it or name another: until then a record that cannot be handled holds its shard",
        )
    if abs(facts.clock_ahead_ms) > facts.config.clock_skew_ms:
        yield _warning(
            "clock",
            f"this machine's clock is {facts.clock_ahead_ms} ms ahead of the service's",
            "set this machine's clock: ages and --at times are wrong by as much",
        )


def _fleet(facts: Facts) -> Iterator[Finding]:
    reading, config = facts.reading, facts.config
    if reading is None:
        return
    found = summary(reading)
    if found.plan_age_ms is None or found.plan_age_ms > PLAN_STILL_MS:
        age = "never" if found.plan_age_ms is None else f"{found.plan_age_ms // 1000} s ago"
        yield _error(
            "manager-silent",
            f"the manager planned {age}; it plans at least once a minute",
            "look into the manager's log, and at its dead-letter queue",
        )
    for row in lease_rows(reading):
        if row.state is LeaseState.STOPPED:
            yield _error(
                "shard-stopped",
                f"{row.lease_key} is stopped {row.why}",
                _advice(reading.stops[row.lease_key], config),
            )
    if pause := reading.pauses.fleet:
        yield _warning(
            "fleet-paused", f"the whole fleet is {pause}", "to go on: shardfleet resume --all"
        )
    for key, pause in sorted(reading.pauses.leases.items()):
        yield _warning("shard-paused", f"{key} is {pause}", f"to go on: shardfleet resume {key}")
    # What workers of the KCL hold needs no room here.
    free_or_ours = {None, *(slot.worker_id for slot in reading.slots)}
    unfinished = sum(
        not lease.is_finished and lease.effective_owner in free_or_ours for lease in reading.leases
    )
    room = config.max_workers * config.leases_per_worker
    if unfinished > room:
        yield _error(
            "too-few-slots",
            f"{unfinished} leases are to be read, but max_workers x leases_per_worker is {room}",
            "raise max_workers or leases_per_worker",
        )
    if facts.unread_shards:
        yield _error(
            "shards-unread",
            f"no lease leads to the open shards {', '.join(facts.unread_shards)}",
            "the manager heals it at its next turns; if it stays, look into the manager's log",
        )


def _advice(stop: StopNote, config: FleetConfig) -> str:
    """Return what to do, and what `log_errors` adds where a record was tried."""
    cure, advice = cure_of(stop.error), stop.advice
    if cure:
        resume = advice if stop.retry_ms else f"then: shardfleet resume {stop.lease_key}"
        advice = f"{cure}; {resume}"
    if config.log_errors or isinstance(stop, MissingShard):
        return advice
    return (
        f"{advice}. An error is told by its kind and place; with log_errors true also by what "
        "it said, which may be record data: in this note and the worker's log, from the next "
        "attempt on"
    )


def _workers(facts: Facts) -> Iterator[Finding]:
    reading = facts.reading
    for each in failures(reading.slots, now_ms=reading.at_ms) if reading else ():
        finding = _error if each.is_certain else _warning
        code = f"worker-{each.kind.value.lower().replace('_', '-')}"
        yield finding(code, each.said, each.remedy)
    for slot in reading.slots if reading else ():
        silent_ms = reading.at_ms - (slot.heartbeat_ms or slot.started_ms) if reading else 0
        is_told = slot.state is SlotState.ENDED or slot.failure is not None
        if not is_told and silent_ms > 2 * facts.config.failover_ms + _START_MS:
            yield _error(
                "worker-silent",
                f"{slot.slot_id} has given no sign of life for {silent_ms // 1000} s, and could "
                "not even write down why",
                "look into its lines (shardfleet logs: a right, a layer or a variable may be "
                f"missing) and at the execution {slot.slot_input().execution_name()}",
            )


def _handlers(facts: Facts) -> Iterator[Finding]:
    reading, config = facts.reading, facts.config
    for key, running_ms in reading.long_calls_ms.items() if reading else ():
        yield _warning(
            "handler-slow",
            f"{key}: a call of the handler has been running for {running_ms // 1000} s; at "
            f"handler_timeout_ms ({config.handler_timeout_ms}) its process ends",
            "give what it waits for a time-out of its own; its stack is in `shardfleet logs "
            f"{key}` then. If it must take so long, raise handler_timeout_ms",
        )
    for key, way in reading.ways.items() if reading else ():
        if way.polled:
            yield _warning(
                "polled-for-now",
                f"{key} is {said_of_way(way)}",
                "see to that: it is tried again each five minutes, and polled records come later; "
                "or take `reading` away, for the consumer is paid for all the same",
            )
    for remark, slots in remarks(reading.slots).items() if reading else ():
        yield _warning("handler-remark", f"{', '.join(slots)}: {remark}", "mend it, and deploy")


def _java(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps a fleet and Java's workers from sharing a table (docs/migrating.md)."""
    reading = facts.reading
    if reading is None:
        return
    ours = {slot.worker_id for slot in reading.slots}
    shown = {row.worker_id for row in facts.kcl3.rows if row.is_fresh(reading.at_ms)} - ours
    rows = [row for row in lease_rows(reading) if row.owner not in ours]
    renewing = {row.owner for row in rows if row.owner and row.state is LeaseState.READING}
    if (migration := reading.pauses.migration) is not None:
        yield _warning(
            "migration-under-way",
            f"migrate --{migration.direction} of {migration.by} is not finished: until then no "
            "slot is shown to a KCL 3, whose leader gives the fleet nothing",
            f"go on with it (shardfleet migrate --{migration.direction}), or end it (shardfleet "
            "migrate --abort)",
        )
    if shown:
        yield from _java_leads(facts, shown)
        if migration is None:
            yield from _java_starves(reading, shown, ours)
        yield from _java_forgets(rows)
    elif renewing:
        yield from _java_unseen(facts, reading, ", ".join(sorted(renewing)))
    for owner in sorted({row.owner for row in rows if row.owner and row.owner not in renewing}):
        stale = [row for row in rows if row.owner == owner and row.state is LeaseState.EXPIRED]
        longest_ms = max((row.seen_ms or 0 for row in stale), default=0)
        if longest_ms > facts.config.failover_ms:
            yield _warning(
                "java-dead",
                f"{owner} owns {len(stale)} leases and has not renewed them for "
                f"{longest_ms // 1000} s: nobody reads them until they are taken",
                "the manager gives them out at its next turns; if they stay, start that worker "
                "again or look into the manager's log",
            )


def _kcl_tables(facts: Facts) -> Iterator[Finding]:
    """Tell of tables that the configuration names and that are not there, or are none such."""
    config = facts.config
    names = ("kcl_metrics_table", config.kcl_metrics_table), (
        "kcl_state_table", config.kcl_state_table
    )  # fmt: skip
    for (setting, name), table in zip(names, facts.kcl_tables, strict=False):
        if name and table.keys != table.wanted:
            words = f"has the keys {_words(table.keys)}" if table.keys else "does not exist"
            yield _warning(
                "kcl-table",
                f"{setting}: {name} {words}",
                f"name the table of the KCL's with the key {_words(table.wanted)}, or take the "
                "setting away",
            )


def _java_unseen(facts: Facts, reading: FleetReading, names: str) -> Iterator[Finding]:
    """Tell of workers that pass for a KCL 2, and where a row of theirs was looked for."""
    looked = [
        f"{table.name} ({what if table.keys else 'no such table'})"
        for table, what in zip(
            facts.kcl_tables,
            (f"{len(facts.kcl3.rows)} rows, none fresh", facts.kcl3.version or "no migration item"),
            strict=False,
        )
    ]
    is_told = not STRATEGIES[facts.config.assignment].draws and any(
        slot.state is SlotState.RUNNING for slot in reading.slots
    )
    where = f"no row of metrics in {', '.join((*looked, facts.lease_table.name))}"
    others = (
        "if they are a KCL 3.0 to 3.4 with tables of other names, set kcl_metrics_table and "
        "kcl_state_table"
    )
    if is_told:
        yield _warning(
            "kcl-2-counts-otherwise",
            f"{names} of a KCL 2 share the lease table ({where}), and assignment is "
            f"{facts.config.assignment}: two that balance differently keep moving leases",
            f"set assignment to greedy while they share it, and keep that short; {others}",
        )
    else:
        yield _warning(
            "kcl-without-rows",
            f"{names} share the lease table and pass for a KCL 2: {where}",
            f"nothing, if they are one; {others}",
        )


def _java_leads(facts: Facts, shown: Collection[str]) -> Iterator[Finding]:
    names, version = ", ".join(sorted(shown)), facts.kcl3.version
    if version == UPGRADING:
        yield _java_upgrades(names, _elected_of_ours(facts.reading))
    elif version == ROLLED_BACK:
        yield _warning(
            "kcl-rolled-back",
            f"{names} were rolled back to the KCL 2 ({version}): no leader gives out leases",
            "go on with the KCL's migration tool, or set assignment to greedy meanwhile",
        )
    elif not facts.config.kcl_leads:
        yield _error(
            "two-leaders",
            f"{names} are of a KCL 3, whose leader gives out leases, and kcl_leads is false: so "
            "does the manager, and leases move to and fro",
            "set kcl_leads to true, or stop the workers of the KCL",
        )


def _java_upgrades(names: str, leader: str | None) -> Finding:
    """Return the finding of an upgrade that our worker, taken for Java's leader, holds up."""
    if leader is None:
        return _warning(
            "kcl-upgrade-unfinished",
            f"{names} are of a KCL 3 that is still upgrading from 2.x ({UPGRADING}): it balances "
            "as the KCL 2 until every worker shows a row",
            "end the last worker of a KCL 2; its leader then completes the upgrade by itself",
        )
    return _warning(
        "kcl-upgrade-unled",
        f"{names} are of a KCL 3 that is still upgrading from 2.x, which its leader completes; it "
        f"is elected among all owners of leases as in the KCL 2, and that is {leader} of this "
        "fleet, which does nothing of the kind",
        "drain the fleet until cv is CLIENT_VERSION_3X_WITH_ROLLBACK (ten minutes after every "
        "owner shows a row), then resume it",
    )


def _elected_of_ours(reading: FleetReading | None) -> str | None:
    """Return the worker of ours that Java's workers take for their leader, None if it is theirs."""
    if reading is None:
        return None
    owners = (lease.lease_owner for lease in reading.leases if lease.lease_owner is not None)
    leader = elected(owners)
    return leader if leader in {slot.worker_id for slot in reading.slots} else None


def _java_starves(
    reading: FleetReading, shown: AbstractSet[str], ours: AbstractSet[str]
) -> Iterator[Finding]:
    open_leases = [lease for lease in reading.leases if not lease.is_finished]
    holders = Counter(lease.effective_owner for lease in open_leases)
    starving = sorted(name for name in shown if not holders[name])
    held = sum(holders[name] for name in ours)
    if starving and held > len(ours | shown):
        yield _warning(
            "java-starves",
            f"{', '.join(starving)} of a KCL 3 have no lease, and the fleet's workers {held}",
            "Java's leader evens that out within three minutes; if it stays, look whether there is "
            "one (its log: lease assignment), and whether maxLeasesForWorker is 0",
        )


def _java_forgets(rows: Sequence[LeaseRow]) -> Iterator[Finding]:
    free = [row.lease_key for row in rows if row.state is LeaseState.UNOWNED and not row.why]
    if free:
        yield _warning(
            "java-leader-awaited",
            f"{', '.join(free)}: no owner; while workers of a KCL 3 are about, its leader gives "
            "leases out",
            "it does so within a minute; one that died is replaced after two. If they stay, "
            "restart the worker that holds the lock item Leader (KCL issue 1803), or stop the "
            "KCL's workers",
        )


def _unseen(facts: Facts) -> Iterator[Finding]:
    for what, why in facts.unseen:
        yield _warning("not-seen", f"{what} could not be looked at: {why}", "ask for the right")


_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _tables,
    _items,
    _stream,
    _functions,
    _account,
    _machinery,
    _workers,
    _handlers,
    _fleet,
    _java,
    _kcl_tables,
    _unseen,
)
