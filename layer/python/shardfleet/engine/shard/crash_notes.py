"""
Which shard killed the process: notes beside the leases, written only while it matters (H9).

A turn that follows a crash is suspicious: handler calls run one at a time, each range is noted
before its call, and the note is closed when the call returns. A process that dies leaves exactly
one open note, so the death is charged to that shard alone. The range is then handed over record
by record, until the record itself is known; after ``crashes_most`` deaths with that record the
failure policy applies to it. Normal turns write no notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardfleet.config import FleetConfig
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import Clock, EventSink
from shardfleet.engine.state.fleet_state import CrashNote, FleetState
from shardfleet.events import CrashCharged

# Suspicion lasts this many failover times: longer than anything that the crashed turn had not
# checkpointed took to handle.
_SUSPICION_FAILOVERS = 3


@dataclass(slots=True)
class _Charge:
    """
    A range that the process died over.

    Attributes:
        first: position of its first record.
        last: position of its last record.
        crashes: deaths on its account.
        is_exact: it is one record, and the process died over nothing else.

    """

    first: ExtendedSequenceNumber
    last: ExtendedSequenceNumber
    crashes: int
    is_exact: bool


class CrashNotes:
    """The notes of one worker turn."""

    def __init__(
        self,
        state: FleetState,
        *,
        suspicious: bool,
        config: FleetConfig,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """
        Begin the turn.

        Args:
            state: where the notes are.
            suspicious: the invocation before this one did not end in order.
            config: for ``crashes_most`` and the length of the suspicion.
            clock: for the length of the suspicion.
            events: where charges are told.

        """
        self._state = state
        self._crashes_most = config.crashes_most
        self._events = events
        self._clock = clock
        self._until_ms = (
            clock.monotonic_ms() + _SUSPICION_FAILOVERS * config.failover_ms if suspicious else 0
        )
        self._suspicious = suspicious
        self._charged: dict[str, _Charge] = {}

    @property
    def suspicious(self) -> bool:
        """Tell whether handler calls must run one at a time, each noted."""
        if not self._suspicious:
            return False
        return bool(self._charged) or self._clock.monotonic_ms() < self._until_ms

    def is_charged(self, lease_key: str) -> bool:
        """Tell whether the process died over this shard: it goes first, so the others may live."""
        return lease_key in self._charged

    async def charge(self, lease_key: str) -> None:
        """Charge a death to the shard if its note is still open; before its first call."""
        if not self._suspicious or lease_key in self._charged:
            return
        note = await self._state.note(lease_key)
        if note is None or not note.is_open:
            return
        self._charged[lease_key] = charge = _Charge(
            first=_position(note.first),
            last=_position(note.last),
            crashes=note.crashes + 1,
            is_exact=note.count == 1,
        )
        self._events.emit(
            CrashCharged(
                lease_key=lease_key, first=note.first, count=note.count, crashes=charge.crashes
            )
        )

    def most_records(self, lease_key: str, positions: Sequence[ExtendedSequenceNumber]) -> int:
        """Return how many of the next records may go into one call."""
        charge = self._charged.get(lease_key)
        if charge is not None and charge.last < positions[0]:
            # The dead process had finished the range, and stored that.
            del self._charged[lease_key]
            charge = None
        if charge is None:
            return len(positions)
        before = sum(1 for position in positions if position < charge.first)
        return before or 1

    def condemned(self, lease_key: str, position: ExtendedSequenceNumber) -> int:
        """Return the deaths over exactly this record if they are too many, else 0."""
        charge = self._charged.get(lease_key)
        if charge is None or not charge.is_exact or charge.first != position:
            return 0
        return charge.crashes if charge.crashes >= self._crashes_most else 0

    async def begin(self, lease_key: str, positions: Sequence[ExtendedSequenceNumber]) -> None:
        """Note a range before its handler call."""
        if self.suspicious:
            await self.leave_open(lease_key, positions)

    async def leave_open(self, lease_key: str, positions: Sequence[ExtendedSequenceNumber]) -> None:
        """Note a range whatever the turn: a call that outlived its time-out ends the process."""
        await self._state.write_note(self._note(lease_key, positions, is_open=True))

    async def end(
        self, lease_key: str, positions: Sequence[ExtendedSequenceNumber], *, done_count: int
    ) -> None:
        """Close the note: the call returned, however it went."""
        if not self.suspicious:
            return
        await self._state.write_note(self._note(lease_key, positions, is_open=False))
        if done_count:
            self.passed(lease_key, positions[:done_count])

    def passed(self, lease_key: str, positions: Sequence[ExtendedSequenceNumber]) -> None:
        """Take records that are done, or skipped, out of the charged range."""
        charge = self._charged.get(lease_key)
        if charge is not None and positions[-1] >= charge.last:
            del self._charged[lease_key]

    async def settle(self, lease_key: str) -> None:
        """Close the account of a shard that is stopped: deaths after a resume count anew."""
        charge = self._charged.get(lease_key)
        if charge is not None:
            await self._state.write_note(self._note(lease_key, (charge.first,), is_open=False))
            del self._charged[lease_key]

    def _note(
        self, lease_key: str, positions: Sequence[ExtendedSequenceNumber], *, is_open: bool
    ) -> CrashNote:
        first = positions[0]
        charge = self._charged.get(lease_key)
        is_within = charge is not None and charge.first <= first <= charge.last
        return CrashNote(
            lease_key=lease_key,
            first=_text(first),
            last=_text(positions[-1]),
            count=len(positions),
            crashes=charge.crashes if charge is not None and is_within else 0,
            is_open=is_open,
        )


def _text(position: ExtendedSequenceNumber) -> str:
    return f"{position.sequence_number}:{position.sub_sequence_number}"


def _position(text: str) -> ExtendedSequenceNumber:
    number, _, sub = text.partition(":")
    return ExtendedSequenceNumber(number, int(sub))
