"""
Which shard killed the process: notes beside the leases, written only while it matters (H9).

A turn that follows a crash is suspicious: handler calls run one at a time, each range is noted
before its call, and the note is closed when the call returns. A process that dies leaves exactly
one open note, so the death is charged to that shard alone; what that means for its records is
decided with their other attempts. Normal turns write no notes.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import Attempts, CrashCharge
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import Clock, EventSink
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import CrashNote
from shardfleet.events.delivery import CrashCharged
from shardfleet.records import Record

# Suspicion lasts this many failover times: longer than anything that the crashed turn had not
# checkpointed took to handle.
_SUSPICION_FAILOVERS = 3

_Ends = tuple[ExtendedSequenceNumber, ExtendedSequenceNumber]


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
            config: for the attempts, and the length of the suspicion.
            clock: for the length of the suspicion.
            events: where charges are told.

        """
        self._state = state
        self._config = config
        self._events = events
        self._clock = clock
        self._until_ms = (
            clock.monotonic_ms() + _SUSPICION_FAILOVERS * config.failover_ms if suspicious else 0
        )
        self._suspicious = suspicious
        self._attempts: dict[str, Attempts] = {}

    @property
    def suspicious(self) -> bool:
        """Tell whether handler calls must run one at a time, each noted."""
        if not self._suspicious:
            return False
        is_recent = self._clock.monotonic_ms() < self._until_ms
        return is_recent or any(attempts.charge for attempts in self._attempts.values())

    def attempts(self, lease_key: str) -> Attempts:
        """Return the attempts of a shard: what it is charged with counts for the whole turn."""
        if lease_key not in self._attempts:
            self._attempts[lease_key] = self.new_attempts()
        return self._attempts[lease_key]

    def new_attempts(self) -> Attempts:
        """Return attempts that begin with nothing tried."""
        config = self._config
        return Attempts(
            config.failure_policy,
            attempts_most=config.max_attempts,
            crashes_most=config.crashes_most,
            retry=config.retry_policy,
        )

    def is_charged(self, lease_key: str) -> bool:
        """Tell whether the process died over this shard: it goes first, so the others may live."""
        return self.attempts(lease_key).charge is not None

    async def charge(self, lease_key: str) -> None:
        """Charge a death to the shard if its note is still open; before its first call."""
        if not self._suspicious or self.is_charged(lease_key):
            return
        note = await self._state.note(lease_key)
        if note is None or not note.is_open:
            return
        crashes = note.crashes + 1
        self.attempts(lease_key).charge = CrashCharge(
            first=_position(note.first), last=_position(note.last), crashes=crashes
        )
        self._events.emit(
            CrashCharged(lease_key=lease_key, first=note.first, count=note.count, crashes=crashes)
        )

    async def begin(self, lease_key: str, records: Sequence[Record]) -> None:
        """Note a range before its handler call."""
        if self.suspicious:
            await self.leave_open(lease_key, records)

    async def leave_open(self, lease_key: str, records: Sequence[Record]) -> None:
        """Note a range whatever the turn: a call that outlived its time-out ends the process."""
        await self._write(lease_key, _ends(records), count=len(records), is_open=True)

    async def end(self, lease_key: str, records: Sequence[Record], *, done_count: int) -> None:
        """Close the note: the call returned, however it went."""
        if not self.suspicious:
            return
        await self._write(lease_key, _ends(records), count=len(records), is_open=False)
        if done_count:
            self.attempts(lease_key).passed(records[done_count - 1])

    async def settle(self, lease_key: str) -> None:
        """Close the account of a shard that is stopped: deaths after a resume count anew."""
        attempts = self.attempts(lease_key)
        if attempts.charge is not None:
            first = attempts.charge.first
            await self._write(lease_key, (first, first), count=1, is_open=False)
            attempts.charge = None

    async def _write(
        self,
        lease_key: str,
        ends: _Ends,
        *,
        count: int,
        is_open: bool,
    ) -> None:
        first, last = (f"{end.sequence_number}:{end.sub_sequence_number}" for end in ends)
        crashes = self.attempts(lease_key).deaths_near(ends[0])
        await self._state.write_note(
            CrashNote(
                lease_key=lease_key,
                first=first,
                last=last,
                count=count,
                crashes=crashes,
                is_open=is_open,
            )
        )


def _ends(records: Sequence[Record]) -> _Ends:
    return position_of(records[0]), position_of(records[-1])


def _position(text: str) -> ExtendedSequenceNumber:
    number, _, sub = text.partition(":")
    return ExtendedSequenceNumber(number, int(sub))
