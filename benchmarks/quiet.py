"""Waiting until nobody else uses the machine: for clocks of wall time."""

from __future__ import annotations

import time
from pathlib import Path


class Quiet:
    """
    Waits before a round until nobody else uses the machine.

    Attributes:
        disturbed: rounds that began although somebody did, after a while.

    """

    def __init__(self) -> None:
        """Begin with patience for all rounds together."""
        self.disturbed = 0
        self._patience_s = 60.0

    def wait(self) -> None:
        """Wait while others use more than a tenth of the machine, but not for ever."""
        while busy_share(0.25) > 0.1:
            self._patience_s -= 0.25
            if self._patience_s <= 0:
                self.disturbed += 1
                return


def busy_share(within_s: float) -> float:
    """Return the share of all cores that is in use while this process sleeps; 0 if unknown."""
    before = _cpu_times()
    time.sleep(within_s)
    used, idle = (after - then for after, then in zip(_cpu_times(), before, strict=True))
    return used / (used + idle) if used + idle else 0.0


def _cpu_times() -> tuple[int, int]:
    """Return ticks in use and idle ticks of all cores so far."""
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle
