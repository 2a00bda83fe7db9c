"""
The worker's side of its slot record: claimed, looked at, kept alive, ended (hazards H1, H2, H3).

Everything is compare-and-set on the one record, and every write looks at the epoch first: an
invocation that was overtaken writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from shardfleet.domain.slots.failure import Failure
from shardfleet.domain.slots.slot import (
    ClaimRefused,
    Slot,
    SlotInput,
    SlotState,
    claim,
    close_turn,
    end,
    fail_turn,
    heartbeat,
    loads,
    worked,
)
from shardfleet.domain.slots.usage import HandlerSigns, Usage
from shardfleet.engine.ports import Clock
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.errors import MalformedDocument, ProtocolError, StaleEpoch, Throttled

# The manager writes the record a few times a minute; more conflicts in a row mean a bug.
_CLAIMS_MOST = 20


class Claimed(Struct, frozen=True):
    """
    The slot as this invocation claimed it.

    Attributes:
        slot: as written.
        silent_ms: time since the last sign of life of an invocation that did not end in order;
            None after one that did.

    """

    slot: Slot
    silent_ms: int | None = None


class SlotRecord:
    """
    One slot, as seen by one invocation.

    Attributes:
        epoch: of this invocation, once it is claimed.

    """

    def __init__(self, given: SlotInput, *, state: FleetState, clock: Clock, token: str) -> None:
        """Nothing is claimed yet; ``token`` is this invocation's alone."""
        self.given = given
        self._state = state
        self._clock = clock
        self._token = token
        self.epoch = -1
        self._well_from_ms: int | None = None

    async def claim(self) -> Claimed | ClaimRefused:
        """
        Claim the next epoch (H1), or learn that this invocation is outdated (H3).

        A record that cannot be read is not claimed: which epochs there were, nobody knows.

        Raises:
            Throttled, OutcomeUnknown: try again; an epoch more does no harm.
            ProtocolError: the record would not hold still.

        """
        try:
            return await self._claim()
        except MalformedDocument as error:
            return ClaimRefused(str(error))

    async def _claim(self) -> Claimed | ClaimRefused:
        for _ in range(_CLAIMS_MOST):
            found = await self._state.slot(self.given.slot_id)
            wanted = claim(
                None if found is None else found.slot,
                self.given,
                now_ms=self._clock.now_ms(),
                token=self._token,
            )
            if isinstance(wanted, ClaimRefused):
                return wanted
            written = await self._state.write_slot(wanted, found.version if found else None)
            if written is not None:
                self.epoch = written.slot.epoch
                return Claimed(written.slot, _silent_ms(found, written.slot))
        raise ProtocolError(f"slot {self.given.slot_id}: not claimed in {_CLAIMS_MOST} attempts")

    async def note_loading(self, *, is_over: bool) -> None:
        """
        Record that the handler is about to be imported, which may kill the process, or that it is.

        Raises:
            StaleEpoch: another invocation has taken over.
            Throttled, OutcomeUnknown: not recorded, or not known to be.

        """

        def change(slot: Slot) -> Slot | None:
            self._check(slot)
            return loads(slot, is_over=is_over)

        await self._state.update_slot(self.given.slot_id, change)

    def note_loaded(self, *, call_most_ms: int) -> None:
        """Note that the handler is loaded; a call of it may take so long before it is known."""
        self._well_from_ms = self._clock.monotonic_ms() + call_most_ms

    async def fail(self, failure: Failure) -> None:
        """
        Record what this invocation fails of, for a person.

        Raises:
            StaleEpoch: another invocation has taken over.
            Throttled, OutcomeUnknown: not recorded, or not known to be.

        """

        def change(slot: Slot) -> Slot | None:
            self._check(slot)
            return fail_turn(slot, failure, now_ms=self._clock.now_ms())

        await self._state.update_slot(self.given.slot_id, change)

    async def is_mine(self) -> bool:
        """
        Read consistently whether this invocation is still the latest.

        Raises:
            Throttled: no answer, or one that cannot be read.

        """
        try:
            found = await self._state.slot(self.given.slot_id)
        except MalformedDocument as error:
            raise Throttled(str(error)) from error
        return found is not None and found.slot.epoch == self.epoch

    async def look(self) -> Slot:
        """
        Read the record.

        Raises:
            StaleEpoch: another invocation or execution has taken over.
            MalformedDocument: the record cannot be read.

        """
        found = await self._state.slot(self.given.slot_id)
        if found is None:
            raise StaleEpoch(f"slot {self.given.slot_id}: the record is gone")
        self._check(found.slot)
        return found.slot

    async def beat(
        self,
        served_seq: int,
        lags_ms: Callable[[], Mapping[str, int]],
        usage: Usage,
        *,
        signs: HandlerSigns,
    ) -> Slot | None:
        """
        Write a heartbeat; returns the record as written.

        The lags are asked for with each attempt: it may be the second one, after a freeze, and what
        is told under a new time is then of that time (H18).
        """

        def change(slot: Slot) -> Slot | None:
            self._check(slot)
            now_ms, since_ms = self._clock.now_ms(), self._well_from_ms
            if since_ms is not None:
                slot = worked(slot, loaded_for_ms=self._clock.monotonic_ms() - since_ms)
            return heartbeat(
                slot,
                now_ms=now_ms,
                served_seq=served_seq,
                lags_ms=lags_ms(),
                usage=usage,
                signs=signs,
            )

        written = await self._state.update_slot(self.given.slot_id, change)
        return None if written is None else written.slot

    async def prompt(self) -> None:
        """
        Ask the manager to look at the fleet now.

        Raises:
            Throttled, OutcomeUnknown: it looks at its own time.

        """
        await self._state.prompt_manager()

    async def close_turn(self, lags_ms: Mapping[str, int]) -> None:
        """Record that this invocation ended in good order, and what it holds."""

        def change(slot: Slot) -> Slot | None:
            self._check(slot)
            return close_turn(slot, now_ms=self._clock.now_ms(), lags_ms=lags_ms)

        await self._state.update_slot(self.given.slot_id, change)

    async def end(self, served_seq: int) -> bool:
        """End the slot; False when assignments came that are not served yet (H2)."""

        def change(slot: Slot) -> Slot | None:
            self._check(slot)
            if slot.state is SlotState.ENDED:
                return slot  # By us, in a write without an answer: anybody else raises the epoch.
            return end(slot, served_seq=served_seq, now_ms=self._clock.now_ms())

        return await self._state.update_slot(self.given.slot_id, change) is not None

    def _check(self, slot: Slot) -> None:
        if slot.epoch != self.epoch:
            raise StaleEpoch(
                f"slot {slot.slot_id}: epoch {slot.epoch} on record, {self.epoch} was claimed "
                "here: another invocation has taken over"
            )


def _silent_ms(before: VersionedSlot | None, claimed: Slot) -> int | None:
    if before is None or not before.slot.turn_open or not before.slot.heartbeat_ms:
        return None
    return max(0, claimed.heartbeat_ms - before.slot.heartbeat_ms)
