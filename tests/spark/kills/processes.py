"""The processes of a Spark application, found by their session, and what each of them is."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
END_LIMIT_S = 30

_PROGRAM = "tests.spark.kills.program"
_ROLES = {
    "org.apache.spark.deploy.SparkSubmit": "driver",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": "executor",
    "python_streaming_source_runner": "source",
    _PROGRAM: "program",
}
_DAEMON = "pyspark.daemon"


@dataclass(frozen=True)
class Process:
    """
    One process.

    Attributes:
        pid: its id.
        role: `driver` (Spark's JVM), `program` (its Python), `executor`, `worker` (a Python that
            runs tasks), `source` (the Python beside the driver that plans batches), or empty.

    """

    pid: int
    role: str


def of_sessions(sessions):
    """Return the living processes of some sessions."""
    found = {}
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if int(session) in sessions and state != "Z":
                found[int(folder.name)] = (int(parent), command)
    return [
        Process(pid, _role(command, found.get(parent, (0, ""))[1]))
        for pid, (parent, command) in found.items()
    ]


def _role(command, parents):
    if _DAEMON in command:
        # The daemon forks a worker per task slot; planners have a daemon of their own.
        return "worker" if _DAEMON in parents and "pyspark.worker" in command else ""
    return next((role for part, role in _ROLES.items() if part in command), "")


def send(pid, number):
    """Send a signal; return whether there was somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(sessions):
    """Kill all that is left of some sessions, and wait until it is gone."""
    deadline = time.monotonic() + END_LIMIT_S
    while left := of_sessions(sessions):
        if time.monotonic() > deadline:
            message = f"processes {[process.pid for process in left]} outlive SIGKILL"
            raise TimeoutError(message)
        for process in left:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.05)
