"""
Shards: a hash key range, an open or closed end, parents, children, and the log of records.

A closed shard keeps its records until they are older than the retention period; then the shard
itself expires and is listed no more (developer guide, "Data routing, data persistence, and shard
state after a reshard": OPEN, CLOSED, EXPIRED).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shardfleet_local.kinesis.quotas import ShardQuota
from shardfleet_local.kinesis.record_log import RecordLog

HASH_KEYS: Final = 1 << 128  # fact K78
"""Number of hash keys; ranges tile 0 .. HASH_KEYS - 1."""


def shard_id_of(number: int) -> str:
    """Return `shardId-` and twelve digits."""
    return f"shardId-{number:012d}"


@dataclass(slots=True, eq=False)
class StoredShard:
    """
    One shard of one stream.

    Times are epoch milliseconds; hash keys are inclusive; `parents` is empty, the split shard, or
    the two merged ones (first the one named `ShardToMerge`).
    """

    number: int
    first_hash: int
    last_hash: int
    parents: tuple[str, ...]
    opened_ms: int
    starting_number: str
    quota: ShardQuota
    closed_ms: int | None = None
    ending_number: str | None = None
    children: list["StoredShard"] = field(default_factory=list)
    log: RecordLog = field(default_factory=RecordLog)
    wakers: set[Callable[[], object]] = field(default_factory=set)
    shard_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.shard_id = shard_id_of(self.number)

    @property
    def is_open(self) -> bool:
        """Whether new records may still come."""
        return self.closed_ms is None

    def is_expired(self, horizon_ms: int) -> bool:
        """Return whether the shard was closed before the trim horizon, with all its records."""
        return self.closed_ms is not None and self.closed_ms < horizon_ms

    def is_drained(self, offset: int) -> bool:
        """Return whether a reader at this offset has seen all there will ever be."""
        return not self.is_open and offset >= self.log.end

    def millis_behind(self, offset: int, *, last_read: int | None, now_ms: int) -> int:
        """
        Return the lag of a reader that is now at `offset`, having last read `last_read`.

        0 when nothing is left to read; otherwise the age of the last record handed out, or of the
        next one if nothing was (API reference, MillisBehindLatest and IteratorAgeMilliseconds).
        """
        offset = max(offset, self.log.oldest)
        if offset >= self.log.end:
            return 0
        at = offset if last_read is None else last_read
        return max(0, now_ms - self.log.arrival_ms(at))

    def wake(self) -> None:
        """Wake everyone who waits for a change of this shard."""
        for waker in tuple(self.wakers):
            waker()


def hash_key_range(shard: StoredShard) -> dict[str, str]:
    """Return the wire form of the hash key range."""
    return {"StartingHashKey": str(shard.first_hash), "EndingHashKey": str(shard.last_hash)}


def shard_description(shard: StoredShard) -> dict[str, Any]:
    """Return the wire form of a shard, as ListShards and DescribeStream give it."""
    numbers = {"StartingSequenceNumber": shard.starting_number}
    if shard.ending_number is not None:
        numbers["EndingSequenceNumber"] = shard.ending_number
    description: dict[str, Any] = {
        "ShardId": shard.shard_id,
        "HashKeyRange": hash_key_range(shard),
        "SequenceNumberRange": numbers,
    }
    lineage = zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False)
    return description | dict(lineage)


def child_shards(shard: StoredShard) -> list[dict[str, Any]]:
    """Return the wire form of a closed shard's children, as GetRecords gives it at the end."""
    return [
        {
            "ShardId": child.shard_id,
            "ParentShards": list(child.parents),
            "HashKeyRange": hash_key_range(child),
        }
        for child in shard.children
    ]
