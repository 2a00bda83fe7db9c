"""
The truth about a simulated stream: every record put, and what became of it.

Checkers compare what the fleet does with this; the fleet never sees it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from shardfleet.domain.delivery.policies import POLICIES
from shardfleet.domain.stream.sequence import (
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)


@dataclass(slots=True)
class SourceRecord:
    """
    One user record.

    Attributes:
        shard_id: where it was put.
        position: sequence and sub-sequence number.
        key: partition key.
        number: of the record among those of its key, from 1 on.
        put_ms: when, milliseconds of the simulation.
        data: the payload.
        by: the actor that handled it last, "" before.
        at_ms: when that was.
        times: how often it was handled.
        is_excused: it need not be handled: older than where the fleet was told to begin.
        is_filtered: the fleet's filters leave it out.
        is_elsewhere: another reader has done it, whose position was imported.
        is_kept: it was given up and kept in full elsewhere; with ``skip``: told.
        is_trimmed: it left the stream before anybody had handled it.
        kills: whoever handles it dies of it.
        calls: handler calls that it was part of.
        redriven: how often it was handled once it had been given up, by an operator's redrive.

    """

    shard_id: str
    position: tuple[int, int]
    key: str
    number: int
    put_ms: int
    data: bytes
    by: str = ""
    at_ms: int = 0
    times: int = 0
    is_excused: bool = False
    is_filtered: bool = False
    is_elsewhere: bool = False
    is_kept: bool = False
    is_trimmed: bool = False
    kills: bool = False
    calls: int = 0
    redriven: int = 0

    @property
    def is_done(self) -> bool:
        """Return whether nobody needs to handle it any more."""
        return bool(self.times) or self.is_kept or self.is_trimmed or self.is_left_out

    @property
    def is_left_out(self) -> bool:
        """Return whether the fleet was told to begin behind it, or to leave it out."""
        return self.is_excused or self.is_elsewhere or self.is_filtered

    @property
    def place(self) -> ExtendedSequenceNumber:
        """Return where it stands, as a checkpoint says it."""
        return ExtendedSequenceNumber(str(self.position[0]), self.position[1])

    def __str__(self) -> str:
        return f"{self.key}/{self.number} at {self.position[0]}:{self.position[1]}"


@dataclass(slots=True)
class ShardTruth:
    """
    One shard and its records in order.

    Attributes:
        shard_id: the shard.
        parents: of the shard.
        children: once it is closed.
        entries: in order.
        prefix: how many leading entries are done.
        has_left: retention has taken it out of the stream.

    """

    shard_id: str
    parents: tuple[str, ...]
    children: tuple[str, ...] = ()
    entries: list[SourceRecord] = field(default_factory=list)
    prefix: int = 0
    has_left: bool = False

    def first_unfinished(self) -> SourceRecord | None:
        """Return the first record that somebody still has to handle."""
        while self.prefix < len(self.entries) and self.entries[self.prefix].is_done:
            self.prefix += 1
        return self.entries[self.prefix] if self.prefix < len(self.entries) else None

    def done(self) -> Sequence[SourceRecord]:
        """Return the records before the first unfinished one."""
        self.first_unfinished()
        return self.entries[: self.prefix]


class RunLedger:
    """
    All shards and records of one run.

    Attributes:
        shards: by id.
        trimmed_ms: when records were trimmed that nobody had handled, None if there was nothing.
        recreated_ms: when the stream was deleted and created again, None if it was not.
        lanes: how many calls of a shard may go side by side.
        has_windows: progress is stored with the states of tumbling windows.
        terms: what becomes of a record that is given up.
        wanted_from_ms: nobody is to be given what was put before, milliseconds of the simulation.
        passes: tells whether records of a key are for the handler.
        max_age_ms: an older record is given up; 0: none is.
        wanted_again: by shard, what was done and lies behind the place that it was set back to, by
            position; what has come again, or is told as lost, is out of it.
        kept: records that were given up, by the documents that have them.
        max_crashes: deaths over one record before it is given up.
        outlived_ms: no call that is over in time lasts as long.
        handover_ms: what a handover may take, or a handler's call, by what the fleet is told.
        keeps: what is given up is kept in documents.
        spoilt: documents of the fleet state that somebody made unreadable, ``kind/id``.

    """

    def __init__(self, *, began_ms: int = 0) -> None:
        """Begin with no shards; the simulation began at these epoch milliseconds."""
        self.shards: dict[str, ShardTruth] = {}
        self._by_position: dict[tuple[str, int, int], SourceRecord] = {}
        self._numbers: dict[str, int] = {}
        self.recreated_ms: int | None = None
        self.trimmed_ms: int | None = None
        self.wanted_from_ms = 0
        self.lanes = 1
        self.has_windows = False
        self.terms = POLICIES["stop"]
        self.passes: Callable[[str], bool] = lambda _key: True
        self.max_age_ms = 0
        self.max_crashes = 3
        self.outlived_ms = 4_900
        self.handover_ms = 30_000
        self.wanted_again: dict[str, dict[tuple[int, int], SourceRecord]] = {}
        self.kept: dict[str, list[SourceRecord]] = {}
        self.keeps = False
        self.spoilt: set[str] = set()
        self._in_results: set[tuple[str, int, int]] = set()
        self._began_ms = began_ms
        self._trimmed_before_ms = 0
        # Those set back to the oldest record: what has expired then is not part of that.
        self._from_oldest: set[str] = set()

    def open_shard(self, shard_id: str, parents: Sequence[str]) -> None:
        """Note a new shard; its parents are closed by that."""
        self.shards[shard_id] = ShardTruth(shard_id, tuple(parents))
        for parent in parents:
            truth = self.shards[parent]
            truth.children = (*truth.children, shard_id)

    def next_number(self, key: str) -> int:
        """Return the number of the next record of a key."""
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return self._numbers[key]

    def last_number(self, key: str) -> int:
        """Return the number of the latest record of a key, 0 if there is none."""
        return self._numbers.get(key, 0)

    def put(self, entry: SourceRecord) -> None:
        """Note a record that the stream has taken."""
        entry.is_excused = entry.put_ms < self.wanted_from_ms
        entry.is_filtered = not self.passes(entry.key)
        self.shards[entry.shard_id].entries.append(entry)
        self._by_position[entry.shard_id, *entry.position] = entry

    def excuse(self, shard_id: str, before_ms: int) -> None:
        """Nobody needs to handle what was put into a shard before the fleet was to begin."""
        for entry in self.shards[shard_id].entries:
            entry.is_excused = entry.is_excused or entry.put_ms < before_ms

    def give_up(self, at_ms: int) -> None:
        """Nobody needs to handle anything more: the stream was deleted."""
        self.recreated_ms = at_ms
        for truth in self.shards.values():
            for entry in truth.entries:
                entry.is_excused = True
        self.wanted_again.clear()

    def want_again(self, shard_id: str, target: ExtendedSequenceNumber) -> None:
        """Note that a shard was set back: what is done of it and lies behind that comes again."""
        wanted = self.wanted_again.setdefault(shard_id, {})
        # Whoever goes back into an open window leaves out what that had before.
        done = self.shards[shard_id].done()
        self.has_result(shard_id, [each.position for each in done if each.place <= target])
        for entry in self.between(shard_id, target, None):
            if entry.is_done and not entry.is_filtered:
                wanted[entry.position] = entry
        if target == AT_TRIM_HORIZON:
            self._from_oldest.add(shard_id)
        self._forget_none(shard_id)

    def done_elsewhere(self, shard_id: str, through: ExtendedSequenceNumber) -> None:
        """Note that another reader, whose position is imported, has done a shard up to a place."""
        for entry in self.covered(shard_id, through):
            entry.is_elsewhere = entry.is_elsewhere or not entry.is_done
        done = self.done_through(shard_id, through)
        self.has_result(shard_id, [each.position for each in done])
        for entry in done:
            self.came_again(entry)

    def done_through(
        self, shard_id: str, through: ExtendedSequenceNumber
    ) -> Sequence[SourceRecord]:
        """Return what the stream has of a shard up to a place, and nobody needs to handle."""
        return [e for e in self.between(shard_id, AT_TRIM_HORIZON, through) if e.is_done]

    def came_again(self, entry: SourceRecord) -> None:
        """Note that a record was handled, or given up."""
        wanted = self.wanted_again.get(entry.shard_id)
        if wanted is not None:
            wanted.pop(entry.position, None)
            self._forget_none(entry.shard_id)

    def told_lost(self, shard_id: str) -> None:
        """Note that somebody was told that records of a shard have expired."""
        wanted = self.wanted_again.get(shard_id, {})
        for position, entry in list(wanted.items()):
            if entry.put_ms < self._trimmed_before_ms:
                del wanted[position]
        self._forget_none(shard_id)

    def _forget_none(self, shard_id: str) -> None:
        if not self.wanted_again.get(shard_id, True):
            del self.wanted_again[shard_id]
            self._from_oldest.discard(shard_id)

    def has_result(self, shard_id: str, places: Sequence[tuple[int, int]]) -> None:
        """Note the records that a window's result is of."""
        self._in_results.update((shard_id, *place) for place in places)

    def without_result(self) -> Iterator[SourceRecord]:
        """Return what was handled and is in no window's result; nothing where there are none."""
        if not self.has_windows:
            return
        for shard_id, truth in self.shards.items():
            for entry in truth.entries:
                is_due = entry.times and not entry.is_kept and self._is_there(entry)
                if is_due and (shard_id, *entry.position) not in self._in_results:
                    yield entry

    def between(
        self,
        shard_id: str,
        since: ExtendedSequenceNumber,
        through: ExtendedSequenceNumber | None,
    ) -> Sequence[SourceRecord]:
        """Return what the stream has behind a place, up to another, or all of it."""
        entries = [entry for entry in self.shards[shard_id].entries if self._is_there(entry)]
        if since.sequence_number == AT_TIMESTAMP:
            from_ms = since.sub_sequence_number - self._began_ms
            entries = [entry for entry in entries if entry.put_ms >= from_ms]
        elif not since.is_sentinel:
            entries = [entry for entry in entries if entry.place > since]
        if through is None or through.is_shard_end:
            return entries
        return [] if through.is_sentinel else [each for each in entries if each.place <= through]

    def _is_there(self, entry: SourceRecord) -> bool:
        return not entry.is_excused and entry.put_ms >= self._trimmed_before_ms

    def trim(self, at_ms: int, *, before_ms: int) -> None:
        """Nobody can handle any more what was put before a moment."""
        self.trimmed_ms, self._trimmed_before_ms = at_ms, before_ms
        for truth in self.shards.values():
            for entry in truth.entries:
                entry.is_trimmed = entry.put_ms < before_ms and not entry.is_done
        for shard_id in sorted(self._from_oldest):
            self.told_lost(shard_id)

    def find(self, shard_id: str, sequence_number: str, sub: int) -> SourceRecord | None:
        """Find a record by where it stands."""
        return self._by_position.get((shard_id, int(sequence_number), sub))

    def next_after(self, shard_id: str, position: ExtendedSequenceNumber) -> SourceRecord | None:
        """Return the first record of a shard behind a checkpoint."""
        entries = self.shards[shard_id].entries
        reach = (-1, 0)
        if not position.is_sentinel:
            reach = (int(position.sequence_number), position.sub_sequence_number)
        index = bisect_right(entries, reach, key=lambda entry: entry.position)
        return entries[index] if index < len(entries) else None

    def unfinished(self) -> Iterator[SourceRecord]:
        """Return the first unfinished record of each shard that has one."""
        for truth in self.shards.values():
            entry = truth.first_unfinished()
            if entry is not None:
                yield entry

    def covered(self, shard_id: str, checkpoint: ExtendedSequenceNumber) -> Sequence[SourceRecord]:
        """Return the records that a checkpoint says are done, from the first unfinished one on."""
        truth = self.shards[shard_id]
        truth.first_unfinished()
        if checkpoint.is_shard_end:
            return truth.entries[truth.prefix :]
        if checkpoint.is_sentinel:
            return ()
        reach = (int(checkpoint.sequence_number), checkpoint.sub_sequence_number)
        end = bisect_right(truth.entries, reach, key=lambda entry: entry.position)
        return truth.entries[truth.prefix : end]

    @property
    def records(self) -> int:
        """Return how many user records were put."""
        return len(self._by_position)

    @property
    def repetitions(self) -> int:
        """Return how often a record was handled again."""
        return sum(max(0, entry.times - 1) for entry in self._by_position.values())
