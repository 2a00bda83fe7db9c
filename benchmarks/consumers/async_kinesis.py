"""
The Consumer of async-kinesis, with what it has of the same: aggregates, leases, checkpoints.

Shards are allocated, and progress stored once a second, in DynamoDB. Its parser of aggregates
checks no MD5 and yields the data alone. The pauses between its calls are turned off where they
can be.
"""

from __future__ import annotations

import asyncio
import os

from kinesis import Consumer
from kinesis.aggregators import KPLAggregator, SimpleAggregator
from kinesis.dynamodb import DynamoDBCheckPointer
from protocol import Task, serve


class _Bytes:
    def deserialize(self, data: bytes) -> bytes:
        """Return the data as it is."""
        return bytes(data)


class _Plain(_Bytes, SimpleAggregator):
    pass


class _Aggregated(_Bytes, KPLAggregator):
    pass


def consume(task: Task) -> list[bytes]:
    """Iterate over the stream to the last record, then close."""
    return asyncio.run(_consume(task))


async def _consume(task: Task) -> list[bytes]:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    checkpointer = DynamoDBCheckPointer(
        task.stream, table_name=task.lease_table, create_table=False, endpoint_url=endpoint
    )
    consumer = Consumer(
        task.stream,
        endpoint_url=endpoint,
        region_name=os.environ["AWS_DEFAULT_REGION"],
        checkpointer=checkpointer,
        checkpoint_interval=task.checkpoint_ms / 1000,
        processor=_Aggregated() if task.aggregated else _Plain(),
        shard_fetch_rate=1_000,
        idle_timeout=60.0,
    )
    seen: list[bytes] = []
    async with consumer:
        async for data in consumer:
            seen.append(data)
            if len(seen) == task.records:
                break
    return seen


if __name__ == "__main__":
    serve(consume)
