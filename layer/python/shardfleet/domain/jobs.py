"""
The life of a Spark job: which run of it is started, cancelled or waited for.

A run is told by its name, which has the hash of all that it is started with: a run of another name
is of a deploy before. Looks may come twice and at once, and see a listing that is behind. What
keeps two runs off one checkpoint is the client token, made from the last run that is known: of
everybody who knows the same last run, EMR Serverless lets one request through (facts R06, R11),
also where a look of the deploy before comes late with another request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
"""States that a run stays in (botocore: emr-serverless JobRunState, fact R07)."""

SETTLED = frozenset(
    {
        "CREATE_COMPLETE",
        "UPDATE_COMPLETE",
        "UPDATE_FAILED",
        "UPDATE_ROLLBACK_COMPLETE",
        "UPDATE_ROLLBACK_FAILED",
        "IMPORT_COMPLETE",
        "IMPORT_ROLLBACK_COMPLETE",
    }
)
"""Statuses of a stack that nobody changes and that is not about to go."""

DAY_MS = 86_400_000
_CANCELLING = "CANCELLING"


class SeenRun(Struct, frozen=True, kw_only=True):
    """A run as a listing has it; times in milliseconds since the epoch."""

    run_id: str
    name: str
    state: str
    created_ms: int
    updated_ms: int

    @property
    def ended(self) -> bool:
        """Return whether the run stays as it is."""
        return self.state in ENDED


class BackOff(Struct, frozen=True, kw_only=True):
    """
    How long a failing job rests.

    Attributes:
        first_ms: after one failure; each further one doubles it.
        most_ms: the longest rest.
        worked_ms: a run that lasted so long had worked: what failed before it is forgotten.

    """

    first_ms: int = 60_000
    most_ms: int = 3_600_000
    worked_ms: int = 3_600_000

    def rest_ms(self, failures: int) -> int:
        """Return how long to rest after so many failures in a row."""
        return min(self.most_ms, self.first_ms << failures - 1) if failures else 0


class JobPlan(Struct, frozen=True, kw_only=True):
    """
    What is to be done now.

    Attributes:
        start_token: start a run with this client token; empty: start none.
        cancel: ids of the runs to cancel.
        failures: how many runs of this name have failed in a row.
        reason: why it is so, for a person.

    """

    start_token: str = ""
    cancel: tuple[str, ...] = ()
    failures: int = 0
    reason: str


def plan_job(
    name: str,
    runs: Sequence[SeenRun],
    *,
    application_id: str,
    stack_status: str,
    now_ms: int,
    back_off: BackOff,
) -> JobPlan:
    """
    Decide what becomes of a job.

    Args:
        name: of the runs that are wanted.
        runs: all that are under way, and those that have ended as far back as anybody asks: the
            last one at least, if there ever was one.
        application_id: in which the runs are; it is the job's own.
        stack_status: of the stack that the job belongs to, read after this look began.
        now_ms: since the epoch.
        back_off: how long a failing job rests.

    """
    failures = failures_in_a_row(name, runs, back_off)
    if stack_status not in SETTLED:
        return JobPlan(failures=failures, reason=f"the stack is {stack_status}: nothing is begun")
    under_way = sorted((run for run in runs if not run.ended), key=_age)
    wanted = [run for run in under_way if run.name == name and run.state != _CANCELLING]
    cancel = tuple(
        run.run_id for run in under_way if run.state != _CANCELLING and run not in wanted[:1]
    )
    if under_way:
        reason = f"{wanted[0].run_id} is {wanted[0].state}" if wanted else "another run is to end"
        return JobPlan(cancel=cancel, failures=failures, reason=reason)
    last = max(runs, key=_age, default=None)
    if last and failures and now_ms < last.updated_ms + back_off.rest_ms(failures):
        seconds = (last.updated_ms + back_off.rest_ms(failures) - now_ms) // 1_000
        return JobPlan(failures=failures, reason=f"{failures} failures: rests {seconds} s more")
    # A listing without any run may be that of an application whose runs nobody remembers.
    before = last.run_id if last else f"day {now_ms // DAY_MS}"
    token = hashlib.sha256(f"{application_id} {before}".encode()).hexdigest()
    return JobPlan(start_token=token, failures=failures, reason="no run is under way")


def failures_in_a_row(name: str, runs: Sequence[SeenRun], back_off: BackOff) -> int:
    """Count the last runs that failed under this name, back to one that had worked for long."""
    failures = 0
    for run in sorted((run for run in runs if run.ended), key=_age, reverse=True):
        if run.name != name or run.state != "FAILED":
            break
        failures += 1
        if run.updated_ms - run.created_ms >= back_off.worked_ms:
            break
    return failures


def _age(run: SeenRun) -> tuple[int, str]:
    return run.created_ms, run.run_id
