"""Writes down who handled what, and when: one line per call, in one append."""

import json
import os
import time

_LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def handler(event, context):
    began = time.time()
    shard_id = event["Records"][0]["eventID"].split(":")[0]
    line = {
        "at": began,
        "pid": os.getpid(),
        "request": context.aws_request_id,
        "shard": shard_id,
        "records": [record["kinesis"]["data"] for record in event["Records"]],
    }
    os.write(_LEDGER, json.dumps(line).encode() + b"\n")
