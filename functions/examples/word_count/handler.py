"""
Counts words by tumbling windows, and keeps what each shard's window came to in a table.

For ``tumbling_window_ms``. A result may be told twice after a crash; it is the same, and its item
replaces itself.
"""

import os
from collections import Counter
from functools import cache
from typing import Any

import boto3

from shardfleet import Batch


@cache
def table() -> Any:
    """Return the table: partition key ``window`` (number), sort key ``shard`` (text)."""
    return boto3.resource("dynamodb").Table(os.environ["COUNTS_TABLE"])


def handle(batch: Batch) -> dict[str, Any]:
    """Add the words of a batch to the window's, or keep the window's once it is over."""
    words, window = Counter(batch.state), batch.window
    if window and window.is_final:
        key = {"window": window.start_ms, "shard": batch.shard_id}
        table().put_item(Item={**key, "words": words})
    for record in batch:
        words.update(record.data.decode().split())
    return {"state": words}
