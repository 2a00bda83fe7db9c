"""
A life of a query into a table, and what dies in it: `… table_life.py LIFE`, a Life as JSON.

It is a process of its own, the first of a session of its own. It kills at random moments, and right
behind a write, which Spark has not committed yet then: Java, and so itself; the source's planner;
the Pythons that run tasks. Each kill is noted. What survives starts the query again. Or it dies
once with a back-fill: amid the archive's rows, or behind them, before it is noted that the table
has them.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import trim

from shardfleet_spark.pipelines import running
from shardfleet_spark.pipelines.plan import AVAILABLE_NOW, PipelinePlan
from shardfleet_spark.tables.iceberg import ICEBERG
from tests.spark.conftest import SETTINGS
from tests.spark.kills import processes

BEHIND_A_WRITE = 0.5
"""How often a kill waits for the next write."""

ROLES = ("driver", "source", "worker", "worker")
PAUSE_S = (0.3, 2.5)
AMID, BEHIND = "amid the archive's rows", "behind the archive's rows"


@dataclass(frozen=True, kw_only=True)
class Life:
    """
    What one process does.

    Attributes:
        plan: of the pipeline, as JSON.
        settings: of the session.
        kills: after so many, if none ended it, the process ends itself; 0: it reads what there is.
        seed: of the choices.
        log: of the kills, a line each.
        dies: amid or behind the archive's rows; empty: not there.

    """

    plan: str
    settings: dict
    kills: int
    seed: int
    log: str
    dies: str = ""

    def to_json(self):
        return json.dumps(asdict(self))


class Killer:
    """Kills, and notes it."""

    def __init__(self, life, *, java):
        self._chance = random.Random(life.seed)
        self._left = life.kills
        self._log = Path(life.log)
        self._java = java
        self._behind = threading.Event()
        self._killed = threading.Event()

    def run(self):
        """Kill as often as is wanted, and end this process."""
        while self._left:
            self._killed.clear()
            if self._chance.random() < BEHIND_A_WRITE:
                self._behind.set()
                self._killed.wait()
            else:
                time.sleep(self._chance.uniform(*PAUSE_S))
                self._kill("anywhere")
        self._end()

    def after_write(self):
        """Kill now, if that is wanted."""
        if self._behind.is_set():
            self._behind.clear()
            self._kill("behind a write")

    def _kill(self, where):
        found = processes.of_sessions({os.getsid(0)})
        role = self._chance.choice(ROLES)
        chosen = [each.pid for each in found if each.role == role]
        if role == "driver":
            self._note(f"{role} {where}")
            self._end()
        if chosen and processes.send(self._chance.choice(chosen), signal.SIGKILL):
            self._note(f"{role} {where}")
            self._left -= 1
        self._killed.set()

    def _note(self, line):
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _end(self):
        end(self._java)


def end(java):
    os.kill(java, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def dying(session, when):
    """Let the process die with the archive's rows."""
    context = session.sparkContext
    java = context._gateway.proc.pid
    real = running.put

    def end_amid():
        while not context.statusTracker().getActiveStageIds():
            time.sleep(0.001)
        end(java)

    def put(*arguments, **named):
        if when == AMID:
            threading.Thread(target=end_amid, daemon=True).start()
        real(*arguments, **named)
        end(java)

    running.put = put


def watched(killer):
    """Have the killer told of each write."""
    real = running.batch_writer

    def batch_writer(*arguments):
        write = real(*arguments)

        def write_and_tell(batch, number):
            write(batch, number)
            killer.after_write()

        return write_and_tell

    running.batch_writer = batch_writer


def main(text):
    life = Life(**json.loads(text))
    plan = PipelinePlan.from_json(life.plan)
    session = SparkSession.builder.master("local[2]").config(map=SETTINGS | life.settings)
    session = session.getOrCreate()
    if life.kills:
        killer = Killer(life, java=session.sparkContext._gateway.proc.pid)
        watched(killer)
        threading.Thread(target=killer.run, daemon=True).start()
    if life.dies:
        dying(session, life.dies)
    while True:
        try:
            running.run_pipeline(session, plan)
        except StreamingQueryException:
            if plan.trigger == AVAILABLE_NOW:
                raise
        else:
            break
    place = plan.to_place
    if place.format == ICEBERG:
        # A query writes in a session of its own, and this one may know the table of a back-fill.
        session.catalog.refreshTable(place.where)
    read = session.read.format(place.format).load(place.where)
    if "data" in read.columns:  # Blanks behind a number make a record long, and tell nothing.
        read = read.withColumn("data", trim(read.data.cast("string")))
    rows = read.toJSON().collect()
    sys.stdout.write(f"\n[{', '.join(rows)}]\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
