"""An application and a job run: what they are, and what happens to them next, and when."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BATCH_MINUTES = 720  # fact R01
"""When a run ends that was not told when."""

WORKER_CPU, WORKER_MEMORY_GB = 4, 16  # fact R13
"""Of a driver and of an executor, unless the run says otherwise; with Spark's overhead."""

OVERHEAD = 1.1  # fact R13
"""A worker's memory beside Spark's: a tenth."""


class ApplicationState(StrEnum):
    """States of an application (botocore: emr-serverless ApplicationState)."""

    CREATING = "CREATING"
    CREATED = "CREATED"
    STARTING = "STARTING"
    STARTED = "STARTED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    TERMINATED = "TERMINATED"


class RunState(StrEnum):
    """States of a job run (botocore: emr-serverless JobRunState)."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    QUEUED = "QUEUED"

    @property
    def ended(self) -> bool:
        """Return whether a run in this state stays in it."""
        return self in (RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Delays:
    """
    How long the service takes, in seconds.

    Attributes:
        create_s: until a new application is CREATED.
        start_s: until an application is STARTED.
        stop_s: until it is STOPPED.
        schedule_s: in each of the states before RUNNING.

    """

    create_s: float = 1.0
    start_s: float = 30.0  # ours
    stop_s: float = 10.0  # ours
    schedule_s: float = 10.0  # ours


@dataclass(frozen=True, kw_only=True)
class Work:
    """
    What one attempt of a run does.

    Attributes:
        runs_s: seconds until it ends by itself; infinite: never.
        succeeds: whether that end is a success.
        stops_s: seconds that it takes to end when it is cancelled, if it is given them.

    """

    runs_s: float = math.inf
    succeeds: bool = True
    stops_s: float = 0.0


Job = Callable[["Run"], Work]
"""What an attempt of a run does, asked when it begins to run."""


@dataclass(kw_only=True)
class Application:
    """An application; `due` is what happens to it next, and when."""

    application_id: str
    arn: str
    request: dict[str, Any]
    state: ApplicationState
    created_s: float
    updated_s: float
    idle_since_s: float
    due: tuple[float, ApplicationState] | None = None
    tokens: dict[str, tuple[Mapping[str, Any], str]] = field(default_factory=dict)

    def enter(self, state: ApplicationState, at_s: float) -> None:
        """Be in a state from now on, with nothing due."""
        self.state, self.updated_s, self.idle_since_s, self.due = state, at_s, at_s, None

    @property
    def starts_itself(self) -> bool:
        """Return whether a run that comes starts it."""
        return bool(self.request.get("autoStartConfiguration", {}).get("enabled", True))

    @property
    def idle_s(self) -> float:
        """Seconds without a run after which it stops by itself; infinite: never."""
        found = self.request.get("autoStopConfiguration", {})
        if not found.get("enabled", True):
            return math.inf
        return 60.0 * float(found.get("idleTimeoutMinutes", 15))  # fact R14

    @property
    def max_runs(self) -> float:
        """How many runs may be on their way at once (EMR 7.0 and later)."""
        found = self.request.get("schedulerConfiguration")
        return math.inf if found is None else float(found.get("maxConcurrentRuns", 15))  # fact R07

    def capacity(self) -> tuple[float, float]:
        """Return the most vCPU and GB of all workers together."""
        most = self.request.get("maximumCapacity")
        if most is None:
            return math.inf, math.inf
        return _number(most["cpu"]), _number(most["memory"])


@dataclass(kw_only=True)
class Run:
    """A job run; `due` is what happens to it next, and when."""

    run_id: str
    arn: str
    request: dict[str, Any]
    release_label: str
    state: RunState
    created_s: float
    updated_s: float
    attempt: int = 1
    details: str = "Submitted"
    started_s: float | None = None
    ended_s: float | None = None
    work: Work | None = None
    workers: int = 0
    failures_s: list[float] = field(default_factory=list)
    due: tuple[float, RunState] | None = None

    def enter(self, state: RunState, at_s: float, *, details: str = "") -> None:
        """Be in a state from now on, with nothing due."""
        self.state, self.updated_s, self.due = state, at_s, None
        self.details = details or state.value.capitalize()
        if state.ended:
            self.ended_s, self.workers = at_s, 0

    @property
    def mode(self) -> str:
        """BATCH or STREAMING."""
        return str(self.request.get("mode", "BATCH"))

    @property
    def minutes_most(self) -> int:
        """Minutes after which it is cancelled; 0: never."""
        default = BATCH_MINUTES if self.mode == "BATCH" else 0
        return int(self.request.get("executionTimeoutMinutes", default))

    @property
    def conf(self) -> dict[str, str]:
        """Spark's settings, as spark-submit would read them."""
        submit = self.request.get("jobDriver", {}).get("sparkSubmit", {})
        words = submit.get("sparkSubmitParameters", "")
        return dict(re.findall(r"--conf\s+\"?([^\s=]+)=([^\s\"]+)", words))

    def tries_again(self, at_s: float) -> bool:
        """Return whether the service begins another attempt after the failures so far."""
        policy = self.request.get("retryPolicy", {})
        if self.mode == "BATCH":
            return self.attempt < int(policy.get("maxAttempts", 1))  # fact R05
        lately = [each for each in self.failures_s if each > at_s - 3_600]  # fact R05
        return len(lately) <= int(policy.get("maxFailedAttemptsPerHour", len(lately)))

    def worker_size(self, role: str) -> tuple[float, float]:
        """Return vCPU and GB of the driver or an executor."""
        cores = self.conf.get(f"spark.{role}.cores")
        memory = self.conf.get(f"spark.{role}.memory", "")
        said = re.fullmatch(r"(\d+)([gm])b?", memory.lower())
        gigabytes = float(WORKER_MEMORY_GB)
        if said:
            gigabytes = math.ceil(int(said[1]) * OVERHEAD / (1 if said[2] == "g" else 1024))  # ours
        return float(cores or WORKER_CPU), gigabytes


def _number(text: str) -> float:
    found = re.match(r"\d+", text)
    return float(found[0]) if found else math.inf
