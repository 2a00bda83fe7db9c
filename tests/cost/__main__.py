"""
Count what fleets cost on the embedded AWS, beside what the model says: `make cost`.

Ten minutes a state, scaled to a month. An item on which both agree within 15 % agrees, and so does
one whose difference is less than a quarter of a dollar a month: in ten minutes a turn of a quarter
of an hour is entered once or not at all.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from embedded_fleet import SteadyFeed, fleet_under_load, wait_until

from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.slots.slot import SlotState
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_ops.cost.model import State
from tests.cost.count import StateCount, TablesCount
from tests.cost.fleets import COUNTED, OF_TWO_PROCESSES
from tests.processes.fleet import Processes, eventually

AGREES, FLOOR = 0.15, 0.25
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
        wait_s = min(SETTLING_S, minutes * 60)
        StateCount(load.fleet).costs(wait_s)
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
        sizes = [len(repr(item)) for name in (processes.name, f"{processes.name}-fleet")
                 for page in processes.tables.get_paginator("scan").paginate(TableName=name)
                 for item in page["Items"]]  # fmt: skip
    found["storage"] = sum(sizes) / 1e9 * PRICES.table_gb_month
    return {"alarms": 0.0, "dashboard": 0.0, **found}, counts


def counted(fleet, minutes):
    """Yield a row for each item of a fleet."""
    found, counts = (count_processes if fleet.processes else count_stack)(fleet, minutes)
    for item, dollars in fleet.costs.by_item.items():
        apart = abs(dollars - found[item])
        yield {
            "fleet": fleet.name,
            "item": item,
            "model": round(dollars, 3),
            "counted": round(found[item], 3),
            "agrees": apart <= max(FLOOR, AGREES * found[item]),
        }
    totals = {"model": fleet.costs.total, "counted": sum(found.values())}
    yield {
        "fleet": fleet.name,
        "item": "total beside the dashboard",
        **{name: round(total - found["dashboard"], 2) for name, total in totals.items()},
        "agrees": True,
        "counts": counts,
    }


def main():
    """Count, write, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=Path("build/cost/result.json"))
    parser.add_argument("--fleet", default="", help="those with this in their name")
    given = parser.parse_args()
    rows = []
    for fleet in (*COUNTED, OF_TWO_PROCESSES):
        if given.fleet in fleet.name:
            for row in counted(fleet, given.minutes):
                rows.append(row)
                told = "" if row["agrees"] else "  APART"
                print(  # noqa: T201 - for a person
                    f"{row['fleet']:30} {row['item']:28} model {row['model']:8.2f}  "
                    f"counted {row['counted']:8.2f}{told}",
                    flush=True,
                )
    given.output.parent.mkdir(parents=True, exist_ok=True)
    body = {"minutes_a_state": given.minutes, "dollars": "a month", "rows": rows}
    given.output.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
