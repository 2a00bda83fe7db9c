"""One run: a stream under load, two queries on it, and processes killed until enough have been."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shardfleet.local.chaos.faults import FaultDice
from shardfleet.local.chaos.proxy import FaultyProxy
from tests.spark.conftest import SETTINGS
from tests.spark.kills import processes, program
from tests.spark.kills.cluster import spark_environment
from tests.spark.kills.load import Load
from tests.spark.kills.verdict import (
    Verdict,
    event_figures,
    file_rows,
    judge,
    replays,
    shard_counts,
)

ROOT = Path(__file__).resolve().parents[3]
TABLE = "spark-seals"
STORE_FAULTS = 0.08
PROGRESS_LIMIT_S = 240
FINISH_LIMIT_S = 400
FREEZE_S = (1.2, 2.4)
"""A frozen worker makes a straggler, of which Spark starts a copy."""

SPARK = SETTINGS | {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "2",
    "spark.task.maxFailures": "12",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    # Copies are wanted, not saved: any task of more than this gets one.
    "spark.speculation.task.duration.threshold": "900ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.efficiency.enabled": "false",
    # Without compaction the file sink's log says which batch wrote a file.
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}
SOURCE = {
    "region": "eu-central-1",
    "startingPosition": "TRIM_HORIZON",
    "sealStore": f"dynamodb:{TABLE}",
    "discoveryInterval": "1s",
    "probeInterval": "200ms",
    "maxFetchTime": "300ms",
    "partitions": "3",
}
LOCAL = "local[2,12]"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    What a run is to do.

    Attributes:
        kills: how many of each role; after a kill of the `driver` a new one is started.
        seed: of the choices (what meets what is up to the machine).
        cluster: whether the queries run on the cluster, else in one process.
        freezes: whether workers are stopped for moments.

    """

    kills: dict
    seed: int
    cluster: bool
    freezes: bool = True


@dataclass(kw_only=True)
class Outcome:
    """What a run did, what Spark says about it, and whether it came out right."""

    seed: int
    master: str
    kills: dict
    records: int
    rows: int
    splits: int
    merges: int
    drivers: int
    batches: dict
    replayed_batches: int
    failed_queries: int
    seal_store_faults: dict
    freezes: int
    tasks: dict
    verdict: Verdict
    seconds: float
    notes: list = field(default_factory=list)


class Run:
    """
    One run.

    Args:
        aws: the embedded AWS, with the table of seals.
        folder: a new one, for this run.
        plan: what to do.
        cluster: a :class:`tests.spark.kills.cluster.Cluster` if the plan wants one.

    """

    def __init__(self, aws, folder, plan, cluster=None):
        self._aws = aws
        self._folder = folder
        self._plan = plan
        self._cluster = cluster
        self._chance = random.Random(plan.seed)
        self._drivers = []
        self._kills = Counter()
        self._freezes = 0
        self._frozen = threading.Event()

    def go(self):
        """Do it; return the outcome."""
        began = time.monotonic()
        self._folder.mkdir(parents=True)
        (self._folder / "events").mkdir()
        stream = f"kills-{self._folder.name}-{self._plan.seed}"
        client = self._aws.client("kinesis")
        client.create_stream(StreamName=stream, ShardCount=2)
        client.get_waiter("stream_exists").wait(
            StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
        dice = FaultDice(random.Random(self._plan.seed + 1), rate=STORE_FAULTS)
        try:
            with FaultyProxy(self._aws.endpoint_url, dice) as proxy:
                self._write_settings(stream, proxy.url)
                load = Load(client, stream, random.Random(self._plan.seed + 2))
                with load:
                    self._disturb()
                self._finish()
            lineage = load.lineage()
        finally:
            self._end()
            client.delete_stream(StreamName=stream)
        return self._outcome(load, lineage, dice, time.monotonic() - began)

    def _write_settings(self, stream, store):
        settings = {
            "folder": str(self._folder),
            "master": self._cluster.url if self._cluster else LOCAL,
            "spark": SPARK
            | {
                "spark.eventLog.dir": (self._folder / "events").as_uri(),
                "spark.local.dir": str(self._folder / "local"),
                "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            },
            "source": SOURCE
            | {"stream": stream, "endpoint": self._aws.endpoint_url, "storeEndpoint": store},
        }
        (self._folder / "settings.json").write_text(json.dumps(settings), "utf-8")

    # --- trouble

    def _disturb(self):
        roles = [role for role, count in self._plan.kills.items() for _ in range(count)]
        self._chance.shuffle(roles)
        freezer = threading.Thread(target=self._freeze, daemon=True)
        self._start_driver()
        if self._plan.freezes:
            freezer.start()
        try:
            for role in roles:
                self._wait_for_progress()
                time.sleep(self._chance.uniform(0, 1.0))
                self._kill(role)
            self._wait_for_progress()
        finally:
            self._frozen.set()
            if self._plan.freezes:
                freezer.join()

    def _start_driver(self):
        number = len(self._drivers)
        with (self._folder / f"driver-{number}.log").open("wb") as output:
            self._drivers.append(
                subprocess.Popen(
                    [sys.executable, "-m", program.__name__, str(self._folder / "settings.json")],
                    cwd=ROOT,
                    env=spark_environment("127.0.0.1"),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _kill(self, role):
        deadline = time.monotonic() + PROGRESS_LIMIT_S
        while not (found := [p for p in self._processes() if p.role == role]):
            if time.monotonic() > deadline:
                message = f"there is no {role} to kill"
                raise TimeoutError(message)
            time.sleep(0.1)
        victim = self._chance.choice(found)
        if not processes.send(victim.pid, signal.SIGKILL):
            self._kill(role)
            return
        self._kills[role] += 1
        if role == "driver":
            self._drivers[-1].kill()
            self._drivers[-1].wait()
            self._start_driver()

    def _freeze(self):
        chance = random.Random(self._plan.seed + 3)
        while not self._frozen.wait(chance.uniform(0.3, 1.2)):
            workers = [p for p in self._processes() if p.role == "worker"]
            if not workers:
                continue
            pid = chance.choice(workers).pid
            if processes.send(pid, signal.SIGSTOP):
                self._freezes += 1
                self._frozen.wait(chance.uniform(*FREEZE_S))
                processes.send(pid, signal.SIGCONT)

    def _processes(self):
        sessions = {driver.pid for driver in self._drivers}
        return processes.of_sessions(
            sessions | (self._cluster.sessions if self._cluster else set())
        )

    # --- progress

    def _committed(self):
        return {
            name: len(list((self._folder / f"{name}-checkpoint" / "commits").glob("[0-9]*")))
            for name in ("files", "counts")
        }

    def _wait_for_progress(self):
        before, deadline = sum(self._committed().values()), time.monotonic() + PROGRESS_LIMIT_S
        while sum(self._committed().values()) <= before:
            self._check_driver(deadline, "commits nothing")
            time.sleep(0.1)

    def _check_driver(self, deadline, complaint):
        driver = self._drivers[-1]
        if driver.poll() is not None or time.monotonic() > deadline:
            complaint = complaint if driver.poll() is None else f"ended with {driver.returncode}"
            log = self._folder / f"driver-{len(self._drivers) - 1}.log"
            raise TimeoutError(f"the driver {complaint}:\n{log.read_text('utf-8')[-3000:]}")

    def _finish(self):
        (self._folder / program.FINISH).touch()
        deadline = time.monotonic() + FINISH_LIMIT_S
        while self._drivers[-1].poll() != 0:
            self._check_driver(deadline, "does not finish")
            time.sleep(0.1)

    def _end(self):
        processes.end({driver.pid for driver in self._drivers})
        for driver in self._drivers:
            driver.wait()

    # --- the end

    def _outcome(self, load, lineage, dice, seconds):
        rows = file_rows(self._folder / "files")
        replayed, different = replays(self._folder)
        failures = self._folder / program.FAILURES
        counts = shard_counts(self._folder / "counts")
        return Outcome(
            seed=self._plan.seed,
            master="cluster" if self._cluster else LOCAL,
            kills=dict(self._kills),
            records=load.count,
            rows=len(rows),
            splits=load.splits,
            merges=load.merges,
            drivers=len(self._drivers),
            batches=self._committed(),
            replayed_batches=replayed,
            failed_queries=len(failures.read_text("utf-8").splitlines())
            if failures.exists()
            else 0,
            seal_store_faults={kind.value: count for kind, count in dice.drawn.items()},
            freezes=self._freezes,
            tasks=event_figures(self._folder / "events"),
            verdict=judge(load.sent, lineage, rows=rows, counts=counts, replays_differ=different),
            seconds=round(seconds, 1),
        )


def make_table(aws):
    """Make the table of seals."""
    client = aws.client("dynamodb")
    client.create_table(
        TableName=TABLE,
        KeySchema=[
            {"AttributeName": "sid", "KeyType": "HASH"},
            {"AttributeName": "item", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "sid", "AttributeType": "S"},
            {"AttributeName": "item", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    client.get_waiter("table_exists").wait(TableName=TABLE)


def discard(folder):
    """Delete a run's folder."""
    shutil.rmtree(folder, ignore_errors=True)
