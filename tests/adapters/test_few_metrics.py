"""The ten metrics that CloudWatch gets by default, and what the six alarms watch of them."""

import pytest
from msgspec.structs import replace

from shardfleet.adapters.telemetry import metrics as measured
from shardfleet.adapters.telemetry.emf import EmfEventSink
from shardfleet.domain.reasons import HoldsFewest
from shardfleet.events.delivery import PageRead, PositionLost, ReadDelayed
from shardfleet.events.manager import (
    LeaseAssigned,
    LeaseHealed,
    ManagerTurnFailed,
    SlotRestarted,
)
from shardfleet.events.worker import SlotDelayed, TurnBegun
from tests.adapters.test_emf import (
    TURN,
    TURN_ENDED,
    a_failure,
    an_assignment,
    clock,
    handled,
    logs,
    metrics,
    out,
    total,
)

__all__ = ["clock", "out"]  # fixtures


def few(clock, out):
    return EmfEventSink("orders", clock=clock, stream=out)


def names(out):
    return {
        metric["Name"]
        for line in metrics(out)
        for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    }


def test_by_default_cloudwatch_gets_ten_metrics_whatever_happens(clock, out):
    sink = few(clock, out)
    sink.emit(TURN)
    sink.emit(TURN_ENDED)
    sink.emit(
        PageRead(lease_key="a", stream_records=1, brings=True, size_bytes=9, millis_behind_latest=5)
    )
    sink.emit(handled("a"))
    sink.emit(a_failure("ValueError"))
    sink.emit(an_assignment("EXPIRED"))
    sink.flush()
    assert names(out) == measured.FEW
    assert len(measured.FEW) == 10
    assert sink.metric_names == measured.FEW


def test_a_fleet_that_is_asleep_has_three_metrics(clock, out):
    sink = few(clock, out)
    quiet = {"unclaimed_leases": 0, "leases_of_unknown_lag": 0, "slots_missing": 0}
    sink.emit(replace(TURN, **quiet, slots_wanted=0, sleeping_leases=4))
    assert names(out) == {"millis_behind_latest", "broken", "uncovered"}


def test_what_goes_to_a_collector_is_all_of_it_and_no_line_is_empty(clock, out):
    sink = few(clock, out)
    sink.emit(SlotDelayed(slot_id="s0001", worker_id="w", error="OutcomeUnknown"))
    sink.flush()
    assert metrics(out) == []


WELL = replace(
    TURN,
    unclaimed_leases=0,
    stopped_shards=0,
    unreadable_leases=0,
    leases_of_unknown_lag=0,
    slots_missing=0,
)


@pytest.mark.parametrize(
    ("turn", "broken", "uncovered"),
    [
        ({}, 0, 0),
        ({"stopped_shards": 2}, 2, 0),
        ({"unreadable_leases": 1}, 1, 0),
        ({"unclaimed_leases": 3}, 0, 3),
        ({"unread_shards": 1, "hash_range_holes": 2}, 0, 3),
        # Silent: not one shard is less than five minutes behind.
        ({"millis_behind_latest_min": 300_001}, 0, 1),
        ({"millis_behind_latest_max": 900_000}, 0, 0),
    ],
)
def test_what_needs_a_person_at_once_and_what_if_it_lasts(clock, out, turn, broken, uncovered):
    few(clock, out).emit(replace(WELL, **turn))
    assert (total(out, "broken"), total(out, "uncovered")) == (broken, uncovered)


def test_a_lost_position_is_broken_wherever_it_is_told(clock, out):
    sink = few(clock, out)
    sink.emit(PositionLost(lease_key="a", done="1:0", policy="stop"))
    sink.flush()
    assert total(out, "broken") == 1


RINGS = 12  # the alarm `trouble`: as many within five minutes


@pytest.mark.parametrize(
    ("told", "times", "rings"),
    [
        (replace(WELL, slots_missing=1), 3, False),
        (replace(WELL, slots_missing=1), 4, True),
        (replace(WELL, leases_of_unknown_lag=2), 4, True),
        (replace(WELL, millis_behind_latest_min=60_000), 4, True),
        (replace(WELL, millis_behind_latest_min=59_999), 15, False),
        (ManagerTurnFailed(error="no"), 2, False),
        (ManagerTurnFailed(error="no"), 3, True),
        (
            TurnBegun(slot_id="s", worker_id="w", epoch=2, suspicious=True, recovery_ms=900),
            2,
            False,
        ),
        (
            TurnBegun(slot_id="s", worker_id="w", epoch=2, suspicious=True, recovery_ms=900),
            3,
            True,
        ),
        (ReadDelayed(lease_key="a", error="Throttled", failures=1), 29, False),
        (ReadDelayed(lease_key="a", error="Throttled", failures=1), 30, True),
        (
            LeaseAssigned(lease_key="a", worker_id="w", kind="STEAL", reason=HoldsFewest(2)),
            4,
            False,
        ),
        (LeaseAssigned(lease_key="a", worker_id="w", kind="STEAL", reason=HoldsFewest(2)), 5, True),
        (LeaseHealed(lease_key="a", reason=HoldsFewest(2)), 1, True),
        (SlotRestarted(slot_id="s", worker_id="w", reason=HoldsFewest(2)), 1, True),
    ],
)
def test_what_fails_again_and_again_is_trouble(clock, out, told, times, rings):
    sink = few(clock, out)
    for _ in range(times):
        sink.emit(told)
    sink.flush()
    assert (total(out, "trouble") >= RINGS) == rings


@pytest.mark.parametrize(
    ("failed", "minutes", "rings"), [(1, 3, True), (1, 2, False), (0, 9, False)]
)
def test_calls_that_fail_are_trouble_if_more_than_a_twentieth_do_for_three_minutes(
    clock, out, failed, minutes, rings
):
    sink = few(clock, out)
    for _ in range(minutes):
        for _ in range(19):
            sink.emit(handled("a"))
        for _ in range(failed):
            sink.emit(a_failure("ValueError"))
        sink.flush()
    assert (total(out, "trouble") >= RINGS) == rings


def test_a_turn_is_logged_when_it_says_something_else_than_the_last_one(clock, out):
    sink = few(clock, out)
    well = replace(TURN, stopped_shards=0)
    for turn in (TURN, replace(TURN, duration_ms=90, millis_behind_latest_max=1), well, TURN):
        sink.emit(turn)
    assert [line["stopped_shards"] for line in logs(out)] == [2, 0, 2]
    assert total(out, "total_leases") == 16
