"""
The manager's slots in one turn: how many there should be, and what is done about each.

Intent comes before effect, by compare-and-set (hazards H2, H3). Nothing is concluded from a name
alone: when Step Functions says that a name exists, that one execution is described, and only a
closed one raises the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import count_to_read
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import ClosedBeforeHeartbeat, ExecutionOver, Reason
from shardfleet.domain.slots.lags import lags_of
from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from shardfleet.domain.slots.slot import (
    Slot,
    SlotState,
    ask_to_drain,
    ask_to_leave,
    ask_to_stay,
    end_of_dead,
    intend_start,
)
from shardfleet.domain.slots.upkeep import (
    SlotDecision,
    SlotFacts,
    SlotPlan,
    SlotTask,
    plan_slots,
    stays,
)
from shardfleet.engine.ports import Clock, EventSink, ExecutionStatus, WorkerLauncher
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.fleet_state import MANAGER, FleetState, VersionedSlot
from shardfleet.errors import OutcomeUnknown, ShardfleetError
from shardfleet.events import SlotRestarted, SlotStarted, SlotUpkeepFailed

PACE = "pace"
LAG_MOST_MS = 60_000  # without an objective
_STEALING = "greedy"  # the one strategy that takes from healthy others


def sizing_limits(config: FleetConfig, *, is_thrifty: bool = False) -> SizingLimits:
    """Return what sizes the fleet; a thrifty one keeps no more slots than the leases need."""
    return SizingLimits(
        leases_per_worker=config.leases_per_worker,
        workers_min=min(1, config.workers_min) if is_thrifty else config.workers_min,
        workers_max=config.workers_max,
        target=config.target_percent / 100,
        lag_most_ms=config.lag_objective_ms or LAG_MOST_MS,
        scale_down_ms=config.scale_down_ms,
    )


def to_read(
    config: FleetConfig,
    leases: Sequence[Lease],
    slots: Iterable[Slot],
    *,
    expired: Collection[str],
    resting: Collection[str],
) -> int:
    """Return how many leases slots are needed for; the arguments are those of `SlotKeeper.keep`."""
    return count_to_read(
        leases,
        ours={slot.worker_id for slot in slots},
        expired=expired,
        resting=resting,
        steals=config.assignment == _STEALING,
    )


def slot_needs(
    slots: Iterable[Slot],
    leases: Sequence[Lease],
    *,
    stopped: Collection[str] = (),
    now_ms: int,
    still_ms: int,
) -> list[SlotNeed]:
    """
    Return what each slot that stays has to do.

    Args:
        slots: all slot records.
        leases: the unfinished ones.
        stopped: keys of leases that are behind for another reason.
        now_ms: epoch milliseconds.
        still_ms: how old a heartbeat may be and still be news.

    """
    staying = sorted((s for s in slots if stays(s)), key=lambda s: s.slot_id)
    count = held_by(leases)
    lags = lags_of(leases, staying, stopped_since_ms={}, now_ms=now_ms, still_ms=still_ms)
    needs = []
    for slot in staying:
        used = slot.usage.utilisation().values() if slot.state is SlotState.RUNNING else ()
        behind = [lags[key] for key in slot.lags_ms if key in lags and key not in stopped]
        needs.append(
            SlotNeed(
                slot_id=slot.slot_id,
                leases=count[slot.worker_id],
                used=max(used) / 100 if used else None,
                lag_ms=max(behind, default=-1),
            )
        )
    return needs


def held_by(leases: Iterable[Lease]) -> Counter[str]:
    """Return worker id to the number of unfinished leases that it holds or is to get."""
    found: Counter[str] = Counter()
    for lease in leases:
        for owner in {lease.lease_owner, lease.checkpoint_owner} - {None}:
            found[owner or ""] += 1
    return found


def leaving(slots: Iterable[VersionedSlot], plan: SlotPlan) -> frozenset[str]:
    """Return the ids of workers that are to hand over what they have, as of this turn's plan."""
    tasks = {decision.slot_id: decision.task for decision in plan.decisions}
    return frozenset(
        found.slot.worker_id
        for found in slots
        if tasks.get(found.slot.slot_id) is SlotTask.LEAVE
        or (found.slot.leaving_ms and tasks.get(found.slot.slot_id) is not SlotTask.STAY)
    )


class SlotKeeper:
    """Plans and carries out; what must outlive a turn is kept in the fleet state."""

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
        self._clock = clock
        self._upkeep = SlotUpkeep(
            config, state=state, launcher=launcher, clock=clock, events=events
        )

    async def keep(
        self,
        leases: Sequence[Lease],
        slots: Sequence[VersionedSlot],
        *,
        resting: Collection[str],
        expired: Collection[str],
        is_thrifty: bool = False,
    ) -> SlotPlan:
        """
        Keep as many slots as the leases need.

        Args:
            leases: all leases.
            slots: as read in this turn.
            resting: keys of leases that need no slot: paused or asleep.
            expired: keys of leases whose owner is lost.
            is_thrifty: no more than the leases need, whatever ``workers_min``.

        """
        config, now_ms = self._config, self._clock.now_ms()
        unfinished = [lease for lease in leases if not lease.is_finished]
        records = [found.slot for found in slots]
        stopped = {stop.lease_key for stop in await self._state.stops()}
        silent_ms = 2 * config.failover_ms
        pace, version = await self._pace()
        sizing = plan_size(
            slot_needs(records, unfinished, stopped=stopped, now_ms=now_ms, still_ms=silent_ms),
            unfinished=to_read(config, leases, records, expired=expired, resting=resting),
            pace=pace,
            limits=sizing_limits(config, is_thrifty=is_thrifty),
            now_ms=now_ms,
        )
        if sizing.pace != pace:
            await self._keep_pace(sizing.pace, version)
        owners = {lease.lease_key: lease.effective_owner or "" for lease in unfinished}
        facts = SlotFacts(
            now_ms=now_ms,
            silent_ms=silent_ms,
            leave_most_ms=config.handover_limit_ms + config.cycle_ms,
            held=held_by(unfinished),
            lost=frozenset(owners[key] for key in expired if key in owners),
        )
        plan = plan_slots(records, sizing=sizing, facts=facts)
        await self._upkeep.carry_out(plan, slots, holders=frozenset(owners.values()))
        return plan

    async def _pace(self) -> tuple[Pace, int | None]:
        document = await self._state.store.read(PACE, MANAGER)
        if document is None:
            return Pace(), None
        body = document.body
        pace = Pace(surplus_ms=int(body["surplus_ms"]), raised_ms=int(body["raised_ms"]))
        return pace, document.version

    async def _keep_pace(self, pace: Pace, version: int | None) -> None:
        """Keep it; if that fails, a surplus is seen a little later."""
        body = {"surplus_ms": pace.surplus_ms, "raised_ms": pace.raised_ms}
        with suppress(OutcomeUnknown):
            await self._state.store.write(PACE, MANAGER, body, expected_version=version)


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
            case SlotTask.LEAVE:
                now_ms = self._clock.now_ms()
                await self._state.update_slot(
                    decision.slot_id, lambda slot: ask_to_leave(slot, now_ms=now_ms)
                )
            case SlotTask.STAY:
                await self._state.update_slot(decision.slot_id, ask_to_stay)
            case SlotTask.DRAIN:
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
            await self._restart(found, ClosedBeforeHeartbeat(name))

    async def _examine(self, found: VersionedSlot, holders: frozenset[str]) -> None:
        """Describe a silent slot's execution and its successor; restart or end if both are over."""
        slot = found.slot
        for generation in (slot.generation, slot.generation + 1):
            name = replace(slot.slot_input(), generation=generation).execution_name()
            if await self._launcher.status(name) is ExecutionStatus.RUNNING:
                return
        if slot.worker_id in holders and not slot.drain:
            await self._restart(found, ExecutionOver())
        elif (ended := end_of_dead(slot)) is not None:
            await self._state.write_slot(ended, found.version)

    async def _restart(self, found: VersionedSlot, reason: Reason) -> None:
        slot = found.slot
        self._events.emit(
            SlotRestarted(slot_id=slot.slot_id, worker_id=slot.worker_id, reason=reason)
        )
        await self._intend(slot.slot_id, found)
