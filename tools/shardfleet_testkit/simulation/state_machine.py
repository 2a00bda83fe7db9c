"""
The worker slots' state machine: invoke, invoke again, back off, continue as new.

The rules are those of the deployed definition (engine contract, hazard H9); that one is data for
Step Functions and has tests of its own on an interpreter.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from msgspec.structs import replace

from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from shardfleet.engine.ports import ExecutionStatus
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.functions import Functions
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.wire import Outage, Wire

_BACK_OFF_MOST_S = 300
# Lambda's words for a process that ended (fact L20).
_CRASHED = "Runtime.ExitError: Runtime exited with error: signal: killed"


@dataclass(slots=True)
class _Execution:
    text: str
    status: ExecutionStatus


class StateMachine:
    """All executions of the fleet's slots."""

    def __init__(self, around: Surroundings, functions: Functions, *, max_loops: int) -> None:
        """Deploy; an execution continues as new after ``max_loops`` invocations."""
        self._around = around
        self._functions = functions
        self._max_loops = max_loops
        self._executions: dict[str, _Execution] = {}
        self._aborted: set[str] = set()

    def launcher(self, actor: Actor) -> FaultyLauncher:
        """Return the ``WorkerLauncher`` port of one invocation."""
        return FaultyLauncher(self, Wire(actor, self._around, Outage()))

    async def start(self, name: str, text: str) -> bool:
        """Start an execution, or find the same one running."""
        await asyncio.sleep(0)
        found = self._executions.get(name)
        if found is not None:
            return found.text == text and found.status is ExecutionStatus.RUNNING
        execution = self._executions[name] = _Execution(text, ExecutionStatus.RUNNING)
        self._around.log("machine", "starts", name)
        self._around.spawn(self._run(name, execution), f"execution {name}")
        return True

    async def status(self, name: str) -> ExecutionStatus:
        """Describe one execution."""
        await asyncio.sleep(0)
        found = self._executions.get(name)
        return ExecutionStatus.ABSENT if found is None else found.status

    def abort(self, slot_id: str) -> None:
        """Let the execution of a slot end, without a word, when its invocation next ends."""
        self._aborted.add(slot_id)

    async def _run(self, name: str, execution: _Execution) -> None:
        faults = self._around.faults
        given = SlotInput.from_payload(json.loads(execution.text))
        worker_id = self._functions.worker_id(given.slot_id)
        if faults.strike("late_start", worker_id):
            self._harm(given.slot_id, "late start")
            await asyncio.sleep(faults.between("late_start", 1.0, 40.0))
        if faults.strike("stillborn", worker_id):
            why = self._harm(given.slot_id, "stillborn")
        else:
            why = await self._loop(given)
        execution.status = ExecutionStatus.CLOSED
        self._around.log("machine", "closes", name, why)

    def _harm(self, slot_id: str, how: str) -> str:
        """Remember that nobody invokes a slot's worker for a while, which is no fault of it."""
        if slot_id in self._functions.latest:
            self._functions.latest[slot_id].suffered(f"execution: {how}")
        return how

    async def _loop(self, given: SlotInput) -> str:
        loops, crashes, fault = 0, 0, ""
        worker_id = self._functions.worker_id(given.slot_id)
        while True:
            outcome = await self._functions.worker(replace(given, fault=fault))
            loops += 1
            fault = _CRASHED if outcome is None else ""
            if self._around.faults.strike("execution_dies", worker_id):
                return self._harm(given.slot_id, "dies")
            if given.slot_id in self._aborted:
                self._aborted.discard(given.slot_id)
                return "aborted"
            if outcome in (TurnOutcome.IDLE, TurnOutcome.DRAINED):
                return outcome.value
            crashes = 0 if outcome is TurnOutcome.CONTINUE else crashes + 1
            if loops >= self._max_loops:
                following = replace(given, generation=given.generation + 1)
                await self.start(following.execution_name(), following.execution_text())
                return "continues as new"
            if crashes > 1:
                await asyncio.sleep(min(_BACK_OFF_MOST_S, 2 ** (crashes - 2)))


class FaultyLauncher:
    """The ``WorkerLauncher`` port of one manager invocation."""

    def __init__(self, machine: StateMachine, wire: Wire) -> None:
        """Reach the service over a wire."""
        self._machine = machine
        self._wire = wire

    async def start(self, name: str, text: str) -> bool:
        """Start an execution; True when it runs."""
        return await self._wire.write(
            "machine.start", lambda: self._machine.start(name, text), about=name
        )

    async def status(self, name: str) -> ExecutionStatus:
        """Describe one execution."""
        return await self._wire.read(
            "machine.status", lambda: self._machine.status(name), about=name
        )
