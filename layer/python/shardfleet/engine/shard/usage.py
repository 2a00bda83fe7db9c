"""
What a slot uses: the time in which its handler is at work, and its CPU; and what its handler does.

Sampled at each look at the slot record, so over a renewal interval. A turn's first seconds do not
count: they are those of a cold start (imports, connections), and of no load that would last. Until
then what the slot told before holds: of one whose use nobody knows nothing can be evened out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from shardfleet.domain.slots.usage import UNKNOWN, HandlerSigns, ShardWay, Usage, next_share
from shardfleet.engine.ports import Clock, HandlerRunner

# Longer than imports and first calls take at the smallest share of a vCPU that is usual (512 MB).
WARM_UP_MS = 10_000
# A call of which a person is told: two signs of life of a worker in good order apart.
LONG_CALL_MS = 10_000
_GRANT = "grant the worker's role that right, or take back what denies it"


class CpuMeter(Protocol):
    """The CPU that this process may use."""

    def used_ms(self) -> int:
        """Return how much was used so far: milliseconds in which all of it was in use."""


class UsageMeter:
    """
    Watches one worker turn.

    Attributes:
        remarks: on the handler, as its last call brought them.
        refused: lease key to why it cannot be read, as long as that is doubted.
        ways: of the source; see :class:`HandlerSigns`.

    """

    def __init__(
        self,
        *,
        clock: Clock,
        cpu: CpuMeter | None,
        handler: HandlerRunner,
        before: Usage,
        ways: Mapping[str, ShardWay],
        calls_at_once: int = 1,
    ) -> None:
        """Begin now, with what the slot told before; without ``cpu`` the CPU becomes unknown."""
        self._calls_at_once = calls_at_once
        self.ways = ways
        self._clock = clock
        self._cpu = cpu
        self._handler = handler
        self._calls: dict[object, tuple[str, int]] = {}  # lease key, since when: monotonic
        self.remarks: tuple[str, ...] = ()
        self.refused: dict[str, str] = {}
        self._busy_ms = 0  # of each of the calls that there may be at once
        self._began_ms = self._since_ms = self._sampled_ms = clock.monotonic_ms()
        self._cpu_ms = cpu.used_ms() if cpu else 0
        self._usage = before

    @contextmanager
    def call(self, lease_key: str) -> Iterator[None]:
        """Count the time of a handler call."""
        self._settle()
        call = object()
        self._calls[call] = (lease_key, self._since_ms)
        try:
            yield
        finally:
            try:
                self._settle()
            finally:
                del self._calls[call]

    def signs(self, now_ms: int) -> HandlerSigns:
        """Return the calls that run long, and the remarks; ``now_ms`` is the epoch's."""
        passed_ms = self._clock.monotonic_ms()
        long = {k: passed_ms - since for k, since in reversed(self._calls.values())}
        return HandlerSigns(
            calls_ms={k: now_ms - ms for k, ms in long.items() if ms >= LONG_CALL_MS},
            remarks=(
                *self.remarks,
                *(f"{key} is not read, {why}: {_GRANT}" for key, why in self.refused.items()),
            ),
            ways=dict(self.ways),
        )

    def _settle(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._busy_ms += (now_ms - self._since_ms) * min(len(self._calls), self._calls_at_once)
        self._since_ms = now_ms

    def sample(self) -> Usage:
        """Return the averages with the time since the last sample; as before until warmed up."""
        self._settle()
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._sampled_ms
        if elapsed_ms <= 0:
            return self._usage
        busy_ms, self._busy_ms, self._sampled_ms = self._busy_ms, 0, now_ms
        cpu_ms, self._cpu_ms = self._cpu_ms, self._cpu.used_ms() if self._cpu else 0
        if now_ms - self._began_ms <= WARM_UP_MS:
            return self._usage
        busy, cpu = UNKNOWN, UNKNOWN
        if not self._handler.overlaps:
            used_ms = busy_ms // self._calls_at_once
            busy = next_share(self._usage.busy, used_ms=used_ms, elapsed_ms=elapsed_ms)
        if self._cpu is not None:
            used_ms = self._cpu_ms - cpu_ms
            cpu = next_share(self._usage.cpu, used_ms=used_ms, elapsed_ms=elapsed_ms)
        self._usage = Usage(busy, cpu)
        return self._usage
