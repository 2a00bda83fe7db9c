"""
The long run: `python -m tests.spark.kills.run --runs N`, on real Spark and the embedded AWS.

Runs take turns between one process (`local`) and a standalone cluster of a master and two workers.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from shardfleet.local import EmbeddedAws
from tests.spark.kills.cluster import Cluster
from tests.spark.kills.one_run import Plan, Run, discard, make_table

RUNS = 20
LOCAL_KILLS = {"driver": 1, "source": 1, "worker": 4}
CLUSTER_KILLS = {"driver": 1, "executor": 2, "source": 1, "worker": 2}


def summary(outcomes, *, seed, crashed):
    """Return totals and every run, as JSON."""
    kills, tasks = Counter(), Counter()
    for each in outcomes:
        kills.update(each.kills)
        tasks.update({name: n for name, n in each.tasks.items() if isinstance(n, int)})
    wrong = Counter()
    for each in outcomes:
        wrong.update(asdict(each.verdict))
    return {
        "seed": seed,
        "runs": len(outcomes),
        "right": sum(each.verdict.is_right for each in outcomes),
        "crashed": crashed,
        "kills": {"total": kills.total(), **kills},
        "records": sum(each.records for each in outcomes),
        "rows": sum(each.rows for each in outcomes),
        "splits": sum(each.splits for each in outcomes),
        "merges": sum(each.merges for each in outcomes),
        "replayed_batches": sum(each.replayed_batches for each in outcomes),
        "seal_store_faults": sum(sum(each.seal_store_faults.values()) for each in outcomes),
        "tasks": dict(tasks),
        "verdict": dict(wrong),
        "load_average": os.getloadavg(),
        "each": [asdict(each) for each in outcomes],
    }


def write(path, found):
    """Write the result, whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    draft.replace(path)


def line(number, outcome):
    """Return one run in one line."""
    verdict = "right" if outcome.verdict.is_right else f"WRONG {asdict(outcome.verdict)}"
    return (
        f"{number}: {outcome.master}, seed {outcome.seed}, {sum(outcome.kills.values())} kills, "
        f"{outcome.records:,} records, {outcome.rows:,} rows, "
        f"{outcome.splits} splits, {outcome.merges} merges, "
        f"{outcome.tasks.get('speculative_attempts', 0)} speculative attempts, "
        f"{outcome.seconds:.0f} s: {verdict}"
    )


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills.run")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=None, help="of the choices; default: a new one")
    parser.add_argument("--only", choices=("local", "cluster"), help="where; default: both in turn")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="spark-kills-"))
    outcomes, crashed = [], []
    with EmbeddedAws() as aws, Cluster(folder / "cluster") as cluster:
        make_table(aws)
        for number in range(options.runs):
            on_cluster = number % 2 == 1 if options.only is None else options.only == "cluster"
            plan = Plan(
                kills=CLUSTER_KILLS if on_cluster else LOCAL_KILLS,
                seed=seed + 10 * number,
                cluster=on_cluster,
            )
            place = folder / f"run-{number}"
            try:
                outcome = Run(aws, place, plan, cluster if on_cluster else None).go()
            except Exception as error:  # noqa: BLE001 - the other runs are worth having
                crashed.append({"seed": plan.seed, "error": f"{error}"[-2000:]})
                print(f"{number}: seed {plan.seed}, in {place}: {error}", flush=True)  # noqa: T201
            else:
                outcomes.append(outcome)
                print(line(number, outcome), flush=True)  # noqa: T201
                if outcome.verdict.is_right and not options.keep:
                    discard(place)
            write(options.output, summary(outcomes, seed=seed, crashed=crashed))
    if not crashed and all(each.verdict.is_right for each in outcomes) and not options.keep:
        discard(folder)
    return 1 if crashed or not all(each.verdict.is_right for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
