"""What everything in a simulation shares: time, faults, the journal, the checkers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from shardfleet.domain.leases import Lease, LeaseChange
from shardfleet.events import Event
from shardfleet.testing.checkers import CHECKERS, Checker, LeaseWrite, Ledger, Suspect, Violation
from shardfleet.testing.clock import VirtualClock
from shardfleet.testing.simulation.actors import outside_actors
from shardfleet.testing.simulation.faults import Faults


class Surroundings:
    """
    One run's common ground.

    Attributes:
        seed: everything is drawn from it.
        faults: what goes wrong.
        clock: the true time.
        ledger: the true stream.
        lines: the event log, one line per event; empty unless kept.
        calls: port calls by operation.
        violations: in the order of their discovery.

    """

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        renew_ms: int,
        keeps_log: bool = False,
        checkers: tuple[type[Checker], ...] = CHECKERS,
    ) -> None:
        """Begin with nothing having happened."""
        self.seed = seed
        self.faults = faults
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self.lines: list[str] = []
        self.calls: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.broken = asyncio.Event()
        self.checkers = [kind(self.ledger, self.violated, renew_ms=renew_ms) for kind in checkers]
        self._keeps_log = keeps_log
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def now_ms(self) -> int:
        """Return milliseconds since the beginning of the run."""
        return self.clock.monotonic_ms()

    def chance(self, purpose: str) -> random.Random:
        """Return a generator of its own for a purpose, so that purposes do not disturb others."""
        return random.Random(f"{self.seed}/{purpose}")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something that belongs to no invocation: it outlives whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=outside_actors())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def log(self, who: str, what: str, *details: object) -> None:
        """Write one line of the event log."""
        if self._keeps_log:
            text = " ".join(str(detail) for detail in details)
            self.lines.append(f"{self.now_ms:>9} {who:<14} {what} {text}".rstrip())

    def violated(self, violation: Violation) -> None:
        """Take down a violation; the run ends with the first."""
        self.violations.append(violation)
        self.log("CHECKER", "VIOLATION", violation)
        self.broken.set()

    def tell(self, by: Suspect, event: Event) -> None:
        """Show an event of the engine to the checkers."""
        if self._keeps_log:
            self.log(by.name, "event", event)
        for checker in self.checkers:
            checker.told(self.now_ms, by, event)

    def wrote(
        self, by: Suspect, change: LeaseChange, *, before: Lease | None, after: Lease | None
    ) -> None:
        """Show a write that landed to the checkers."""
        write = LeaseWrite(at_ms=self.now_ms, by=by, change=change, before=before, after=after)
        for checker in self.checkers:
            checker.lease_written(write)
