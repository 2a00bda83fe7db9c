"""
How soon is a record read after a deployment, a crash, a lost worker, the end of a shard?

On the embedded AWS: the deployed template, real processes, a steady feed; from the ledger of what
handlers finished. Each at least ten times; median and maximum, and beside them what the KCL's
documentation and code say. It waits rather than computes, but on a busy machine processes start
late; look at the load average.

    python benchmarks/bench_time_lines.py [--only time_line_crash] [--folder DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import side_by_side
from side_by_side import Figures
from time_lines import (
    Say,
    TimeLine,
    crashes,
    crowded_splits,
    first_deploys,
    lost_slots,
    shard_ends,
)

REPETITIONS = 10
LINES: dict[str, Callable[[int, Say], TimeLine]] = {
    "time_line_deployment": first_deploys,
    "time_line_crash": crashes,
    "time_line_lost_slot": lost_slots,
    "time_line_shard_end": shard_ends,
    "time_line_crowded_split": crowded_splits,
}


def contests() -> Iterator[Figures]:
    # Each takes minutes, so what was not asked for is not measured.
    for name in [word for word in sys.argv if word in LINES] or LINES:
        yield figures(name, LINES[name](REPETITIONS, print))


def figures(name: str, line: TimeLine) -> Figures:
    row = line.row()
    return Figures(
        name=name,
        compares=line.name,
        summary=(
            f"{row['median_s']} s (median), {row['max_s']} s (maximum) of {row['repetitions']}; "
            f"KCL: {line.kcl}"
        ),
        gate=f"{line.most_s:g} s at most",
        met=row["met"],
        details={"time_line": row},
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
