"""
A fleet in the simulation in which nothing fails: what the runs that measure it have in common.

The manager and the workers are the production engine; calls take their time there and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from shardfleet.config import FleetConfig
from shardfleet_testkit.checkers import CHECKERS, Checker
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.simulation.faults import FaultMix, Faults
from shardfleet_testkit.simulation.functions import Functions, Services
from shardfleet_testkit.simulation.state_machine import StateMachine
from shardfleet_testkit.simulation.streams import TrueStream
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable
from shardfleet_testkit.simulation.wire import Outage

MANAGER_EVERY_S = 60.0
CheckerT = TypeVar("CheckerT", bound=Checker)
_BOX_MS = 900_000  # Lambda: an invocation lasts at most 15 minutes


class CalmFleet:
    """
    A deployed fleet.

    Attributes:
        around: clock, chance, ledger and checkers.
        stream: what is read.
        leases: the lease table.
        functions: manager and workers.
        machine: invokes the workers.

    """

    def __init__(
        self,
        config: FleetConfig,
        *,
        seed: int,
        shards: int,
        checkers: tuple[type[Checker], ...] = CHECKERS,
        state: MemoryStateStore | None = None,
        handlers_overlap: bool = True,
    ) -> None:
        """
        Deploy; nothing runs before the schedule does.

        Args:
            config: of the fleet.
            seed: of the delays.
            shards: all open.
            checkers: which invariants are looked at.
            state: the fleet-state table; one in memory if left out.
            handlers_overlap: calls of several shards run at once.

        """
        self.around = Surroundings(
            seed, Faults(seed, FaultMix.none()), renew_ms=config.renew_ms, checkers=checkers
        )
        self.stream = TrueStream(self.around, shards=shards)
        self.leases = LeaseTable(self.around)
        services = Services(
            leases=self.leases,
            state=MemoryStateStore() if state is None else state,
            stream=self.stream,
            lease_outage=Outage(),
            state_outage=Outage(),
        )
        self.functions = Functions(
            self.around,
            services,
            config=config,
            worker_box_ms=_BOX_MS,
            handlers_overlap=handlers_overlap,
        )
        self.machine = StateMachine(self.around, self.functions, max_loops=1_000)

    def checker(self, kind: type[CheckerT]) -> CheckerT:
        """Return the checker of a kind."""
        return next(found for found in self.around.checkers if isinstance(found, kind))

    def call_manager(self) -> None:
        """Invoke the manager, as the schedule does."""
        self.functions.manager(self.machine.launcher)

    async def until(self, condition: Callable[[], bool], *, patience_s: float) -> float:
        """
        Wait for something, or for a violation; return how long it took, seconds.

        Raises:
            TimeoutError: longer than ``patience_s``.

        """
        began_ms = self.around.now_ms
        while not condition() and not self.around.violations:
            elapsed_s = (self.around.now_ms - began_ms) / 1000
            if elapsed_s > patience_s:
                message = f"not {condition.__name__.strip('_')} after {elapsed_s:.0f} s"
                raise TimeoutError(message)
            await asyncio.sleep(1)
        return (self.around.now_ms - began_ms) / 1000

    def all_read(self) -> bool:
        """Return whether every record has been handled."""
        return next(self.around.ledger.unfinished(), None) is None

    def judge(self) -> None:
        """Let the checkers look at how it ended."""
        for checker in self.around.checkers:
            checker.over(self.around.now_ms, keys=sorted(self.leases.store.leases))

    def kill(self) -> None:
        """End every invocation."""
        for actor in list(self.functions.alive):
            actor.kill()
