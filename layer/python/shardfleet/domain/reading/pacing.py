"""
Staying inside quotas: when a shard may be polled, by token buckets in exact integer arithmetic.

A bucket may go into debt, because the size of an answer is known only after it came: what was
spent is waited for before the next call. Kinesis does the same (protocol.md §5.1: 5 GetRecords/s
and 2 MiB/s per shard, and a 10 MiB answer blocks the shard for 5 s).
"""

from __future__ import annotations

from msgspec import Struct

from shardfleet.domain.reading.pages import RecordsPage

# The first pause after an empty read: 5 calls/s are the quota of a shard.
_CALLS_APART_MS = 200
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


class PollPace(Struct, frozen=True, kw_only=True):
    """
    How often a shard is polled.

    Attributes:
        call_ms: least time between two calls.
        bytes_per_s: of answers.
        idle_most_ms: longest pause of a shard that has nothing.
        window_ms: how long records gather at the tip of a shard before they are asked for.

    """

    call_ms: int
    bytes_per_s: int
    idle_most_ms: int
    window_ms: int = 0


# Leaves four of the five calls a second that a shard takes to the fleet's own readers.
VISITOR = PollPace(call_ms=1_000, bytes_per_s=2 * 1024 * 1024, idle_most_ms=1_000)


class PolledShard:
    """
    When a shard may be polled: a machine without I/O, told of each call and each answer.

    Attributes:
        next_call_ms: no sooner than that, on the steady clock.

    """

    def __init__(self, pace: PollPace, *, now_ms: int) -> None:
        """Let the first call be made at once."""
        self.next_call_ms = now_ms
        self._pace = pace
        self._empty_reads = 0
        self._bytes = Rate(per_s=pace.bytes_per_s, burst=pace.bytes_per_s)
        self._bucket = full_bucket(self._bytes, now_ms=now_ms)

    def asked(self, now_ms: int) -> None:
        """Note that it is polled, in this moment."""
        self._wait_after(self._pace.call_ms, now_ms)

    def answered(self, page: RecordsPage, now_ms: int) -> None:
        """Take an answer: its bytes are paid for before the next one; nothing follows an end."""
        if page.resume_token is None:
            return
        pace, is_idle = self._pace, not page.records and not page.millis_behind_latest
        self._bucket, debt_ms = spend(self._bucket, self._bytes, amount=page.size, now_ms=now_ms)
        self._wait_after(debt_ms, now_ms)
        self._empty_reads = self._empty_reads + 1 if is_idle else 0
        if is_idle:
            pause_ms = idle_pause_ms(
                self._empty_reads, first_ms=_CALLS_APART_MS, most_ms=pace.idle_most_ms
            )
            self._wait_after(pause_ms, now_ms)
        if page.millis_behind_latest == 0:
            self._wait_after(pace.window_ms, now_ms)

    def _wait_after(self, duration_ms: int, now_ms: int) -> None:
        """Make the next call no sooner than that from now (protocol.md §8 row 8a)."""
        self.next_call_ms = max(self.next_call_ms, now_ms + duration_ms)
