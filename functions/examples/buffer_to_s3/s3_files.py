"""Files of records in S3, named by the positions in them."""

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


def write(shard: Batch, records: Sequence[Record]) -> Sequence[Record]:
    """Write one file, a record a line, and only then checkpoint; names sort as the records do."""
    if records:
        first, last = (
            f"{r.sequence_number:0>56}.{r.sub_sequence_number:06}"
            for r in (records[0], records[-1])
        )
        body = b"".join(record.data + b"\n" for record in records)
        bucket, name = os.environ["BUFFER_BUCKET"], f"{shard.shard_id}/{first}-{last}"
        s3().put_object(Bucket=bucket, Key=name, Body=body)
        shard.checkpoint()
    return ()
