"""
Invoke the lease manager when the stack is created or updated, and answer CloudFormation.

The answer is always SUCCESS: the schedule will invoke the manager within the minute anyway.
"""

import json
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def handler(event: dict[str, Any], _context: object) -> None:
    """Handle one event of a CloudFormation custom resource."""
    reason = "nothing to do"
    if event["RequestType"] in ("Create", "Update"):
        try:
            boto3.client("lambda").invoke(
                FunctionName=event["ResourceProperties"]["Manager"],
                InvocationType="Event",
                Payload=b'{"trigger":"deploy"}',
            )
            reason = "the lease manager was invoked"
        except (BotoCoreError, ClientError) as error:
            reason = f"the schedule will invoke the lease manager: {error}"
    print(reason)  # noqa: T201 - standard output is the function's log
    answer = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    answer |= {"Status": "SUCCESS", "Reason": reason, "PhysicalResourceId": "first-run"}
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own URL
        event["ResponseURL"],
        data=json.dumps(answer).encode(),
        method="PUT",
        headers={"Content-Type": ""},  # Else urllib adds one, which the signature forbids.
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - as above
        return
