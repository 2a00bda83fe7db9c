"""The report before a migration says what was found, and stops what could not go well."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.balance.kcl3 import UPGRADING, Direction, Kcl3, WorkerRow
from shardfleet.domain.balance.migration import IndexStatus
from shardfleet.domain.leases.lease import ForeignLease
from shardfleet_ops.explain.migration_report import (
    MigrationFacts,
    ReportMark,
    migration_report,
)
from tests.domain.test_migration import CONFIG, NOW_MS, snapshot

HELD = "0 at 5 by java-1", "1 at 5 by java-2", "2 at 5 by f-s0001", "3 at 5"


def facts(*leases, **more):
    found = {key: more.pop(key) for key in ("kcl3", "expired_owners", "index") if key in more}
    found["expired"] = found.pop("expired_owners", ())
    given = {
        "direction": Direction.FROM_JAVA,
        "config": CONFIG,
        "snapshot": snapshot(*leases, **found),
    }
    return MigrationFacts(**given | more)


def said(what, *leases, **more):
    return [(line.standing, line.found) for line in migration_report(facts(*leases, **more))
            if line.what == what]  # fmt: skip


def marks(*leases, **more):
    return {line.standing for line in migration_report(facts(*leases, **more))}


def test_a_table_in_order_is_told_and_nothing_stops():
    assert marks(*HELD) == {ReportMark.GOOD}
    assert said("application") == [(ReportMark.GOOD, "applicationName of the KCL: leases")]
    assert said("leases", *HELD) == [
        (ReportMark.GOOD, "4 unfinished: Java 2, the fleet 1, nobody 1")
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"unreadable": {"9": "no counter"}}, "9 cannot be read"),
        (
            {"foreign_leases": (ForeignLease("1:orders:7:shard", "of another", "1:orders:7"),)},
            "1 lease is not this fleet's: 1:orders:7:shard (of another, stream 1:orders:7)",
        ),
        ({"refusal": "AccessDenied"}, "leases cannot be written: AccessDenied"),
        ({"config": replace(CONFIG, max_workers=1, leases_per_worker=3)}, "raise one of the two"),
    ],
)
def test_what_could_not_go_well_stops_it(more, words):
    (found,) = [line.found for line in migration_report(facts(*HELD, **more))
                if line.standing is ReportMark.STOPS]  # fmt: skip
    assert words in found


def test_room_is_asked_for_on_the_way_from_java_alone():
    full = {"config": replace(CONFIG, max_workers=1, leases_per_worker=3)}

    assert said("room", *HELD, direction=Direction.TO_JAVA, **full) == []


def rows(**support):
    return Kcl3(rows=[WorkerRow(each, NOW_MS // 1000, sup) for each, sup in support.items()])


def test_versions_are_told_by_rows_and_by_who_renews_without_one():
    shown = Kcl3(rows=[WorkerRow("java-1", NOW_MS // 1000, 1), WorkerRow("j3", NOW_MS // 1000)])
    (first, second) = said("KCL", *HELD, kcl3=shown)
    assert first == (ReportMark.GOOD, "3.5: java-1; 3.0 to 3.4: j3; 2.x: java-2")
    assert second[0] is ReportMark.NOTE
    assert "hands nothing over" in second[1]
    (gone,) = said("KCL", *HELD, kcl3=shown, expired_owners={"1"})
    assert "2.x" not in gone[1]
    ((mark, words),) = said("KCL", "0 at 5", kcl3=Kcl3())
    assert (mark, words) == (ReportMark.NOTE, "no worker shows itself or renews a lease")


def test_a_kcl_3_that_works_as_a_kcl_2_and_where_it_keeps_its_rows_is_told():
    old = Kcl3(rows=[WorkerRow("java-1", NOW_MS // 1000)], version=UPGRADING)
    assert said("mode", *HELD, kcl3=old)[0][0] is ReportMark.NOTE
    assert said("tables", *HELD, kcl3=old)[0][1].startswith("three")
    assert said("tables", *HELD, kcl3=replace(old, is_single=True))[0][1].startswith("one")


def test_a_missing_index_and_expired_records_are_to_be_known():
    assert said("index", index=IndexStatus.MISSING)[0][0] is ReportMark.NOTE
    ((mark, words),) = said("checkpoints", expired=[str(number) for number in range(7)])
    assert mark is ReportMark.NOTE
    assert words.startswith("0, 1, 2, 3, 4 and 2 more: ")
