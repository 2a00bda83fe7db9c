"""
The long run: `python -m tests.spark.kills.run --runs N`, on real Spark and the embedded AWS.

Every other run is in one process (`local`), the rest on a standalone cluster of a master and two
workers. Ctrl-C ends it after the runs that are under way; the result has every run that was ended.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.spark.kills.cluster import Cluster
from tests.spark.kills.driver import Driver
from tests.spark.kills.one_run import Plan, Run, discard, make_table
from tests.spark.kills.verdict import event_figures

RUNS = 20
LOCAL_KILLS = {"source": 1, "worker": 5}
CLUSTER_KILLS = {"executor": 1, "source": 1, "worker": 4}
DRIVER_KILLED_EVERY = 4
"""Of the runs of a lane: a driver starts for far longer than anything else lasts."""


def summary(outcomes, *, seed, crashed, event_folders):
    """Return totals and every run, as JSON."""
    kills, tasks = Counter(), Counter()
    for each in outcomes:
        kills.update(each.kills)
    for folder in event_folders:
        tasks.update(event_figures(folder))
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
    verdict = (
        "right"
        if outcome.verdict.is_right
        else f"WRONG {asdict(outcome.verdict)} {outcome.misplaced}"
    )
    return (
        f"{number}: {outcome.master}, seed {outcome.seed}, {sum(outcome.kills.values())} kills, "
        f"{outcome.records:,} records, {outcome.rows:,} rows, "
        f"{outcome.splits} splits, {outcome.merges} merges, "
        f"{outcome.replayed_batches} batches replayed, "
        f"{outcome.seconds:.0f} s: {verdict}"
    )


class Suite:
    """
    All runs: those in one process and those on the cluster are two lanes, side by side if wanted.

    Args:
        aws: the embedded AWS.
        cluster: the cluster.
        folder: for everything that is written.
        options: of the command line.

    """

    def __init__(self, aws, cluster, folder, options):
        self._aws = aws
        self._cluster = cluster
        self._folder = folder
        self._options = options
        self._lock = threading.Lock()
        self._outcomes = []
        self._crashed = []
        self._event_folders = []
        self._stopping = threading.Event()

    def stop(self, *_):
        """Begin no further run: a handler of signals."""
        self._stopping.set()

    @property
    def is_right(self):
        """Whether all came out right; without a batch that was run again nothing was proved."""
        return (
            not self._crashed
            and all(each.verdict.is_right for each in self._outcomes)
            and any(each.replayed_batches for each in self._outcomes)
        )

    def lane(self, numbers, *, name):
        """Do some of the runs, one after the other, with one driver until it is killed."""
        folder, cluster = self._folder / name, self._cluster if name == "cluster" else None
        self._event_folders.append(folder / "events")
        with Driver(folder, cluster) as driver:
            for turn, number in enumerate(numbers):
                kills = dict(CLUSTER_KILLS if cluster else LOCAL_KILLS)
                if (turn + 1) % DRIVER_KILLED_EVERY == 0:
                    kills["driver"] = 1
                plan = Plan(kills=kills, seed=self._options.seed + 10 * number)
                run = Run(self._aws, driver, number, plan)
                if not self._one(run, number, plan) or self._stopping.is_set():
                    break
        self._report()

    def _one(self, run, number, plan):
        try:
            outcome = run.go()
        except Exception as error:  # noqa: BLE001 - the other lane's runs are worth having
            print(f"{number}: seed {plan.seed}, in {run.folder}: {error}", flush=True)  # noqa: T201
            self._crashed.append({"seed": plan.seed, "error": f"{error}"[-2000:]})
            self._report()
            return False
        print(line(number, outcome), flush=True)  # noqa: T201
        self._outcomes.append(outcome)
        self._report()
        if outcome.verdict.is_right and not self._options.keep:
            discard(run.folder)
        return True

    def _report(self):
        with self._lock:
            found = summary(
                self._outcomes,
                seed=self._options.seed,
                crashed=self._crashed,
                event_folders=self._event_folders,
            )
            write(self._options.output, found)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills.run")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, help="of the choices; default: a new one")
    parser.add_argument("--only", choices=("local", "cluster"), help="where; default: both in turn")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="2: both side by side")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
    numbers = range(options.runs)
    lanes = {"local": numbers[::2], "cluster": numbers[1::2]}
    if options.only is not None:
        lanes = {options.only: numbers}
    folder = Path(tempfile.mkdtemp(prefix="spark-kills-"))
    with (
        EmbeddedAws() as aws,
        patch.dict(os.environ, aws.key.environment()),
        Cluster(folder / "cluster") as cluster,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        make_table(aws)
        suite = Suite(aws, cluster, folder, options)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, suite.stop)
        running = [pool.submit(suite.lane, some, name=name) for name, some in lanes.items() if some]
        for each in running:
            each.result()
    if suite.is_right and not options.keep:
        discard(folder)
    return 0 if suite.is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
