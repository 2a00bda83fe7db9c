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
        self._clock = clock
        told_ms = described.service_ms
        self._ahead_ms = None if told_ms is None else told_ms - clock.monotonic_ms()

    def now_ms(self) -> int:
        """Return the stream's time, epoch milliseconds."""
        if self._ahead_ms is None:
            return self._clock.now_ms()
        return self._ahead_ms + self._clock.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""
        return self._clock.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep."""
        await self._clock.sleep_ms(duration_ms)
