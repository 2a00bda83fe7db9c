"""
What no process takes, Lambda runs: an offer is a process's first, and then an execution's.

Whoever takes the offer has it, by compare-and-set: an execution is started only after that, so no
slot has two that run it. A manager that dies in between has taken it, and whoever comes next starts
the execution, whose name and input are the offer's (hazard H3).
"""

from __future__ import annotations

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.offers import LAMBDA, Offer
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import ExecutionStatus, WorkerLauncher
from shardfleet.engine.state.offers import Offers


def beside_processes(config: FleetConfig, ports: ManagerPorts) -> ManagerPorts:
    """Return the ports of the scheduled manager of a fleet that spills."""
    store, clock = ports.state.store.raw, ports.clock
    offers = Offers(store, host=LAMBDA, clock=clock, failover_ms=config.failover_ms)

    async def rooms() -> Rooms:
        found = await offers.rooms()
        await offers.forget_the_dead(times=1)  # An invocation sees nobody for longer.
        return found

    launcher = SpillLauncher(offers, ports.launcher, after_ms=config.spill_after_ms)
    return replace(ports, launcher=launcher, rooms=rooms)


class SpillLauncher:
    """
    The ``WorkerLauncher`` port of a fleet whose slots processes and Lambda carry.

    Args:
        offers: to the processes.
        executions: of the worker state machine.
        after_ms: how long an offer waits for a process; where there is none, it does not.

    """

    def __init__(self, offers: Offers, executions: WorkerLauncher, *, after_ms: int) -> None:
        """Start nothing yet."""
        self._offers = offers
        self._executions = executions
        self._after_ms = after_ms

    async def start(self, name: str, text: str) -> bool:
        """
        Offer an execution, or start it if no process has taken it; True when it waits or runs.

        Raises:
            OutcomeUnknown: sent, but no answer came; a repeat is harmless.
            Throttled: try again later.
            ConfigurationError: there is no such state machine, or it may not be used.

        """
        offers, board = self._offers, await self._offers.look()
        offer = board.offers.get(name)
        if offer is None:
            is_open = await offers.start(name, text)
            if not is_open or board.alive:
                return is_open
            offer = Offer(name=name, text=text)
        elif not offer.host and not offers.has_waited(name, self._after_ms):
            return True
        is_lambda_s = offer.host == LAMBDA
        if not is_lambda_s and (offer.host or not await offers.take(name, offer, host=LAMBDA)):
            return await offers.start(name, text)
        return await self._executions.start(name, text)

    async def status(self, name: str) -> ExecutionStatus:
        """
        Return what is known of an execution, whoever runs it.

        Raises:
            Throttled: try again later.

        """
        known = await self._offers.status(name)
        if known is ExecutionStatus.RUNNING:
            return known
        found = await self._executions.status(name)
        return known if found is ExecutionStatus.ABSENT else found
