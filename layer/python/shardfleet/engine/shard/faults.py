"""
What a shard's consumer raises that nobody foresaw stops that shard alone, for a while.

It is put on record as a stop with an end: shown and alarmed like a stop by policy, remembered
across turns, and over at once after ``shardfleet resume``. The lease stays where it is: the worker
goes on renewing it and tries again, ever less often, so nothing is skipped and nothing comes twice
that the handler had done.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import EventSink
from shardfleet.engine.retry import Halted, Patience
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import (
    ConfigurationError,
    HandlerTimedOut,
    OutcomeUnknown,
    StaleEpoch,
    StreamGone,
    StreamReplaced,
    Throttled,
    told,
)
from shardfleet.events.delivery import ConsumerFailed

# What concerns every shard of the turn, whichever meets it first.
CONCERNS_ALL = (ConfigurationError, HandlerTimedOut, StaleEpoch, StreamGone, StreamReplaced)
# As long as the state machine waits after invocations that fail (hazard H9).
_FIRST_MS, _MOST_MS = 1_000, 300_000
# Where no clock and no table can be asked: often enough for an operator, rare enough for a bill.
_BLIND_MS = 5_000
_WORDS_MOST = 300  # of a message: enough for a person, and a document has 400 KB for its rest


class ShardFaults:
    """The faults of one worker turn's shards, and of the turns before."""

    def __init__(
        self,
        state: FleetState,
        *,
        worker_id: str,
        poll_ms: int,
        patience: Patience,
        events: EventSink,
    ) -> None:
        """
        Begin with nothing known.

        Args:
            state: where stops are.
            worker_id: of this worker.
            poll_ms: how often is looked whether a stop was removed.
            patience: for the jitter, and for tables that refuse.
            events: where faults are told.

        """
        self._state = state
        self._worker_id = worker_id
        self._poll_ms = poll_ms
        self._patience = patience
        self._back_offs = replace(patience, first_ms=_FIRST_MS, most_ms=_MOST_MS)
        self._events = events
        self._known: dict[str, StopNote] = {}

    async def withstand(self, held: HeldLease, error: Exception) -> None:
        """
        Put a fault on record and rest; where not even that works, rest all the same.

        Raises:
            Halted: asked to stop.

        """
        try:
            await self.record(held, error)
            held.halt.check()
            await self.rest(held)
        except (Halted, *CONCERNS_ALL):
            raise
        except Exception:  # noqa: BLE001 - what is ill may be what records and rests
            if await held.halt.wait(_BLIND_MS):
                raise Halted from None

    async def record(self, held: HeldLease, error: Exception) -> None:
        """Stop a shard for what its consumer raised: for a second, twice as long each time."""
        key, now_ms = held.lease_key, self._patience.clock.now_ms()
        before = await self._known_stop(held)
        if before is not None and not before.retry_ms:
            return  # Stopped by policy, and told.
        attempts = before.attempts + 1 if before else 1
        back_off_ms = self._back_offs.back_off_ms(attempts)
        words = told(error)[:_WORDS_MOST]
        self._events.emit(
            ConsumerFailed(
                lease_key=key,
                worker_id=self._worker_id,
                error=words,
                attempts=attempts,
                back_off_ms=back_off_ms,
            )
        )
        if not held.is_held:
            return  # Over, or somebody else's: nobody's to stop here.
        note = StopNote(
            lease_key=key,
            position=held.done_text,
            error=words,
            attempts=attempts,
            worker_id=self._worker_id,
            at_ms=before.at_ms if before else now_ms,
            retry_ms=now_ms + back_off_ms,
        )
        self._known[key] = note
        with suppress(Halted):
            await self._patience.persist(lambda: self._state.write_stop(note), held.halt)

    async def _known_stop(self, held: HeldLease) -> StopNote | None:
        """Read the stop of a shard; what is remembered will do when the turn ends meanwhile."""
        key = held.lease_key
        try:
            return await self._patience.persist(lambda: self._state.stop(key), held.halt)
        except Halted:
            return self._known.get(key)

    async def rest(self, held: HeldLease) -> None:
        """
        Keep the lease and deliver nothing until the stop is removed, or over.

        Raises:
            Halted: asked to stop.

        """
        key, clock = held.lease_key, self._patience.clock
        until_ms: int | None = None
        while stop := await self._patience.persist(lambda: self._state.stop(key), held.halt):
            pause_ms = self._poll_ms
            if stop.retry_ms:
                self._known[key] = stop
                if until_ms is None:
                    # By this clock, and never for longer, however wrong another worker's was.
                    left_ms = min(max(0, stop.retry_ms - clock.now_ms()), _MOST_MS)
                    until_ms = clock.monotonic_ms() + left_ms
                pause_ms = min(pause_ms, until_ms - clock.monotonic_ms())
                if pause_ms <= 0:
                    return
            await self._patience.pause(pause_ms, held.halt)
        self._known.pop(key, None)

    async def passed(self, lease_key: str) -> None:
        """Let a shard go on that has done again what it had failed at."""
        note = self._known.get(lease_key)
        if note is not None:
            with suppress(Throttled, OutcomeUnknown):
                # A worker has no right to delete (docs/security.md).
                await self._state.write_stop(replace(note, attempts=0))
                del self._known[lease_key]
