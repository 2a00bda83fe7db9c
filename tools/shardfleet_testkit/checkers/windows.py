"""Invariants about tumbling windows: each record is in a result, once, and in order."""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.state.kinds import WINDOW
from shardfleet_testkit.checkers.checker import Checker, LeaseWrite, Suspect, is_operator
from shardfleet_testkit.checkers.ledger import SourceRecord


class WindowsHaveAll(Checker):
    """
    A window's result has the records between its first and its last one, each once.

    And each record that was handled is in a result in the end, but those before the checkpoint of
    a window whose state could not be read, and was dropped by an operator.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._checkpoints: dict[str, ExtendedSequenceNumber] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Learn where a window whose state is lost begins anew."""
        if write.after is not None:
            self._checkpoints[write.change.lease_key] = write.after.checkpoint

    def document_deleted(self, at_ms: int, by: Suspect, *, kind: str, name: str) -> None:
        """Look for nothing in results that the state of a window had, once that was dropped."""
        del at_ms
        if kind == WINDOW and is_operator(by):
            lost = self.ledger.done_through(name, self._checkpoints[name])
            self.ledger.has_result(name, [entry.position for entry in lost])

    def window_ended(self, at_ms: int, by: Suspect, shard_id: str, *, held: Sequence[str]) -> None:
        """Compare a result with the stream."""
        places = [_place(text) for text in held]
        if not places:
            return
        due = [
            entry.position
            for entry in self.ledger.shards[shard_id].entries
            if places[0] <= entry.position <= places[-1] and not _may_be_missing(entry)
        ]
        there = set(places)
        missing = [place for place in due if place not in there]
        if missing or places != sorted(there):
            what = f"{missing[0]} is missing" if missing else "they are no ascending positions"
            text = f"{by.name} has a window's result of {len(places)} records: {what}"
            self.found(at_ms, shard_id, text)

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look for records that are in no result."""
        del keys
        for entry in self.ledger.without_result():
            self.found(at_ms, entry.shard_id, f"{entry} is in no window's result")


def _may_be_missing(entry: SourceRecord) -> bool:
    return entry.is_kept or entry.is_trimmed or entry.is_excused or entry.is_filtered


def _place(text: str) -> tuple[int, int]:
    number, _, sub = text.partition(":")
    return int(number), int(sub or 0)
