"""
A person who pauses leases, or the whole fleet, drains it now and then, and resumes it later.

By the document that the command line writes; what the fleet makes of it is the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import ask_to_drain
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet_testkit.simulation.surroundings import Surroundings

_LONGEST_S = (2.0, 60.0)
_WHOLE_FLEET = 0.2
_DRAINS = 0.5


class Pauser:
    """One such person, often at work on several things at once."""

    def __init__(
        self, around: Surroundings, state: FleetState, lease_keys: Callable[[], Sequence[str]]
    ) -> None:
        """Begin with nothing paused."""
        self._around = around
        self._state = state
        self._record = PauseRecord(state.store)
        self._lease_keys = lease_keys
        self._chance = around.chance("pauses")

    async def run(self, every_s: float) -> None:
        """Pause something every so often, until cancelled; what is paused is resumed anyway."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / every_s))
            whole = self._chance.random() < _WHOLE_FLEET
            self._around.spawn(self._for_a_while(whole=whole), "pause")

    async def _for_a_while(self, *, whole: bool) -> None:
        known = sorted(self._lease_keys())
        keys = self._chance.sample(known, k=min(len(known), self._chance.randint(1, 3)))
        pause = Pause("operator", self._around.clock.now_ms())

        def begin(pauses: Pauses) -> Pauses:
            return replace(pauses, fleet=pause) if whole else pauses.with_leases(keys, pause)

        def end(pauses: Pauses) -> Pauses:
            return replace(pauses, fleet=None) if whole else pauses.without_leases(keys)

        self._around.log("operator", "pauses", "everything" if whole else keys)
        await self._record.change(begin)
        if whole and self._chance.random() < _DRAINS:
            for found in await self._state.slots():
                await self._state.update_slot(found.slot.slot_id, ask_to_drain)
        await asyncio.sleep(self._chance.uniform(0.1, self._chance.choice(_LONGEST_S)))
        await self._record.change(end)
        await self._state.prompt_manager()
        self._around.log("operator", "resumes", "everything" if whole else keys)
