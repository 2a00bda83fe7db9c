"""
How long a batch may read, where no option says it: as long as the trigger leaves time for. Pure.

Spark tells a source nothing of its trigger. But it asks for the latest offset once in each, and a
batch that took longer than the interval is followed by the next one at once (Spark's
``ProcessingTimeExecutor``). So from one question to the next is the trigger's interval, or what
the batch took. Four fifths of that are for reading, the rest is for the sink and Spark's logs.
Without an interval that settles where reading takes four times as long as everything else.

The bound is for shards that lag: one that is read to its tip is not read on.
"""

from __future__ import annotations

from dataclasses import dataclass

# A query without an interval, or one that has just begun, reads for so long.
LEAST_MS = 2_000
# What a task buffers by default, 64 MiB, is 32 s of one shard at Kinesis's 2 MiB a second; with
# another consumer of the stream it is twice that.
MOST_MS = 60_000


@dataclass(slots=True)
class Rhythm:
    """
    When Spark asks for the latest offset.

    Attributes:
        asked_ms: when it asked last, monotonic milliseconds; None: never.
        apart_ms: from the question before to that one.

    """

    asked_ms: int | None = None
    apart_ms: int = 0

    def asked(self, now_ms: int) -> None:
        """Note that Spark asks now, in monotonic milliseconds."""
        if self.asked_ms is not None:
            self.apart_ms = now_ms - self.asked_ms
        self.asked_ms = now_ms

    @property
    def fetch_ms(self) -> int:
        """Return how long a task of the next batch goes on reading while there is more."""
        return min(max(self.apart_ms * 4 // 5, LEAST_MS), MOST_MS)
