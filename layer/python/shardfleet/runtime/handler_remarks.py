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
from functools import lru_cache
from typing import Any

PRINTED_BYTES_MOST = 1024 * 1024
"""Of one call: at a call a second, CloudWatch Logs costs 1,300 dollars a month (0.50 a GB)."""

THREADS_MOST = 100
"""More than a pool of boto3 and of a handler's own have together."""

_COROUTINE = re.compile(r"coroutine '([\w.<>]+)' was never awaited")


class HandlerRemarks:
    """Watches what a process runs beside the library, from when its handler is loaded."""

    def __init__(self) -> None:
        """Listen to warnings, and count what is printed."""
        self._threads = threading.active_count()
        self._printed = 0
        self._found: dict[str, str] = {}
        warn, write = warnings.showwarning, sys.stdout.write

        def hear(message: Warning | str, *given: Any, **named: Any) -> None:
            if coroutine := _COROUTINE.match(str(message)):
                said = f"coroutine {coroutine[1]} was never awaited, so it did nothing: await it"
                self._found.setdefault("coroutine", said)
            warn(message, *given, **named)

        def count(text: str) -> int:
            self._printed += len(text)
            return write(text)

        warnings.showwarning, sys.stdout.write = hear, count  # type: ignore[method-assign]

    def found(self) -> tuple[str, ...]:
        """Return what there is to say after a call, each thing as it was seen first."""
        printed, self._printed = self._printed, 0
        left = threading.active_count() - self._threads
        if left > THREADS_MOST:
            self._found.setdefault("threads", f"its code left {left} threads behind: end them")
        if printed > PRINTED_BYTES_MOST:
            said = f"a call printed {printed / 2**20:,.0f} MiB, and each is paid for: print less"
            self._found.setdefault("prints", said)
        return tuple(self._found.values())


handler_remarks = lru_cache(maxsize=1)(HandlerRemarks)
"""Those of this process, which lives for many turns."""
