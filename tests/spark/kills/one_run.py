"""One run: a stream under load, two queries on it, and processes killed until enough have been."""

import json
import random
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace

from shardfleet.adapters.dynamodb.items import lease_from_item
from shardfleet_local.rig.proxy import FaultDice, FaultyProxy
from tests.spark.kills import processes, program
from tests.spark.kills.driver import LOCAL
from tests.spark.kills.load import Load
from tests.spark.kills.verdict import (
    Verdict,
    file_rows,
    judge,
    misplaced,
    replays,
    shard_counts,
)

TABLE = "spark-seals"
STORE_FAULTS = 0.08
PROGRESS_LIMIT_S = 240
ARRIVAL_LIMIT_S = 400
PUBLISHED_LIMIT_S = 60
FREEZE_S = (1.2, 2.4)
"""A frozen worker makes a straggler, of which Spark starts a copy."""

SOURCE = {
    "startingPosition": "TRIM_HORIZON",
    "sealStore": f"dynamodb:{TABLE}",
    "discoveryInterval": "1s",
    "probeInterval": "200ms",
    "maxFetchTime": "300ms",
    "partitions": "3",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    What a run is to do.

    Attributes:
        kills: how many of each role; after a kill of the `driver` a new one is started.
        seed: of the choices (what meets what is up to the machine).
        freezes: whether workers are stopped for moments.

    """

    kills: dict
    seed: int
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
    batches: dict
    replayed_batches: int
    failed_queries: int
    seal_store_faults: dict
    freezes: int
    misplaced: dict
    verdict: Verdict
    seconds: float


class Run:
    """
    One run.

    Args:
        aws: the embedded AWS, with the table of seals.
        driver: the lane's.
        number: of the run in its lane.
        plan: what to do.

    """

    def __init__(self, aws, driver, number, plan):
        self._aws = aws
        self._driver = driver
        self._folder = driver.folder / f"run-{number:03d}"
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._kills = Counter()
        self._freezes = 0
        self._calm = threading.Event()

    @property
    def folder(self):
        return self._folder

    def go(self):
        """Do it; return the outcome."""
        began = time.monotonic()
        self._folder.mkdir(parents=True)
        stream = f"kills-{self._plan.seed}"
        client = self._aws.client("kinesis")
        client.create_stream(StreamName=stream, ShardCount=2)
        client.get_waiter("stream_exists").wait(
            StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
        dice = FaultDice(random.Random(self._plan.seed + 1), rate=STORE_FAULTS)
        try:
            with FaultyProxy(self._aws.endpoint_url, dice, key=self._aws.key) as proxy:
                with Load(client, stream, random.Random(self._plan.seed + 2)) as load:
                    self._name_source(stream, proxy.url)
                    self._disturb(load)
                self._finish(load)
            lineage = load.lineage()
        finally:
            (self._folder / program.FINISH).touch()
            client.delete_stream(StreamName=stream)
        return self._outcome(load, lineage, dice, time.monotonic() - began)

    def _name_source(self, stream, store):
        source = SOURCE | {
            "stream": stream,
            "region": self._aws.region,
            "endpoint": self._aws.endpoint_url,
            "storeEndpoint": store,
            "publishTo": f"{stream}-positions",
            "publishInterval": "1s",
        }
        draft = self._folder / "source.draft"
        draft.write_text(json.dumps(source), "utf-8")
        draft.replace(self._folder / program.SOURCE)

    # --- trouble

    def _disturb(self, load):
        roles = [role for role, count in self._plan.kills.items() for _ in range(count)]
        self._chance.shuffle(roles)
        freezer = threading.Thread(target=self._freeze, daemon=True)
        self._wait_for_progress()
        if self._plan.freezes:
            freezer.start()
        try:
            for role in roles:
                load.reshard()
                time.sleep(self._chance.uniform(0, 1.0))
                self._kill(role)
                self._wait_for_progress()
        finally:
            self._calm.set()
            if self._plan.freezes:
                freezer.join()

    def _kill(self, role):
        deadline = time.monotonic() + PROGRESS_LIMIT_S
        if role == "driver":
            self._await_write(deadline)
        while True:
            self._driver.check(deadline, f"has no {role}")
            found = self._driver.processes(role)
            if found and processes.send(self._chance.choice(found).pid, signal.SIGKILL):
                break
            time.sleep(0.1)
        self._kills[role] += 1
        if role == "driver":
            self._driver.kill_program()
            (self._folder / program.AIMED).unlink()
            self._driver.start()

    def _await_write(self, deadline):
        """Wait until counts are written that Spark has not committed."""
        (self._folder / program.WRITTEN).unlink(missing_ok=True)
        (self._folder / program.AIMED).touch()
        while not (self._folder / program.WRITTEN).exists():
            self._driver.check(deadline, "writes nothing")
            time.sleep(0.05)

    def _freeze(self):
        chance = random.Random(self._plan.seed + 3)
        while not self._calm.wait(chance.uniform(0.3, 1.2)):
            workers = self._driver.processes("worker")
            if not workers:
                continue
            pid = chance.choice(workers).pid
            if processes.send(pid, signal.SIGSTOP):
                self._freezes += 1
                self._calm.wait(chance.uniform(*FREEZE_S))
                processes.send(pid, signal.SIGCONT)

    # --- progress

    def _committed(self):
        return {
            name: len(list((self._folder / f"{name}-checkpoint" / "commits").glob("[0-9]*")))
            for name in ("files", "counts")
        }

    def _wait_for_progress(self):
        before, deadline = sum(self._committed().values()), time.monotonic() + PROGRESS_LIMIT_S
        while sum(self._committed().values()) <= before:
            self._driver.check(deadline, "commits nothing")
            time.sleep(0.1)

    def _finish(self, load):
        """
        Wait until both sinks have as much as was sent and all of it is published; stop the queries.

        The verdict tells if that never comes. A query that is stopped between the writing of a
        batch and its commit rightly publishes the position before it, so stopping waits.
        """
        deadline = time.monotonic() + ARRIVAL_LIMIT_S
        while time.monotonic() < deadline:
            self._driver.check(deadline, "is late")
            counts = shard_counts(self._folder / "counts")
            counted = sum(counts[max(counts)].values()) if counts else 0
            if min(counted, len(file_rows(self._folder / "files"))) >= load.count:
                break
            time.sleep(0.3)
        self._await_published(load)
        (self._folder / program.FINISH).touch()
        deadline = time.monotonic() + PROGRESS_LIMIT_S
        while not (self._folder / program.DONE).exists():
            self._driver.check(deadline, "does not stop its queries")
            time.sleep(0.1)

    def _await_published(self, load):
        rows = file_rows(self._folder / "files")
        deadline = time.monotonic() + PUBLISHED_LIMIT_S
        while misplaced(self._leases(), load.lineage(), rows=rows):
            if time.monotonic() > deadline:
                return
            time.sleep(0.3)

    # --- the end

    def _leases(self):
        table = f"kills-{self._plan.seed}-positions"
        items = self._aws.client("dynamodb").scan(TableName=table, ConsistentRead=True)["Items"]
        return {lease.lease_key: lease for lease in map(lease_from_item, items)}

    def _outcome(self, load, lineage, dice, seconds):
        rows = file_rows(self._folder / "files")
        verdict = judge(
            load.sent,
            lineage,
            rows=rows,
            counts=shard_counts(self._folder / "counts"),
            replays_differ=replays(self._folder)[1],
        )
        failures = self._folder / program.FAILURES
        wrong = misplaced(self._leases(), lineage, rows=rows)
        return Outcome(
            seed=self._plan.seed,
            master="local" if self._driver.master == LOCAL else "cluster",
            kills=dict(self._kills),
            records=load.count,
            rows=len(rows),
            splits=load.splits,
            merges=load.merges,
            batches=self._committed(),
            replayed_batches=replays(self._folder)[0],
            failed_queries=len(failures.read_text("utf-8").splitlines())
            if failures.exists()
            else 0,
            seal_store_faults={kind.value: count for kind, count in dice.drawn.items()},
            freezes=self._freezes,
            misplaced=wrong,
            verdict=replace(verdict, misplaced=len(wrong)),
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
