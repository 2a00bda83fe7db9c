"""
A process of a fleet without Lambda: it stands for manager, and carries the slots it has taken.

A slot's turns run one after another in this process's loop, each with threads of its own that end
with it (hazard H10); a turn that fails is repeated at once, then with a growing pause. Asked to
stop, the process ends its batches, hands its leases over and lets others know.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from shardfleet.domain.slots.offers import Board, Offer
from shardfleet.domain.slots.slot import SlotInput, TurnOutcome, ask_to_drain
from shardfleet.engine.ports import Clock
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.errors import ShardfleetError, told
from shardfleet.events.worker import SlotDelayed, TurnFailed
from shardfleet.runtime import bootstrap, managing
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads
from shardfleet_processes.offers import OfferLauncher
from shardfleet_processes.standing import StandingManager

HUNGRY_MS = 250
"""How often a process without a slot looks for one."""
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 1_000, 300_000  # hazard H9, as the state machine's
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


class CarriedSlot:
    """One slot that this process has taken."""

    def __init__(self, offer: Offer, sandbox: Sandbox, host: str) -> None:
        """Start its turns."""
        self.offer = offer
        self._sandbox = sandbox
        self._host = host
        self._given = SlotInput.from_payload(json.loads(offer.text))
        self._leaving = Halt()
        self._turn: WorkerTurn | None = None
        self.task = asyncio.create_task(self._run(), name=offer.name)

    async def hand_over(self, state: FleetState) -> None:
        """Ask the slot to give its leases back and to end; again is the same."""
        if not self._leaving.is_set:
            self._leaving.set()
            with suppress(ShardfleetError):  # Nothing more is assigned to it, if this is written.
                await state.update_slot(self._given.slot_id, ask_to_drain)
            if self._turn is not None:
                self._turn.hand_over()

    async def _run(self) -> None:
        failures = 0
        while True:
            outcome = await self._one_turn()
            if outcome in (TurnOutcome.IDLE, TurnOutcome.DRAINED):
                return
            failures = failures + 1 if outcome is TurnOutcome.FAILED else 0
            if failures and self._leaving.is_set:
                return
            if failures > 1:
                pause_ms = min(_FIRST_PAUSE_MS << min(failures - 2, 16), _MAX_PAUSE_MS)
                await self._leaving.wait(pause_ms)

    async def _one_turn(self) -> TurnOutcome:
        sandbox, slot_id = self._sandbox, self._given.slot_id
        config, now_ms = sandbox.config, sandbox.clock.monotonic_ms()
        # After the last call of a turn there is time for its hooks, and for the last writes.
        margin_ms = config.turn_margin_ms + 2 * config.handler_timeout_ms
        deadline_ms = now_ms + config.max_turn_ms + margin_ms
        context = ProcessContext(self._host, clock=sandbox.clock, deadline_ms=deadline_ms)
        threads = TurnThreads(config)
        try:
            ports = bootstrap.worker_ports(sandbox, threads, context)
            turn = WorkerTurn(self._given, config=config, ports=ports, deadline_ms=deadline_ms)
            self._turn = turn
            if self._leaving.is_set:
                turn.hand_over()
            return await turn.run()
        except ShardfleetError as error:
            sandbox.events.emit(
                TurnFailed(slot_id=slot_id, worker_id=self._host, error=told(error))
            )
            return TurnOutcome.FAILED
        finally:
            self._turn = None
            if not await threads.close(within_ms=_JOIN_MS):
                bootstrap.TellingProcess(sandbox).end("a call of the SDK outlived its turn")


class FleetProcess:
    """
    One process of a fleet.

    Args:
        sandbox: configuration and clients.
        host: the process's name, which no other one has.

    """

    def __init__(self, sandbox: Sandbox, host: str) -> None:
        """Ask nothing of AWS yet."""
        self._sandbox = sandbox
        self._host = host
        self._clock = sandbox.clock
        self._threads = TurnThreads(sandbox.config)
        store = bootstrap.state_store(sandbox, self._threads)
        self._state = FleetState(store, sandbox.clock)
        self._offers = OfferLauncher(
            store, host=host, clock=sandbox.clock, failover_ms=sandbox.config.failover_ms
        )
        self._started_ms = sandbox.clock.now_ms()
        self._beat_ms = sandbox.clock.monotonic_ms()
        self._slots: dict[str, CarriedSlot] = {}

    async def run(self, halt: Halt) -> None:
        """
        Work until halted, then hand over.

        Raises:
            ShardfleetError: the tables do not answer at the start.

        """
        sandbox, config = self._sandbox, self._sandbox.config
        await self._offers.beat(self._started_ms)
        ports = managing.manager_ports(sandbox, self._threads, self._offers)
        manager = asyncio.create_task(StandingManager(config, ports, self._offers).run(halt))
        try:
            while not halt.is_set and not manager.done():
                with_slots = await self._look()
                await halt.wait(config.renew_ms if with_slots else min(HUNGRY_MS, config.renew_ms))
        finally:
            halt.set()
            await self._leave()
            await manager
            sandbox.events.flush()
            await self._threads.close(within_ms=_JOIN_MS)

    async def _look(self) -> bool:
        """Show that this process lives, take or give up a slot; return whether it has one."""
        now_ms = self._clock.monotonic_ms()
        try:
            if now_ms >= self._beat_ms:
                self._beat_ms = now_ms + self._sandbox.config.renew_ms
                await self._offers.beat(self._started_ms)
            await self._settle(await self._offers.look())
        except ShardfleetError as error:
            delay = SlotDelayed(slot_id="", worker_id=self._host, error=told(error))
            self._sandbox.events.emit(delay)
        return bool(self._slots)

    async def _settle(self, board: Board) -> None:
        for name, slot in [*self._slots.items()]:
            if slot.task.done():
                slot.task.result()  # What nobody foresaw ends the process.
                await self._offers.finish(name, slot.offer)
                del self._slots[name]
            elif name not in board.offers:  # It was frozen, and the slot has a new start.
                await slot.hand_over(self._state)
        if free := board.to_take(self._host):
            offer = board.offers[free]
            if await self._offers.take(free, offer):
                self._slots[free] = CarriedSlot(offer, self._sandbox, self._host)
        elif (one := board.to_give_up(self._host)) and one in self._slots:
            await self._slots[one].hand_over(self._state)

    async def _leave(self) -> None:
        """Let every slot hand over; a handler that outlives its time-out ends the process."""
        config, slots = self._sandbox.config, [*self._slots.values()]
        end_ms = self._clock.monotonic_ms() + config.handler_timeout_ms + config.turn_margin_ms
        with suppress(ShardfleetError):
            await self._offers.beat(self._started_ms, is_leaving=True)
        await asyncio.gather(*(slot.hand_over(self._state) for slot in slots))
        pending = {slot.task for slot in slots}
        while pending and self._clock.monotonic_ms() < end_ms:
            _, pending = await asyncio.wait(pending, timeout=config.renew_ms / 1000)
            with suppress(ShardfleetError):
                await self._offers.beat(self._started_ms, is_leaving=True)
        for name, slot in self._slots.items():
            await self._offers.finish(name, slot.offer)
        await self._offers.leave()
        with suppress(ShardfleetError):
            await self._state.prompt_manager()
        if pending:
            bootstrap.TellingProcess(self._sandbox).end("a slot has not ended in time")
