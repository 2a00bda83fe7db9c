"""
A worker's part in sleep: an idle shard is given up where it was read to (hazards H4, H6).

The consumer asks after each page, so nothing is read or handled meanwhile: whatever was read is
done, and the nap says where the next read would have begun. The lease is given up by the turn,
like a paused one, with all progress stored first.
"""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.domain.reading.cursor import ShardCursor
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import Clock, EventSink
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.events.worker import LeaseAsleep


class FellAsleep(Exception):
    """The shard's nap is written; its lease is to be given up."""


class IdleShard:
    """How long one shard has been idle."""

    def __init__(
        self,
        held: HeldLease,
        *,
        worker_id: str,
        config: FleetConfig,
        record: NapRecord,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """Begin awake."""
        self._held = held
        self._worker_id = worker_id
        self._config = config
        self._record = record
        self._clock = clock
        self._events = events
        self._idle_since_ms: int | None = None

    async def after(self, page: RecordsPage, cursor: ShardCursor, *, is_busy: bool) -> None:
        """
        Consider a page that was read; ``is_busy``: records of the shard are open.

        Raises:
            FellAsleep: nothing has come for so long that the lease is to be given up.

        """
        now_ms = self._clock.monotonic_ms()
        if is_busy or not self._config.sleep or page.size_bytes or page.lag_ms != 0:
            self._idle_since_ms = None
            return
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        idle_ms = now_ms - self._idle_since_ms
        if idle_ms < self._config.sleep_after_ms or not await self._begin_sleep(cursor):
            return
        self._held.is_unwanted = True
        self._held.halt.set()
        self._events.emit(
            LeaseAsleep(lease_key=self._held.lease_key, worker_id=self._worker_id, idle_ms=idle_ms)
        )
        raise FellAsleep

    async def _begin_sleep(self, cursor: ShardCursor) -> bool:
        """Write the nap, unless another application shares the table or a handover has begun."""
        held, now_ms = self._held, self._clock.now_ms()
        if held.halt.is_set or held.in_handover:
            return False
        nap = Nap(
            lease_key=held.lease_key,
            worker_id=self._worker_id,
            since_ms=now_ms,
            done=held.done,
            after=cursor.accepted or "",
            iterator=cursor.resume_token or "",
            made_ms=now_ms,
        )
        try:
            foreign = await self._record.foreign()
            if foreign is None or not foreign.is_recent(now_ms):
                return await self._record.begin(nap)
        except (Throttled, OutcomeUnknown):
            return False
        # Not before the next time that it has been idle for so long.
        self._idle_since_ms = None
        return False
