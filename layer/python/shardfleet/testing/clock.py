"""
A virtual clock: an event loop whose time jumps to the next timer when nothing can run.

``run_virtual(main)`` runs a coroutine in seconds of real time however long it sleeps. The engine
runs unchanged on it, because it sleeps and waits through asyncio only.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; no real waiting, hence no I/O with the outside either."""

    def __init__(self) -> None:
        """Begin at virtual second 0."""
        super().__init__(_InstantSelector(self))
        self.virtual_s = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.virtual_s


class _InstantSelector(selectors.DefaultSelector):
    """Instead of waiting for ``timeout`` seconds, move the loop's clock forward by them."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            message = "deadlock in virtual time: every task waits and no timer is set"
            raise RuntimeError(message)
        self._loop.virtual_s += max(timeout, 1e-6)
        return ready


class VirtualClock:
    """The ``Clock`` port on a :class:`VirtualTimeLoop`; virtual second 0 is ``start_ms``."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        """Choose the epoch milliseconds of virtual second 0."""
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Return virtual wall-clock time, epoch milliseconds."""
        return self._start_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Return virtual milliseconds since the loop began."""
        return round(asyncio.get_running_loop().time() * 1000)

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(duration_ms / 1000)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
