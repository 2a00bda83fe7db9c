"""Invariants about records: none lost, in order, parents first, repetitions explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardfleet.domain.delivery.policies import Destination
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.state.kinds import NOTE, SLOT
from shardfleet.events.base import Event
from shardfleet.events.delivery import CrashCharged, RecordSkipped
from shardfleet.events.worker import BackwardCheckpoint, LeaseAdopted, LeaseLost
from shardfleet_ops.positions.rewinds import RewindRow
from shardfleet_testkit.checkers.checker import (
    CallBegun,
    Checker,
    DocumentWrite,
    Handled,
    LeaseWrite,
    Suspect,
)
from shardfleet_testkit.checkers.deaths import was_refused_to_its_end
from shardfleet_testkit.checkers.ledger import SourceRecord

# The least of max_attempts and max_crashes in any simulated configuration.
ATTEMPTS_LEAST = 3


# What a worker knows the stream's time by, at most.
_STREAM_CLOCK_MS = 2_000

_RECORDS = "records"
# What befalls a worker and can be known to it: whatever else did, nobody could tell.
_KNOWN = {"process ended", "throttled", "no answer", "killed by a record"}


@dataclass(slots=True)
class _OpenNote:
    """
    A note of a call with records that is open.

    Attributes:
        first: position of the first record.
        last: position of the last record.
        by: who wrote it.
        began: the call was made.
        runs: it has not come back.
        over_ms: when it came back; None: it has not.

    """

    first: tuple[int, int]
    last: tuple[int, int]
    by: Suspect
    began: bool = False
    runs: bool = False
    over_ms: int | None = None

    @property
    def could_not_be_closed(self) -> bool:
        """Return whether the table refused that, from the call's return to its worker's end."""
        return self.over_ms is not None and was_refused_to_its_end(self.by, self.over_ms)

    @property
    def is_excused(self) -> bool:
        """Return whether something befell its worker that nobody could tell afterwards."""
        return any(what not in _KNOWN for _, what in self.by.faults)


class NoRecordLost(Checker):
    """Every record is handled, or kept elsewhere, in bounded time after the last fault."""

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look for records that nobody handled."""
        del keys
        for entry in self.ledger.unfinished():
            text = f"{entry}, put at {entry.put_ms} ms, was never handled"
            self.found(at_ms, entry.shard_id, text)


class NothingFilteredIsHandled(Checker):
    """The handler gets no record that the fleet's filters leave out; Java's workers have none."""

    def record_handled(self, handled: Handled) -> None:
        """Look at the record."""
        if handled.entry.is_filtered and handled.by.execution != (0, 0):
            text = f"{handled.by.name} handled {handled.entry}, which the filters leave out"
            self.found(handled.at_ms, handled.entry.shard_id, text)


class NothingBeforeTheInstant(Checker):
    """A fleet that begins at an instant is given no record that arrived before it."""

    def record_handled(self, handled: Handled) -> None:
        """Compare when the record was put with the instant."""
        entry, instant_ms = handled.entry, self.ledger.wanted_from_ms
        if entry.put_ms < instant_ms:
            text = f"{handled.by.name} handled {entry}, put at {entry.put_ms} ms of {instant_ms}"
            self.found(handled.at_ms, entry.shard_id, text)


class OrderWithinShard(Checker):
    """
    First deliveries within a shard are in order: no record before its predecessors are done.

    With lanes: its predecessors of the same key.
    """

    def record_handled(self, handled: Handled) -> None:
        """Compare a first delivery with the first record that is not done."""
        entry = handled.entry
        if entry.times or entry.is_elsewhere:
            return
        truth = self.ledger.shards[entry.shard_id]
        first = truth.first_unfinished()
        if first is not None and self.ledger.lanes > 1:
            left = (other for other in truth.entries[truth.prefix :] if not other.is_done)
            first = next(other for other in left if other.key == entry.key)
        if first is not None and first.position < entry.position:
            text = f"{handled.by.name} handled {entry} before {first}"
            self.found(handled.at_ms, entry.shard_id, text)


class OrderWithinKey(Checker):
    """First deliveries of a key are in the order of the puts, across reshards."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no key seen."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._last: dict[str, int] = {}

    def record_handled(self, handled: Handled) -> None:
        """Compare a first delivery's number with the last one of its key."""
        entry = handled.entry
        # What was kept elsewhere, or done there, counts as delivered then, even if it comes again.
        if entry.times or entry.is_kept or entry.is_elsewhere:
            return
        last = self._last.get(entry.key, 0)
        if entry.number <= last:
            text = f"{handled.by.name} handled {entry} after {entry.key}/{last}"
            self.found(handled.at_ms, entry.shard_id, text)
        self._last[entry.key] = max(last, entry.number)


class RepeatsAreWhole(Checker):
    """
    Whoever has a shard leaves no record of a key out from where it began, repeats included.

    Not asked for with lanes, which remember what was done ahead of the checkpoint.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody at work."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # (invocation, shard) -> key -> the record handled last
        self._last: dict[tuple[str, str], dict[str, int]] = {}
        # shard -> up to where another writer has stored that all is done: who is refused for it,
        # and then begins anew, begins behind that
        self._stored: dict[str, tuple[int, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """See somebody begin anew, where the lease says."""
        del at_ms
        if isinstance(event, LeaseAdopted):
            self._last.pop((by.name, event.lease_key), None)
        if isinstance(event, BackwardCheckpoint):
            number, _, sub = event.stored.partition(":")
            if number.isdecimal():
                self._stored[event.lease_key] = (int(number), int(sub or 0))

    def record_handled(self, handled: Handled) -> None:
        """Look for records between this one and the one before of its key."""
        entry, by = handled.entry, handled.by
        if by.execution == (0, 0) or self.ledger.lanes > 1:
            return
        last = self._last.setdefault((by.name, entry.shard_id), {})
        since = last.get(entry.key, entry.number)
        last[entry.key] = entry.number
        if entry.number <= since + 1:
            return
        for each in self.ledger.shards[entry.shard_id].entries:
            is_between = each.key == entry.key and since < each.number < entry.number
            is_stored = each.position <= self._stored.get(entry.shard_id, (-1, 0))
            if is_between and not (
                each.is_left_out or each.is_kept or each.is_trimmed or is_stored
            ):
                text = f"{by.name} handled {entry} after {entry.key}/{since}, and left {each} out"
                self.found(handled.at_ms, entry.shard_id, text)


class KeysNeverOverlap(Checker):
    """Of a shard no two calls of an invocation have records of one key at once."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no call."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # (invocation, shard) -> call -> its keys
        self._calls: dict[tuple[str, str], dict[int, frozenset[str]]] = {}

    def call_begun(self, call: CallBegun) -> None:
        """Look at the calls that run."""
        running = self._calls.setdefault((call.by.name, call.shard_id), {})
        for keys in running.values():
            if both := keys & call.keys:
                text = f"{call.by.name} has two calls at once with {min(both)}"
                self.found(call.at_ms, call.shard_id, text)
        if len(running) >= self.ledger.lanes:
            text = f"{call.by.name} has {len(running) + 1} calls at once of {self.ledger.lanes}"
            self.found(call.at_ms, call.shard_id, text)
        running[call.call] = call.keys

    def call_over(self, at_ms: int, by: Suspect, shard_id: str, *, call: int) -> None:
        """See a call come back."""
        del at_ms
        self._calls[by.name, shard_id].pop(call, None)


class ParentsBeforeChildren(Checker):
    """No record of a child is handled before every record of its parents is done."""

    def record_handled(self, handled: Handled) -> None:
        """Look at the parents of the record's shard."""
        entry = handled.entry
        for parent in self.ledger.shards[entry.shard_id].parents:
            first = self.ledger.shards[parent].first_unfinished()
            if first is not None:
                text = f"{handled.by.name} handled {entry} before {first} of parent {parent}"
                self.found(handled.at_ms, entry.shard_id, text)


class CheckpointCoversDone(Checker):
    """A checkpoint never passes a record that is not done; nor does SHARD_END."""

    def lease_written(self, write: LeaseWrite) -> None:
        """Look for unfinished records behind a new checkpoint."""
        before, after = write.before, write.after
        if after is None or (before is not None and before.checkpoint == after.checkpoint):
            return
        covered = self.ledger.covered(after.lease_key, after.checkpoint)
        missed = [entry for entry in covered if not entry.is_done]
        if missed:
            text = (
                f"{write.by.name} wrote checkpoint {after.checkpoint}, but {len(missed)} records "
                f"are not done, the first {missed[0]}"
            )
            self.found(write.at_ms, after.lease_key, text)


class RepetitionsExplained(Checker):
    """A record is handled again only if something happened to one of those who handle it."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody known."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._who: dict[str, Suspect] = {}
        self._failed: dict[tuple[str, str], int] = {}
        self._moved: dict[tuple[str, str], int] = {}
        self._rewound: set[str] = set()

    def batch_failed(self, at_ms: int, by: Suspect, shard_id: str, *, call: int = 0) -> None:
        """Remember that the handler failed: what it had done of the batch comes again."""
        del call
        self._failed[by.name, shard_id] = at_ms

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember when somebody lost a lease."""
        before, after = write.before, write.after
        if write.sets_place or write.change.operation == "vanish":
            self._rewound.add(write.change.lease_key)
        if before is None or before.effective_owner is None:
            return
        if after is None or after.effective_owner != before.effective_owner:
            self._moved[before.lease_key, before.effective_owner] = write.at_ms

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Remember when somebody noticed that it had lost a lease, though to a twin."""
        if isinstance(event, LeaseLost):
            self._moved[event.lease_key, by.worker_id] = at_ms

    def record_handled(self, handled: Handled) -> None:
        """Look for what explains a repetition."""
        entry, by = handled.entry, handled.by
        if entry.times and not self._is_explained(entry, by):
            text = f"{by.name} handled {entry} again; {entry.by} had, and nothing happened"
            self.found(handled.at_ms, entry.shard_id, text)
        self._who[by.name] = by

    def _is_explained(self, entry: SourceRecord, by: Suspect) -> bool:
        before = self._who[entry.by]
        return (
            bool(before.faults or by.faults)
            or entry.shard_id in self._rewound
            or self._failed.get((entry.by, entry.shard_id), -1) >= 0
            or any((entry.shard_id, who.worker_id) in self._moved for who in (before, by))
            or any(self._has_spoilt_slot(who) for who in (before, by))
        )

    def _has_spoilt_slot(self, by: Suspect) -> bool:
        """Return whether its turn may have ended because its slot could not be read."""
        return f"{SLOT}/{by.worker_id.rpartition('-')[2]}" in self.ledger.spoilt


class RewoundComesAgain(Checker):
    """
    After a rewind all from there is handled again or told as lost, and the operator's count is so.

    With lanes and windows the count has what was done ahead of the checkpoint as well.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing set back."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # (command, lease) -> records up to the checkpoint, and all that were done
        self._promised: dict[tuple[str, str], tuple[int, int]] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Count what comes again."""
        before, after, key = write.before, write.after, write.change.lease_key
        if write.change.operation == "rewind" and before is not None and after is not None:
            through = self._again(key, after.checkpoint, before.checkpoint)
            done = sum(each.is_done for each in self._again(key, after.checkpoint, None))
            self._promised[write.by.name, key] = (len(through), done)

    def _again(
        self, key: str, since: ExtendedSequenceNumber, through: ExtendedSequenceNumber | None
    ) -> list[SourceRecord]:
        found = self.ledger.between(key, since, through)
        return [each for each in found if not each.is_filtered]

    def rewind_told(self, at_ms: int, by: Suspect, row: RewindRow) -> None:
        """Compare what an operator is told with what is in the stream."""
        key = row.lease_key
        through, done = self._promised[by.name, key]
        is_ahead = self.ledger.lanes > 1 or self.ledger.has_windows
        most = done if is_ahead else through
        if row.complete and not through <= row.records <= max(through, most):
            text = f"{by.name} is told that {row.records} records come again; {through} do"
            self.found(at_ms, key, text)

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look for what never came."""
        del keys
        for shard_id, wanted in sorted(self.ledger.wanted_again.items()):
            first = wanted[min(wanted)]
            text = f"it was set back, and {len(wanted)} records never came again: {first} first"
            self.found(at_ms, shard_id, text)


class OnlyTheGuiltyGivenUp(Checker):
    """
    A record is given up only after as many handler calls with it as the policy says.

    And a death is charged only to a call that did not return. What a worker does to itself it can
    know: a call that it noted and never made, or that came back, is charged to nobody. Excused is
    what nobody could tell afterwards: a worker was killed between the note of a call and the call,
    or between its return and that of the note, or the table refused to close the note until the
    worker had to end, or another invocation ran beside it (H9, H21).
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no note."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # shard -> the note that is open, if one is, and who wrote it
        self._open: dict[str, _OpenNote] = {}
        # shard -> notes of calls that were never made, as nobody could know
        self._unknowable: dict[str, list[_OpenNote]] = {}
        self._running: set[tuple[str, str, int]] = set()

    def document_written(self, write: DocumentWrite) -> None:
        """Remember the note of a call; one that somebody else overwrites is of a death."""
        if write.kind != NOTE:
            return
        before = self._open.pop(write.name, None)
        is_anothers = before is not None and before.by.name != write.by.name
        if before is not None and is_anothers and not before.began and before.is_excused:
            self._unknowable.setdefault(write.name, []).append(before)
        if not write.after["is_open"] or write.after.get("kind", _RECORDS) != _RECORDS:
            return
        note = self._open[write.name] = _OpenNote(
            first=_position(write.after["first"]), last=_position(write.after["last"]), by=write.by
        )
        # A call that outlived its time-out is noted while it runs.
        note.began = note.runs = self._runs(write.by, write.name)

    def call_begun(self, call: CallBegun) -> None:
        """See the call that was noted."""
        self._running.add((call.by.name, call.shard_id, call.call))
        note = self._open.get(call.shard_id)
        if note is not None and note.by.name == call.by.name:
            note.began = note.runs = True

    def call_over(self, at_ms: int, by: Suspect, shard_id: str, *, call: int) -> None:
        """See it come back."""
        self._running.discard((by.name, shard_id, call))
        note = self._open.get(shard_id)
        if note is not None and note.by.name == by.name:
            note.runs = self._runs(by, shard_id)
            note.over_ms = at_ms

    def _runs(self, by: Suspect, shard_id: str) -> bool:
        return any(running[:2] == (by.name, shard_id) for running in self._running)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look whether what is charged was a call, and never came back."""
        if not isinstance(event, CrashCharged):
            return
        note = self._open.get(event.lease_key)
        if note is None or note.runs or note.is_excused or note.could_not_be_closed:
            return
        how = "returned from" if note.began else "never made"
        text = f"{by.name} charges a call that {note.by.name} noted and {how}"
        self.found(at_ms, event.lease_key, text)

    def record_kept(self, at_ms: int, by: Suspect, entry: SourceRecord, *, attempts: int) -> None:
        """Compare the attempts with the calls that there were; one that kills may have fewer."""
        if 0 < self.ledger.max_age_ms < at_ms - entry.put_ms + _STREAM_CLOCK_MS:
            return  # It is too old, by the stream's clock, however often it was tried.
        is_hasty = attempts < ATTEMPTS_LEAST and not entry.kills
        notes = [*self._unknowable.get(entry.shard_id, ())]
        last = self._open.get(entry.shard_id)
        if last is not None and not last.began and last.is_excused:
            notes.append(last)
        not_begun = sum(note.first <= entry.position <= note.last for note in notes)
        if is_hasty or entry.calls + not_begun < attempts:
            text = (
                f"{by.name} gave {entry} up after {attempts} attempts; {entry.calls} calls had it"
            )
            self.found(at_ms, entry.shard_id, text)


class PassedIsKept(Checker):
    """What a worker says it passed was kept in full before, and told where that is to be done."""

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look for the record where it is to be; with ``skip`` that is nowhere."""
        if not isinstance(event, RecordSkipped):
            return
        number, _, sub = event.position.partition(":")
        entry = self.ledger.find(event.lease_key, number, int(sub or 0))
        terms = self.ledger.terms
        is_to_be_kept = terms.destination is not Destination.NOTHING
        is_right = bool(event.kept_at) == is_to_be_kept and not terms.stops
        if not is_right or entry is None or not entry.is_kept:
            place = event.kept_at or "nowhere"
            text = f"{by.name} passed {entry}, kept {place}; as it failed, {terms.means}"
            self.found(at_ms, event.lease_key, text)


def _position(text: str) -> tuple[int, int]:
    number, _, sub = text.partition(":")
    return int(number), int(sub)
