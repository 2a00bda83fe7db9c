"""A handler that a test steers by files: it hangs, or fails on records that say `poison`."""

import json
import os
import time
from pathlib import Path

STEER = Path(os.environ["ALARMS_STEER"])


def spoil(order):
    """Write what nobody can read over the documents that a test names, by the worker's role."""
    if not order.exists():
        return
    import boto3  # noqa: PLC0415 - the worker's own client is another one

    asked = json.loads(order.read_text())
    order.rename(order.with_suffix(".done"))
    table = boto3.client("dynamodb")
    for kind, name in asked["documents"]:
        table.update_item(
            TableName=asked["table"],
            Key={"kind": {"S": kind}, "id": {"S": name}},
            UpdateExpression="SET body = :nonsense",
            ExpressionAttributeValues={":nonsense": {"L": [{"S": "nonsense"}]}},
        )


def handle(batch):
    spoil(STEER / "nonsense")
    while (STEER / "hang").exists():
        time.sleep(0.05)
    if not (STEER / "cured").exists():
        for record in batch:
            if record.data == b"poison":
                message = "poison"
                raise ValueError(message)
            batch.checkpoint(record)
