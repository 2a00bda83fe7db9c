"""
Invoke the lease manager when the stack is created or updated; end its workers when it goes.

The answer is always SUCCESS: the schedule will invoke the manager within the minute anyway, and
executions that could not be stopped are waited for. The resource is known by its manager's name,
by which a command finds the fleet (`shardfleet_ops/cli/fleets.py`). Where the manager is replaced,
so is the resource, and the old one's deletion ends no worker of a stack that stays.
"""

import json
import urllib.request
from typing import Any

from stack_events import end_workers, invoke_manager


def handler(event: dict[str, Any], _context: object) -> None:
    """Handle one event of a CloudFormation custom resource."""
    is_deploy = event["RequestType"] in ("Create", "Update")
    try:
        reason = invoke_manager(event) if is_deploy else end_workers(event)
    except Exception as error:  # noqa: BLE001 - CloudFormation waits an hour for an answer
        otherwise = "the schedule will invoke the lease manager"
        reason = f"{otherwise if is_deploy else 'the executions end by themselves'}: {error!r}"
    print(reason)  # noqa: T201 - standard output is the function's log
    answer = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    # A deletion answers for the resource that it was asked about.
    known_as = event["ResourceProperties"]["Manager"] if is_deploy else event["PhysicalResourceId"]
    answer |= {"Status": "SUCCESS", "Reason": reason, "PhysicalResourceId": known_as}
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own URL
        event["ResponseURL"],
        data=json.dumps(answer).encode(),
        method="PUT",
        headers={"Content-Type": ""},  # Else urllib adds one, which the signature forbids.
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - as above
        return
