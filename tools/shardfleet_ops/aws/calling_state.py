"""The fleet-state table of a command: what prompts the manager calls it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from shardfleet.engine.ports import Clock, StateStore
from shardfleet.engine.state.fleet_state import FleetState


class CallingState(FleetState):
    """
    Calls the manager with the first prompt: a calm one looks at prompts once a minute only.

    Args:
        store: the fleet-state table.
        clock: this machine's.
        call: invokes the manager's function, if the fleet has one and this person may.

    """

    def __init__(self, store: StateStore, clock: Clock, *, call: Callable[[], None]) -> None:
        """Call nobody yet."""
        super().__init__(store, clock)
        self._call = call
        self._has_called = False

    async def prompt_manager(self) -> int:
        """Raise the count of prompts; without a right to call, the manager sees it in a minute."""
        count = await super().prompt_manager()
        if not self._has_called:
            self._has_called = True
            # The prompt is written: whatever keeps the call from being made costs a minute.
            with suppress(Exception):
                await asyncio.to_thread(self._call)
        return count
