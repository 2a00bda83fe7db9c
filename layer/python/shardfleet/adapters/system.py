"""Time, randomness and the process: the only callers of ``time``, ``random``, ``os._exit``."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from typing import Never

EXIT_CODE = 70  # sysexits.h EX_SOFTWARE: the process ended itself


class SystemClock:
    """The ``Clock`` port on this machine's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock time, epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back; they may stand still while frozen (H15)."""
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep."""
        await asyncio.sleep(duration_ms / 1000)


class SystemEntropy:
    """The ``Entropy`` port on the operating system's randomness."""

    def __init__(self) -> None:
        """Seed from the operating system."""
        self._random = random.SystemRandom()

    def token(self) -> str:
        """Return a fresh unique token, 32 hexadecimal characters."""
        return uuid.uuid4().hex

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""
        return self._random.uniform(low, high)


class SystemProcess:
    """The ``Process`` port on this process."""

    def end(self, reason: str) -> Never:
        """
        Say why on stderr and end at once, without joining threads or running exit handlers.

        Lambda reports ``Runtime.ExitError`` and starts a fresh process for the next invocation.
        """
        sys.stderr.write(f"shardfleet: process ends: {reason}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(EXIT_CODE)
