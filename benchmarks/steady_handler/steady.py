"""A handler that takes its time per record, and lets the batches of other shards overlap."""

import asyncio
import os

from shardfleet import Batch

PER_RECORD_S = float(os.environ.get("STEADY_PER_RECORD_MS", "1")) / 1000


async def handle(batch: Batch) -> None:
    """Work for a moment on each record."""
    await asyncio.sleep(PER_RECORD_S * len(batch))
