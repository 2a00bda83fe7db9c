"""The manager's slots in one turn: how many there should be, and what is done about each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.leases import Lease
from shardfleet.domain.slot_upkeep import SlotLimits, SlotPlan, plan_slots
from shardfleet.domain.slots import SlotState
from shardfleet.engine.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.ports import Clock, EventSink, WorkerLauncher
from shardfleet.engine.slot_upkeep import SlotUpkeep

_ALIVE = (SlotState.STARTING, SlotState.RUNNING)


class SlotKeeper:
    """Plans and carries out; holds nothing between turns but the count of surplus turns."""

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
        self._clock = clock
        self._surplus_turns = 0
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
        config = self._config
        unfinished = [lease for lease in leases if not lease.is_finished]
        limits = SlotLimits(
            leases_per_worker=config.leases_per_worker,
            workers_min=min(1, config.workers_min) if is_thrifty else config.workers_min,
            workers_max=config.workers_max,
            silent_ms=2 * config.failover_ms,
        )
        alive = sum(found.slot.state in _ALIVE for found in slots)
        owners = {lease.lease_key: lease.effective_owner or "" for lease in unfinished}
        plan = plan_slots(
            [found.slot for found in slots],
            unfinished=sum(lease.lease_key not in resting for lease in unfinished),
            limits=limits,
            now_ms=self._clock.now_ms(),
            surplus_turns=self._surplus_turns + 1,
            lost=frozenset(owners[key] for key in expired if key in owners),
        )
        self._surplus_turns = self._surplus_turns + 1 if alive > plan.wanted else 0
        await self._upkeep.carry_out(plan, slots, holders=frozenset(owners.values()))
        return plan
