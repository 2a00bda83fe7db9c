"""
Count clicks per page: the handler that this repository deploys. Put your own in its place.

The contract is shardfleet's native one: one call per batch, records of one shard in order. When
the function returns, the batch is done; when it raises, the batch comes again.
"""

import json
from collections import Counter

from shardfleet import Batch


def handle(batch: Batch) -> None:
    """Print how often each page of this batch was clicked, the most clicked first."""
    pages: Counter[str] = Counter()
    for record in batch:
        pages[page_of(record.data, otherwise=record.partition_key)] += 1
    summary = {"shard": batch.shard_id, "clicks": pages.total(), "pages": dict(pages.most_common())}
    print(json.dumps(summary))  # noqa: T201 - standard output is Lambda's log


def page_of(data: bytes, *, otherwise: str) -> str:
    """Return the page of one click; what is no JSON object with a page counts by its key."""
    try:
        click = json.loads(data)
    except ValueError:
        return otherwise
    page = click.get("page") if isinstance(click, dict) else None
    return page if isinstance(page, str) else otherwise
