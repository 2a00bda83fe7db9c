"""Time, randomness and the process: the only callers of ``time``, ``random``, ``os._exit``."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from typing import Never

_MB_PER_VCPU = 1_769  # Lambda: "at 1,769 MB, a function has the equivalent of one vCPU"
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


class SystemCpu:
    """
    The ``CpuMeter`` port on this process's CPU time.

    Lambda allots one vCPU per 1,769 MB. One Python interpreter can hardly use more than one.
    """

    def __init__(self, memory_mb: int) -> None:
        """Take the function's memory size."""
        self._vcpus = min(1.0, memory_mb / _MB_PER_VCPU)

    def used_ms(self) -> int:
        """Return how much was used so far: milliseconds in which all of it was in use."""
        return round(time.process_time_ns() / 1_000_000 / self._vcpus)


class SystemProcess:
    """The ``Process`` port on this process."""

    def end(self, reason: str) -> Never:
        """
        Write why to stderr and end at once, without joining threads or running exit handlers.

        Lambda reports ``Runtime.ExitError`` and starts a fresh process for the next invocation.
        """
        sys.stderr.write(f"shardfleet: process ends: {reason}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(EXIT_CODE)
