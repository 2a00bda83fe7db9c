"""What a person sees of a fleet: the state of each lease, and the sums."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import HandlerSigns, ShardWay
from shardfleet_ops.explain.fleet_view import (
    FleetReading,
    LeaseState,
    failures,
    lease_rows,
    said_of,
    slot_rows,
    summary,
)
from tests.domain.builders import a_failure, a_lease, number

NOW_MS, FAILOVER_MS = 1_000_000, 10_000


def a_slot(slot_id, worker_id, **more):
    more = {"state": SlotState.RUNNING, "name": "n", "start_epoch": 1} | more
    return Slot(slot_id=slot_id, worker_id=worker_id, **more)


def a_reading(*leases, **more):
    more = {"slots": (), "sightings": {}, "stops": {}, "planned_ms": 0} | more
    return FleetReading(
        at_ms=NOW_MS, leases=[a_lease(line) for line in leases], failover_ms=FAILOVER_MS, **more
    )


def states(reading):
    return {row.lease_key: row.state for row in lease_rows(reading)}


STILL = {"1": Sighting(counter=4, owner="a", first_seen_ms=NOW_MS - FAILOVER_MS)}
NAP = Nap(lease_key="1", worker_id="a", since_ms=7_000, done=number("55"))
WHY_ASLEEP = "asleep since 1970-01-01T00:00:07Z: a found nothing more to read"
STOPPED = {
    "1": StopNote(
        lease_key="1",
        attempts=3,
        worker_id="w",
        at_ms=NOW_MS - 7,
        position="55:2",
        error="ValueError: x",
    )
}


@pytest.mark.parametrize(
    ("lease", "more", "state", "why"),
    [
        ("1 at 55 by a", {}, LeaseState.READING, ""),
        ("1 at 55", {}, LeaseState.UNOWNED, ""),
        ("1 at TRIM_HORIZON from 0", {}, LeaseState.UNOWNED, "parents: 0"),
        ("1 at TRIM_HORIZON by a from 0", {}, LeaseState.WAITING, "parents: 0"),
        ("1 at 55 by b renewed-by a", {}, LeaseState.HANDOVER, "next: b"),
        ("1 at SHARD_END", {}, LeaseState.FINISHED, ""),
        ("1 at 55 by a counter 4", {"sightings": STILL}, LeaseState.EXPIRED, "10 s"),
        ("1 at 55 by a counter 5", {"sightings": STILL}, LeaseState.READING, ""),
        ("1 at 55 by a", {"stops": STOPPED}, LeaseState.STOPPED, "at 55:2: ValueError: x"),
        ("1 at SHARD_END", {"stops": STOPPED}, LeaseState.FINISHED, ""),
        ("2 at 55", {"unreadable": {"1": "no counter"}}, LeaseState.UNREADABLE, "no counter"),
        ("1 at 55", {"naps": {"1": NAP}}, LeaseState.ASLEEP, WHY_ASLEEP),
        ("1 at 55", {"naps": {"1": NAP}, "stops": STOPPED}, LeaseState.STOPPED, "at 55:2"),
    ],
)
def test_a_lease_has_the_state_that_matters_most(lease, more, state, why):
    row = lease_rows(a_reading("0 at 5 by a", lease, **more))[1]

    assert row.state is state
    assert why in row.why


def test_a_child_of_a_finished_parent_does_not_wait():
    reading = a_reading("0 at SHARD_END", "1 at TRIM_HORIZON by a from 0")

    assert states(reading)["1"] is LeaseState.READING


def test_the_owner_of_a_handover_is_the_one_that_still_renews():
    assert lease_rows(a_reading("1 at 55 by b renewed-by a"))[0].owner == "a"


def test_a_slot_shows_its_leases_and_the_largest_of_their_lags():
    slot = a_slot("s1", "a", heartbeat_ms=NOW_MS - 300, lags_ms={"1": 50, "2": 9_000, "3": -1})
    reading = a_reading("1 at 5 by a", "2 at 5 by a", "3 at 5 by a", "4 at 5 by b", slots=[slot])

    (row,) = slot_rows(reading)
    assert (row.leases, row.lag_ms, row.heartbeat_ms) == (3, 9_000, 300)


def test_a_call_that_runs_long_is_told_beside_its_shard_while_it_runs():
    signs = HandlerSigns(calls_ms={"1": NOW_MS - 50_400}, remarks=("it prints: print less",))
    slots = [a_slot("s1", "a", turn_open=True, signs=signs), a_slot("s2", "b", signs=signs)]
    reading = a_reading("1 at 5 by a", "2 at 5 by b", slots=slots)

    rows = lease_rows(reading)
    assert [row.why for row in rows] == ["a call of its handler has been running for 50 s", ""]
    assert {row.state for row in rows} == {LeaseState.READING}
    assert summary(reading).long_calls_ms == {"1": 50_400}
    assert summary(reading).remarks == {"it prints: print less": ("s1", "s2")}
    ended = replace(slots[0], turn_open=False)
    assert summary(a_reading("1 at 5 by a", slots=[ended])).long_calls_ms == {}


def test_how_a_shard_is_read_is_told_by_the_slot_that_has_it():
    signs = HandlerSigns(ways={"1": ShardWay(gap_ms=5_240), "2": ShardWay(polled="no right")})
    stale = HandlerSigns(ways={"1": ShardWay(polled="before it was handed over")})
    slots = [a_slot("s1", "a", signs=signs), a_slot("s2", "b", signs=stale)]
    reading = a_reading("1 at 5 by a", "2 at 5 by a", "3 at 5 by b", slots=slots)

    assert [row.way for row in lease_rows(reading)] == [*signs.ways.values(), None]
    assert [row.why for row in lease_rows(reading)] == [
        "pushed, at most 5.2 s without an event",
        "polled for now, for it could not be pushed: no right",
        "",
    ]


def test_a_finished_lease_is_nobodys_load():
    assert slot_rows(a_reading("1 at SHARD_END by a", slots=[a_slot("s1", "a")]))[0].leases == 0


def test_the_sums_count_states_foreign_workers_and_what_is_unknown():
    slot = a_slot("s1", "a", heartbeat_ms=NOW_MS, lags_ms={"1": 700, "4": 20})
    reading = a_reading(
        "0 at SHARD_END by java-9",
        "1 at 5 by a",
        "2 at 5 by java-7",
        "3 at 5",
        "4 at 5 by a",
        slots=[slot],
        planned_ms=NOW_MS - 4_000,
    )

    found = summary(reading)
    assert found.leases == {
        LeaseState.FINISHED: 1,
        LeaseState.READING: 3,
        LeaseState.UNOWNED: 1,
    }
    assert found.slots == {SlotState.RUNNING: 1}
    assert found.workers == ("java-7",)
    assert (found.lag_ms, found.lag_unknown, found.plan_age_ms) == (700, 2, 4_000)


def test_what_others_read_is_not_paused_with_the_fleet():
    reading = a_reading(
        "1 at 5 by a",
        "2 at 5 by java-7",
        "3 at 5",
        slots=[a_slot("s1", "a")],
        pauses=Pauses(fleet=Pause("ann", NOW_MS - 60_000)),
    )

    paused = LeaseState.PAUSED
    assert states(reading) == {"1": paused, "2": LeaseState.READING, "3": paused}
    assert [row.lag_ms for row in lease_rows(reading)] == [60_000, None, 60_000]


def test_who_sleeps_is_up_to_date_as_long_as_the_manager_looks():
    def lag(planned_ms):
        reading = a_reading("1 at 55", naps={"1": NAP}, planned_ms=planned_ms)
        return lease_rows(reading)[0].lag_ms

    assert lag(NOW_MS - 60_000) == 0
    assert lag(NOW_MS - 600_000) == 600_000


def test_a_lease_whose_worker_fails_is_not_read_and_says_why():
    slots = [a_slot("s1", "a", failure=a_failure()), a_slot("s2", "b")]
    reading = a_reading("1 at 55 by a counter 4", "2 at 5 by b", slots=slots, sightings=STILL)

    first, second = lease_rows(reading)
    assert (first.state, second.state) == (LeaseState.FAILING, LeaseState.READING)
    assert first.why == (
        "its handler cannot be imported: no settings (/o.py, line 3), 3 times in a row since "
        "40 s ago"
    )


def test_one_crash_is_told_but_its_shards_are_read():
    once = a_failure(kind=FailureKind.MEMORY, times=1)
    reading = a_reading("1 at 55 by a", slots=[a_slot("s1", "a", failure=once)])

    assert states(reading) == {"1": LeaseState.READING}
    assert slot_rows(reading)[0].failure is once
    assert "1 s ago" in summary(reading).failures[0].said


@pytest.mark.parametrize(
    ("ago_ms", "said"), [(119_999, "119 s"), (120_000, "2 min"), (179_999, "2 min")]
)
def test_two_minutes_and_more_are_told_in_minutes(ago_ms, said):
    failure = a_failure(times=1, last_ms=NOW_MS - ago_ms)

    assert said_of(failure, now_ms=NOW_MS).endswith(f", {said} ago")


def test_workers_that_fail_of_the_same_are_told_together_those_that_have_ended_not():
    failure, slow = a_failure(), a_failure(kind=FailureKind.TIME_OUT, times=2, first_ms=700_000)
    slots = [
        a_slot("s3", "c", failure=slow),
        a_slot("s2", "b", failure=a_failure(times=5)),
        a_slot("s1", "a", failure=failure),
        a_slot("s4", "d", failure=failure, state=SlotState.ENDED),
    ]
    found = failures(slots, now_ms=NOW_MS)

    assert [row.slots for row in found] == [("s1", "s2"), ("s3",)]
    assert found[0].said.startswith("s1, s2 fail: its handler cannot be imported")
    assert "5 times in a row" in found[0].said
    assert found[1].said.endswith("2 times in a row since 5 min ago")
    assert "shardfleet logs s3" in found[1].remedy


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_of_failure_says_what_to_do(kind):
    (row,) = failures([a_slot("s1", "a", failure=a_failure(kind=kind))], now_ms=NOW_MS)

    assert row.remedy
    assert "{" not in row.remedy
    assert row.said.count("no settings") == 1
