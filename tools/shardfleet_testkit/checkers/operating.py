"""Invariants about what people do to tables: positions are imported, documents spoilt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.state.kinds import PAUSE
from shardfleet.events.base import Event
from shardfleet.events.worker import DocumentUnreadable, LeaseAdopted
from shardfleet_testkit.checkers.checker import (
    CallBegun,
    Checker,
    DocumentWrite,
    Handled,
    LeaseWrite,
    Suspect,
)
from shardfleet_testkit.checkers.ledger import SourceRecord

# A few calls of a table, two of them as slow as calls may be.
_SLOW_MS = 8_000


class ImportedIsDone(Checker):
    """Whoever gets a lease after an import of positions begins behind the imported one."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing imported."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._imported: dict[str, ExtendedSequenceNumber] = {}
        # lease -> who has got it since, and the calls of theirs that began after that
        self._adopted: dict[str, set[str]] = {}
        self._calls: set[tuple[str, str, int]] = set()

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember where an import has put a lease, until it is put elsewhere."""
        key = write.change.lease_key
        if write.after is None or write.sets_place:
            self._imported.pop(key, None)
            self._adopted.pop(key, None)
            self._calls = {call for call in self._calls if call[1] != key}
        if write.after is not None and write.is_import:
            self._imported[key] = write.after.checkpoint

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """See who gets a lease."""
        del at_ms
        if isinstance(event, LeaseAdopted) and event.lease_key in self._imported:
            self._adopted.setdefault(event.lease_key, set()).add(by.name)

    def call_begun(self, call: CallBegun) -> None:
        """See who hands records over; a call of before may still run."""
        if call.by.name in self._adopted.get(call.shard_id, ()):
            self._calls.add((call.by.name, call.shard_id, call.call))

    def record_handled(self, handled: Handled) -> None:
        """Look at where it stands."""
        entry, name = handled.entry, handled.by.name
        imported = self._imported.get(entry.shard_id)
        if imported is None or (name, entry.shard_id, handled.call) not in self._calls:
            return
        if entry.place <= imported:
            text = f"{name} handled {entry}; a position behind that, {imported}, was imported"
            self.found(handled.at_ms, entry.shard_id, text)


class GivenUpIsKept(Checker):
    """What was given up is in a document until a redrive has had it handled."""

    def kept_deleted(self, at_ms: int, *, where: str, entries: Sequence[SourceRecord]) -> None:
        """Look at what a document had that is deleted."""
        for entry in entries:
            if not entry.redriven:
                text = f"{where} is deleted, and nobody has handled {entry} since"
                self.found(at_ms, entry.shard_id, text)

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look for what is nowhere."""
        del keys
        if not self.ledger.keeps:
            return
        kept = {id(entry) for entries in self.ledger.kept.values() for entry in entries}
        for truth in self.ledger.shards.values():
            for entry in truth.entries:
                if entry.is_kept and not entry.redriven and id(entry) not in kept:
                    self.found(at_ms, entry.shard_id, f"{entry} was given up, and is kept nowhere")


class PausedIsLeft(Checker):
    """Once a command has told that paused leases are free, no slot hands their records over."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing paused."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._free: dict[str, int] = {}

    def leases_free(self, at_ms: int, *, keys: Collection[str]) -> None:
        """Remember what is free, until anything is resumed."""
        self._free = dict.fromkeys(keys, at_ms)

    def document_written(self, write: DocumentWrite) -> None:
        """See what is paused change."""
        if write.kind == PAUSE:
            self._free.clear()

    def call_begun(self, call: CallBegun) -> None:
        """Look at calls of a worker that has had the time to look, and to which nothing happens."""
        waited_ms = call.at_ms - self._free.get(call.shard_id, call.at_ms)
        is_ours = call.by.execution != (0, 0) and not call.by.faults
        if is_ours and waited_ms > 3 * self.renew_ms + _SLOW_MS:
            text = f"{call.by.name} hands over its records {waited_ms} ms after it was told free"
            self.found(call.at_ms, call.shard_id, text)


class OnlyTheSpoiltIsUnreadable(Checker):
    """A document is unreadable only if it was spoilt: neither by us, nor by a newer release."""

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at what cannot be read."""
        if isinstance(event, DocumentUnreadable) and event.document not in self.ledger.spoilt:
            text = f"{by.name} cannot read it, and nobody has spoilt it: {event.reason}"
            self.found(at_ms, event.document, text)
