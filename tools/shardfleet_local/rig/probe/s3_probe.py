"""
The handler of `shardfleet acceptance`: it notes in a bucket what it has handled, and can hang.

An object per batch, named by when it was finished: in an account that is not on this machine there
is no file that everybody appends to. This folder is deployed, as a package of its own.

    NOTES_BUCKET      the bucket
    NOTES_VERSION     which deployment this is

A record that says ``{"hang": "<token>"}`` stops the whole process, once for each token, as a
handler does that never returns: only the function's time-out ends it then.
"""

import functools
import itertools
import json
import os
import signal
import time
from contextlib import suppress
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .ledger_probe import digest  # noqa: TID252 - deployed, it is `probe.ledger_probe`

BUCKET_VARIABLE = "NOTES_BUCKET"
VERSION_VARIABLE = "NOTES_VERSION"

NOTES = "notes/"
"""One object per batch below it: ``notes/<epoch ns>-<count>-<environment>.json``."""

HUNG = "hung/"
"""One object per token below it."""

_count = itertools.count()


def handle(batch: Any) -> None:
    """Note a batch as handled, with the version of this code and the environment it runs in."""
    client, bucket = _client(), os.environ[BUCKET_VARIABLE]
    for record in batch:
        if record.data.startswith(b'{"hang":'):
            hang_once(client, bucket, json.loads(record.data)["hang"])
    now_ns, environment = time.time_ns(), os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
    note = {
        "at_ms": now_ns // 1_000_000,
        "environment": environment,
        "version": os.environ[VERSION_VARIABLE],
        "shard": batch.shard_id,
        "rows": [
            (each.sequence_number, each.sub_sequence_number, digest(each.partition_key, each.data))
            for each in batch
        ],
    }
    place = environment.rpartition("]")[2]
    key = f"{NOTES}{now_ns:020d}-{next(_count):09d}-{place}.json"
    client.put_object(Bucket=bucket, Key=key, Body=json.dumps(note).encode())


@functools.cache
def _client() -> Any:
    return boto3.client("s3")


def hang_once(client: Any, bucket: str, token: str) -> None:
    """Stop this process unless one was stopped for the token before."""
    note = {"at_ms": time.time_ns() // 1_000_000}
    # 412: somebody hung already.
    with suppress(ClientError):
        client.put_object(
            Bucket=bucket, Key=f"{HUNG}{token}", Body=json.dumps(note).encode(), IfNoneMatch="*"
        )
        os.kill(os.getpid(), signal.SIGSTOP)
