"""A fleet with the alarms that are deployed with it, their minute shortened to six seconds."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from shardfleet_local.rig.fleet import FleetPlan, running_fleet

HANDLER = Path(__file__).resolve().parent / "handler"
SCALE = 0.1
DEADLINE_S = 240.0
COMMAND = "import sys, shardfleet_ops.cli as cli; sys.exit(cli.main())"
PAGER = "arn:aws:sns:us-east-1:111122223333:pager"
# Sooner than ten times as fast: limits in seconds instead of minutes, hours or days.
SOONER = {
    "lag": {"threshold": 8_000},
    "data_loss": {"threshold": 12_000},
    "never_caught_up": {"datapoints": 1, "periods": 1},
    "handler_errors": {"datapoints": 1, "periods": 1},
    "throttles": {"threshold": 5},
    "lease_churn": {"threshold": 0},
    "trouble": {"threshold": 2},
    "hot_shard": {"threshold": 1.5, "datapoints": 2, "periods": 2},
}
QUICK = {
    "failover_ms": 2_000,
    "cycle_ms": 1_000,
    "metrics_ms": 1_000,
    "idle_end_ms": 15_000,
    "max_attempts": 2,
    "retry_first_ms": 100,
    "max_retry_ms": 300,
}


@dataclass(frozen=True)
class Watched:
    """The deployed fleet, its alarms by their names in the run-book, and the handler's reins."""

    fleet: object
    names: dict
    steer: Path

    def client(self, service):
        return self.fleet.aws.client(service)

    def output(self, name):
        return self.fleet.stack.outputs[name]

    def states(self):
        cloudwatch = self.client("cloudwatch")
        found = cloudwatch.describe_alarms(AlarmTypes=["MetricAlarm", "CompositeAlarm"])
        by_name = {
            alarm["AlarmName"]: alarm["StateValue"]
            for alarm in found["MetricAlarms"] + found["CompositeAlarms"]
        }
        return {name: by_name[physical] for name, physical in self.names.items()}

    def wait_for(self, state, *names):
        """Wait until all these alarms are in the state."""
        eventually(
            lambda: {self.states()[name] for name in names} == {state},
            what=lambda: f"{names} {state}: {self.states()}\n{self.last_words()}",
        )

    def see(self, state, *names):
        """Wait until each of these alarms was in the state once; their periods may be short."""
        missing = set(names)

        def look():
            states = self.states()
            missing.difference_update([name for name in names if states[name] == state])
            return not missing

        eventually(look, what=lambda: f"{missing} {state}\n{self.last_words()}")

    def unread_shard(self):
        """Split a shard, let its retention pass, set its lease back to its beginning; return it."""
        kinesis, stream = self.client("kinesis"), self.output("StreamName")
        shards = kinesis.list_shards(StreamName=stream)["Shards"]
        parent = next(s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"])
        shard_id, hash_keys = parent["ShardId"], map(int, parent["HashKeyRange"].values())
        kinesis.split_shard(
            StreamName=stream,
            ShardToSplit=shard_id,
            NewStartingHashKey=str(sum(hash_keys) // 2),
        )
        eventually(
            lambda: (
                not any(
                    lease.lease_key == shard_id and not lease.is_finished
                    for lease in self.fleet.leases()
                )
            ),
            what="the end of the parent",
        )
        self.fleet.trim(shard_id)
        self.client("dynamodb").put_item(
            TableName=self.output("LeaseTable"),
            Item={
                "leaseKey": {"S": shard_id},
                "leaseCounter": {"N": "0"},
                "checkpoint": {"S": parent["SequenceNumberRange"]["StartingSequenceNumber"]},
                "checkpointSubSequenceNumber": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
            },
        )
        return shard_id

    def put(self, *payloads, keys=("a", "b", "c", "d", "e", "f")):
        """Put each payload once per key."""
        self.client("kinesis").put_records(
            StreamName=self.output("StreamName"),
            Records=[
                {"PartitionKey": key, "Data": payload} for payload in payloads for key in keys
            ],
        )

    def resume(self):
        """Let stopped shards go on, with the command that the run-book names."""
        return self.command("resume", "--all", "--yes")

    def command(self, *arguments):
        """Run a command of ours as a person in that account would."""
        run = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            env={**os.environ, **self.fleet.aws.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    def last_words(self):
        logs = self.client("logs")
        groups = [each["logGroupName"] for each in logs.describe_log_groups()["logGroups"]]
        entries = [
            (entry["timestamp"], entry["message"][:300])
            for group in groups
            for page in logs.get_paginator("filter_log_events").paginate(logGroupName=group)
            for entry in page["events"]
            if "_aws" not in entry["message"] and '"INFO"' not in entry["message"]
        ]
        return "\n".join(message for _, message in sorted(entries)[-25:])


def eventually(question, *, what, deadline_s=DEADLINE_S):
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > deadline:
            message = f"not within {deadline_s} s: {what() if callable(what) else what}"
            raise AssertionError(message)
        time.sleep(0.2)
    return answer


class MinuteKeeper(threading.Thread):
    """
    Invokes the manager as often as its schedule would, were a minute as short as the alarms' is.

    It does so while the schedule is enabled and has the manager as its target.
    """

    def __init__(self, fleet):
        super().__init__(daemon=True)
        self._fleet = fleet
        self._over = threading.Event()

    def run(self):
        """Invoke, wait for the answer, and look again."""
        scheduler = self._fleet.aws.client("scheduler")
        functions = self._fleet.aws.client(
            "lambda", Config(read_timeout=90, retries={"total_max_attempts": 1})
        )
        manager = self._fleet.stack.outputs["ManagerFunction"]
        (name,) = (each["Name"] for each in scheduler.list_schedules()["Schedules"])
        while not self._over.wait(60 * SCALE / 3):
            with contextlib.suppress(ClientError, BotoCoreError):
                found = scheduler.get_schedule(Name=name)
                is_there = found["Target"]["Arn"].rpartition(":")[2] in (manager, "live")
                if found["State"] == "ENABLED" and is_there:
                    functions.invoke(FunctionName=manager)

    def stop(self):
        """Invoke no more."""
        self._over.set()


@contextlib.contextmanager
def watched(folder, *, shards=2, config=None, worker=None, alarms=None):
    """Deploy the repository's stack with a steered handler and IAM enforced."""
    steer = folder / "steer"
    steer.mkdir()
    context = {
        "shardfleet:stream": {"shards": shards},
        "shardfleet:handler": str(HANDLER),
        "shardfleet:function": "steered:handle",
        "shardfleet:config": {"max_workers": 1, "metrics": "all", **QUICK, **(config or {})},
        "shardfleet:worker": worker or {},
        "shardfleet:monitoring": {
            "page": PAGER,
            "by_cause": True,
            "alarms": {**SOONER, **(alarms or {})},
        },
    }
    plan = FleetPlan(context=context, enforce_iam=True, environment={"ALARMS_STEER": str(steer)})
    with running_fleet(folder / "finished.jsonl", plan) as fleet:
        fleet.aws.scale_alarm_periods(SCALE)
        fleet.aws.client("sns").create_topic(Name="pager")
        found = fleet.aws.client("cloudwatch").describe_alarms(
            AlarmTypes=["MetricAlarm", "CompositeAlarm"]
        )
        names = {
            alarm["AlarmDescription"].rpartition("#")[2]: alarm["AlarmName"]
            for alarm in found["MetricAlarms"] + found["CompositeAlarms"]
        }
        keeper = MinuteKeeper(fleet)
        keeper.start()
        yield Watched(fleet, names, steer)
        keeper.stop()
