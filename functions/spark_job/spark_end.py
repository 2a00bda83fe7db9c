"""
Ending a job for good: its runs are cancelled, and its application is stopped.

CloudFormation does neither: an application is changed or deleted only when it is CREATED or STOPPED
(fact R02). No look begins a run once the stack's status says that it is changed or goes; a look
that has read the status before may still do so for as long as its function may run. So the end is
believed only after that time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_look import UNDER_WAY, cancel

LOOK_S = 2.0
"""Between two looks at what is still there, seconds."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """
    How long is waited, seconds.

    Attributes:
        watch_s: for a look that began before; it may go on for so long.
        grace_s: for a run to end by itself, 15 to 1,800 (fact R15).

    """

    watch_s: float
    grace_s: int


class StillThere(RuntimeError):
    """The time is over, and runs are under way or the application is not stopped."""


def end_job(
    application_id: str,
    *,
    emr: Any,
    patience: Patience,
    has_time: Callable[[], bool],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str:
    """
    Cancel what runs, stop the application, and see that both stay so.

    Args:
        application_id: the application; one that is not there is fine.
        emr: a client of EMR Serverless.
        patience: how long is waited.
        has_time: tells whether to go on.
        clock: seconds that do not go back.
        sleep: for so many seconds.

    Returns:
        What was done, for a person.

    Raises:
        StillThere: it was not all ended in time. And what boto3 raises.

    """
    began_s, cancelled = clock(), set[str]()
    asked = {"applicationId": application_id}
    while True:
        try:
            state = emr.get_application(**asked)["application"]["state"]
        except emr.exceptions.ResourceNotFoundException:
            return f"there is no application {application_id}"
        runs = _under_way(asked, emr)
        for run in runs:
            if run["state"] != "CANCELLING":
                cancel(application_id, run["id"], emr=emr, grace_s=patience.grace_s)
                cancelled.add(run["id"])
        if not runs and state in ("STARTING", "STARTED"):
            _stop(asked, emr)
        rests = not runs and state in ("CREATED", "STOPPED", "TERMINATED")
        if rests and clock() - began_s >= patience.watch_s:
            return f"{len(cancelled)} runs were cancelled, the application is {state}"
        if not has_time():
            names = ", ".join(run["id"] for run in runs) or "none"
            there = f"application {application_id} is {state}, runs under way: {names}"
            raise StillThere(f"{there}. Cancel them, stop the application, and try again")
        sleep(LOOK_S)


def _under_way(asked: dict[str, str], emr: Any) -> list[dict[str, Any]]:
    pages = emr.get_paginator("list_job_runs").paginate(**asked, states=list(UNDER_WAY))
    return [run for page in pages for run in page["jobRuns"]]


def _stop(asked: dict[str, str], emr: Any) -> None:
    try:
        emr.stop_application(**asked)
    except emr.exceptions.ValidationException:
        return  # It stops already, or a run has come: the next look sees which.
