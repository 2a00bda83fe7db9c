"""
How evenly do worker slots come to carry uneven shards, and how often do leases move then?

A fleet of 64 shards and 8 slots in the simulation, in virtual time: the manager and the workers are
the production engine, each call takes 2 to 40 ms there and back, nothing fails. The shards' loads
follow Zipf's law, and at first the eight heaviest ones are on one slot. Workers measure what they
do, the manager evens it out each third turn, leases are handed over. After each of ten balancing
runs: what the most loaded slot carries, as a part of max(average, heaviest shard), which nobody can
be below. Then an hour in which lease moves are counted, from what the managers tell. Beside it the
strategy that knows only how many leases a slot has.

Once with handlers that overlap, so that throughput decides, and once with handlers that take turns,
so that slots measure how busy they are, and that decides. About a quarter of an hour in all.

    python benchmarks/bench_balance.py [--only balance_s1] [--folder DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import side_by_side
from side_by_side import Figures

from shardfleet_testkit.simulation.balancing import Uneven, UnevenResult, run_uneven

MOST = 1.1
BUSY_PERCENT = 30
FLEETS = {
    "balance_s05": Uneven(exponent=0.5),
    "balance_s1": Uneven(exponent=1.0),
    "balance_busy_s05": Uneven(exponent=0.5, busy_percent=BUSY_PERCENT),
    "balance_busy_s1": Uneven(exponent=1.0, busy_percent=BUSY_PERCENT),
}


def contests() -> Iterator[Figures]:
    # Each takes minutes, so what was not asked for is not measured.
    for name in [word for word in sys.argv if word in FLEETS] or FLEETS:
        yield balance(name, FLEETS[name])


def balance(name: str, uneven: Uneven) -> Figures:
    """Run a fleet with either strategy; the one by count only for the ten runs."""
    by_load = run_uneven(uneven)
    by_count = run_uneven(replace(uneven, assignment="count", watched_runs=0))
    runs, end = uneven.runs, uneven.runs - 1
    even = even_after(by_load.ratios[:runs])
    metric = "how busy a slot is" if uneven.busy_percent else "throughput"
    return Figures(
        name=name,
        compares=(
            f"{uneven.shards} shards with Zipf load (s = {uneven.exponent:g}) on {uneven.slots} "
            f"slots, measured by {metric}, in virtual time: the most loaded slot as a part of "
            f"max(average, heaviest shard)"
        ),
        summary=(
            f"{by_load.at_first:.2f} at first, {by_load.ratios[end]:.2f} after {runs} balancing "
            f"runs and {sum(by_load.moves[:runs])} moves (by count: {by_count.ratios[end]:.2f}); "
            + (f"at most {MOST:g} from run {even} on; " if even else "")
            + f"{by_load.moves_watched} moves in the hour after, "
            f"{max(by_load.ratios[end:]):.2f} at most"
        ),
        gate=f"at most {MOST:g} within {runs} runs, then less than 1 move per hour",
        met=is_met(uneven, by_load) and not by_count.violations,
        details={
            "by_load": body_of(uneven, by_load),
            "by_count": body_of(uneven, by_count),
        },
    )


def even_after(ratios: tuple[float, ...]) -> int | None:
    """Return the number of the run from which on the load is even enough, None if it is not."""
    uneven = [number for number, ratio in enumerate(ratios, 1) if ratio > MOST]
    last = max(uneven, default=0)
    return last + 1 if last < len(ratios) else None


def is_met(uneven: Uneven, result: UnevenResult) -> bool:
    """Tell whether the fleet became even, stayed so, and came to rest, with nothing amiss."""
    is_even = max(result.ratios[uneven.runs - 1 :]) <= MOST
    is_well = not (result.violations or result.lost or result.repetitions)
    return is_even and is_well and not result.moves_watched


def body_of(uneven: Uneven, result: UnevenResult) -> dict[str, Any]:
    """Return a result as JSON-like values."""
    body = asdict(result)
    body["at_first"] = round(result.at_first, 4)
    body["ratios"] = [round(ratio, 4) for ratio in result.ratios]
    body["violations"] = [str(violation) for violation in result.violations]
    return {"fleet": asdict(uneven), **body}


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
