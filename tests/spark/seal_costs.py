"""
What the seals of a Spark query cost: an estimate from shards, tasks and the time between batches.

Per batch and seal: it is looked for, written, read by the driver, and deleted later. DynamoDB
counts bytes, and a deletion as much as the write; S3 counts requests, and deletes for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardfleet.domain.cost.prices import PRICES, Prices
from shardfleet.domain.cost.usage import HOURS_PER_MONTH

# shardfleet_spark.offsets.seals: SHARDS_PER_SEAL, and the length of a seal of busy shards.
SHARDS_PER_SEAL = 200
_SHARD_BYTES = 623
_SEAL_BYTES = 300  # keys, names, counts, and who wrote it
_MONTH_S = HOURS_PER_MONTH * 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class SealUse:
    """
    What the seals of one batch use, of DynamoDB or of S3.

    Attributes:
        write_units: DynamoDB.
        read_units: DynamoDB.
        writes: S3, PUT and LIST.
        reads: S3, GET.

    """

    write_units: int
    read_units: int
    writes: int
    reads: int


def seal_use(shards: int, *, tasks: int) -> SealUse:
    """
    Return what one batch of so many shards, evenly spread over tasks, uses.

    Args:
        shards: of the batch.
        tasks: of the batch; of an empty one there is none.

    """
    tasks = min(tasks, shards)
    sizes = []
    for task in range(tasks):
        left = shards // tasks + (task < shards % tasks)
        while left:
            group = min(left, SHARDS_PER_SEAL)
            sizes.append(_SEAL_BYTES + group * _SHARD_BYTES)
            left -= group
    # The driver's mark of the plan is one more, small one.
    writes = sum(_units(size, 1_024) for size in sizes) + 1
    return SealUse(
        write_units=2 * writes,
        read_units=len(sizes) + _units(sum(sizes), 4_096),
        writes=len(sizes) + 2,
        reads=2 * len(sizes) + 1,
    )


def seals_per_month(
    shards: int, *, tasks: int, batch_s: float, prices: Prices = PRICES
) -> dict[str, float]:
    """
    Return dollars a month, of a query that has something to read in each batch.

    Args:
        shards: of the stream.
        tasks: of a batch.
        batch_s: seconds from one batch to the next.
        prices: list prices.

    Returns:
        ``dynamodb`` and ``s3``: what either of them costs as the seal store.

    """
    use, batches = seal_use(shards, tasks=tasks), _MONTH_S / batch_s
    return {
        "dynamodb": batches
        * (use.write_units * prices.table_write_unit + use.read_units * prices.table_read_unit),
        "s3": batches * (use.writes * prices.object_write + use.reads * prices.object_read),
    }


def _units(size: int, unit: int) -> int:
    return -(-size // unit)
