"""
A stack that spills, and processes that join it: `make processes ARGS=--spill`.

At night Lambda reads all; two processes come, and Lambda leaves; the load grows fourfold, and comes
back to what it was; the processes end. Figures go to build/processes/spill.json.
"""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from embedded_fleet import FleetUnderLoad, SteadyFeed, wait_until

from shardfleet.domain.slots.offers import LAMBDA
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.offers import worker_of
from shardfleet_local.rig.fleet import FleetPlan, running_fleet
from shardfleet_local.rig.ledger import PROBE_FOLDER
from tests.processes.fleet import SCRIPT

SHARDS, PROCESSES, RECORDS_PER_S, TIMES = 8, 2, 100, 4
# So that two processes are two fifths busy, and with four times the load have too much to do.
PER_RECORD_MS = 8
LOADED_S, UP_MOST_S, DOWN_MOST_S = 120, 30, 300
HANDLER = """
import time

def handle(batch):
    time.sleep({seconds} * len(batch))
"""


class Spilling:
    """A deployed fleet, its feeds, and the processes that have joined it."""

    def __init__(self, fleet, folder, code):
        self.fleet, self.folder, self.code = fleet, folder, code
        self.feeds, self.running = [], []
        self.load = FleetUnderLoad(fleet, self.feed(RECORDS_PER_S))

    def feed(self, per_second):
        feed = SteadyFeed(self.fleet, records_per_s=per_second, name=f"feed {len(self.feeds)}")
        self.feeds.append(feed)
        feed.start()
        return feed

    def start(self):
        kept = {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        witness = self.fleet.ledger.environment("worked:handle")
        paths = os.pathsep.join((str(PROBE_FOLDER), str(self.code)))
        env = {**kept, **self.fleet.aws.environment(), **witness, "PYTHONPATH": paths}
        command = (
            "work",
            "--stack",
            self.fleet.stack.stack_name,
            "--handler",
            "ledger_probe:handle",
        )
        with (self.folder / f"{len(self.running)}.log").open("w") as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, SCRIPT, *command],
                    cwd=self.code,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def end(self):
        """End the processes in order; return their exit codes."""
        for process in self.running:
            process.terminate()
        return [process.wait(120) for process in self.running]

    # --- what there is

    def carried(self):
        """Return the worker ids of slots that run, by whether Lambda runs them."""
        hosts = {worker_of(each["name"]): each.get("host", LAMBDA) for each in self.offers()}
        running = (SlotState.RUNNING, SlotState.ENDING)
        slots = [each for each in self.load.slots().values() if each.state in running]
        found = {True: set(), False: set()}
        for slot in slots:
            found[hosts.get(slot.worker_id, LAMBDA) == LAMBDA].add(slot.worker_id)
        return found

    def offers(self):
        table = self.fleet.stack.outputs["StateTable"]
        items = self.fleet.aws.client("dynamodb").query(
            TableName=table,
            KeyConditionExpression="kind = :kind",
            ExpressionAttributeValues={":kind": {"S": "offer"}},
            ConsistentRead=True,
        )["Items"]
        for item in items:
            body = {name: next(iter(it.values())) for name, it in item["body"]["M"].items()}
            yield {"name": item["id"]["S"], **body}

    def readers(self, since):
        """Return shard to whether a process read it last, of what was handled since then."""
        pids = {process.pid for process in self.running}
        lines = [line for line in self.load.lines() if line.at_ms >= 1_000 * since]
        return {line.shard_id: line.pid in pids for line in lines}

    def is_read_by(self, *, processes, since):
        found = self.readers(since)
        return len(found) == SHARDS and set(found.values()) == {processes}

    def sent(self):
        return {digest: ms for feed in self.feeds for digest, ms in feed.sent.items()}

    def handled(self):
        return [row.digest for line in self.load.lines() for row in line.records]


@contextmanager
def spilling(folder):
    code = folder / "code"
    code.mkdir()
    (code / "worked.py").write_text(HANDLER.format(seconds=PER_RECORD_MS / 1_000), "utf-8")
    plan = FleetPlan(
        context={
            "shardfleet:stream": {"shards": SHARDS},
            "shardfleet:handler": str(code),
            "shardfleet:function": "worked:handle",
            "shardfleet:spill": True,
        }
    )
    with running_fleet(folder / "ledger.jsonl", plan, say=say) as fleet:
        world = Spilling(fleet, folder, code)
        try:
            yield world
        finally:
            for feed in world.feeds:
                feed.stop()
            for process in world.running:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - for a person


def measured(what, condition, *, within_s):
    """Wait for something; return after how many seconds it was."""
    began = time.monotonic()
    wait_until(condition, what=what, within_s=within_s)
    seconds = round(time.monotonic() - began, 1)
    say(f"{what}: {seconds} s")
    return seconds


def run(folder):
    found = {}
    with spilling(folder) as world:
        began = time.time()
        found["night_read_by_lambda_s"] = measured(
            "all is read by Lambda",
            lambda: world.is_read_by(processes=False, since=began),
            within_s=180,
        )
        came = time.time()
        for _ in range(PROCESSES):
            world.start()
        found["processes_read_s"] = measured(
            "processes read", lambda: any(world.readers(came).values()), within_s=120
        )
        found["lambda_left_after_they_came_s"] = measured(
            "Lambda has left", lambda: not world.carried()[True], within_s=2 * DOWN_MOST_S
        )
        found["slots_of_processes"] = len(world.carried()[False])
        more = world.feed(RECORDS_PER_S * (TIMES - 1))
        found["lambda_came_s"] = measured(
            "Lambda runs a slot", lambda: world.carried()[True], within_s=180
        )
        end, most = time.monotonic() + LOADED_S, 0
        while time.monotonic() < end:
            most = max(most, len(world.carried()[True]))
            time.sleep(1)
        found["most_slots_of_lambda"] = most
        more.stop()
        found["lambda_left_s"] = measured(
            "Lambda has left", lambda: not world.carried()[True], within_s=2 * DOWN_MOST_S
        )
        found["exit_codes"] = world.end()
        night = time.time()
        found["night_again_s"] = measured(
            "all is read by Lambda again",
            lambda: world.is_read_by(processes=False, since=night),
            within_s=240,
        )
        for feed in world.feeds:
            feed.stop()
        sent = world.sent()
        wait_until(lambda: set(world.handled()) >= sent.keys(), what="the rest", within_s=180)
        handled = world.handled()
        return {
            **found,
            "records": len(sent),
            "lost": len(sent.keys() - set(handled)),
            "repeats": len(handled) - len(set(handled)),
        }


def complaints(found):
    yield from (f"{name}: {found[name]}" for name in ("lost", "repeats") if found[name])
    yield from (f"exit code {code}" for code in found["exit_codes"] if code)
    if found["lambda_came_s"] > UP_MOST_S:
        yield f"Lambda's first slot after {found['lambda_came_s']} s"
    for name in ("lambda_left_s", "lambda_left_after_they_came_s"):
        if found[name] > DOWN_MOST_S:
            yield f"{name}: {found[name]}"
