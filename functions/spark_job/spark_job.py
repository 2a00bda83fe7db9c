"""
Look after a Spark job, and end it before CloudFormation changes or deletes its application.

What CloudFormation is answered when the job could not be ended is FAILED, with the reason: it could
not change or delete the application either.
"""

import json
import time
import urllib.request
from typing import Any

import boto3
from spark_end import Patience, end_job
from spark_look import look

GONE = "spark-job"
"""The physical id of both resources: they stand for nothing that could be replaced."""

MARGIN_S = 20
"""Kept of an invocation for the answer."""


def watch(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Look once; the event has what is started, see :func:`spark_look.look`."""
    emr, stacks = boto3.client("emr-serverless"), boto3.client("cloudformation")
    told = look(event, emr=emr, stacks=stacks, now_ms=int(time.time() * 1_000))
    print(json.dumps(told))  # noqa: T201 - standard output is the function's log, and its metrics
    return {"reason": told["reason"]}


def end(event: dict[str, Any], context: Any) -> None:
    """Handle one event of a CloudFormation custom resource."""
    status = "SUCCESS"
    try:
        reason = _end(event, left_s=lambda: context.get_remaining_time_in_millis() / 1_000)
    except Exception as error:  # noqa: BLE001 - CloudFormation waits an hour for an answer
        status, reason = "FAILED", f"{type(error).__name__}: {error}"
    print(reason)  # noqa: T201 - standard output is the function's log
    answer = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    answer |= {"Status": status, "Reason": reason, "PhysicalResourceId": GONE}
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own URL
        event["ResponseURL"],
        data=json.dumps(answer).encode(),
        method="PUT",
        headers={"Content-Type": ""},  # Else urllib adds one, which the signature forbids.
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - as above
        return


def _end(event: dict[str, Any], *, left_s: Any) -> str:
    kind, wanted = event["RequestType"], event["ResourceProperties"]
    if wanted["On"] != kind:
        return f"nothing is ended at {kind}"
    application_id = wanted.get("ApplicationId") or _application(event)
    told: str = end_job(
        application_id,
        emr=boto3.client("emr-serverless"),
        patience=Patience(
            watch_s=float(wanted["WatchSeconds"]), grace_s=int(wanted["GraceSeconds"])
        ),
        has_time=lambda: left_s() > MARGIN_S,
        clock=time.monotonic,
        sleep=time.sleep,
    )
    return told


def _application(event: dict[str, Any]) -> str:
    """Return the id of the application that is about to be changed, which cannot be told here."""
    resource = boto3.client("cloudformation").describe_stack_resource(
        StackName=event["StackId"], LogicalResourceId=event["ResourceProperties"]["Application"]
    )
    return str(resource["StackResourceDetail"]["PhysicalResourceId"])
