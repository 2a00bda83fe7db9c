"""A fleet of `make cost` in its state, counted: rows of items beside what the model says."""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from embedded_fleet import SteadyFeed, fleet_under_load, wait_until

from shardfleet.domain.slots.slot import SlotState
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_ops.cost.model import State
from tests.cost.count import StateCount, TablesCount, between_looks, stored_dollars
from tests.processes.fleet import Processes, eventually

AGREES = 0.15
SETTLING_S = 90  # the manager's second look at a fleet that has just begun


def is_settled(load, fleet):
    """Return whether the fleet is in its state."""
    slots = list(load.slots().values())
    if fleet.state is State.ASLEEP:
        ended = all(slot.state is SlotState.ENDED for slot in slots)
        return ended and len(load.documents("nap")) == fleet.shards
    owners = load.owners()
    return len(owners) == fleet.shards and None not in owners.values()


def is_shared(processes, count):
    """Return whether each lease has a process that lives, and each process has leases."""
    shares = processes.shares()
    return len(shares) == count and None not in shares


def count_stack(fleet, minutes):
    """Return dollars by item of a stack, and the counts."""
    with fleet_under_load(
        shards=fleet.shards,
        config=fleet.config,
        records_per_s=fleet.records_per_s,
        per_record_ms=0.1,
        worker={"memory_mb": fleet.worker_mb},
    ) as load:
        wait_until(lambda: is_settled(load, fleet), what=fleet.name, within_s=300)
        time.sleep(min(SETTLING_S, minutes * 60))
        between_looks(load.fleet)
        return StateCount(load.fleet).costs(minutes * 60)


def count_processes(fleet, minutes):
    """Return dollars by item of processes, and the counts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedAws() as aws,
        Processes(aws, folder, shards=fleet.shards, failover_ms=10_000) as processes,
    ):
        (Path(folder) / "worked.py").write_text("def handle(batch):\n    pass\n", "utf-8")
        stream = SimpleNamespace(aws=aws, stream_name=processes.name)
        feed = SteadyFeed(stream, records_per_s=fleet.records_per_s)
        feed.start()
        try:
            for _ in range(fleet.processes):
                processes.start()
            eventually(lambda: is_shared(processes, fleet.processes), within_s=300)
            time.sleep(min(SETTLING_S, minutes * 60))
            found, counts = TablesCount(aws).costs(minutes * 60)
        finally:
            feed.stop()
        names = (processes.name, f"{processes.name}-fleet")
        found["storage"] = stored_dollars(processes.tables, names)
    return {"alarms": 0.0, "dashboard": 0.0, **found}, counts


def counted(fleet, minutes, feed=1.0):
    """Return a row for each item of a fleet, and two of all; ``feed``: part of its records."""
    often = replace(fleet.often, records_per_s=feed * fleet.records_per_s)
    found, counts = (count_processes if fleet.processes else count_stack)(often, minutes)
    model, by_default = often.costs.by_item, fleet.costs.by_item
    rows = [
        {
            "item": item,
            "model": round(dollars, 8),
            "counted": round(found[item], 8),
            "agrees": abs(dollars - found[item]) <= AGREES * found[item],
        }
        for item, dollars in model.items()
    ]
    defaults = {
        item: found[item] * (by_default[item] / dollars if dollars else 1)
        for item, dollars in model.items()
    }
    totals = {
        "total beside the dashboard": (model, found),
        "the same by the defaults": (by_default, defaults),
    }
    for name, sides in totals.items():
        said, seen = (sum(side[item] for item in model if item != "dashboard") for side in sides)
        rows.append({"item": name, "model": round(said, 2), "counted": round(seen, 2)})
    rows[-2] |= {"agrees": abs(said - seen) <= AGREES * seen, "counts": counts}
    rows[-1] |= {"most": fleet.most, "agrees": max(said, seen) <= fleet.most}
    return [{"fleet": fleet.name, **row} for row in rows]
