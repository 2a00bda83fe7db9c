"""
The tasks of one worker turn: named, never cancelled, each failure noticed when it happens.

A cancelled port call would have an unknown outcome (hazard H10), so tasks are asked to stop and
waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shardfleet.engine.retry import Halt, Halted, Signal


class TurnTasks:
    """A group of tasks that belong together."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """Call ``failed`` with each exception that a task ends with."""
        self._failed = failed
        self._running: list[asyncio.Task[None]] = []
        self._quiet = Signal()
        self._quiet.set()

    @property
    def names(self) -> list[str]:
        """Return the names of the tasks that run, in the order of their start."""
        return [task.get_name() for task in self._running]

    def start(
        self, work: Coroutine[Any, Any, None], *, name: str, ended: Callable[[], None] | None = None
    ) -> None:
        """Start a task; ``ended`` is called when it has ended, with a failure or without."""
        task = asyncio.create_task(work, name=name)
        self._running.append(task)
        self._quiet.clear()
        task.add_done_callback(lambda task: self._end(task, ended))

    def _end(self, task: asyncio.Task[None], ended: Callable[[], None] | None) -> None:
        self._running.remove(task)
        # Nobody cancels a task but a loop that is closed; then nothing may start anew.
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._failed(error)
            if ended is not None:
                ended()
        if not self._running:
            self._quiet.set()

    async def are_done(self, hard: Halt) -> bool:
        """Wait until none runs, or until ``hard`` is set; return whether none does."""
        try:
            await hard.unless(self._quiet)
        except Halted:
            return False
        return True
