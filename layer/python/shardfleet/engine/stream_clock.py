"""
The time by the stream's own clock.

What is compared with arrivals or with the retention goes by it: an instant ahead of the service's
clock is refused (fact K71), and all that came until then would be left out; and a shard whose
records must have expired by a wrong clock has records yet.
"""

from __future__ import annotations

from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ports import Clock


class StreamClock:
    """The ``Clock`` port: told once by the service, carried on by the monotonic clock."""

    def __init__(self, clock: Clock, described: StreamIncarnation) -> None:
        """Begin with what has just been described; by our own clock if no time was told."""
        self.monotonic_ms = clock.monotonic_ms
        self.sleep_ms = clock.sleep_ms
        self.now_ms = clock.now_ms
        if described.service_ms is not None:
            ahead_ms = described.service_ms - clock.monotonic_ms()
            self.now_ms = lambda: ahead_ms + clock.monotonic_ms()
