"""
What a handler does, and should not, that no error tells: said beside its worker, for a person.

A coroutine that nobody awaits is work that is not done; Python says so to standard error alone.
Prints are paid for by the byte, and threads that are left behind fill the memory of a process that
lives for many turns. No record is in what is said.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TextIO

PRINTED_BYTES_PER_MINUTE = 10 * 1024 * 1024
"""Beyond, CloudWatch Logs costs 200 dollars a month and worker, or more (0.50 a GB)."""

THREADS_MOST = 100
"""More than a pool of boto3 and of a handler's own have together."""

_COROUTINE = re.compile(r"coroutine '([\w.<>]+)' was never awaited")
_MINUTE_MS = 60_000


class HandlerRemarks:
    """Watches what a process runs beside the library, from when its handler is loaded."""

    def __init__(self) -> None:
        """Listen to warnings, and count what is printed."""
        self._began_ms: int | None = None
        self._threads = threading.active_count()
        self._printed = 0
        self._found: dict[str, str] = {}
        warnings.showwarning = self._hearing(warnings.showwarning)
        for stream in (sys.stdout, sys.stderr):
            self._count(stream)

    def found(self, now_ms: int) -> tuple[str, ...]:
        """Return what there is to say, each thing as it was seen first; the time is any clock's."""
        self._began_ms = now_ms if self._began_ms is None else self._began_ms
        left = threading.active_count() - self._threads
        if left > THREADS_MOST:
            self._found.setdefault("threads", f"its code left {left} threads behind: end them")
        if self._printed > PRINTED_BYTES_PER_MINUTE:
            minutes = max(1.0, (now_ms - self._began_ms) / _MINUTE_MS)
            if self._printed / minutes > PRINTED_BYTES_PER_MINUTE:
                printed = f"its code prints {self._printed / minutes / 2**20:,.0f} MiB a minute"
                self._found.setdefault("prints", f"{printed}, and each is paid for: print less")
        return tuple(self._found.values())

    def _hearing(self, before: Callable[..., None]) -> Callable[..., None]:
        def hear(message: Warning | str, *given: Any, **named: Any) -> None:
            if coroutine := _COROUTINE.match(str(message)):
                said = f"coroutine {coroutine[1]} was never awaited, so it did nothing: await it"
                self._found.setdefault("coroutine", said)
            before(message, *given, **named)

        return hear

    def _count(self, stream: TextIO) -> None:
        write = stream.write

        def counting(text: str) -> int:
            self._printed += len(text)
            return write(text)

        stream.write = counting  # type: ignore[method-assign]


@lru_cache(maxsize=1)
def handler_remarks() -> HandlerRemarks:
    """Return those of this process, which lives for many turns."""
    return HandlerRemarks()
