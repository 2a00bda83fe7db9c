"""
Buffers a shard's records to S3: a file per 64 MB or 5 minutes, the positions in its name.

For ``checkpoint`` ``manual``, whose ``open_bytes_most`` and ``open_age_ms`` are size and time.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import boto3

from shardfleet import Batch, Record


@cache
def s3() -> Any:
    """Return the client."""
    return boto3.client("s3")


def upload(shard_id: str, records: Sequence[Record]) -> None:
    """Write one file, a record a line; names sort as the records do."""
    first, last = (
        f"{r.sequence_number:0>56}.{r.sub_sequence_number:06}" for r in (records[0], records[-1])
    )
    body = b"".join(record.data + b"\n" for record in records)
    bucket, name = os.environ["BUFFER_BUCKET"], f"{shard_id}/{first}-{last}"
    s3().put_object(Bucket=bucket, Key=name, Body=body)


def handle(batch: Batch) -> None:
    """Keep the records, or write them, and only then checkpoint; a failed call keeps none."""
    records = [*batch.state.get("records", ()), *batch]
    if batch.must_flush and records:
        upload(batch.shard_id, records)
        batch.checkpoint()
        records = []
    batch.state["records"] = records
