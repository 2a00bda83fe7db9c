"""Forecasts by the manager's own planners; what happens afterwards is what they said."""

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.expiry import Reading, Sighting
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.reasons import NoWorkerHasRoom, Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.slots.slot import Slot, SlotState, heartbeat
from shardfleet.domain.turn import TurnSnapshot
from shardfleet.domain.turn_log import Happening
from shardfleet.errors import ConfigurationError
from shardfleet_ops.explain.forecast import Question, what_if
from shardfleet_ops.operate.read import read_snapshot
from shardfleet_testkit.memory import SeededEntropy
from tests.domain.builders import a_lease, a_shard
from tests.engine.manager_side.fleet_kit import ARN, Fleet, running_fleet
from tests.virtual import virtual

NOW = 10_000_000
QUARTERS = ("0-25", "25-50", "50-75", "75-100")


def a_config(**options):
    values = {"fleet": "f", "stream_arn": ARN, "lease_table": "l", "state_table": "s"}
    return FleetConfig(**values | {"leases_per_worker": 4} | options)


def a_slot(number, **changes):
    name = f"s{number:04d}"
    values = {"slot_id": name, "worker_id": f"f-{name}", "state": SlotState.RUNNING, "name": name}
    return Slot(**values | {"start_epoch": 1, "heartbeat_ms": NOW - 1_000} | changes)


def a_snapshot(owners, slots, **options):
    """Four open shards with these owners, by slot number; 0 is nobody."""
    leases = [
        a_lease(f"shardId-{n:012d} at 5" + (f" by f-s{owner:04d}" if owner else ""))
        for n, owner in enumerate(owners)
    ]
    shards = [a_shard(f"shardId-{n:012d} {part} open") for n, part in enumerate(QUARTERS)]
    reading = Reading(began_ms=NOW, ended_ms=NOW)
    survey = Survey(leases=tuple(leases))
    return TurnSnapshot(
        at_ms=NOW,
        reading=reading,
        began_ms=NOW,
        survey=survey,
        slots=slots,
        shards=shards,
        **options,
    )


def ask(snapshot, config=None, **question):
    return what_if(config or a_config(), snapshot, Question(**question))


async def forecast_of(fleet, **question):
    """Ask what the fleet's tables say now."""
    snapshot = await read_snapshot(
        fleet.config,
        leases=fleet.leases,
        state=fleet.state,
        stream=fleet.stream,
        clock=fleet.clock,
        entropy=SeededEntropy(1),
    )
    return what_if(fleet.config, snapshot, Question(**question))


def counts(held):
    return {worker_id: len(keys) for worker_id, keys in held.items()}


def told(forecast, what):
    return [entry for _, entry in forecast.steps if entry.what is what]


def test_where_all_is_well_nothing_would_happen():
    forecast = ask(a_snapshot((1, 1, 2, 2), [a_slot(1), a_slot(2)]), a_config(min_workers=2))
    assert (forecast.steps, forecast.turns, forecast.settled) == ((), 0, True)
    assert forecast.before == forecast.after
    assert forecast.left == {}


def test_more_workers_are_started_first_and_then_get_shards_until_all_have_as_many():
    forecast = ask(a_snapshot((1, 1, 1, 1), [a_slot(1)]), workers=4)
    assert forecast.settled
    assert counts(forecast.after) == {f"f-s000{n}": 1 for n in (1, 2, 3, 4)}
    assert [entry.subject for entry in told(forecast, Happening.SLOT_STARTED)] == [
        "s0002",
        "s0003",
        "s0004",
    ]
    moves = told(forecast, Happening.HANDOVER)
    assert len(moves) == 3
    assert all(entry.before == "f-s0001" and entry.reason for entry in moves)


def test_with_fewer_workers_those_with_least_hand_over_and_the_rest_take_over():
    forecast = ask(a_snapshot((1, 2, 3, 3), [a_slot(1), a_slot(2), a_slot(3)]), workers=1)
    assert counts(forecast.after) == {"f-s0003": 4}
    drained = [(turn, e.subject) for turn, e in forecast.steps if e.what is Happening.SLOT_DRAINED]
    assert drained == [(1, "s0001"), (1, "s0002")]
    assert len(told(forecast, Happening.HANDOVER)) == 2
    assert not told(forecast, Happening.RELEASED)


def test_a_worker_that_has_ended_is_the_first_to_be_started_when_another_is_needed():
    lags = {f"shardId-{n:012d}": 900_000 for n in range(4)}
    slots = [a_slot(1, drain=True), a_slot(2, lags_ms=lags)]
    # Until 180 s have passed since then, no more are asked for.
    forecast = ask(a_snapshot((1, 2, 2, 2), slots, pace=Pace(raised_ms=NOW - 100_000)))

    assert told(forecast, Happening.RELEASED)[0].before == "f-s0001"
    assert told(forecast, Happening.SLOT_STARTED)[0].subject == "s0001"


def test_too_few_workers_leave_shards_to_nobody_and_say_so():
    config = a_config(leases_per_worker=1)
    forecast = ask(a_snapshot((1, 2, 3, 3), [a_slot(1), a_slot(2), a_slot(3)]), config, workers=1)
    assert len(forecast.left) == 2  # The worker that stays keeps its two, of which one is too many.
    assert set(forecast.left.values()) == {NoWorkerHasRoom()}


@pytest.mark.parametrize("name", ["s0002", "f-s0002"])
def test_a_lost_workers_shards_are_taken_over_at_once_and_it_is_started_again(name):
    snapshot = a_snapshot((1, 1, 2, 2), [a_slot(1), a_slot(2)])
    forecast = ask(snapshot, a_config(min_workers=2), lose=name)
    first = [entry for turn, entry in forecast.steps if turn == 1]
    assert [e.what for e in first] == [
        Happening.SLOT_RESTARTED,
        Happening.TAKEN_OVER,
        Happening.TAKEN_OVER,
    ]
    assert {e.before for e in first[1:]} == {"f-s0002"}
    assert forecast.settled
    assert counts(forecast.after) == {"f-s0001": 2, "f-s0002": 2}


def test_only_what_an_owner_that_is_asked_gives_away_is_called_a_handover():
    """What has expired is taken over, though its owner may still be about."""
    key, moves = "shardId-000000000000", (Happening.TAKEN_OVER, Happening.MOVED, Happening.HANDOVER)
    snapshot = a_snapshot((1, 1, 1, 1), [a_slot(1), a_slot(2)])

    def moved(found):
        entries = ask(found, a_config(min_workers=2)).steps
        return [entry for turn, entry in entries if turn == 1 and entry.what in moves]

    expired = replace(snapshot, sightings={key: Sighting(0, "f-s0001", NOW - 60_000)})
    assert [(e.what, e.subject) for e in moved(expired)] == [(Happening.TAKEN_OVER, key)]
    ours = replace(snapshot, rebalance=True)
    assert {(e.what, e.before) for e in moved(ours)} == {(Happening.HANDOVER, "f-s0001")}


def test_a_split_shards_children_stay_with_its_worker_as_far_as_it_has_room():
    config = a_config(leases_per_worker=2, max_workers=3)
    forecast = ask(
        a_snapshot((1, 1, 2, 2), [a_slot(1), a_slot(2)]), config, split="shardId-000000000001"
    )
    (finished,) = told(forecast, Happening.FINISHED)
    assert finished.subject == "shardId-000000000001"
    assert [(e.subject[-1], e.worker_id) for e in told(forecast, Happening.APPEARED)] == [
        ("4", "f-s0001"),
        ("5", ""),
    ]
    assert [e.subject for e in told(forecast, Happening.SLOT_STARTED)] == ["s0003"]
    held = [key[-1] for keys in forecast.after.values() for key in keys]
    assert sorted(held) == ["0", "2", "3", "4", "5"]


def test_load_moves_with_its_lease_so_that_the_forecast_comes_to_rest():
    rates = (900.0, 300.0, 300.0, 300.0)
    snapshot = a_snapshot((1, 1, 1, 2), [a_slot(1, busy=800, cpu=600), a_slot(2, busy=100, cpu=50)])
    leases = [
        replace(lease, throughput_kbps=rate)
        for lease, rate in zip(snapshot.survey.leases, rates, strict=True)
    ]
    survey = Survey(leases=tuple(leases))
    forecast = ask(replace(snapshot, survey=survey), a_config(min_workers=2))
    assert forecast.settled
    moved = {entry.subject[-1] for entry in told(forecast, Happening.HANDOVER)}
    assert moved == {"1", "2"}
    assert sorted(len(keys) for keys in forecast.after.values()) == [1, 3]


def test_a_shard_that_moves_is_as_far_behind_with_its_next_worker():
    lags = {f"shardId-{n:012d}": 90_000 for n in range(4)}
    forecast = ask(a_snapshot((1, 1, 1, 1), [a_slot(1, lags_ms=lags)]))
    assert forecast.settled
    assert counts(forecast.after) == {f"f-s000{n}": 1 for n in (1, 2, 3, 4)}


def test_paused_shards_stay_with_nobody_and_need_no_worker():
    pause = Pause("ann", NOW)
    paused = {f"shardId-{n:012d}": pause for n in range(2)}
    pauses = Pauses(leases=paused)
    snapshot = a_snapshot((0, 0, 1, 1), [a_slot(1)], pauses=pauses)
    forecast = ask(snapshot, a_config(leases_per_worker=2))
    assert forecast.steps == ()
    assert forecast.left == paused


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"lose": "f-s9"}, "--lose f-s9: no such worker; the fleet's are: f-s0001"),
        ({"split": "shard-9"}, "--split shard-9: no open shard with a lease; these are: shardId-"),
    ],
)
def test_what_the_fleet_has_not_is_refused_with_what_it_has(question, message):
    with pytest.raises(ConfigurationError, match=message):
        ask(a_snapshot((1, 1, 1, 1), [a_slot(1)]), **question)


@virtual
async def test_what_the_forecast_says_is_what_the_manager_then_does():
    fleet = Fleet(leases_per_worker=4, min_workers=2)
    await running_fleet(fleet)
    found = await fleet.state.slot("s0002")
    lost = replace(found.slot, state=SlotState.ENDED, assigned=())
    await fleet.state.write_slot(lost, found.version)
    forecast = await forecast_of(fleet)
    fleet.events.events.clear()
    await fleet.manager.turn()
    done = [(e.lease_key, e.worker_id, e.reason) for e in fleet.named("LeaseAssigned")]
    assert done
    assert done == [
        (e.subject, e.worker_id, e.reason)
        for turn, e in forecast.steps
        if turn == 1 and e.what is Happening.TAKEN_OVER
    ]


@virtual
async def test_a_stopped_shard_asks_for_no_slot_in_a_forecast_either():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    stopped = min(fleet.leases.leases)
    now_ms = fleet.clock.now_ms()
    await fleet.state.write_stop(
        StopNote(
            lease_key=stopped,
            position="5:0",
            error="bad",
            attempts=3,
            worker_id="f-s0001",
            at_ms=now_ms,
        )
    )
    lags = dict.fromkeys(fleet.leases.leases, 0) | {stopped: 600_000}
    await fleet.state.update_slot(
        "s0001",
        lambda s: heartbeat(s, now_ms=now_ms, served_seq=s.assign_seq, lags_ms=lags),
    )
    forecast = await forecast_of(fleet)
    report = await fleet.manager.turn()
    assert report.plan.slots.wanted == 1
    assert forecast.steps == ()
