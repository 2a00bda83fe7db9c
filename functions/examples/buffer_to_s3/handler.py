"""
Buffers a shard's records to S3: a file per 64 MB or 5 minutes, whichever comes first.

For a fleet with ``checkpoint`` ``manual``, whose ``open_bytes_most`` and ``open_age_ms`` are the
size and the time. A shard's files follow each other without a gap; each has the positions of its
first and last record in its name, so that a reader knows what a repetition repeats: after a crash
a shard goes on behind the last file that was checkpointed. ``BUFFER_BUCKET`` names the bucket.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import boto3

from shardfleet import Batch, Record


@cache
def s3() -> Any:
    """Return the client, made by the first file."""
    return boto3.client("s3")


def position(record: Record) -> str:
    """Return what sorts as the records do: sequence numbers have at most 56 digits."""
    return f"{record.sequence_number:0>56}.{record.sub_sequence_number:06}"


def upload(shard_id: str, records: Sequence[Record]) -> None:
    """Write one file, a record a line."""
    s3().put_object(
        Bucket=os.environ["BUFFER_BUCKET"],
        Key=f"{shard_id}/{position(records[0])}-{position(records[-1])}",
        Body=b"".join(record.data + b"\n" for record in records),
    )


def handle(batch: Batch) -> None:
    """Keep the records; once they must go, write them, and only then checkpoint."""
    records = [*batch.state.get("records", ()), *batch]
    if batch.must_flush and records:
        upload(batch.shard_id, records)
        batch.checkpoint()
        records = []
    # Last: of a call that failed its records come again.
    batch.state["records"] = records
