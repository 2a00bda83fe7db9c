"""
Watching graceful handovers: what takes too long is ended by force (protocol.md §3.5).

The old owner normally ends a handover itself, once its running batch is done and checkpointed
(:meth:`shardfleet.engine.ownership.checkpointer.Checkpointer.release`).
"""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.handovers import Handover, overdue_handovers, pending_handovers
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.engine.ports import Clock, EventSink, LeaseStore
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events import HandoverForced


class HandoverWatch:
    """Remembers when handovers began, across invocations."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        leases: LeaseStore,
        state: FleetState,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """Keep the ports."""
        self._config = config
        self._leases = leases
        self._state = state
        self._clock = clock
        self._events = events

    async def look(self, leases: Sequence[Lease], expired: frozenset[str]) -> None:
        """
        Bring what is pending up to date, and end what is overdue.

        Args:
            leases: as read in this turn.
            expired: keys of leases whose owner is lost.

        """
        now_ms = self._clock.now_ms()
        before = await self._state.handovers()
        pending = pending_handovers(before, leases, now_ms=now_ms)
        if pending != before:
            await self._state.write_handovers(pending)
        overdue = overdue_handovers(
            pending,
            leases,
            expired=expired,
            now_ms=now_ms,
            limit_ms=self._config.handover_limit_ms,
        )
        for lease in overdue:
            await self._force(lease, pending[lease.lease_key], now_ms=now_ms)

    async def _force(self, lease: Lease, handover: Handover, *, now_ms: int) -> None:
        change = lease_changes.assign(lease, handover.next_owner)
        if isinstance(await self._leases.apply(change), Applied):
            self._events.emit(
                HandoverForced(
                    lease_key=lease.lease_key,
                    worker_id=handover.next_owner,
                    old_owner=handover.old_owner,
                    waited_ms=now_ms - handover.since_ms,
                )
            )
