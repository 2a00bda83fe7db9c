"""
Carrying out slot decisions: intent before effect, by compare-and-set (hazards H2, H3).

Nothing is concluded from a name alone: when Step Functions says that a name exists, that one
execution is described, and only a closed one raises the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import Slot, SlotState, ask_to_drain, intend_start
from shardfleet.domain.slots.upkeep import SlotDecision, SlotPlan, SlotTask
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.ports import Clock, EventSink, ExecutionStatus, WorkerLauncher
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.errors import ShardfleetError
from shardfleet.events import SlotRestarted, SlotStarted, SlotUpkeepFailed


class SlotUpkeep:
    """Starts, repairs and drains slots."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        state: FleetState,
        launcher: WorkerLauncher,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """Keep the ports."""
        self._config = config
        self._state = state
        self._launcher = launcher
        self._clock = clock
        self._events = events

    async def carry_out(
        self, plan: SlotPlan, slots: Iterable[VersionedSlot], *, holders: frozenset[str]
    ) -> None:
        """
        Carry out every decision; one slot's failure does not keep the others from theirs.

        Args:
            plan: from :func:`shardfleet.domain.slots.upkeep.plan_slots`.
            slots: as read at the beginning of the turn.
            holders: worker ids that own unfinished leases.

        """
        known = {found.slot.slot_id: found for found in slots}

        async def carry_out_one(decision: SlotDecision) -> None:
            try:
                await self._one(decision, known, holders)
            except ShardfleetError as error:
                self._events.emit(
                    SlotUpkeepFailed(
                        slot_id=decision.slot_id, task=decision.task.value, error=str(error)
                    )
                )

        await each_of(plan.decisions, carry_out_one)

    async def _one(
        self,
        decision: SlotDecision,
        known: Mapping[str, VersionedSlot],
        holders: frozenset[str],
    ) -> None:
        found = known.get(decision.slot_id)
        match decision.task:
            case SlotTask.START:
                await self._intend(decision.slot_id, found)
            case SlotTask.REPEAT_START if found is not None:
                await self._start(found)
            case SlotTask.EXAMINE if found is not None:
                await self._examine(found, holders)
            case SlotTask.LEAVE | SlotTask.STAY if found is not None:
                since_ms = self._clock.now_ms() if decision.task is SlotTask.LEAVE else 0
                await self._state.update_slot(
                    decision.slot_id, lambda slot: replace(slot, leaving_ms=since_ms)
                )
            case SlotTask.DRAIN if found is not None:
                await self._state.update_slot(decision.slot_id, ask_to_drain)
            case _:
                pass

    async def _intend(self, slot_id: str, found: VersionedSlot | None) -> None:
        """Write the intent, then start. Losing the write means that another manager did it."""
        slot = intend_start(
            found.slot if found else None,
            slot_id=slot_id,
            worker_id=f"{self._config.fleet}-{slot_id}",
            name_prefix=self._config.fleet,
            now_ms=self._clock.now_ms(),
        )
        written = await self._state.write_slot(slot, found.version if found else None)
        if written is not None:
            self._events.emit(
                SlotStarted(
                    slot_id=slot_id,
                    worker_id=slot.worker_id,
                    start_epoch=slot.start_epoch,
                )
            )
            await self._start(written)

    async def _start(self, found: VersionedSlot) -> None:
        """Start the execution on record; one that has closed needs a new epoch."""
        given = found.slot.slot_input()
        name = given.execution_name()
        if await self._launcher.start(name, given.execution_text()):
            return
        if await self._launcher.status(name) is ExecutionStatus.CLOSED:
            await self._restart(found, f"execution {name} closed before its first heartbeat")

    async def _examine(self, found: VersionedSlot, holders: frozenset[str]) -> None:
        """Describe a silent slot's execution and its successor; restart or end if both are over."""
        slot = found.slot
        for generation in (slot.generation, slot.generation + 1):
            name = replace(slot.slot_input(), generation=generation).execution_name()
            if await self._launcher.status(name) is ExecutionStatus.RUNNING:
                return
        if slot.worker_id in holders and not slot.drain:
            await self._restart(found, "silent, and its execution is over")
        else:
            await self._state.write_slot(_ended(slot), found.version)

    async def _restart(self, found: VersionedSlot, reason: str) -> None:
        slot = found.slot
        self._events.emit(
            SlotRestarted(slot_id=slot.slot_id, worker_id=slot.worker_id, reason=reason)
        )
        await self._intend(slot.slot_id, found)


def _ended(slot: Slot) -> Slot:
    """End a slot on its behalf; an invocation that still runs somewhere finds itself outdated."""
    return replace(
        slot,
        state=SlotState.ENDED,
        epoch=slot.epoch + 1,
        assigned=(),
        lags_ms={},
        busy=UNKNOWN,
        cpu=UNKNOWN,
        turn_open=False,
    )
