"""
The composition root of a process: a sandbox's clients and threads as the ports of its parts.

Each turn has threads of its own that end with it (hazard H10), as an invocation has.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from msgspec.structs import replace

from shardfleet.domain.balance.kcl3 import WorkerRow
from shardfleet.domain.slots.slot import SlotInput
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.manager.spill import SpillLauncher
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import Clock, Kcl3Store, WorkerLauncher
from shardfleet.engine.retry import Halt
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.runtime import bootstrap, managing
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads
from shardfleet_processes.cpu import Utilisation, cpu_of
from shardfleet_processes.health import shown_health
from shardfleet_processes.offers import OfferLauncher
from shardfleet_processes.process import FleetProcess, ProcessPorts

_JOIN_MS = 5_000


class ProcessContext:
    """
    What a turn and a handler are told of their process, in the place of Lambda's context.

    Args:
        name: the process's.
        clock: this machine's.
        deadline_ms: when the turn is cut off, by the monotonic clock.

    """

    memory_limit_in_mb = 0  # Lambda is paid for nothing.

    def __init__(self, name: str, *, clock: Clock, deadline_ms: int) -> None:
        """Keep the name as what Lambda calls the function."""
        self.function_name = self.aws_request_id = self.invoked_function_arn = name
        self._clock = clock
        self._deadline_ms = deadline_ms

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the turn may still run."""
        return max(0, self._deadline_ms - self._clock.monotonic_ms())


async def run_process(sandbox: Sandbox, host: str, halt: Halt, *, health: str = "") -> None:
    """
    Run a process of a fleet until halted.

    Args:
        sandbox: configuration and clients.
        host: the process's name, which no other one has.
        halt: when it is to hand over and end.
        health: where a probe sees that it lives, as for :func:`shown_health`.

    Raises:
        ConfigurationError: health cannot be shown there.
        ShardfleetError: the tables do not answer at the start.

    """
    threads = TurnThreads(sandbox.config)
    ports = ProcessPorts(
        state=bootstrap.state_store(sandbox, threads),
        clock=sandbox.clock,
        events=sandbox.events,
        process=bootstrap.TellingProcess(sandbox),
        cpu=Utilisation(cpu_of(os.environ), sandbox.clock).now,
        manager=partial(_manager_ports, sandbox, threads),
        turn=partial(_turn, sandbox, host),
    )
    try:
        async with shown_health(health):
            await FleetProcess(sandbox.config, ports, host).run(halt)
    finally:
        sandbox.events.flush()
        await threads.close(within_ms=_JOIN_MS)


class RowsWithCpu:
    """The ``Kcl3Store`` port whose rows have the CPU of where their workers' processes run."""

    def __init__(self, rows: Kcl3Store, offers: OfferLauncher) -> None:
        """Look at what the processes tell."""
        self._offers = offers
        self._rows = rows
        self.found = rows.found
        self.delete = rows.delete

    async def write(self, row: WorkerRow) -> None:
        """Write a row; as the port's."""
        cpu = self._offers.cpu.get(row.worker_id, UNKNOWN)
        await self._rows.write(replace(row, cpu=cpu))


def _manager_ports(sandbox: Sandbox, threads: TurnThreads, offers: OfferLauncher) -> ManagerPorts:
    launcher: WorkerLauncher = offers
    if sandbox.config.spill:
        machine = managing.worker_launcher(sandbox, threads)
        launcher = SpillLauncher(offers, machine, after_ms=sandbox.config.spill_after_ms)
    ports = managing.manager_ports(sandbox, threads, launcher)
    return replace(ports, kcl3=RowsWithCpu(ports.kcl3, offers))


@asynccontextmanager
async def _turn(sandbox: Sandbox, host: str, given: SlotInput) -> AsyncIterator[WorkerTurn]:
    config, now_ms = sandbox.config, sandbox.clock.monotonic_ms()
    # After the last call of a turn there is time for its hooks, and for the last writes.
    margin_ms = config.turn_margin_ms + 2 * config.handler_timeout_ms
    deadline_ms = now_ms + config.max_turn_ms + margin_ms
    context = ProcessContext(host, clock=sandbox.clock, deadline_ms=deadline_ms)
    threads = TurnThreads(config)
    try:
        ports = bootstrap.worker_ports(sandbox, threads, context)
        yield WorkerTurn(given, config=config, ports=ports, deadline_ms=deadline_ms)
    finally:
        if not await threads.close(within_ms=_JOIN_MS):
            bootstrap.TellingProcess(sandbox).end("a call of the SDK outlived its turn")
