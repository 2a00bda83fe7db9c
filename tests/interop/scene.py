"""What a run is made of: an embedded AWS, a stream and its feed, a fleet, Java, a watcher."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from shardfleet.adapters.dynamodb.tables import ensure_lease_table
from shardfleet_local.aws.deploy import deploy
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_local.rig.feed import feed_stream
from shardfleet_local.rig.fleet import FleetPlan, handler_of, synthesized
from shardfleet_local.rig.ledger import DemoLedger
from shardfleet_local.rig.source import click_stream
from tests.interop.checker import FLEET, JAVA, SIDES, End, Run, side_of
from tests.interop.java import JavaConsumer, deliveries
from tests.interop.watcher import LeaseWatcher

SHARDS, RECORDS_PER_S, FEED_MOST_S, COMMAND_MOST_S = 8, 150, 1_800, 400
# A step is told, written, and looked for again a second later; the index is built for so long.
LISTENS_EACH_S, INDEX_BUILT_S = 0.3, 20.0
STREAM, APPLICATION, STACK = "clicks", "clicks-app", "ShardFleetStack"
UPGRADE_ITEM = {
    "TableName": f"{APPLICATION}-CoordinatorState",
    "Key": {"key": {"S": "Migration3.0"}},
}
STREAM_ARN = f"arn:aws:kinesis:us-east-1:111122223333:stream/{STREAM}"


class Disappointed(AssertionError):
    """Something did not come in its time."""


class Scene:
    """
    A context in which everything runs.

    Args:
        folder: for what is written meanwhile.
        version: of the KCL.
        heard: told of each write to the lease table; see ``LeaseWatcher``.

    """

    def __init__(self, folder, version, heard=lambda *_: None):
        self._folder = folder
        self._heard = heard
        self.version = version
        self.shards = version.shards or SHARDS
        self._ledger = DemoLedger(folder / "fleet.jsonl")
        self._ledger.path.touch()
        self._sent = []
        self._is_enough = threading.Event()
        self.feed_failure = None
        self.ends = []
        self.commands = []

    def _environment(self):
        """Prepare what is deployed, and return what its functions are told."""
        context = {
            "shardfleet:stream": STREAM_ARN,
            "shardfleet:lease_table": APPLICATION,
            "shardfleet:config": {
                "leases_per_worker": SHARDS // 2,
                # As docs/migrating.md has it beside a KCL 2.
                "assignment": "balanced" if self.version.hands_over else "greedy",
            }
            # As the KCL 2 elects its leader, of two owners it is the one who comes first.
            | ({"max_workers": 1} if self.version.before else {}),
            "shardfleet:monitoring": False,
            "shardfleet:reading": self._consumer
            or ("fan-out" if self.version.consumers else "polling"),
        }
        self._template = synthesized(self._folder / "cdk.out", FleetPlan(context=context))
        return self._ledger.environment(handler_of(self._template))

    def __enter__(self):
        with ExitStack() as stack:
            self.aws = stack.enter_context(
                EmbeddedAws(enforce_iam=True, behaviour=AwsBehaviour(index_built_s=INDEX_BUILT_S))
            )
            self.kinesis = self.aws.client("kinesis")
            self.kinesis.create_stream(StreamName=STREAM, ShardCount=self.shards)
            self.kinesis.get_waiter("stream_exists").wait(StreamName=STREAM)
            self._consumer = self._registered()
            self.aws.set_lambda_environment(self._environment())
            self.watcher = stack.enter_context(LeaseWatcher(self.aws, APPLICATION, self._heard))
            java = JavaConsumer(
                self._folder, self.aws, stream=STREAM, application=APPLICATION,
                jars=self.version.jars, cpu_at=self._cpu_at(stack), consumer=self._consumer,
            )  # fmt: skip
            self.java = stack.enter_context(java)
            stack.callback(self._is_enough.set)
            stack.callback(self._end_commands)
            self._stack = stack.pop_all()
        return self

    def _registered(self):
        """Return the ARN that Java is told; empty: it makes a consumer itself; None: it polls."""
        if self.version.consumers != 1:
            return "" if self.version.consumers else None
        made = self.kinesis.register_stream_consumer(StreamARN=STREAM_ARN, ConsumerName="shared")
        return made["Consumer"]["ConsumerARN"]

    def _cpu_at(self, stack):
        """Return where Java's workers read their CPU, by worker; None: they have none."""
        del stack

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    # --- the two sides

    def make_table(self):
        """Make the table as a KCL 3 does, so that the fleet may begin."""
        ensure_lease_table(self.aws.client("dynamodb"), APPLICATION)

    def deploy_fleet(self):
        self._fleet = deploy(self._template.parent, STACK, self.aws)

    def kill_java(self):
        """Kill every Java worker, and return their end."""
        workers = frozenset(self.java.living)
        for worker in workers:
            self.java.kill(worker)
        return self._ended(JAVA, workers)

    def stop_java(self, *those):
        """Let every Java worker end in order, or those."""
        workers = frozenset(those or self.java.living)
        # Its leases are free from when it begins to end.
        self._ended(JAVA, workers, is_kill=False)
        for worker in workers:
            self.java.stop(worker)

    def kill_worker(self):
        """Kill one process of the fleet's that has leases; its state machine starts another."""
        busy = [each.pid for each in self._processes("WorkerFunction") if each.busy]
        if not busy:
            raise Disappointed("no worker process is busy")
        os.kill(busy[0], signal.SIGKILL)
        return self._ended(FLEET, self.workers_of(FLEET))

    def kill_fleet(self):
        """Kill every process of the fleet, and let none begin, as in an account that is full."""
        names = [self._fleet.outputs[name] for name in ("ManagerFunction", "WorkerFunction")]
        client = self.aws.client("lambda")
        for name in names:
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        workers = self.workers_of(FLEET)
        for name in ("ManagerFunction", "WorkerFunction"):
            for each in self._processes(name):
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        return self._ended(FLEET, workers)

    def let_fleet_begin(self):
        for name in ("ManagerFunction", "WorkerFunction"):
            self.aws.client("lambda").delete_function_concurrency(
                FunctionName=self._fleet.outputs[name]
            )

    def _processes(self, output):
        return self.aws.worker_processes(self._fleet.outputs[output])

    def _ended(self, side, workers, *, is_kill=True):
        self.ends.append(End(now_ms(), side, workers, is_kill))
        return self.ends[-1]

    def shardfleet(self, *words):
        """Run the command itself, as a person does."""
        self.begin_command(*words)
        self.end_command()

    def begin_command(self, *words):
        """Begin one that others have a part in."""
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        environment = {**self.aws.environment(), **kept, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        command = [Path(sys.executable).with_name("shardfleet"), *words, "--stack", STACK]
        said = (self._folder / f"command-{len(self.commands) + 1}.txt").open("w+")
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        self.commands.append((" ".join(words), process, said, time.monotonic()))

    def end_command(self):
        """Wait for it, and return how many seconds it took; one that fails is a fault."""
        words, process, said, began = self.commands[-1]
        code = process.wait(timeout=COMMAND_MOST_S)
        with said:
            said.seek(0)
            text = said.read()
        if code:
            raise Disappointed(f"shardfleet {words}: exit code {code}: {text}")
        return round(time.monotonic() - began)

    def cut_command(self, texts, within_s):
        """Interrupt it, as a person does at the keyboard, when it says one of these; which one."""
        command, process, said, _ = self.commands[-1]
        told = self._folder / f"command-{len(self.commands)}.txt"

        def heard():
            text = told.read_text("utf-8")
            return next((each for each in texts if each in text), "")

        ends = time.monotonic() + within_s
        while not heard() and process.poll() is None and time.monotonic() < ends:
            self.look()
            time.sleep(LISTENS_EACH_S)
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=COMMAND_MOST_S)
        said.close()
        text = told.read_text("utf-8")
        if not (code and heard()) or "Traceback" in text:
            raise Disappointed(f"shardfleet {command}: exit code {code}: {text}")
        return heard()

    def java_is_seen(self):
        """Tell whether each of Java's workers has written its row, wherever its version does."""
        client = self.aws.client("dynamodb")
        with suppress(client.exceptions.ResourceNotFoundException):
            rows = client.scan(TableName=f"{APPLICATION}-WorkerMetricStats")["Items"]
            if {row["wid"]["S"] for row in rows} >= set(self.java.living):
                return True
        keys = {item["leaseKey"]["S"] for item in client.scan(TableName=APPLICATION)["Items"]}
        return keys >= set(self.java.living)

    @property
    def upgrade(self):
        """How far Java's upgrade has come, as its leader keeps it; "" if nothing says."""
        client = self.aws.client("dynamodb")
        with suppress(client.exceptions.ResourceNotFoundException):
            found = client.get_item(**UPGRADE_ITEM, ConsistentRead=True).get("Item", {})
            return found.get("cv", {}).get("S", "")
        return ""

    def roll_back(self):
        """Do what the KCL's own migration tool does first: say that all work as the KCL 2."""
        self.aws.client("dynamodb").update_item(
            **UPGRADE_ITEM,
            UpdateExpression="SET cv = :cv",
            ExpressionAttributeValues={":cv": {"S": "CLIENT_VERSION_2X"}},
        )

    def _end_commands(self):
        for _, process, _, _ in self.commands:
            process.kill()

    # --- the stream

    def feed(self):
        """Feed until the end."""

        def enough(records):
            self._sent.extend(records)
            if self._is_enough.is_set():
                raise StopIteration

        def run():
            source = click_stream(RECORDS_PER_S * FEED_MOST_S, seed=1)
            try:
                asyncio.run(
                    feed_stream(
                        source.records, self.aws, stream_arn=STREAM_ARN,
                        duration_ms=1000 * FEED_MOST_S, on_sent=enough,
                    )
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 - told at the next look
                if not self._is_enough.is_set():
                    self.feed_failure = error

        self._feeding = threading.Thread(target=run, daemon=True)
        self._feeding.start()

    def open_shards(self):
        """Return the open shards' ids and first hash keys, by hash key."""
        shards = self.kinesis.list_shards(StreamName=STREAM)["Shards"]
        is_open = (s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"])
        return sorted(is_open, key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))

    def split(self, shard):
        ends = shard["HashKeyRange"]
        middle = (int(ends["StartingHashKey"]) + int(ends["EndingHashKey"])) // 2
        self.kinesis.split_shard(
            StreamName=STREAM, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle)
        )
        self.kinesis.get_waiter("stream_exists").wait(StreamName=STREAM)

    def merge(self, one, other):
        self.kinesis.merge_shards(
            StreamName=STREAM, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
        )
        self.kinesis.get_waiter("stream_exists").wait(StreamName=STREAM)

    # --- what is seen

    def owners(self):
        """Return unfinished shard to owner."""
        return self.watcher.owners()

    def side(self, owner):
        return side_of(owner, frozenset(self.java.workers))

    def workers_of(self, side):
        return frozenset(each for each in self.owners().values() if self.side(each) == side)

    def count(self):
        """Return how many unfinished leases each side has, and nobody (None)."""
        sides = [self.side(owner) for owner in self.owners().values()]
        return {side: sides.count(side) for side in (*SIDES, None)}

    def has_all(self, side):
        found = self.count()
        return found[side] >= self.shards - 1 and found[side] == sum(found.values())

    def is_shared(self):
        """Tell whether each side has a quarter of the leases, and nobody none."""
        found = self.count()
        least = -(-sum(found.values()) // 4)
        return all(found[side] >= least for side in SIDES)

    def until(self, condition, within_s, what):
        """Wait; return how many seconds."""
        began = time.monotonic()
        while not condition():
            self.look()
            if time.monotonic() > began + within_s:
                raise Disappointed(f"not within {within_s} s: {what}: {self.owners()}")
            time.sleep(0.5)
        return round(time.monotonic() - began)

    def rest(self, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.look()
            time.sleep(0.5)

    def look(self):
        """Raise what has gone wrong by itself."""
        if self.watcher.failure or self.feed_failure:
            raise self.watcher.failure or self.feed_failure
        if self.java.died:
            raise Disappointed(f"ended by themselves: {self.java.died}")

    def finish(self, within_s):
        """Feed no more, and wait until all that was fed is delivered; what is not is lost."""
        self._is_enough.set()
        self._feeding.join(timeout=60)
        with suppress(Disappointed):
            self.until(self._is_drained, within_s, "all records are delivered")

    def _is_drained(self):
        time.sleep(1)
        fed = {(shard, position) for _, shard, position in self._fed()}
        return not fed - {(d.shard, p) for d in self._deliveries() for p in d.positions}

    def _fed(self):
        return [
            (s.key, s.receipt.shard_id,
             (int(s.receipt.sequence_number), s.receipt.sub_sequence_number))
            for s in self._sent
        ]  # fmt: skip

    def _deliveries(self):
        java = deliveries(self.java.ledger, JAVA)
        return [*java, *deliveries(self._ledger.path, FLEET)]

    @property
    def fed(self):
        return len(self._sent)

    @property
    def aggregated(self):
        return sum(each.receipt.aggregated for each in self._sent)

    def run(self):
        """Return what was seen of all, to be judged."""
        return Run(
            sent=self._fed(),
            deliveries=self._deliveries(),
            history=self.watcher.history,
            java=frozenset(self.java.workers),
            ends=tuple(self.ends),
            steals=not self.version.hands_over,
            late_ms=self.watcher.late_ms,
        )


def now_ms():
    return time.time_ns() // 1_000_000
