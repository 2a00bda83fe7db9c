"""What a forecast says of the next turn is what the manager then does, change by change."""

import ast
from collections import Counter
from pathlib import Path

from shardfleet.domain.slots.upkeep import SlotTask
from shardfleet.domain.turn_log import Entry, Happening, entry_of_event
from shardfleet_ops.explain import forecast as forecasts
from shardfleet_ops.explain.forecast import Question, what_if
from shardfleet_ops.operate.read import read_snapshot
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.simulation.drawn_fleet import DrawnFleet

SEEDS, TURNS = range(1, 26), 40
OFTEN = {
    *("a stop", "a sleeping shard", "a lost worker", "a fresh assignment"),
    *("a pause", "another application"),
    *(Happening.CREATED, Happening.ASSIGNED, Happening.TAKEN_OVER, Happening.HANDOVER),
    *(Happening.WOKEN, Happening.SLOT_STARTED, Happening.SLOT_RESTARTED),
}
SELDOM = {
    *("a suspicion", Happening.DELETED, Happening.FORCED, Happening.SLOT_DRAINED),
    Happening.REFUSED,
}


async def forecast_of(fleet):
    """Read the tables as the command line does, and ask for the next turns."""
    snapshot = await read_snapshot(
        fleet.config,
        leases=fleet.leases,
        state=fleet.state,
        stream=fleet.stream,
        clock=fleet.clock,
        entropy=SeededEntropy(7),
    )
    return snapshot, what_if(fleet.config, snapshot, Question())


def done_in(fleet, report):
    """Return what the manager told of a turn, and whom it asked to leave."""
    plan = report.plan
    owners = {lease.lease_key: lease.lease_owner or "" for lease in plan.leases}
    tasks = {each.slot_id: each for each in plan.slots.decisions}
    told = [entry_of_event(e, owners=owners) for e in fleet.events.events]
    leaves = [
        Entry(
            what=Happening.SLOT_DRAINED,
            subject=slot.slot_id,
            worker_id=slot.worker_id,
            reason=tasks[slot.slot_id].reason,
        )
        for slot in plan.snapshot.slots
        if slot.slot_id in tasks and tasks[slot.slot_id].task is SlotTask.LEAVE
    ]
    return [entry for entry in told if entry] + leaves


def in_order(entries):
    return sorted(entries, key=lambda entry: str(entry.row()))


def situations(snapshot, plan):
    """Name what makes an instant worth a comparison."""
    return {
        "a stop": snapshot.stopped,
        "a sleeping shard": plan.sleepers.asleep,
        "a lost worker": plan.losses.expired,
        "a fresh assignment": plan.losses.graces,
        "a pause": plan.paused,
        "another application": snapshot.foreign,
        "a suspicion": plan.suspicions,
    }


async def compare(seed, counted, monkeypatch):
    fleet = DrawnFleet(seed)
    for turn in range(TURNS):
        await fleet.go_on()
        # What comes after the next turn is played now and then: nobody can compare it.
        monkeypatch.setattr(forecasts, "TURNS_MOST", 1 if turn % 10 else 100)
        snapshot, forecast = await forecast_of(fleet)
        report = await fleet.turn()
        foreseen = [entry for turn, entry in forecast.steps if turn == 1]
        done = done_in(fleet, report)
        assert in_order(foreseen) == in_order(done), f"seed {seed} at {snapshot.at_ms} ms"
        counted.update(name for name, found in situations(snapshot, report.plan).items() if found)
        counted.update(entry.what.value for entry in done)
        counted["instants"] += 1


def test_at_a_thousand_instants_the_next_turn_is_the_one_foreseen(monkeypatch):
    counted = Counter()
    for seed in SEEDS:
        run_virtual(compare(seed, counted, monkeypatch))
    assert counted["instants"] == 1_000
    assert {name: counted[name] for name in OFTEN if counted[name] < 50} == {}
    assert {name for name in SELDOM if not counted[name]} == set()


def test_a_forecast_has_no_planner_of_its_own():
    tree = ast.parse(Path(forecasts.__file__).read_text("utf-8"))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert [name for name in names if name.startswith("plan_")] == ["plan_turn"]
