"""A fleet of plain processes on an embedded AWS, in the place of a deployed one: no stack."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.aws.launcher import EmbeddedAws, WorkerProcess
from shardfleet_local.rig.fleet import FleetPlan, RunningFleet
from shardfleet_local.rig.ledger import DemoLedger
from shardfleet_local.rig.proxy import FaultyProxy

APPLICATION = "clicks"
PROCESSES, _SHARDS = 3, 4
_HANDLER = "def handle(batch):\n    pass\n"
_COMMAND = (
    *("work", "--stream", APPLICATION, "--application", APPLICATION),
    *("--handler", "ledger_probe:handle"),
)
_RUN = "import sys; from shardfleet_ops.cli import main; sys.exit(main())"
_LOOK_S = 1.0


class KeptProcesses:
    """
    Keeps so many processes running, whatever happens to them.

    Args:
        environment: of each.
        folder: where the handler lies, and their log.

    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        """Start none."""
        self._environment = environment
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._ends = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        """Start them."""
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End them at once, frozen ones, too."""
        self._ends.set()
        self._keeper.join()
        for process in self._running:
            process.kill()
            process.wait()

    @property
    def alive(self) -> list[int]:
        """Return the process ids of those that run."""
        return [process.pid for process in self._running if process.poll() is None]

    def _keep(self) -> None:
        while not self._ends.is_set():
            running = [process for process in self._running if process.poll() is None]
            running += [self._start() for _ in range(PROCESSES - len(running))]
            self._running = running
            self._ends.wait(_LOOK_S)

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", _RUN, *_COMMAND],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFleet(RunningFleet):
    """
    Processes, as a run sees a fleet.

    Attributes:
        kept: what keeps them running.

    """

    kept: KeptProcesses

    def workers(self) -> list[WorkerProcess]:
        """List the processes that run."""
        return [_busy(pid) for pid in self.kept.alive]

    def managers(self) -> list[WorkerProcess]:
        """List the one that has the turn lock."""
        key = {"kind": {"S": "lock"}, "id": {"S": "manager"}}
        found = self.aws.client("dynamodb").get_item(TableName=f"{APPLICATION}-fleet", Key=key)
        body = found.get("Item", {}).get("body", {}).get("M", {})
        holder = body.get("holder", {}).get("S", "")
        return [_busy(pid) for pid in self.kept.alive if f"-{pid}-" in holder]

    def kill(self, pid: int) -> bool:
        """Kill one of them; False if it has ended."""
        if pid not in self.kept.alive:
            return False
        os.kill(pid, signal.SIGKILL)
        return True


@contextlib.contextmanager
def running_processes(
    ledger_file: Path, plan: FleetPlan, *, say: Callable[[str], None]
) -> Iterator[ProcessFleet]:
    """
    Start an embedded AWS with a stream, and processes that consume it; stop all at the end.

    Args:
        ledger_file: where is noted what was handled; its folder must exist.
        plan: the environment of the processes, and which of their calls go wrong.
        say: told of each step as it begins.

    Raises:
        EmbeddedAwsFailed: the embedded AWS did not start.

    """
    ledger = DemoLedger(ledger_file)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="shardfleet-")))
        (folder / "quiet.py").write_text(_HANDLER, encoding="utf-8")
        say("starting an embedded AWS")
        aws = opened.enter_context(EmbeddedAws(behaviour=plan.behaviour))
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName=APPLICATION, ShardCount=_SHARDS)
        kinesis.get_waiter("stream_exists").wait(StreamName=APPLICATION)
        stream = kinesis.describe_stream_summary(StreamName=APPLICATION)
        outputs = {
            "StreamArn": stream["StreamDescriptionSummary"]["StreamARN"],
            **dict.fromkeys(("StreamName", "LeaseTable"), APPLICATION),
        }
        environment = {**os.environ, **aws.environment(), **plan.environment}
        environment |= ledger.environment("quiet:handle")
        if plan.is_pushed:
            environment["SHARDFLEET_CONSUMER_ARN"] = _consumer(kinesis, outputs["StreamArn"])
        if plan.dice:
            proxy = opened.enter_context(FaultyProxy(aws.endpoint_url, plan.dice, key=aws.key))
            environment |= proxy.environment()
        say(f"starting {PROCESSES} processes")
        kept = opened.enter_context(KeptProcesses(environment, folder))
        for table in (APPLICATION, f"{APPLICATION}-fleet"):
            aws.client("dynamodb").get_waiter("table_exists").wait(TableName=table)
        yield ProcessFleet(
            aws=aws,
            stack=StackOutputs(stack_name=APPLICATION, template_sha256="", outputs=outputs),
            ledger=ledger,
            template=folder,
            kept=kept,
        )
        say("stopping everything")


def _consumer(kinesis: Any, stream_arn: str) -> str:
    made = kinesis.register_stream_consumer(StreamARN=stream_arn, ConsumerName=APPLICATION)
    return str(made["Consumer"]["ConsumerARN"])


def _busy(pid: int) -> WorkerProcess:
    return WorkerProcess(pid, APPLICATION, "", busy=True, frozen=False)
