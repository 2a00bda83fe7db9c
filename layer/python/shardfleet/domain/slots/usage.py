"""
How much is being done: throughput of a lease, utilisation of a slot, as moving averages.

Both are averaged with alpha 0.5 over a renewal interval, as the KCL does (protocol.md §3.1,
``LeaseStatsRecorder``, ``workerMetricsEMAAlpha``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

ALPHA = 0.5
UNKNOWN = -1
_FULL = 1_000
_DIGITS = 6  # Java stores throughputKBps with six decimals


class Usage(Struct, frozen=True):
    """
    What a slot uses of what it can have, in thousandths; -1 unknown.

    Attributes:
        busy: part of the time in which a handler was at work. Handlers that overlap have no such
            limit: unknown.
        cpu: part of the CPU time that its memory size allots.

    """

    busy: int = UNKNOWN
    cpu: int = UNKNOWN

    def utilisation(self) -> dict[str, float]:
        """Return per cent by the metric's name, without what is unknown."""
        known = {"busy": self.busy, "cpu": self.cpu}
        return {name: value / 10 for name, value in known.items() if value != UNKNOWN}

    def of_handler(self) -> Usage:
        """Return the handler's time alone, if it is known: what a slot on any machine compares."""
        return self if self.busy == UNKNOWN else Usage(busy=self.busy)

    def differs_from(self, other: Usage, *, by: int) -> bool:
        """Return whether either part differs by so many thousandths."""
        return abs(self.busy - other.busy) >= by or abs(self.cpu - other.cpu) >= by


class ShardWay(Struct, frozen=True, kw_only=True):
    """
    How a shard is read where records are pushed.

    Attributes:
        gap_ms: the longest time that an event of it was waited for in this turn.
        polled: why it is polled instead for now; empty: it is not.

    """

    gap_ms: int = 0
    polled: str = ""


class HandlerSigns(Struct, frozen=True, kw_only=True):
    """
    What a person should know of a worker at work, as of its last sign of life.

    Attributes:
        calls_ms: lease key to when its call began, epoch milliseconds, where that is long ago.
        remarks: what the code does that it should not, and what is refused to it, a sentence each.
        ways: lease key to how it is read, where records are pushed.

    """

    calls_ms: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    ways: Mapping[str, ShardWay] = field(default_factory=dict)


def next_throughput(previous: float | None, *, read_bytes: int, elapsed_ms: int) -> float:
    """Return the new average in KB/s (1,024 bytes); ``elapsed_ms`` is greater than zero."""
    found = read_bytes / 1024 / (elapsed_ms / 1000)
    return round(found if previous is None else previous + ALPHA * (found - previous), _DIGITS)


def next_share(previous: int, *, used_ms: int, elapsed_ms: int) -> int:
    """Return the new average in thousandths; ``elapsed_ms`` is greater than zero."""
    found = min(_FULL, max(0, round(_FULL * used_ms / elapsed_ms)))
    return found if previous == UNKNOWN else round(previous + ALPHA * (found - previous))
