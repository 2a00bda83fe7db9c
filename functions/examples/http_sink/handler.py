"""
Posts each record to an HTTP service, keys side by side and each of them in order.

For ``parallelism``, which is how many requests of a shard run at once, and
``handler_records_per_second``, which is how many each worker process makes in a second.
"""

import asyncio
import os
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit

from shardfleet import Batch, Record

TIMEOUT_S = 10


async def handle(batch: Batch) -> None:
    """Post record by record; what the service refuses raises, and comes again from there on."""
    for record in batch:
        await asyncio.to_thread(post, record)
        batch.checkpoint(record)


def post(record: Record) -> None:
    """Post one record; the service may have it twice, and knows it by its id."""
    record_id = f"{record.shard_id}:{record.sequence_number}:{record.sub_sequence_number}"
    headers = {"Idempotency-Key": record_id, "Partition-Key": record.partition_key}
    sink = urlsplit(os.environ["SINK_URL"])
    kind = HTTPSConnection if sink.scheme == "https" else HTTPConnection
    with closing(kind(sink.netloc, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", sink.path or "/", body=record.data, headers=headers)
        status = connection.getresponse().status
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        message = f"{status} found, a success expected"
        raise OSError(message)
