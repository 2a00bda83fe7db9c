"""
Staying inside quotas: token buckets as values, in exact integer arithmetic.

A bucket may go into debt, because the size of an answer is known only after it came: what was
spent is waited for before the next call. Kinesis does the same (protocol.md §5.1: 5 GetRecords/s
and 2 MiB/s per shard, and a 10 MiB answer blocks the shard for 5 s).
"""

from __future__ import annotations

from msgspec import Struct

_PARTS = 1000  # of a token: one millisecond at a rate of N per second refills N parts


class Rate(Struct, frozen=True):
    """
    A quota.

    Attributes:
        per_s: tokens (calls, bytes) refilled per second, at least 1.
        burst: most tokens saved up.

    """

    per_s: int
    burst: int


class Bucket(Struct, frozen=True):
    """
    The state of a token bucket.

    Attributes:
        parts: thousandths of a token that are left; negative is debt.
        at_ms: monotonic milliseconds of that state.

    """

    parts: int
    at_ms: int


def full_bucket(rate: Rate, *, now_ms: int) -> Bucket:
    """Return a bucket with its whole burst."""
    return Bucket(rate.burst * _PARTS, now_ms)


def wait_ms(bucket: Bucket, rate: Rate, *, now_ms: int, needed: int = 0) -> int:
    """
    Return how long to wait until the debt is paid and ``needed`` tokens are there.

    More than the burst never is: then the wait is for the full burst.
    """
    missing = min(needed, rate.burst) * _PARTS - _refilled(bucket, rate, now_ms=now_ms)
    return max(0, -(-missing // rate.per_s))


def available(bucket: Bucket, rate: Rate, *, now_ms: int) -> int:
    """Return how many whole tokens are there, 0 in debt."""
    return max(0, _refilled(bucket, rate, now_ms=now_ms) // _PARTS)


def spend(bucket: Bucket, rate: Rate, *, amount: int, now_ms: int) -> tuple[Bucket, int]:
    """Spend tokens, into debt if need be; return the new state and the wait until it is paid."""
    left = _refilled(bucket, rate, now_ms=now_ms) - amount * _PARTS
    return Bucket(left, max(now_ms, bucket.at_ms)), max(0, -(left // rate.per_s))


def idle_pause_ms(empty_reads: int, *, first_ms: int, most_ms: int) -> int:
    """
    Return how long to leave a shard alone that had nothing so many times in a row.

    Twice as long each time, up to ``most_ms``: a shard that is empty for a moment is looked at
    again soon, and one that sleeps costs little; ``most_ms`` is what its next record may wait.
    """
    doublings = min(empty_reads - 1, most_ms.bit_length())
    return min(most_ms, first_ms << max(0, doublings))


def _refilled(bucket: Bucket, rate: Rate, *, now_ms: int) -> int:
    """Return the thousandths of a token that are there by now."""
    elapsed = max(0, now_ms - bucket.at_ms)
    return min(rate.burst * _PARTS, bucket.parts + elapsed * rate.per_s)
