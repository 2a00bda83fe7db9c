"""
How long does the first record of a sleeping fleet wait, and what does an hour of sleep cost?

The waking on the embedded AWS: the deployed template, real processes, no worker running. Records
are put at moments spread over the manager's minute, the worst one among them, right after a look;
from the answer of PutRecord to the end of the handler call. For 60 s (the default) and for 10 s.
An hour of sleep of 100 shards in virtual time, counted as the ledger counts it and priced by its
table. About half an hour in all, most of it waiting.

    python benchmarks/bench_sleep.py [--only wake] [--folder DIR]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import side_by_side
from embedded_fleet import FleetUnderLoad, fleet_under_load, wait_until
from side_by_side import Figures
from time_lines import TimeLine

from shardfleet.config import MANAGER_EVERY_MS, WAKING_MS
from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.cost.usage import HOURS_PER_MONTH, price_of
from shardfleet.domain.slots.slot import SlotState
from shardfleet_ops.cost.model import METRICS_ASLEEP
from shardfleet_testkit.simulation.sleeping import Idle, body_of, run_idle

REPETITIONS = 12
SHARDS = 4
# A look is over within this, and the next record has to wait for the next one.
AFTER_LOOK_S = 0.7


def contests() -> Iterator[Figures]:
    made: dict[str, Callable[[], Figures]] = {
        "wake": lambda: waking("wake", 60_000),
        "wake_10s": lambda: waking("wake_10s", 10_000),
        "sleep_hour": hour_of_sleep,
    }
    # Each takes minutes, so what was not asked for is not measured.
    for name in [word for word in sys.argv if word in made] or made:
        yield made[name]()


def waking(name: str, max_wake_ms: int) -> Figures:
    row = wakes(max_wake_ms).row()
    return Figures(
        name=name,
        compares=row["name"],
        summary=(
            f"{row['median_s']} s (median), {row['max_s']} s (maximum) of {row['repetitions']}"
        ),
        gate=f"{max_wake_ms / 1000:g} s at most",
        met=row["met"],
        details={"time_line": row},
    )


def wakes(max_wake_ms: int) -> TimeLine:
    """Let a fleet fall asleep and wake it, again and again."""
    config = {
        "sleep": True,
        "sleep_after_ms": 3_000,
        "max_wake_ms": max_wake_ms,
        "idle_end_ms": 12_000,
    }
    took = []
    with fleet_under_load(shards=SHARDS, config=config, records_per_s=0) as load:
        for number in range(REPETITIONS):
            wait_until(lambda: sleeps(load), what="a sleeping fleet", within_s=240)
            planned_ms = last_plan_ms(load)
            wait_until(partial(has_planned, load, planned_ms), what="a turn", within_s=120)
            # The first record has just missed the last look for the longest time, the others come
            # at moments spread over the minute.
            linger_s = (MANAGER_EVERY_MS - min(MANAGER_EVERY_MS, max_wake_ms - WAKING_MS)) / 1000
            time.sleep((linger_s + AFTER_LOOK_S + 60 * number / REPETITIONS) % 60)
            took.append(wake(load, number))
            print(f"wake {number + 1} ({max_wake_ms / 1000:g} s): {took[-1]:.2f} s", flush=True)
    return TimeLine(
        name=f"first record of a sleeping fleet, max_wake_ms {max_wake_ms}",
        took_s=tuple(took),
        most_s=max_wake_ms / 1000,
        kcl="its workers never sleep",
        remark="from the answer of PutRecord to the end of the handler call; no worker ran before",
    )


def wake(load: FleetUnderLoad, number: int) -> float:
    """Put one record; return how long it took, seconds."""
    known = len(load.lines())
    load.fleet.aws.client("kinesis").put_record(
        StreamName=load.fleet.stream_name, PartitionKey=f"key-{number}", Data=b"wake up"
    )
    put_ms = time.time_ns() // 1_000_000
    wait_until(lambda: len(load.lines()) > known, what="the record handled", within_s=240)
    return (load.lines()[known].at_ms - put_ms) / 1000


def sleeps(load: FleetUnderLoad) -> bool:
    """Tell whether no slot runs and every shard has a nap."""
    naps = load.documents("nap")
    slots = load.slots().values()
    return len(naps) == SHARDS and all(slot.state is SlotState.ENDED for slot in slots)


def last_plan_ms(load: FleetUnderLoad) -> int:
    """Return when the manager last ended a turn, epoch milliseconds."""
    (plan,) = load.documents("plan") or [{"at_ms": 0}]
    return int(plan["at_ms"])


def has_planned(load: FleetUnderLoad, since_ms: int) -> bool:
    """Tell whether the manager has ended a turn since then."""
    return last_plan_ms(load) > since_ms


def hour_of_sleep() -> Figures:
    """Count an hour of sleep of 100 shards, for both settings."""
    details = {}
    for max_wake_ms in (60_000, 10_000):
        idle = Idle(max_wake_ms=max_wake_ms)
        result = run_idle(idle)
        costs = price_of(result.hour.used, metric_days=METRICS_ASLEEP / 24)
        stream = idle.shards * PRICES.shard_hour
        asleep = costs.total - costs.by_item["metrics"]
        body = body_of(idle, result)
        del body["wakes_ms"]
        details[f"max_wake_ms {max_wake_ms}"] = {
            **body,
            "prices": f"{PRICES.region}, {PRICES.as_of}",
            "dollars_an_hour": {**costs.by_item, "all": costs.total, "stream": stream},
            "dollars_a_month": round(asleep * HOURS_PER_MONTH, 2),
            "part_of_the_stream": round(asleep / stream, 5),
            "part_of_the_stream_with_metrics": round(costs.total / stream, 5),
        }
    parts = [each["part_of_the_stream"] for each in details.values()]
    whole = [each["part_of_the_stream_with_metrics"] for each in details.values()]
    return Figures(
        name="sleep_hour",
        compares="an hour of sleep of 100 shards, in virtual time",
        summary=(
            f"no worker turn; {parts[0]:.2%} of what the stream costs with max_wake_ms 60,000 "
            f"({whole[0]:.2%} with CloudWatch's metrics), {parts[1]:.2%} with 10,000 "
            f"({whole[1]:.2%})"
        ),
        gate="1% of the stream at most, by default",
        met=whole[0] <= 0.01 and not any(each["hour"]["worker_turns"] for each in details.values()),
        details=details,
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
