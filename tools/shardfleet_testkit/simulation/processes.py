"""
Processes instead of Lambda: each stands for manager and carries slots, and ends with all its parts.

A process runs the product's own loop (:mod:`shardfleet_processes.process`) at failing ports. Its
main part is an actor, and so is each turn of a slot that it carries: they live, freeze and die
together. Whatever runs processes elsewhere is played here: it starts another for each that ends,
and ends one now and then as a rolling deploy does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.manager.spill import SpillLauncher
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import Clock, WorkerLauncher
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.offers import Offers
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet_processes.process import FleetProcess, ProcessPorts
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.functions import (
    FOREVER_MS,
    ActorClock,
    ActorEvents,
    ActorProcess,
    Functions,
)
from shardfleet_testkit.simulation.state_machine import StateMachine
from shardfleet_testkit.simulation.surroundings import Surroundings

# Python's start, or a container's.
_STARTS_S = (0.5, 15.0)
_ROLLED_EVERY_S = (40.0, 200.0)
# How often a process may lose its way to the tables, and for how long it does.
_CUT_OFF_EVERY_S, _CUT_OFF_S = 15.0, (1.0, 60.0)


class PartOfProcess:
    """A turn of a slot: an actor of its own, that is a part of its process."""

    def __init__(self, actor: Actor, turn: WorkerTurn, functions: Functions) -> None:
        """Begin nothing yet."""
        self._actor = actor
        self._turn = turn
        self._functions = functions

    def leave(self) -> None:
        """Pass it on to the engine's."""
        self._turn.leave()

    def hand_over(self) -> None:
        """Pass it on to the engine's."""
        self._turn.hand_over()

    async def run(self) -> TurnOutcome:
        """Run the engine's turn as its actor."""
        actor = self._actor
        self._functions.start(actor, self._turn.run(), FOREVER_MS)
        await asyncio.wait([actor.ended])
        outcome = actor.ended.result()
        actor.main.check()
        assert isinstance(outcome, TurnOutcome)
        return outcome


class Processes:
    """Keeps a fleet's processes running; ``machine`` runs what they leave to it."""

    def __init__(self, around: Surroundings, functions: Functions, machine: StateMachine) -> None:
        """Begin with none."""
        self._around = around
        self._functions = functions
        self._machine = machine
        self._halts: dict[str, Halt] = {}

    async def keep(self, number: int) -> None:
        """Run one process after the other, each with a name of its own."""
        around, starts = self._around, 0
        chance = around.chance(f"process {number}")
        while True:
            await self._functions.cold_start("")
            await self._functions.is_reachable.wait()
            starts += 1
            host = f"host-{number}-{starts}"
            actor = self._begin(host)
            rolled = around.spawn(self._roll(host, chance.uniform(*_ROLLED_EVERY_S)), "roll")
            cut_off = around.spawn(self._cut_off(actor), "cut off")
            await asyncio.wait([actor.ended])
            rolled.cancel(), cut_off.cancel()
            del self._halts[host]
            await asyncio.sleep(chance.uniform(*_STARTS_S))

    def stop(self) -> None:
        """Tell all of them to end."""
        for halt in self._halts.values():
            halt.set()

    async def _roll(self, host: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._around.faults.are_on:
            self._around.log("world", "tells to end", host)
            self._halts[host].set()

    async def _cut_off(self, actor: Actor) -> None:
        faults = self._around.faults
        while True:
            await asyncio.sleep(_CUT_OFF_EVERY_S)
            if faults.strike("connection_lost", _carried_by(actor)):
                lasts_ms = round(1_000 * faults.between("connection_lost", *_CUT_OFF_S))
                actor.cut_off_until_ms = self._around.now_ms + lasts_ms
                self._around.log(actor.name, "reaches no table for", lasts_ms, "ms")

    def _begin(self, host: str) -> Actor:
        around, functions = self._around, self._functions
        actor, halt = functions.new_actor("process", ""), Halt()
        clock = ActorClock(actor, around)
        self._halts[host] = halt
        ports = ProcessPorts(
            state=functions.state_of(actor),
            clock=clock,
            events=ActorEvents(actor, around),
            process=ActorProcess(actor, around),
            cpu=lambda: UNKNOWN,
            manager=partial(self._manager_ports, actor, clock),
            turn=partial(self._turn, actor, clock),
        )
        around.log(actor.name, "is", host)
        functions.start(actor, FleetProcess(functions.config, ports, host).run(halt), FOREVER_MS)
        return actor

    def _manager_ports(self, actor: Actor, clock: Clock, offers: Offers) -> ManagerPorts:
        functions, config = self._functions, self._functions.config
        launcher: WorkerLauncher = offers
        if config.spill:
            executions = self._machine.launcher(actor)
            launcher = SpillLauncher(offers, executions, after_ms=config.spill_after_ms)
        return functions.manager_ports(actor, clock, launcher)

    @asynccontextmanager
    async def _turn(
        self, process: Actor, clock: Clock, given: SlotInput
    ) -> AsyncIterator[PartOfProcess]:
        """Make a turn whose clock is the process's, and which is cut off by nobody else."""
        functions, config = self._functions, self._functions.config
        actor = functions.slot_actor(given)
        actor.join(process)
        margin_ms = config.turn_margin_ms + 2 * config.handler_timeout_ms
        deadline_ms = clock.monotonic_ms() + config.max_turn_ms + margin_ms
        ports = functions.worker_ports(actor, clock)
        turn = WorkerTurn(given, config=config, ports=ports, deadline_ms=deadline_ms)
        yield PartOfProcess(actor, turn, functions)


def _carried_by(actor: Actor) -> str:
    """Return whose leases a process has: one worker's of those that it carries."""
    return next((each.worker_id for each in actor.fellows if each.worker_id), "")
