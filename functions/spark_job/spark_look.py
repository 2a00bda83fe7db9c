"""One look at a Spark job: what there is, what is decided, and that it is done."""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from shardfleet.domain.jobs import DAY_MS, ENDED, BackOff, JobPlan, SeenRun, plan_job
from shardfleet.errors import ShardfleetError

NAMESPACE, FAILURES = "shardfleet", "job_failures_in_a_row"

UNDER_WAY = ("SUBMITTED", "QUEUED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING")
"""States of a run that has not ended (fact R07)."""


def look(event: dict[str, Any], *, emr: Any, stacks: Any, now_ms: int) -> dict[str, Any]:
    """
    Look at a job and do what is to be done.

    Args:
        event: `StartJobRun`, a request in the words of Step Functions, without name and token;
            `Plan`, the program's one argument; `Stack`, whose status decides whether anything is
            begun; `Fleet`, the dimension of the metric; `GraceSeconds`, for a run that is
            replaced; `Name`, of the runs, which is followed by the hash of all this.
        emr: a client of EMR Serverless.
        stacks: a client of CloudFormation.
        now_ms: since the epoch.

    Returns:
        What is logged: the reason, what was done, and the metric (embedded metric format).

    Raises what boto3 raises, but for what another look or the run itself was faster at; and
    ShardfleetError where nobody says how the stack is.

    """
    request = in_sdk_words(event["StartJobRun"])
    request["jobDriver"]["sparkSubmit"]["entryPointArguments"] = [json.dumps(event["Plan"])]
    request["name"] = f"{event['Name']}-{hash_of(request)}"
    application_id = request["applicationId"]
    # First: nothing is begun by a look that began before the stack was about to be changed.
    status = _status_of(event["Stack"], stacks)
    plan = plan_job(
        request["name"],
        list(runs_of(application_id, emr, now_ms=now_ms)),
        application_id=application_id,
        stack_status=status,
        now_ms=now_ms,
        back_off=BackOff(),
    )
    for run_id in plan.cancel:
        cancel(application_id, run_id, emr=emr, grace_s=event["GraceSeconds"])
    started = start(request, plan.start_token, emr=emr) if plan.start_token else ""
    return {"started": started, **_told(plan, fleet=event["Fleet"], now_ms=now_ms)}


def _status_of(stack: str, stacks: Any) -> str:
    found = stacks.describe_stacks(StackName=stack).get("Stacks")
    if not found:
        raise ShardfleetError(f"CloudFormation does not say how stack {stack} is: nothing is begun")
    return str(found[0]["StackStatus"])


def runs_of(application_id: str, emr: Any, *, now_ms: int) -> Iterator[SeenRun]:
    """Yield the runs under way, and those of the last day; of all time if there is none else."""
    listed = emr.get_paginator("list_job_runs")
    yesterday = datetime.fromtimestamp((now_ms - DAY_MS) / 1_000, UTC)
    seen: dict[str, SeenRun] = {}
    for bounds in ({"states": list(UNDER_WAY)}, {"createdAtAfter": yesterday}, {}):
        if bounds or not seen:
            for page in listed.paginate(applicationId=application_id, **bounds):
                seen |= {run["id"]: _seen(run) for run in page["jobRuns"]}
    yield from seen.values()


def _seen(run: dict[str, Any]) -> SeenRun:
    return SeenRun(
        run_id=run["id"],
        name=run.get("name", ""),
        state=run["state"],
        created_ms=int(run["createdAt"].timestamp() * 1_000),
        updated_ms=int(run["updatedAt"].timestamp() * 1_000),
    )


def cancel(application_id: str, run_id: str, *, emr: Any, grace_s: int) -> None:
    """Cancel a run; one that has ended meanwhile is fine. Raises what boto3 raises."""
    asked = {"applicationId": application_id, "jobRunId": run_id}
    try:
        emr.cancel_job_run(**asked, shutdownGracePeriodInSeconds=grace_s)
    except emr.exceptions.ValidationException:
        if emr.get_job_run(**asked)["jobRun"]["state"] not in ENDED:
            raise


def start(request: dict[str, Any], token: str, *, emr: Any) -> str:
    """Start a run; return its id, empty if another look has used the token for another request."""
    try:
        return str(emr.start_job_run(**request, clientToken=token)["jobRunId"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConflictException":  # fact R11
            raise
        return ""


def in_sdk_words(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request of Step Functions as one of the SDK: names begin with a small letter."""
    return {
        name[:1].lower() + name[1:]: in_sdk_words(value) if isinstance(value, dict) else value
        for name, value in request.items()
    }


def hash_of(request: dict[str, Any]) -> str:
    """Return what changes with anything that a run is started with."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


def _told(plan: JobPlan, *, fleet: str, now_ms: int) -> dict[str, Any]:
    metrics = [{"Name": FAILURES, "Unit": "Count"}]
    return {
        "reason": plan.reason,
        "cancelled": list(plan.cancel),
        "fleet": fleet,
        FAILURES: plan.failures,
        "_aws": {
            "Timestamp": now_ms,
            "CloudWatchMetrics": [
                {"Namespace": NAMESPACE, "Dimensions": [["fleet"]], "Metrics": metrics}
            ],
        },
    }
