"""
A process of a fleet without Lambda: it stands for manager, and carries the slots it has taken.

A slot's turns run one after another in this process's loop; a turn that fails is repeated at once,
then with a growing pause. Asked to stop, the process ends its batches, hands its leases over and
lets others know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.offers import Board, Offer
from shardfleet.domain.slots.slot import Slot, SlotInput, TurnOutcome, ask_to_drain
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import Clock, EventSink, Process, StateStore
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import ShardfleetError, told
from shardfleet.events.worker import SlotDelayed, TurnFailed
from shardfleet_processes.offers import OfferLauncher
from shardfleet_processes.standing import StandingManager

OF_PROCESSES = {
    "leases_per_worker": 1_000,
    "max_workers": 1_000,
    "target_percent": 100,
    "max_turn_ms": 3_600_000,
    "start_allowance_ms": 1_000,
}
"""
What a fleet of processes is told: one slot carries what there is, for nobody starts another one for
it; a turn reloads nothing; a slot that is given a lease runs already.
"""
HUNGRY_MS = 250
"""How often a process without a slot looks for one."""
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 1_000, 300_000  # hazard H9, as the state machine's


class CarriedTurn(Protocol):
    """One turn of a slot: an engine's :class:`~shardfleet.engine.worker.turn.WorkerTurn`."""

    def leave(self) -> None:
        """Let it end in good order, its leases renewed: the slot's next turn goes on with them."""

    def hand_over(self) -> None:
        """Let it give its leases back and end the slot."""

    async def run(self) -> TurnOutcome:
        """Run it to its end."""


class ProcessPorts(Struct, frozen=True, kw_only=True):
    """
    Everything a process asks of the world.

    Attributes:
        state: the fleet-state table.
        clock: this machine's.
        events: where is told what goes on.
        process: what ends it at once.
        cpu: tells the utilisation of where it runs, thousandths; -1 unknown.
        manager: makes the manager's ports, with what starts workers.
        turn: makes a turn of a slot; what it runs on ends with it (hazard H10).

    """

    state: StateStore
    clock: Clock
    events: EventSink
    process: Process
    cpu: Callable[[], int]
    manager: Callable[[OfferLauncher], ManagerPorts]
    turn: Callable[[SlotInput], AbstractAsyncContextManager[CarriedTurn]]


class CarriedSlot:
    """
    One slot that this process has taken.

    Attributes:
        offer: by which it was taken.
        is_passed_on: another process is to go on with it.

    """

    def __init__(self, offer: Offer, ports: ProcessPorts, host: str) -> None:
        """Start its turns."""
        self.offer = offer
        self.is_passed_on = False
        self._ports = ports
        self._host = host
        self._given = SlotInput.from_payload(json.loads(offer.text))
        self._leaving = Halt()
        self._is_told = False
        self._turn: CarriedTurn | None = None
        self.task = asyncio.create_task(self._run(), name=offer.name)

    def pass_on(self) -> None:
        """End the slot's turn, for another process to go on with its leases."""
        if not self._leaving.is_set:
            self.is_passed_on = True
            self._leaving.set()
            if self._turn is not None:
                self._turn.leave()

    async def hand_over(self, state: FleetState) -> None:
        """Ask the slot to give its leases back and to end; again: what was refused before."""
        if self.is_passed_on:
            return
        if not self._is_told:
            with suppress(ShardfleetError):  # Once it is written nothing more is assigned to it.
                await state.update_slot(self._given.slot_id, self._asked_to_drain)
                self._is_told = True
        if not self._leaving.is_set:
            self._leaving.set()
            if self._turn is not None:
                self._turn.hand_over()

    def _asked_to_drain(self, slot: Slot) -> Slot | None:
        """Return what asks this start of the slot to drain; a later one is somebody else's."""
        return ask_to_drain(slot) if slot.start_epoch == self._given.start_epoch else None

    async def _run(self) -> None:
        failures = 0
        while True:
            outcome = await self._one_turn()
            if outcome in (TurnOutcome.IDLE, TurnOutcome.DRAINED):
                self.is_passed_on = False
                return
            if self.is_passed_on:
                return
            failures = failures + 1 if outcome is TurnOutcome.FAILED else 0
            if failures and self._leaving.is_set:
                return
            if failures > 1:
                pause_ms = min(_FIRST_PAUSE_MS << min(failures - 2, 16), _MAX_PAUSE_MS)
                await self._leaving.wait(pause_ms)

    async def _one_turn(self) -> TurnOutcome:
        try:
            async with self._ports.turn(self._given) as turn:
                self._turn = turn
                if self._leaving.is_set:
                    turn.hand_over()
                return await turn.run()
        except ShardfleetError as error:
            slot_id = self._given.slot_id
            failed = TurnFailed(slot_id=slot_id, worker_id=self._host, error=told(error))
            self._ports.events.emit(failed)
            return TurnOutcome.FAILED
        finally:
            self._turn = None


class FleetProcess:
    """
    One process of a fleet.

    Args:
        config: of the fleet.
        ports: everything asked of the world.
        host: the process's name, which no other one has.

    """

    def __init__(self, config: FleetConfig, ports: ProcessPorts, host: str) -> None:
        """Ask nothing of AWS yet."""
        self._config = config
        self._ports = ports
        self._host = host
        self._clock = ports.clock
        self._state = FleetState(ports.state, ports.clock)
        self._offers = OfferLauncher(
            ports.state, host=host, clock=ports.clock, failover_ms=config.failover_ms
        )
        self._started_ms = ports.clock.now_ms()
        self._beat_ms = ports.clock.monotonic_ms()
        self._slots: dict[str, CarriedSlot] = {}

    async def run(self, halt: Halt) -> None:
        """
        Work until halted, then hand over.

        Raises:
            ShardfleetError: the tables do not answer at the start.

        """
        config = self._config
        await self._offers.beat(self._started_ms)
        ports = self._ports.manager(self._offers)
        manager = asyncio.create_task(StandingManager(config, ports, self._offers).run(halt))
        try:
            while not halt.is_set and not manager.done():
                await self._look()
                await halt.wait(self._pause_ms)
        finally:
            halt.set()
            await self._leave()
            await manager

    @property
    def _pause_ms(self) -> int:
        """Return how long to wait: with a slot until a sign of life is due; one may be overdue."""
        soon_ms = min(HUNGRY_MS, self._config.renew_ms)
        left_ms = self._beat_ms - self._clock.monotonic_ms()
        keeps = self._slots and not any(slot.is_passed_on for slot in self._slots.values())
        return max(left_ms, soon_ms) if keeps else soon_ms

    async def _beat(self, *, is_leaving: bool = False) -> None:
        """Show that this process lives, if that is due; what fails stays due."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._beat_ms:
            cpu = UNKNOWN if is_leaving else self._ports.cpu()
            await self._offers.beat(self._started_ms, is_leaving=is_leaving, cpu=cpu)
            self._beat_ms = now_ms + self._config.renew_ms

    async def _look(self) -> None:
        """Show that this process lives, take or pass on a slot."""
        try:
            await self._beat()
            await self._settle(await self._offers.look())
        except ShardfleetError as error:
            delay = SlotDelayed(slot_id="", worker_id=self._host, error=told(error))
            self._ports.events.emit(delay)

    async def _settle(self, board: Board) -> None:
        for name, slot in [*self._slots.items()]:
            if slot.task.done():
                slot.task.result()  # What nobody foresaw ends the process.
                await self._end(name, slot)
                del self._slots[name]
            elif name not in board.offers:  # It was frozen, and the slot has a new start.
                await slot.hand_over(self._state)
        if free := board.to_take(self._host, is_spilled=self._config.spill):
            offer = board.offers[free]
            if await self._offers.take(free, offer):
                self._slots[free] = CarriedSlot(offer, self._ports, self._host)
        elif (one := board.to_pass_on(self._host)) and one in self._slots:
            self._slots[one].pass_on()

    async def _end(self, name: str, slot: CarriedSlot) -> None:
        end = self._offers.pass_on if slot.is_passed_on else self._offers.finish
        await end(name, slot.offer)

    async def _leave(self) -> None:
        """Let every slot hand over; a handler that outlives its time-out ends the process."""
        config, slots = self._config, [*self._slots.values()]
        end_ms = self._clock.monotonic_ms() + config.handler_timeout_ms + config.turn_margin_ms
        self._beat_ms = self._clock.monotonic_ms()  # That it leaves is news.
        with suppress(ShardfleetError):
            await self._beat(is_leaving=True)
        await asyncio.gather(*(slot.hand_over(self._state) for slot in slots))
        pending = {slot.task for slot in slots}
        while pending and self._clock.monotonic_ms() < end_ms:
            _, pending = await asyncio.wait(pending, timeout=self._pause_ms / 1000)
            with suppress(ShardfleetError):
                await self._beat(is_leaving=True)
            await asyncio.gather(*(slot.hand_over(self._state) for slot in slots))
        for name, slot in self._slots.items():
            with suppress(ShardfleetError):
                await self._end(name, slot)
        await self._offers.leave()
        with suppress(ShardfleetError):
            await self._state.prompt_manager()
        if pending:
            self._ports.process.end("a slot has not ended in time")
