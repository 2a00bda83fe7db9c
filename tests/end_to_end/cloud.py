"""A fleet with a handler of a test, deployed into an embedded AWS that enforces IAM."""

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_local.rig.fleet import FleetPlan, running_fleet

# Looking costs both the test and the embedded AWS processor time that the fleet is in want of: a
# look that took long is not repeated before so many times as long, up to a limit.
LOOK_EVERY_S = 0.3
REST_AFTER_A_LOOK, REST_MOST_S = 5, 2.0
UNKIND = AwsBehaviour(unkind=1, page_items=3, index_built_s=5.0)
HANDLERS = Path(__file__).resolve().parent / "handlers"


@dataclass(frozen=True)
class Fleet:
    """The deployed stack and what a test asks of it; `folder` is the test's own."""

    aws: EmbeddedAws
    outputs: dict[str, str]
    folder: Path

    def client(self, service: str) -> Any:
        return self.aws.client(service)

    def may_use_the_key(self):
        """Tell whether the stream's records can be read: its key's rights are seen."""
        kinesis = self.client("kinesis")
        first = kinesis.get_shard_iterator(
            StreamName=self.outputs["StreamName"],
            ShardId="shardId-000000000000",
            ShardIteratorType="LATEST",
        )
        try:
            return kinesis.get_records(ShardIterator=first["ShardIterator"])
        except kinesis.exceptions.KMSAccessDeniedException:
            return None

    def leases(self):
        """Return the lease table's items by key, attributes as plain values."""
        pages = self.client("dynamodb").get_paginator("scan")
        found = pages.paginate(TableName=self.outputs["LeaseTable"], ConsistentRead=True)
        items = [plain(item) for page in found for item in page["Items"]]
        return {item["leaseKey"]: item for item in items}

    def documents(self, kind):
        """Return the fleet-state documents of a kind by id."""
        found = self.client("dynamodb").query(
            TableName=self.outputs["StateTable"],
            KeyConditionExpression="kind = :kind",
            ExpressionAttributeValues={":kind": {"S": kind}},
            ConsistentRead=True,
        )
        return {item["id"]["S"]: plain(item)["body"] for item in found["Items"]}

    def executions(self):
        """Return the worker slots' executions, newest first."""
        pages = self.client("stepfunctions").get_paginator("list_executions")
        found = pages.paginate(stateMachineArn=self.outputs["StateMachineArn"])
        return [execution for page in found for execution in page["executions"]]

    def logs(self):
        """Return what the fleet's functions logged, one line per entry, oldest first."""
        logs = self.client("logs")
        groups = [each["logGroupName"] for each in logs.describe_log_groups()["logGroups"]]
        pages = logs.get_paginator("filter_log_events")
        entries = [
            (entry["timestamp"], entry["message"].rstrip())
            for group in groups
            for page in pages.paginate(logGroupName=group)
            for entry in page["events"]
        ]
        return [message for _, message in sorted(entries)]


def plain(item):
    """Return a DynamoDB item, or a value of one, as plain Python."""
    from boto3.dynamodb.types import TypeDeserializer  # noqa: PLC0415 - only here.

    return TypeDeserializer().deserialize({"M": item})


@contextlib.contextmanager
def deployed(
    folder,
    *,
    environment,
    handler=None,
    function=None,
    context=None,
    config=None,
    shards=1,
    worker=None,
    enforce_iam=True,
    behaviour=None,
):
    """
    Run the repository's stack with a handler of `handlers/` and IAM enforced.

    Without one, the context says what handles records.

    With a behaviour of the services, a test begins when the stream's key may be used (I01).
    """
    if handler is not None:
        code = {"shardfleet:handler": str(HANDLERS / handler), "shardfleet:function": function}
        context = {**(context or {}), **code}
    context = {
        **(context or {}),
        "shardfleet:stream": {"shards": shards},
        "shardfleet:config": config or {},
        "shardfleet:worker": worker or {},
    }
    plan = FleetPlan(
        context=context,
        enforce_iam=enforce_iam,
        environment=environment,
        behaviour=behaviour or AwsBehaviour(),
    )
    with running_fleet(folder / "finished.jsonl", plan) as running:
        fleet = Fleet(running.aws, dict(running.stack.outputs), folder)
        if behaviour is not None:
            wait_until(fleet.may_use_the_key, what="a key that is seen", within_s=60)
        yield fleet


def wait_until(condition, *, what, within_s, fleet=None):
    """Look until a condition holds and return its value; fail with the fleet's last words."""
    deadline = time.monotonic() + within_s
    while True:
        begun = time.monotonic()
        if value := condition():
            return value
        ended = time.monotonic()
        if ended > deadline:
            told = "\n".join(fleet.logs()[-60:]) if fleet else ""
            message = f"not within {within_s} s: {what}\n{told}"
            raise AssertionError(message)
        rest_s = min(REST_AFTER_A_LOOK * (ended - begun), REST_MOST_S)
        time.sleep(max(LOOK_EVERY_S, rest_s))


def json_lines(file):
    """Read what a handler has written so far; a line that is being written is left out."""
    if not file.exists():
        return []
    return [
        json.loads(line)
        for line in file.read_text("utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
