"""
Count what fleets cost on the embedded AWS, beside what the model says: `make cost`.

Ten minutes a state, scaled to a month, each item within 15 %. A worker's turn of a quarter of an
hour would come once or never in that time, so the fleets' workers have short turns
(`tests.cost.fleets.OFTEN`), and the model is asked for those. What a fleet may cost is judged by
its defaults: the count of each item, times what the model says of it by the defaults over what it
says of it here.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.cost.fleets import COUNTED, OF_TWO_PROCESSES
from tests.cost.states import counted


def main():
    """Count, write, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=Path("build/cost/result.json"))
    parser.add_argument("--fleet", default="", help="those with this in their name")
    parser.add_argument("--at-once", type=int, default=2, help="so many fleets")
    parser.add_argument(
        "--feed", type=float, default=1.0, help="part of the records; no item depends on them"
    )
    given = parser.parse_args()
    chosen = [each for each in (*COUNTED, OF_TWO_PROCESSES) if given.fleet in each.name]
    rows = []
    with ProcessPoolExecutor(given.at_once, mp_context=get_context("spawn")) as pool:
        counts = partial(counted, minutes=given.minutes, feed=given.feed)
        for found in pool.map(counts, chosen):
            rows += found
            for row in found:
                told = "" if row["agrees"] else "  APART"
                print(  # noqa: T201 - for a person
                    f"{row['fleet']:30} {row['item']:28} model {row['model']:12.7f}  "
                    f"counted {row['counted']:12.7f}{told}",
                    flush=True,
                )
    given.output.parent.mkdir(parents=True, exist_ok=True)
    measured = {"minutes_a_state": given.minutes, "feed": given.feed, "at_once": given.at_once}
    body = {**measured, "dollars": "a month", "rows": rows}
    given.output.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
