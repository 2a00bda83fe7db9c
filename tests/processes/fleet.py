"""Processes of `shardfleet work` on the embedded AWS, fed in order per shard, and what they did."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from botocore.exceptions import ClientError

FAILOVER_MS = 3_000
HASH_KEYS = 2**128
SCRIPT = Path(sys.executable).with_name("shardfleet")
HANDLER = """
import json, os, time

def handle(batch):
    lines = [f"{time.time():.3f} {os.getpid()} {record.data.decode()}\\n" for record in batch]
    with open(os.environ["HANDLED"], "a") as file:
        file.write("".join(lines))
"""


class Gap(NamedTuple):
    """How long nothing of a shard was handled, and by whom before and after; 0: nobody's."""

    seconds: float
    before: int
    after: int


class Processes:
    """An application on one stream; a context manager that leaves no process behind."""

    def __init__(self, aws, folder, *, shards=4, failover_ms=FAILOVER_MS):
        self.name = f"clicks-{uuid.uuid4().hex[:8]}"
        self.shards = shards
        self.failover_ms = failover_ms
        self.folder = Path(folder)
        self.handled = self.folder / "handled.txt"
        self.handled.touch()
        (self.folder / "worked.py").write_text(HANDLER)
        kept = {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.env = {**kept, **aws.environment(), "HANDLED": str(self.handled)}
        self.kinesis, self.tables = aws.client("kinesis"), aws.client("dynamodb")
        self.running = []
        self.sent = Counter()
        self._fed = []  # when each request of the feeder began and ended
        self._feeding = threading.Event()
        self._feeder = None
        self.kinesis.create_stream(StreamName=self.name, ShardCount=shards)
        self.kinesis.get_waiter("stream_exists").wait(StreamName=self.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop_feeding()
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def command(self, *arguments):
        return (
            *("work", "--stream", self.name, "--application", self.name),
            *("--handler", "worked:handle", "--failover-ms", str(self.failover_ms), *arguments),
        )

    def start(self, *arguments):
        return self.run(SCRIPT, *self.command(*arguments))

    def run(self, *arguments):
        with (self.folder / f"{len(self.running)}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_interruptible,  # noqa: PLW1509 - nothing of it takes a lock
            )
        self.running.append(process)
        return process

    def shardfleet(self, *arguments):
        return subprocess.run(
            [sys.executable, SCRIPT, *arguments],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    # --- records, numbered per shard

    def send(self, *shards):
        answer = self.kinesis.put_records(
            StreamName=self.name,
            Records=[
                {
                    "Data": f"{shard} {self.sent[shard]}".encode(),
                    "PartitionKey": str(shard),
                    "ExplicitHashKey": str(shard * HASH_KEYS // self.shards),
                }
                for shard in shards
            ],
        )
        assert answer["FailedRecordCount"] == 0
        self.sent.update(shards)

    def feed(self, per_second):
        def go_on():
            due = time.monotonic()
            while not self._feeding.wait(max(0, due - time.monotonic())):
                due += self.shards / per_second
                began = time.time()
                self.send(*range(self.shards))
                self._fed.append((began, time.time()))

        self._feeder = threading.Thread(target=go_on, daemon=True)
        self._feeder.start()

    def stop_feeding(self):
        self._feeding.set()
        if self._feeder is not None:
            self._feeder.join()

    # --- what was handled

    def records(self):
        """Return (time, process, shard, number) of each record that a handler was given."""
        lines = self.handled.read_text().splitlines()
        return [(float(t), int(p), int(s), int(n)) for t, p, s, n in map(str.split, lines)]

    def missing(self):
        seen = {(shard, number) for _, _, shard, number in self.records()}
        return sum(self.sent.values()) - len(seen)

    def repeats(self):
        counts = Counter((shard, number) for _, _, shard, number in self.records())
        return sum(counts.values()) - len(counts)

    def repeats_by(self, pid, since):
        """Return how many records a process has handled since then that had been handled before."""
        seen, found = set(), 0
        for at, by, shard, number in self.records():
            found += at >= since and by == pid and (shard, number) in seen
            seen.add((shard, number))
        return found

    def out_of_order(self):
        """Return how often a record came first after a later one of its shard had come."""
        highest, seen, found = {}, set(), 0
        for _, _, shard, number in self.records():
            if (shard, number) not in seen and number < highest.get(shard, -1):
                found += 1
            seen.add((shard, number))
            highest[shard] = max(number, highest.get(shard, -1))
        return found

    def gaps(self, since):
        """Return each shard's longest time without a record since then, until now, and whose."""
        handled = {shard: [(since, 0)] for shard in range(self.shards)}
        for at, pid, shard, _ in self.records():
            if at >= since:
                handled[shard].append((at, pid))
        now = time.time()
        return {
            shard: max(Gap(round(b - a, 2), p, q) for (a, p), (b, q) in pairwise([*each, (now, 0)]))
            for shard, each in handled.items()
        }

    def gaps_s(self, since):
        """Return each shard's longest time without a record since a point in time, until now."""
        return {shard: gap.seconds for shard, gap in self.gaps(since).items()}

    def feeder_s(self, since):
        """Return the feeder's slowest request since then, and its longest time between two."""
        fed = [(began, ended) for began, ended in self._fed if began >= since]
        return {
            "slowest": round(max((ended - began for began, ended in fed), default=0), 2),
            "pause": round(max((b[0] - a[0] for a, b in pairwise(fed)), default=0), 2),
        }

    def owners(self, *, reading=False):
        """Return each lease's owner, or who reads it: in a handover the one before."""
        names = ("checkpointOwner", "leaseOwner") if reading else ("leaseOwner",)
        items = self.tables.scan(TableName=self.name)["Items"]
        return {
            item["leaseKey"]["S"]: next((item[n]["S"] for n in names if n in item), "")
            for item in items
        }

    def document(self, kind, name):
        key = {"kind": {"S": kind}, "id": {"S": name}}
        found = self.tables.get_item(TableName=f"{self.name}-fleet", Key=key, ConsistentRead=True)
        return found.get("Item", {}).get("body", {}).get("M", {})

    def hosts(self):
        """Return the process id of each worker's host: who carries it."""
        return carried_by(self.tables, self.name)

    def leader(self):
        return pid_of(self.document("lock", "manager")["holder"]["S"])

    def shares(self):
        """Return how many leases each process carries; None: nobody, or one that is dead."""
        hosts = {owner: pid for owner, pid in self.hosts().items() if is_alive(pid)}
        return Counter(hosts.get(owner) for owner in self.owners().values())

    def shards_of(self, pid):
        """Return the shards that a process reads, or is to have: in a handover these differ."""
        hosts, owned = self.hosts(), [self.owners(), self.owners(reading=True)]
        return {int(key[-3:]) for found in owned for key in found if hosts.get(found[key]) == pid}

    def process(self, pid):
        return next(each for each in self.running if each.pid == pid)

    def log(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def carried_by(tables, application):
    """Return worker id to the process id of who carries it."""
    query = {
        "TableName": f"{application}-fleet",
        "KeyConditionExpression": "kind = :k",
        "ExpressionAttributeValues": {":k": {"S": "offer"}},
    }
    found = {}
    for item in tables.query(**query)["Items"]:
        body = item["body"]["M"]
        if body.get("host", {}).get("S") and not body.get("is_over", {}).get("BOOL"):
            slot = json.loads(body["text"]["S"])["slot"]
            found[f"{application}-{slot}"] = pid_of(body["host"]["S"])
    return found


def _interruptible():
    """Undo that a shell has its jobs in the background pass over SIGINT, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def pid_of(host):
    return int(host.rsplit("-", 2)[1])


def eventually(question, *, within_s=60):
    """Ask until the answer is true, and return it; without tables there is none."""
    end = time.monotonic() + within_s
    answer = None
    while not answer:
        assert time.monotonic() < end, f"still {answer!r} after {within_s} s"
        time.sleep(0.1)
        with contextlib.suppress(ClientError, KeyError):
            answer = question()
    return answer
