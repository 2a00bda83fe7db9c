"""What a turn does beside a KCL 3: which slots are shown to its leader, and which rows go."""

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import (
    BesideFacts,
    Direction,
    Kcl3,
    WorkerRow,
    plan_beside,
    slow_to_begin,
)
from shardfleet.domain.slots.slot import Slot, SlotState

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1_000
CONFIG = FleetConfig(fleet="f", stream_arn="a", lease_table="l", state_table="s")
SLOT = Slot(
    slot_id="s1",
    worker_id="f-s1",
    state=SlotState.RUNNING,
    name="n",
    start_epoch=1,
    heartbeat_ms=NOW_MS - 2 * CONFIG.failover_ms,
    open_turns=2,
)
JAVA = WorkerRow("java", NOW_S - 60)


def planned(slot=SLOT, *, found=None, rows=(JAVA,), config=CONFIG, **facts):
    known = {"now_ms": NOW_MS, "holders": (), "losers": ()} | facts
    return plan_beside(config, found or Kcl3(rows=rows), [slot], facts=BesideFacts(**known))


def test_a_slot_that_is_well_is_shown_to_the_leader_of_a_kcl_3_that_is_about():
    """WorkerMetricStats: a row is fresh for two reporting periods of 30 s (protocol.md §2.3)."""
    plan = planned()
    assert (plan.leads, plan.others, plan.graceful) == (True, {"java"}, {"java"})
    assert (plan.write, plan.delete) == ([WorkerRow("f-s1", NOW_S)], [])
    assert plan.waiting == ["s1"]
    assert planned(holders={"f-s1"}).waiting == []
    assert planned(now_ms=NOW_MS + 1).others == set()


@pytest.mark.parametrize(
    "change",
    [
        {"state": SlotState.STARTING},
        {"state": SlotState.ENDING},
        {"heartbeat_ms": SLOT.heartbeat_ms - 1},
        {"open_turns": 3},
        {"drain": True},
        {"leaving_ms": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_one_that_is_not_is_shown_no_more(change):
    ours = WorkerRow("f-s1", NOW_S - 11)
    plan = planned(replace(SLOT, **change), rows=(JAVA, ours))
    assert (plan.write, plan.delete, plan.waiting) == ([], [ours], [])


@pytest.mark.parametrize(("age_s", "is_due"), [(0, False), (9, False), (10, True), (-1, True)])
def test_a_row_is_written_anew_each_ten_seconds_and_where_a_clock_was_ahead(age_s, is_due):
    plan = planned(rows=(JAVA, WorkerRow("f-s1", NOW_S - age_s)))
    assert plan.write == ([WorkerRow("f-s1", NOW_S)] if is_due else [])
    assert plan.delete == []


@pytest.mark.parametrize(
    ("found", "config", "facts", "leads", "shows"),
    [
        (Kcl3(rows=(replace(JAVA, updated_s=NOW_S - 61),)), {}, {}, False, False),
        (Kcl3(rows=(JAVA,)), {}, {"losers": {"java"}}, False, False),
        (Kcl3(rows=(JAVA,)), {"kcl_leads": False}, {}, False, False),
        (Kcl3(rows=(JAVA,)), {}, {"migrates": Direction.TO_JAVA}, True, False),
        # Half way to a KCL 3 its workers balance as a KCL 2's do, and write rows already.
        (Kcl3(rows=(JAVA,), version="CLIENT_VERSION_UPGRADE_FROM_2X"), {}, {}, False, True),
        (Kcl3(rows=(JAVA,), version="CLIENT_VERSION_2X"), {}, {}, False, False),
    ],
    ids=["gone", "let a lease expire", "we lead", "handed to Java", "upgrading", "rolled back"],
)
def test_who_leads_and_who_is_shown(found, config, facts, leads, shows):
    plan = planned(found=found, config=replace(CONFIG, **config), **facts)
    assert (plan.leads, bool(plan.write), bool(plan.waiting)) == (leads, shows, shows)


def test_on_the_way_from_java_no_slot_is_shown_and_those_that_have_nothing_stay():
    ours = WorkerRow("f-s1", NOW_S)
    plan = planned(rows=(JAVA, ours), migrates=Direction.FROM_JAVA)
    assert (plan.write, plan.delete, plan.waiting) == ([], [ours], ["s1"])


def test_only_java_s_workers_that_are_about_are_given_the_time_they_need_to_begin():
    """KCL 3.5: LeaseAssignment each 9,975 ms, then a renewal of 3,308 ms (§1.7)."""
    rows = (JAVA, WorkerRow("f-s1", NOW_S), WorkerRow("gone", NOW_S - 61))
    found = slow_to_begin(Kcl3(rows=rows), ours={"f-s1"}, now_ms=NOW_MS)
    assert found == {"java": 9_975 + 3_308}
