"""
A clock that stops waiting when the process that this one works for is gone.

Calls are repeated without end by default. Beside a driver that was killed, or under an executor
that was, that would be for ever, if the endpoint is gone too; and the leases of a query that is
dead would be renewed for ever.
"""

from __future__ import annotations

import os

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ShardfleetError

_LOOK_EVERY_MS = 1_000


class ParentGone(ShardfleetError):
    """The driver or executor that this process works for has ended."""


class AttendedClock(SystemClock):
    """The ``Clock`` port for a process that Spark started; made while its parent is there."""

    def __init__(self) -> None:
        """Remember who the parent is; an orphan gets another one."""
        self._parent = os.getppid()

    def is_attended(self) -> bool:
        """Return whether the parent is still there."""
        return os.getppid() == self._parent

    async def sleep_ms(self, duration_ms: float) -> None:
        """
        Sleep.

        Raises:
            ParentGone: nobody waits for what this process does.

        """
        left_ms = duration_ms
        while True:
            if not self.is_attended():
                raise ParentGone(
                    f"process {self._parent}, Spark's driver or executor, has ended: nobody waits "
                    "for this one"
                )
            await super().sleep_ms(min(left_ms, _LOOK_EVERY_MS))
            left_ms -= _LOOK_EVERY_MS
            if left_ms <= 0:
                return
