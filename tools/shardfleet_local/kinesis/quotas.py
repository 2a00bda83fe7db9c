"""
The limits of a shard and of the control plane, as token buckets on an injected clock.

Sources: "Quotas and limits" of the Kinesis Data Streams developer guide and the operations' own
pages in the API reference. A bucket holds one second's worth, so a quiet shard can take a burst of
one second at once, and never more than the rate over any longer time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardfleet_local.kinesis.tokens import named_stream

KIB: Final = 1024  # ours: a unit
MIB: Final = 1024 * KIB  # ours: a unit

WRITE_RECORDS_PER_S: Final = 1_000  # fact K74
"""Records a shard takes per second (quota)."""
WRITE_BYTES_PER_S: Final = MIB  # fact K74
"""Bytes (data and partition keys) a shard takes per second (quota)."""
READ_CALLS_PER_S: Final = 5  # fact K75
"""GetRecords calls per shard and second, all pollers together (quota)."""
READ_BYTES_PER_S: Final = 2 * MIB  # fact K75
"""Bytes GetRecords hands out per shard and second; also per enhanced fan-out consumer (quota)."""
ITERATOR_CALLS_PER_S: Final = 5  # fact K75
"""GetShardIterator calls per shard and second (quota)."""
GET_RECORDS_BYTES: Final = 10 * MIB  # fact K26
"""Most bytes in one GetRecords answer (API reference)."""
GET_RECORDS_COUNT: Final = 10_000  # fact K73
"""Most records in one GetRecords answer (API reference)."""
PUT_RECORDS_BYTES: Final = 10 * MIB  # fact K76
"""Most bytes in one PutRecords request, partition keys included (API reference)."""
PUT_RECORDS_COUNT: Final = 500  # fact K76
"""Most records in one PutRecords request (service model)."""

PER_ACCOUNT: Final = "account"
PER_STREAM: Final = "stream"

OPERATION_RATES: Final[Mapping[str, tuple[float, str]]] = {  # fact K80
    # operation: (calls per second, counted per); source: the operation's page, "limit of N
    # transactions per second"
    "AddTagsToStream": (5, PER_ACCOUNT),
    "CreateStream": (5, PER_ACCOUNT),
    "DecreaseStreamRetentionPeriod": (5, PER_STREAM),
    "DeleteStream": (5, PER_ACCOUNT),
    "DeregisterStreamConsumer": (5, PER_STREAM),
    "DescribeLimits": (1, PER_ACCOUNT),
    "DescribeStream": (10, PER_ACCOUNT),
    "DescribeStreamConsumer": (20, PER_STREAM),
    "DescribeStreamSummary": (20, PER_ACCOUNT),
    "DisableEnhancedMonitoring": (5, PER_STREAM),
    "EnableEnhancedMonitoring": (5, PER_STREAM),
    "IncreaseStreamRetentionPeriod": (5, PER_STREAM),
    "ListShards": (1_000, PER_STREAM),
    "ListStreamConsumers": (5, PER_STREAM),
    "ListStreams": (5, PER_ACCOUNT),
    "ListTagsForStream": (5, PER_ACCOUNT),
    "MergeShards": (5, PER_ACCOUNT),
    "RegisterStreamConsumer": (5, PER_ACCOUNT),
    "RemoveTagsFromStream": (5, PER_ACCOUNT),
    "SplitShard": (5, PER_ACCOUNT),
    "UpdateShardCount": (10, PER_ACCOUNT),
}


@dataclass(slots=True)
class TokenBucket:
    """A bucket of `rate_per_s` tokens, refilled steadily; its level may go below zero (debt)."""

    rate_per_s: float
    level: float
    refilled_ms: int

    def admits(self, amount: float, now_ms: int) -> bool:
        """
        Return whether the amount may pass now.

        An amount beyond a whole second's worth (a large record) passes when the bucket is full; the
        debt is then paid off before anything else passes.
        """
        if now_ms > self.refilled_ms:
            earned = (now_ms - self.refilled_ms) * self.rate_per_s / 1000
            self.level = min(self.rate_per_s, self.level + earned)
            self.refilled_ms = now_ms
        return self.level >= min(amount, self.rate_per_s)

    def spend(self, amount: float) -> None:
        """Take the amount out, below zero if need be."""
        self.level -= amount


def full_bucket(rate_per_s: float, now_ms: int) -> TokenBucket:
    """Return a bucket that has not been used yet."""
    return TokenBucket(rate_per_s=rate_per_s, level=rate_per_s, refilled_ms=now_ms)


class ShardQuota:
    """What one shard may still take and hand out; shared by all its producers and pollers."""

    __slots__ = ("_iterator_calls", "_read_bytes", "_read_calls", "_write_bytes", "_write_records")

    def __init__(self, now_ms: int) -> None:
        self._write_records = full_bucket(WRITE_RECORDS_PER_S, now_ms)
        self._write_bytes = full_bucket(WRITE_BYTES_PER_S, now_ms)
        self._read_calls = full_bucket(READ_CALLS_PER_S, now_ms)
        self._read_bytes = full_bucket(READ_BYTES_PER_S, now_ms)
        self._iterator_calls = full_bucket(ITERATOR_CALLS_PER_S, now_ms)

    def take_write(self, size_bytes: int, now_ms: int) -> bool:
        """Take one record of that size, or refuse it and take nothing."""
        fits = self._write_records.admits(1, now_ms) and self._write_bytes.admits(
            size_bytes, now_ms
        )
        if fits:
            self._write_records.spend(1)
            self._write_bytes.spend(size_bytes)
        return fits

    def take_read(self, now_ms: int) -> bool:
        """Take one GetRecords call, or refuse it: five a second, and no open debt of bytes."""
        fits = self._read_calls.admits(1, now_ms) and self._read_bytes.admits(0, now_ms)
        if fits:
            self._read_calls.spend(1)
        return fits

    def charge_read(self, size_bytes: int) -> None:
        """
        Charge the bytes of an answer.

        An answer above one second's worth blocks the shard for its size divided by the rate: 10 MiB
        for five seconds, as the GetRecords page says.
        """
        if size_bytes > READ_BYTES_PER_S:
            self._read_bytes.level = min(self._read_bytes.level, 0.0)
        self._read_bytes.spend(size_bytes)

    def take_iterator(self, now_ms: int) -> bool:
        """Take one GetShardIterator call, or refuse it."""
        fits = self._iterator_calls.admits(1, now_ms)
        if fits:
            self._iterator_calls.spend(1)
        return fits


class OperationQuota:
    """Call rates of the control plane, per account or per stream (`OPERATION_RATES`)."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def take(self, operation: str, request: Mapping[str, Any], *, now_ms: int) -> bool:
        """Take one call of the operation, or refuse it; operations without a limit always pass."""
        rate = OPERATION_RATES.get(operation)
        if rate is None:
            return True
        per_second, scope = rate
        key = (operation, named_stream(request) if scope == PER_STREAM else "")
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = full_bucket(per_second, now_ms)
        fits = bucket.admits(1, now_ms)
        if fits:
            bucket.spend(1)
        return fits
