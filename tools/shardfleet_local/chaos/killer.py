"""Kills, and freezes, of worker and manager processes at random moments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable

from shardfleet.engine.ports import Clock
from shardfleet_local.aws.launcher import WorkerProcess
from shardfleet_local.rig.fleet import RunningFleet

PAUSE_MS = (4_000, 9_500)
"""
Between two strikes. Much more often, and every worker dies before its first turn is over: then the
state machine waits longer after each crash (hazard H9), and nothing is left to strike at.
"""

MANAGER_ONE_IN = 4
FREEZE_ONE_IN = 8
FREEZE_MS = (2_000, 14_000)
"""Shorter and longer than the failover time of 10 s: a frozen worker may wake up robbed."""


class Killer:
    """
    Strikes one busy process after another.

    Args:
        fleet: whose processes.
        clock: for the pauses.
        seed: of its choices.
        say: told of each strike.

    Attributes:
        counts: `worker`, `manager` (kills) and `freeze`.

    """

    def __init__(
        self,
        fleet: RunningFleet,
        *,
        clock: Clock,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._chance = random.Random(seed)
        self._say = say
        self._frozen: dict[int, int] = {}
        self._is_stopped = False
        self.counts: Counter[str] = Counter()

    @property
    def kills(self) -> int:
        """Count the kills of both kinds."""
        return self.counts["worker"] + self.counts["manager"]

    async def run(self) -> None:
        """Strike until stopped; what is frozen then goes on."""
        while not self._is_stopped:
            await self._clock.sleep_ms(self._chance.randint(*PAUSE_MS))
            await asyncio.to_thread(self.thaw_due)
            if not self._is_stopped:
                await asyncio.to_thread(self.strike)
        await asyncio.to_thread(self.thaw_due, everything=True)

    def stop(self) -> None:
        """Strike no more; `run` returns soon, with everything thawed."""
        self._is_stopped = True

    def strike(self) -> None:
        """Kill or freeze one busy process, if there is one."""
        wants_manager = self._chance.randrange(MANAGER_ONE_IN) == 0
        wants_freeze = self._chance.randrange(FREEZE_ONE_IN) == 0
        managers = self._able(self._fleet.managers())
        workers = self._able(self._fleet.workers())
        kind = "manager" if managers and (wants_manager or not workers) else "worker"
        victims = managers if kind == "manager" else workers
        if not victims:
            return
        pid = self._chance.choice(victims)
        if wants_freeze:
            self._freeze(pid)
        elif self._fleet.kill(pid):
            self.counts[kind] += 1
            self._say(f"kill -9 of {kind} process {pid}")

    def _able(self, processes: list[WorkerProcess]) -> list[int]:
        return sorted(p.pid for p in processes if p.busy and p.pid not in self._frozen)

    def _freeze(self, pid: int) -> None:
        duration_ms = self._chance.randint(*FREEZE_MS)
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return
        self._frozen[pid] = self._clock.monotonic_ms() + duration_ms
        self.counts["freeze"] += 1
        self._say(f"process {pid} is frozen for {duration_ms / 1000:.1f} s")

    def thaw_due(self, *, everything: bool = False) -> None:
        """
        Let frozen processes go on whose time has come.

        One that is no longer busy was stopped by Lambda itself after its reply: it stays so.
        """
        now_ms = self._clock.monotonic_ms()
        due = [pid for pid, until_ms in self._frozen.items() if everything or until_ms <= now_ms]
        if not due:
            return
        busy = {p.pid for p in (*self._fleet.workers(), *self._fleet.managers()) if p.busy}
        for pid in due:
            del self._frozen[pid]
            if pid in busy:
                os.kill(pid, signal.SIGCONT)
