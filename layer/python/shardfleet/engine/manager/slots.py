"""
Carrying out what a turn decides about slots.

Intent comes before effect, by compare-and-set (hazards H2, H3). Nothing is concluded from a name
alone: when Step Functions says that a name exists, that one execution is described, and only a
closed one raises the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.reasons import ClosedBeforeHeartbeat, ExecutionOver, Reason, StandsIn
from shardfleet.domain.slots.slot import (
    end_of_dead,
    intend_start,
)
from shardfleet.domain.slots.upkeep import SlotDecision, SlotTask, asked
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.ports import Clock, EventSink, ExecutionStatus, WorkerLauncher
from shardfleet.engine.retry import Box, each_of
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.state.kinds import SLOT
from shardfleet.errors import ShardfleetError
from shardfleet.events.manager import SlotRestarted, SlotStarted, SlotUpkeepFailed


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

    async def carry_out(self, plan: TurnPlan, *, box: Box) -> None:
        """
        Carry out every decision; one slot's failure does not keep the others from theirs.

        Raises:
            BoxSpent: the rest is planned anew by the next turn.

        """
        versions = plan.snapshot.versions
        known = {
            slot.slot_id: VersionedSlot(slot, versions[SLOT, slot.slot_id])
            for slot in plan.snapshot.slots
        }

        async def carry_out_one(decision: SlotDecision) -> None:
            try:
                await self._one(decision, plan, known)
            except ShardfleetError as error:
                self._events.emit(
                    SlotUpkeepFailed(
                        slot_id=decision.slot_id, task=decision.task.value, error=str(error)
                    )
                )

        await each_of(plan.slots.decisions, carry_out_one, box=box)

    async def _one(
        self, decision: SlotDecision, plan: TurnPlan, known: Mapping[str, VersionedSlot]
    ) -> None:
        found = known.get(decision.slot_id)
        match decision.task:
            case SlotTask.START:
                await self._intend(decision.slot_id, found, decision.reason)
            case SlotTask.REPEAT_START if found is not None:
                await self._start(found)
            case SlotTask.EXAMINE | SlotTask.VERIFY if found is not None:
                runs = await self._examine(found, is_needed=decision.slot_id in plan.restarts)
                if runs and decision.stand_in:
                    stands_in = StandsIn(decision.slot_id)
                    await self._intend(decision.stand_in, known.get(decision.stand_in), stands_in)
            case SlotTask.LEAVE | SlotTask.STAY | SlotTask.DRAIN:
                task, now_ms = decision.task, self._clock.now_ms()
                await self._state.update_slot(
                    decision.slot_id, lambda slot: asked(slot, task, now_ms=now_ms)
                )
            case _:
                pass

    async def _intend(self, slot_id: str, found: VersionedSlot | None, reason: Reason) -> None:
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
                    reason=reason,
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
            await self._restart(found, ClosedBeforeHeartbeat(name))

    async def _examine(self, found: VersionedSlot, *, is_needed: bool) -> bool:
        """
        Describe a silent slot's execution and its successor; restart or end if both are over.

        Returns whether one of them runs.
        """
        slot = found.slot
        for generation in (slot.generation, slot.generation + 1):
            name = replace(slot.slot_input(), generation=generation).execution_name()
            if await self._launcher.status(name) is ExecutionStatus.RUNNING:
                return True
        if is_needed:
            await self._restart(found, ExecutionOver())
        elif (ended := end_of_dead(slot)) is not None:
            await self._state.write_slot(ended, found.version)
        return False

    async def _restart(self, found: VersionedSlot, reason: Reason) -> None:
        slot = found.slot
        self._events.emit(
            SlotRestarted(slot_id=slot.slot_id, worker_id=slot.worker_id, reason=reason)
        )
        await self._intend(slot.slot_id, found, reason)
