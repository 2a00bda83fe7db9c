"""
Which call killed the process: notes beside the leases, written only while it matters (H9, H21).

A turn that follows a crash suspects each of its shards. A suspect's call runs while no other does;
it is noted before it begins, with its kind, and the note is closed when it returns. A process that
dies leaves exactly one open note, so the death is charged to that shard alone. What that means for
records is decided with their other attempts; a call without records that has killed too often stops
its shard. Normal turns write no notes, except of a call that outlives its time-out.

Suspicion ends by events, never by time: a shard is none any more when all that it first read is
done and stored, or there was nothing to read at its tip. A death after that is of what comes next,
which is what the next turn reads first. Calls without records are few, and may come hours later:
they are noted in the whole turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import RETRIES, Attempts, CrashCharge
from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.progress import position_of, position_text, read_position
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.ports import EventSink
from shardfleet.engine.state.beside import LeaseNotes
from shardfleet.engine.state.kinds import ChargedRecords, CrashNote
from shardfleet.events.delivery import CrashCharged
from shardfleet.records import Record


class NotedCall(Struct, frozen=True, kw_only=True):
    """
    A call into user code, as it is noted.

    Attributes:
        kind: what it is for.
        first: position of its first record; without records, how far the shard is.
        last: position of its last record; without records, the same as ``first``.
        count: how many records it has.

    """

    kind: CallKind
    first: ExtendedSequenceNumber
    last: ExtendedSequenceNumber
    count: int

    @classmethod
    def of(
        cls,
        kind: CallKind,
        records: Sequence[Record],
        *,
        done: ExtendedSequenceNumber = AT_TRIM_HORIZON,
    ) -> NotedCall:
        """Return a call; one without records is of a shard that is done up to ``done``."""
        first, last = (
            (position_of(records[0]), position_of(records[-1])) if records else (done, done)
        )
        return cls(kind=kind, first=first, last=last, count=len(records))


class CallCharge(Struct, frozen=True):
    """
    A call without records that the process died in.

    Attributes:
        kind: of the call.
        crashes: deaths on its account.

    """

    kind: CallKind
    crashes: int


class CrashNotes:
    """
    The notes of one worker turn.

    Attributes:
        follows_death: the invocation before this one did not end in order.
        open: notes of this turn that are open, or may be, by lease.

    """

    def __init__(
        self, state: LeaseNotes, *, suspicious: bool, config: FleetConfig, events: EventSink
    ) -> None:
        """
        Begin the turn.

        Args:
            state: where the notes are.
            suspicious: the invocation before this one did not end in order.
            config: for the attempts.
            events: where charges are told.

        """
        self._state = state
        self._config = config
        self._events = events
        self.follows_death = suspicious
        self._acquitted: set[str] = set()
        self._attempts: dict[str, Attempts] = {}
        self._charges: dict[str, CallCharge] = {}
        self.open: dict[str, CrashNote] = {}

    def is_suspect(self, lease_key: str) -> bool:
        """Return whether the process may have died over records of this shard."""
        if not self.follows_death:
            return False
        return lease_key not in self._acquitted or self.attempts(lease_key).charge is not None

    def notes(self, lease_key: str, kind: CallKind) -> bool:
        """Return whether a call is to be noted, and to run while no other does."""
        if not self.follows_death or not kind.is_noted:
            return False
        return kind is not CallKind.RECORDS or self.is_suspect(lease_key)

    def acquit(self, lease_key: str) -> None:
        """End the suspicion: what the shard first read is done and stored."""
        self._acquitted.add(lease_key)

    def attempts(self, lease_key: str) -> Attempts:
        """Return the attempts of a shard: what it is charged with counts for the whole turn."""
        if lease_key not in self._attempts:
            self._attempts[lease_key] = self.new_attempts()
        return self._attempts[lease_key]

    def new_attempts(self) -> Attempts:
        """Return attempts that begin with nothing tried."""
        config = self._config
        return Attempts(
            attempts_most=config.max_attempts,
            max_crashes=config.max_crashes,
            halves=RETRIES[config.on_failure],
        )

    def is_charged(self, lease_key: str) -> bool:
        """Return whether the process died over this shard, which then goes first."""
        return lease_key in self._charges or self.attempts(lease_key).charge is not None

    def killer(self, lease_key: str) -> CallCharge | None:
        """Return the call without records that has killed the process too often, if there is."""
        charge = self._charges.get(lease_key)
        return charge if charge and charge.crashes >= self._config.max_crashes else None

    async def charge(self, lease_key: str, *, done: ExtendedSequenceNumber) -> None:
        """
        Charge a death to the shard if its note is still open; before its first call.

        Args:
            lease_key: the shard.
            done: how far it is. What was noted up to there has been done since, in a turn that
                wrote no notes, or by the next owner while the one that noted it lived on.

        """
        if not self.follows_death or self.is_charged(lease_key) or lease_key in self.open:
            return
        note = await self._state.note(lease_key)
        if note is None:
            return
        if note.charged is not None:
            self._charge_records(lease_key, note.charged, done)
        if not note.is_open:
            return
        kind, crashes = CallKind(note.kind), note.crashes + 1
        first, last = read_position(note.first), read_position(note.last)
        # A call without records is noted where the shard stood, and is done with beyond that.
        if last < done or (last == done and kind is CallKind.RECORDS):
            return
        if kind is CallKind.RECORDS:
            charge = CrashCharge(first=first, last=last, crashes=crashes)
            self.attempts(lease_key).charge = charge
        else:
            self._charges[lease_key] = CallCharge(kind, crashes)
        self._events.emit(
            CrashCharged(
                lease_key=lease_key,
                call=kind.value,
                first=note.first,
                count=note.count,
                crashes=crashes,
            )
        )

    def _charge_records(
        self, lease_key: str, charged: ChargedRecords, done: ExtendedSequenceNumber
    ) -> None:
        """Charge records again that another call came before, and then no call of them."""
        first, last = read_position(charged.first), read_position(charged.last)
        if done < last:
            charge = CrashCharge(first=first, last=last, crashes=charged.crashes)
            self.attempts(lease_key).charge = charge

    async def begin(self, lease_key: str, call: NotedCall) -> None:
        """Note a call before it begins, or, whatever the turn, that it outlived its time-out."""
        note = CrashNote(
            lease_key=lease_key,
            first=position_text(call.first),
            last=position_text(call.last),
            count=call.count,
            crashes=self._deaths(lease_key, call),
            is_open=True,
            kind=call.kind.value,
            charged=self._charged_besides(lease_key, call),
        )
        # Before the write: one whose answer never comes may have landed, and is to be closed.
        self.open[lease_key] = note
        await self._state.write_note(note)

    def _charged_besides(self, lease_key: str, call: NotedCall) -> ChargedRecords | None:
        """Return records that are charged and not of this call: its note is not to forget them."""
        charge = self.attempts(lease_key).charge
        if charge is None or (call.kind is CallKind.RECORDS and call.first >= charge.first):
            return None
        return ChargedRecords(
            first=position_text(charge.first),
            last=position_text(charge.last),
            crashes=charge.crashes,
        )

    def _deaths(self, lease_key: str, call: NotedCall) -> int:
        if call.kind is CallKind.RECORDS:
            return self.attempts(lease_key).deaths_near(call.first)
        charge = self._charges.get(lease_key)
        return charge.crashes if charge and charge.kind is call.kind else 0

    async def close(self, lease_key: str) -> None:
        """Close the note of a call that has returned, however it went, or that never began."""
        await self._state.close_note(self.open[lease_key])
        del self.open[lease_key]

    def acquit_call(self, lease_key: str, kind: CallKind, *, done: Record | None) -> None:
        """
        Take a charge back: what the process died of has been done since.

        Args:
            lease_key: the shard.
            kind: of a call that has done what it was for.
            done: the last record of it that is done, None without records.

        """
        charge = self._charges.get(lease_key)
        if done is not None and self.follows_death:
            self.attempts(lease_key).passed(done)
        elif charge is not None and charge.kind is kind:
            del self._charges[lease_key]

    async def settle(self, lease_key: str) -> None:
        """Close the account of a shard that is stopped: deaths after a resume count anew."""
        if not self.is_charged(lease_key):
            return
        note = await self._state.note(lease_key)
        if note is not None and (note.is_open or note.charged is not None):
            await self._state.write_note(replace(note, is_open=False, charged=None))
        self.attempts(lease_key).charge = None
        self._charges.pop(lease_key, None)
