"""The doctor's rules: each planted fault has its finding, and a healthy fleet has none."""

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.lease import ForeignLease
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Migration, Pauses
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet_ops.explain.doctor import (
    OWNER_INDEX,
    Facts,
    FunctionFacts,
    Severity,
    StreamFacts,
    TableFacts,
    diagnose,
)
from shardfleet_ops.explain.fleet_view import FleetReading
from tests.domain.builders import a_failing_slot, a_failure, a_lease

NOW_MS = 10_000_000
CONFIG = FleetConfig(
    fleet="clicks", stream_arn="arn", lease_table="leases", state_table="state", max_workers=2
)
LEASES = TableFacts(
    name="leases",
    wanted=(("leaseKey", "HASH"),),
    keys=(("leaseKey", "HASH"),),
    indexes={OWNER_INDEX: "ACTIVE"},
)
STATE = TableFacts(
    name="state",
    wanted=(("kind", "HASH"), ("id", "RANGE")),
    keys=(("kind", "HASH"), ("id", "RANGE")),
)
FOREIGN = (ForeignLease("1:orders:7:shard", "of a multi-stream application", "1:orders:7"),)
READING = FleetReading(
    at_ms=NOW_MS,
    leases=[a_lease("1 at 5")],
    slots=[],
    sightings={},
    stops={},
    planned_ms=NOW_MS - 20_000,
    failover_ms=10_000,
)
HEALTHY = Facts(
    config=CONFIG,
    lease_table=LEASES,
    state_table=STATE,
    neighbours={"LEADER": 1, "WORKER_METRIC_STATS": 3},
    stream=StreamFacts(status="ACTIVE", created_ms=7),
    known_created_ms=7,
    clock_ahead_ms=300,
    manager=FunctionFacts(name="manager", timeout_ms=60_000, concurrency=None),
    worker=FunctionFacts(name="worker", timeout_ms=900_000, concurrency=None),
    schedule="ENABLED",
    machine="ACTIVE",
    failed_queue_exists=None,
    reading=READING,
    unread_shards=(),
)
MANY = replace(READING, leases=[a_lease(f"{number} at 5") for number in range(17)])
STOPPED = replace(
    READING,
    stops={
        "1": StopNote(
            lease_key="1", attempts=3, worker_id="w", at_ms=1, position="5:2", error="ValueError: x"
        )
    },
)
RETRIED = replace(
    READING,
    stops={
        "1": StopNote(
            lease_key="1",
            attempts=3,
            worker_id="w",
            at_ms=1,
            position="5:2",
            error="KeyError: x",
            retry_ms=NOW_MS,
        )
    },
)


def test_a_healthy_fleet_has_no_finding():
    assert diagnose(HEALTHY) == []


def test_java_workers_rows_beside_the_leases_are_no_finding():
    assert not diagnose(replace(HEALTHY, neighbours={"TABLE_MIGRATION": 1}))


@pytest.mark.parametrize(
    ("planted", "code", "words"),
    [
        ({"lease_table": replace(LEASES, keys=())}, "lease-table-missing", "leases does not"),
        (
            {"lease_table": replace(LEASES, keys=(("id", "HASH"),))},
            "lease-table-keys",
            "leaseKey (HASH)",
        ),
        ({"lease_table": replace(LEASES, indexes={})}, "owner-index", "is missing"),
        (
            {"lease_table": replace(LEASES, indexes={OWNER_INDEX: "CREATING"})},
            "owner-index",
            "is creating",
        ),
        ({"state_table": replace(STATE, keys=())}, "fleet-state-table-missing", "state does not"),
        (
            {"reading": replace(READING, unreadable={"1": "lease 1: no counter"})},
            "malformed-lease",
            "lease 1: no counter",
        ),
        (
            {"reading": replace(READING, unreadable_documents={"tip/1": "no map"})},
            "unreadable-document",
            "tip/1 of state cannot be read: no map",
        ),
        ({"neighbours": {"": 2}}, "foreign-item", "2 items of leases"),
        (
            {"reading": replace(READING, foreign_leases=FOREIGN)},
            "foreign-leases",
            "leases: 1 lease is not this fleet's: 1:orders:7:shard",
        ),
        ({"stream": None}, "stream-missing", "arn does not exist"),
        ({"known_created_ms": 6}, "stream-replaced", "created again"),
        (
            {"stream": StreamFacts(status="DELETING", created_ms=7)},
            "stream-status",
            "is DELETING",
        ),
        (
            {"stream": StreamFacts(status="ACTIVE", created_ms=7, distribution="AUTO")},
            "stream-distribution",
            "ignores partition keys",
        ),
        ({"clock_ahead_ms": -2_500}, "clock", "-2500 ms"),
        (
            {"manager": FunctionFacts(name="manager", timeout_ms=60_000, concurrency=0)},
            "manager-concurrency",
            "concurrency of 0",
        ),
        (
            {"worker": FunctionFacts(name="worker", timeout_ms=0, concurrency=None)},
            "worker-missing",
            "worker does not exist",
        ),
        (
            {"worker": FunctionFacts(name="worker", timeout_ms=900_000, concurrency=1)},
            "worker-concurrency",
            "max_workers is 2",
        ),
        (
            {"worker": FunctionFacts(name="worker", timeout_ms=30_000, concurrency=None)},
            "worker-timeout",
            "30000 ms",
        ),
        ({"unreserved_concurrency": 2}, "account-concurrency", "at most 2"),
        ({"schedule": "DISABLED"}, "schedule-disabled", "is disabled"),
        ({"schedule": ""}, "schedule-disabled", "is missing"),
        ({"machine": ""}, "machine-missing", "is missing"),
        ({"failed_queue_exists": False}, "failed-queue-missing", "given-up records"),
        ({"reading": replace(READING, planned_ms=0)}, "manager-silent", "planned never"),
        (
            {"reading": replace(READING, planned_ms=NOW_MS - 200_000)},
            "manager-silent",
            "planned 200 s ago",
        ),
        ({"reading": STOPPED}, "shard-stopped", "ValueError: x"),
        ({"reading": RETRIED}, "shard-stopped", "it is tried again by itself, or at once:"),
        ({"reading": MANY}, "too-few-slots", "17 leases"),
        (
            {"reading": replace(READING, pauses=Pauses(fleet=Pause("ann", 0)))},
            "fleet-paused",
            "paused by ann since 1970",
        ),
        (
            {"reading": replace(READING, pauses=Pauses(leases={"7": Pause("ann", 0, "index")}))},
            "shard-paused",
            "7 is paused by ann since 1970-01-01T00:00:00Z: index",
        ),
        ({"unread_shards": ("7",)}, "shards-unread", "open shards 7"),
        ({"unseen": (("the stream", "AccessDenied"),)}, "not-seen", "AccessDenied"),
    ],
)
def test_a_planted_fault_is_the_one_finding(planted, code, words):
    (finding,) = diagnose(replace(HEALTHY, **planted))

    assert finding.code == code
    what_to_do = ("leaseKey (HASH)", "it is tried again by itself")
    assert words in (finding.remedy if words.startswith(what_to_do) else finding.found)
    # What to do is not what was found over again.
    assert finding.remedy not in ("", finding.found)


def test_what_log_errors_would_add_is_said_until_it_is_set():
    (finding,) = diagnose(replace(HEALTHY, reading=STOPPED))
    assert "with log_errors true also by what it said" in finding.remedy
    config = replace(HEALTHY.config, log_errors=True)
    (finding,) = diagnose(replace(HEALTHY, reading=STOPPED, config=config))
    assert "log_errors" not in finding.remedy


MOST = CONFIG.max_workers * CONFIG.leases_per_worker
NEEDED_MS = CONFIG.handler_timeout_ms + CONFIG.turn_margin_ms


@pytest.mark.parametrize(
    ("within", "beyond", "code"),
    [
        *(
            ({"clock_ahead_ms": sign * 2_000}, {"clock_ahead_ms": sign * 2_001}, "clock")
            for sign in (1, -1)
        ),
        (
            {"worker": replace(HEALTHY.worker, concurrency=2)},
            {"worker": replace(HEALTHY.worker, concurrency=1)},
            "worker-concurrency",
        ),
        (
            {"worker": replace(HEALTHY.worker, timeout_ms=NEEDED_MS)},
            {"worker": replace(HEALTHY.worker, timeout_ms=NEEDED_MS - 1)},
            "worker-timeout",
        ),
        (
            {"reading": replace(READING, leases=MANY.leases[:MOST])},
            {"reading": replace(READING, leases=MANY.leases[: MOST + 1])},
            "too-few-slots",
        ),
        (
            {"reading": replace(READING, planned_ms=NOW_MS - 150_000)},
            {"reading": replace(READING, planned_ms=NOW_MS - 150_001)},
            "manager-silent",
        ),
    ],
)
def test_what_is_within_a_limit_is_in_order_and_the_next_is_not(within, beyond, code):
    assert diagnose(replace(HEALTHY, **within)) == []
    assert [each.code for each in diagnose(replace(HEALTHY, **beyond))] == [code]


def test_errors_come_before_warnings():
    found = diagnose(replace(HEALTHY, clock_ahead_ms=9_999, schedule="DISABLED"))

    assert [each.severity for each in found] == [Severity.ERROR, Severity.WARNING]


@pytest.mark.parametrize(
    ("unreserved", "workers", "manager"),
    [(3, None, None), (1, 2, None), (2, None, 1), (0, 2, 1), (None, None, None)],
)
def test_an_account_that_has_room_for_workers_and_manager_is_enough(unreserved, workers, manager):
    """Fact L08; what is reserved for a function is not taken from the rest (Lambda guide)."""
    facts = replace(
        HEALTHY,
        unreserved_concurrency=unreserved,
        worker=replace(HEALTHY.worker, concurrency=workers),
        manager=replace(HEALTHY.manager, concurrency=manager),
    )
    assert diagnose(facts) == []


@pytest.mark.parametrize(("unreserved", "needed"), [(2, 3), (0, 3)])
def test_an_account_without_room_for_workers_and_manager_is_told_with_what_to_do(
    unreserved, needed
):
    (finding,) = diagnose(replace(HEALTHY, unreserved_concurrency=unreserved))
    assert f"may need {needed} (max_workers 2" in finding.found
    assert "L-B99A9384" in finding.remedy


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FailureKind.LOAD, "worker-load"),
        (FailureKind.IMPORT, "worker-import"),
        (FailureKind.SIGNATURE, "worker-signature"),
        (FailureKind.RIGHT, "worker-right"),
        (FailureKind.TIME_OUT, "worker-time-out"),
        (FailureKind.MEMORY, "worker-memory"),
        (FailureKind.EXIT, "worker-exit"),
        (FailureKind.TURN, "worker-turn"),
    ],
)
def test_what_workers_fail_of_is_an_error_with_its_remedy(kind, code):
    slot = a_failing_slot(kind=kind)
    (finding,) = diagnose(replace(HEALTHY, reading=replace(READING, slots=[slot])))

    assert (finding.severity, finding.code) == (Severity.ERROR, code)
    assert "no settings" in finding.found
    assert finding.remedy


def test_one_crash_that_need_not_come_again_is_a_warning():
    slot = a_failing_slot(kind=FailureKind.EXIT, times=1)
    (finding,) = diagnose(replace(HEALTHY, reading=replace(READING, slots=[slot])))

    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ({"state": SlotState.STARTING, "started_ms": NOW_MS - 51_000}, ["worker-silent"]),
        ({"state": SlotState.STARTING, "started_ms": NOW_MS - 49_000}, []),
        ({"heartbeat_ms": NOW_MS - 51_000}, ["worker-silent"]),
        ({"heartbeat_ms": NOW_MS - 12_000, "started_ms": 1}, []),
        ({"heartbeat_ms": NOW_MS - 51_000, "state": SlotState.ENDED}, []),
        ({"heartbeat_ms": NOW_MS - 51_000, "failure": a_failure()}, ["worker-import"]),
    ],
)
def test_a_worker_that_cannot_even_write_down_why_it_fails_is_told(more, codes):
    given = {"state": SlotState.RUNNING, "name": "clicks-s1-1", "start_epoch": 1} | more
    slot = Slot(slot_id="s1", worker_id="a", **given)
    found = diagnose(replace(HEALTHY, reading=replace(READING, slots=[slot])))

    assert [each.code for each in found] == codes


# --- beside Java (docs/migrating.md)


def beside_java(*leases, sighted_ms=0, is_fresh=True, version="", config=CONFIG):
    """Plant a fleet of two slots, ``a`` and ``b``, and ``java-1`` of a KCL 3, in one table."""
    slots = [
        Slot(
            slot_id=f"s-{worker}",
            worker_id=worker,
            state=SlotState.RUNNING,
            name="n",
            start_epoch=1,
            heartbeat_ms=NOW_MS,
        )
        for worker in "ab"
    ]
    found = [a_lease(text) for text in leases]
    sightings = {
        lease.lease_key: Sighting(lease.lease_counter, lease.lease_owner, NOW_MS - sighted_ms)
        for lease in found
    }
    rows = [WorkerRow(worker, NOW_MS // 1000) for worker in "ab"]
    rows.append(WorkerRow("java-1", (NOW_MS - (0 if is_fresh else 90_000)) // 1000))
    return replace(
        HEALTHY,
        config=config,
        reading=replace(READING, leases=found, slots=slots, sightings=sightings),
        kcl3=Kcl3(rows=rows, version=version),
    )


def migrating(facts):
    """Leave a migration unfinished."""
    pauses = Pauses(migration=Migration(direction="from-java", by="ann", since_ms=NOW_MS))
    return replace(facts, reading=replace(facts.reading, pauses=pauses))


SHARED = ("1 at 5 by a", "2 at 5 by b", "3 at 5 by java-1", "4 at 5 by java-1")
KCL_2 = replace(
    beside_java(*SHARED),
    kcl3=Kcl3(),
    kcl_tables=[
        TableFacts(name="leases-WorkerMetricStats", wanted=(("wid", "HASH"),)),
        TableFacts(name="state", wanted=(("key", "HASH"),), keys=(("key", "HASH"),)),
    ],
)
NAMED = replace(CONFIG, kcl_metrics_table="leases-WorkerMetricStats", kcl_state_table="state")
LOOKED = (
    "no row of metrics in leases-WorkerMetricStats (no such table), state (no migration item), "
    "leases"
)


def test_a_fleet_that_shares_its_table_with_a_kcl_3_in_good_order_has_no_finding():
    assert diagnose(beside_java(*SHARED)) == []
    assert diagnose(beside_java(*SHARED, version="CLIENT_VERSION_3X")) == []


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (
            beside_java(*(f"{n} at 5 by {'ab'[n % 2]}" for n in range(4))),
            "java-starves",
            "java-1 of a KCL 3 have no lease, and the fleet's workers 4",
        ),
        (
            beside_java(*SHARED, config=replace(CONFIG, kcl_leads=False)),
            "two-leaders",
            "kcl_leads is false",
        ),
        (beside_java(*SHARED, "5 at 5"), "java-leader-awaited", "5: no owner"),
        (
            beside_java(*SHARED[2:], sighted_ms=25_000, is_fresh=False),
            "java-dead",
            "java-1 owns 2 leases and has not renewed them for 25 s",
        ),
        (
            # Three owners: the last one is elected.
            beside_java(*SHARED, version="CLIENT_VERSION_UPGRADE_FROM_2X"),
            "kcl-upgrade-unfinished",
            "still upgrading from 2.x",
        ),
        (
            # Two: the first one.
            beside_java(*SHARED[:1], *SHARED[2:], version="CLIENT_VERSION_UPGRADE_FROM_2X"),
            "kcl-upgrade-unled",
            "and that is a of this fleet",
        ),
        (
            beside_java(*SHARED, version="CLIENT_VERSION_2X"),
            "kcl-rolled-back",
            "no leader gives out leases",
        ),
        (KCL_2, "kcl-2-counts-otherwise", f"java-1 of a KCL 2 share the lease table ({LOOKED})"),
        (
            replace(KCL_2, config=replace(CONFIG, assignment="greedy")),
            "kcl-without-rows",
            f"pass for a KCL 2: {LOOKED}",
        ),
        (
            replace(HEALTHY, config=NAMED, kcl_tables=KCL_2.kcl_tables),
            "kcl-table",
            "kcl_metrics_table: leases-WorkerMetricStats does not exist",
        ),
        (
            # Java's worker has nothing there, as is meant.
            migrating(beside_java("1 at 5 by a", "2 at 5 by a", "3 at 5 by b", "4 at 5 by b")),
            "migration-under-way",
            "migrate --from-java of ann is not finished",
        ),
    ],
)
def test_what_keeps_the_fleet_and_java_from_sharing_is_told(facts, code, words):
    (finding,) = diagnose(facts)

    assert finding.code == code
    assert words in finding.found
    assert finding.remedy


@pytest.mark.parametrize(
    "facts",
    [
        beside_java(*SHARED[2:], sighted_ms=9_000, is_fresh=False),
        beside_java("1 at 5 by a", "2 at 5 by b"),
        beside_java(*SHARED[:2], sighted_ms=5_000, is_fresh=False),
        beside_java(*SHARED, *(f"{number} at 5 by java-1" for number in range(10, 25))),
    ],
    ids=["renews still", "too few leases for all", "gone, and has nothing", "its room"],
)
def test_what_is_as_it_should_be_beside_java_is_not_told(facts):
    assert [each for each in diagnose(facts) if each.code != "kcl-2-counts-otherwise"] == []


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        ({}, Severity.WARNING, "the fleet leaves them alone"),
        ({"leases": (), "slots": ()}, Severity.ERROR, "the fleet does not begin beside them"),
    ],
)
def test_foreign_leases_are_an_error_to_a_fleet_that_has_not_begun(found, severity, words):
    reading = replace(READING, foreign_leases=FOREIGN, **found)
    (finding,) = [
        f for f in diagnose(replace(HEALTHY, reading=reading)) if f.code == "foreign-leases"
    ]
    assert (finding.severity, words in finding.found) == (severity, True)
    assert "lease_table" in finding.remedy
