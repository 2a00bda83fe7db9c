"""The manager's slots in one turn: how many there should be, and what is done about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import count_to_read
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.lags import lags_of
from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotFacts, SlotPlan, SlotTask, plan_slots, stays
from shardfleet.engine.manager.slot_upkeep import SlotUpkeep
from shardfleet.engine.ports import Clock, EventSink, WorkerLauncher
from shardfleet.engine.state.fleet_state import MANAGER, FleetState, VersionedSlot
from shardfleet.errors import OutcomeUnknown

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
