"""Invariants about progress: what is done is stored, little comes again, others go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardfleet.domain.delivery.lanes import DoneAhead
from shardfleet.domain.delivery.progress import read_position, stands_for
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.state.kinds import LANES, WINDOW
from shardfleet.events.base import Event
from shardfleet.events.delivery import ConsumerFailed, ShardStopped
from shardfleet.events.worker import (
    LeaseAdopted,
    LeaseLost,
    LeaseReleased,
    ShardEnded,
    TurnBegun,
    TurnEnded,
    TurnEnding,
)
from shardfleet_testkit.checkers.checker import (
    CallBegun,
    Checker,
    DocumentWrite,
    Handled,
    LeaseWrite,
    Suspect,
)
from shardfleet_testkit.checkers.ledger import SourceRecord

_ROUNDING_MS = 10
# As long as a table may be out, and what those suffer who call it then.
_REFUSED_MS, _REFUSALS = 20_000, ("throttled", "no answer", "odd answer")
# Who was read within this time is being read.
_READ_LATELY_MS = 2_000


class ProgressIsStored(Checker):
    """
    What a handler has done is in the table when a lease is given back or a turn ends in order.

    A worker whose memory says that it is stored while the table does not have it would repeat it
    (protocol.md §8 row 10). With lanes or windows, what is noted beside the checkpoint is stored
    too; the state of a window that the table refuses to the end is not, and comes again.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing done."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._done: dict[tuple[str, str], set[tuple[int, int]]] = {}
        # (invocation, shard) -> calls -> whether its lease is still the one that it began with
        self._calls: dict[tuple[str, str], dict[int, bool]] = {}
        self._leases: dict[str, Lease] = {}
        self._last: dict[str, str] = {}
        self._lanes: dict[str, Mapping[str, Any]] = {}
        self._windows: dict[str, Mapping[str, Any]] = {}

    def batch_done(
        self,
        at_ms: int,
        by: Suspect,
        shard_id: str,
        *,
        done: Sequence[ExtendedSequenceNumber],
        call: int = 0,
    ) -> None:
        """Remember what an invocation has done, by calls for a lease that it still has."""
        del at_ms
        if self._calls.get((by.name, shard_id), {}).pop(call, True):
            places = {(int(at.sequence_number), at.sub_sequence_number) for at in done}
            self._done.setdefault((by.name, shard_id), set()).update(places)

    def call_begun(self, call: CallBegun) -> None:
        """See for which lease a call is made."""
        self._calls.setdefault((call.by.name, call.shard_id), {})[call.call] = True

    def document_written(self, write: DocumentWrite) -> None:
        """Remember what is noted of lanes and windows beside a checkpoint."""
        if write.kind == LANES:
            self._lanes[write.name] = write.after
        elif write.kind == WINDOW:
            self._windows[write.name] = write.after

    def document_deleted(self, at_ms: int, by: Suspect, *, kind: str, name: str) -> None:
        """Forget what is noted no more."""
        del at_ms, by
        notes = self._lanes if kind == LANES else self._windows if kind == WINDOW else {}
        notes.pop(name, None)

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at leases that are given back by those who have them."""
        before, after, key, by = write.before, write.after, write.change.lease_key, write.by
        gives_back = (
            before is not None
            and after is not None
            and write.change.operation in ("evict", "assign")
            and before.effective_owner == by.worker_id != after.effective_owner
        )
        if gives_back and before is not None and self._last.get(key) == by.name:
            self._compare(write.at_ms, by, before)
        if write.sets_place:
            # Nobody holds it: what was done beyond is meant to come again, to whoever gets it.
            for name, shard_id in [life for life in self._done if life[1] == key]:
                del self._done[name, shard_id]
        self._last[key] = by.name
        if after is None:
            self._leases.pop(key, None)
        else:
            self._leases[key] = after

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at everything that an invocation leaves to the next one."""
        if isinstance(event, LeaseAdopted | LeaseLost):
            # What was done of a lost lease is the next owner's to do again.
            life = (by.name, event.lease_key)
            self._done.pop(life, None)
            self._calls[life] = dict.fromkeys(self._calls.get(life, ()), False)
        if not isinstance(event, TurnEnded) or event.reason is not TurnEnding.TIME:
            return
        for name, key in list(self._done):
            lease = self._leases.get(key)
            if name == by.name and lease is not None and self._last[key] == by.name:
                self._compare(at_ms, by, lease)

    def _compare(self, at_ms: int, by: Suspect, lease: Lease) -> None:
        since_ms = at_ms - _REFUSED_MS - by.frozen_ms
        refused = any(ms > since_ms and what in _REFUSALS for ms, what in by.faults)
        if self.ledger.has_windows and refused:
            return
        done = self._done.get((by.name, lease.lease_key), ())
        # What is done behind a gap cannot be checkpointed.
        left = None
        if done and not lease.checkpoint.is_shard_end:
            left = self.ledger.next_after(lease.lease_key, lease.checkpoint)
        if left is not None and left.position in done and not self._is_noted(left, lease):
            text = f"{by.name} has done {left} and left the shard at {lease.checkpoint}"
            self.found(at_ms, lease.lease_key, text)

    def _is_noted(self, entry: SourceRecord, lease: Lease) -> bool:
        """Return whether lanes, or a window, are noted beyond it, for the stored checkpoint."""
        window = self._windows.get(lease.lease_key)
        if window and stands_for(
            lease.checkpoint,
            since=window["since"],
            through=window["through"],
            between=window["between"],
        ):
            return entry.place <= read_position(window["through"])
        note = self._lanes.get(lease.lease_key)
        if not note or not stands_for(
            lease.checkpoint,
            since=note["since"],
            through=note["through"],
            between=note["between"],
        ):
            return False
        return DoneAhead.of(note["ahead"]).has(entry.key, entry.position)


class DeliveredWhileFresh(Checker):
    """No handler call begins on a lease that was not confirmed within the renewal time (H17)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing confirmed."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._confirmed: dict[tuple[str, str], int] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember when an invocation last wrote to a lease; its clocks count from before that."""
        self._confirmed[write.change.lease_key, write.by.name] = write.at_ms

    def call_begun(self, call: CallBegun) -> None:
        """Look at how long that was ago, whatever stood still meanwhile."""
        confirmed_ms = self._confirmed.get((call.shard_id, call.by.name))
        if confirmed_ms is not None and call.at_ms - confirmed_ms > self.renew_ms + _ROUNDING_MS:
            text = (
                f"{call.by.name} began a call, {call.at_ms - confirmed_ms} ms after it last wrote"
            )
            self.found(call.at_ms, call.shard_id, text)


class RepetitionsBounded(Checker):
    """
    Of each shard no more records come again than its restarts and failures can explain.

    Whoever adopts a lease may repeat what had been done beyond the checkpoint it finds; a call
    that fails may repeat what it had done; and what somebody does who has been overtaken comes
    once more. A consumer that failed and begins anew goes by what its worker remembers; with
    windows by what is stored, for the state of a window is stored or lost. Shards that a worker of
    Java's has had are left out: it tells nobody when it begins.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing allowed."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._allowed: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()
        self._latest: dict[str, str] = {}
        self._stored: dict[str, ExtendedSequenceNumber] = {}
        self._ours: set[str] = set()
        self._foreign: set[str] = set()
        self._in_call: Counter[tuple[str, str, int]] = Counter()
        self._adoptions: Counter[str] = Counter()
        # The adoptions of the shard when a call of an invocation began.
        self._call_adoptions: dict[tuple[str, str, int], int] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Count what whoever begins on a shard may repeat."""
        del at_ms
        if isinstance(event, TurnBegun):
            self._ours.add(by.name)
        if isinstance(event, LeaseAdopted):
            number, _, sub = event.checkpoint.partition(":")
            checkpoint = ExtendedSequenceNumber(number, int(sub or 0))
            self._latest[event.lease_key] = by.name
            self._adoptions[event.lease_key] += 1
            self._allowed[event.lease_key] += self._done_beyond(event.lease_key, checkpoint)
        if isinstance(event, ConsumerFailed) and self.ledger.has_windows:
            key = event.lease_key
            self._allowed[key] += self._done_beyond(key, self._stored[key])

    def lease_written(self, write: LeaseWrite) -> None:
        """Learn what is stored."""
        if write.after is not None:
            self._stored[write.change.lease_key] = write.after.checkpoint

    def _done_beyond(self, shard_id: str, checkpoint: ExtendedSequenceNumber) -> int:
        if checkpoint.is_shard_end:
            return 0
        reach = (-1, 0)
        if not checkpoint.is_sentinel:
            reach = (int(checkpoint.sequence_number), checkpoint.sub_sequence_number)
        entries = self.ledger.shards[shard_id].entries
        return sum(1 for entry in entries if entry.times and entry.position > reach)

    def call_begun(self, call: CallBegun) -> None:
        """Begin to count what a call does."""
        self._in_call[call.by.name, call.shard_id, call.call] = 0
        self._call_adoptions[call.by.name, call.shard_id, call.call] = self._adoptions[
            call.shard_id
        ]

    def batch_failed(self, at_ms: int, by: Suspect, shard_id: str, *, call: int = 0) -> None:
        """Count what a failed call had done."""
        del at_ms
        self._allowed[shard_id] += self._in_call[by.name, shard_id, call]

    def record_handled(self, handled: Handled) -> None:
        """Count a repetition, and compare."""
        entry, by = handled.entry, handled.by
        shard_id = entry.shard_id
        self._in_call[by.name, shard_id, handled.call] += 1
        if by.name not in self._ours:
            self._foreign.add(shard_id)
        adoptions = self._call_adoptions.get((by.name, shard_id, handled.call))
        in_old_call = adoptions != self._adoptions[shard_id]
        if in_old_call or self._latest.get(shard_id) != by.name:
            self._allowed[shard_id] += 1
        if not entry.times:
            return
        self._repeated[shard_id] += 1
        if self._repeated[shard_id] > self._allowed[shard_id] and shard_id not in self._foreign:
            text = (
                f"{by.name} handled {entry} again: repetition {self._repeated[shard_id]} of this "
                f"shard, and restarts and failures explain {self._allowed[shard_id]}"
            )
            self.found(handled.at_ms, shard_id, text)


class NeighboursGoOn(Checker):
    """
    What one shard's consumer raises keeps no other shard of its worker from being read or handled.

    A worker, that is, to which nothing else happens.

    Attributes:
        waits_most_ms: how long another shard may wait: a few calls, each as slow as calls may be.
            Where nothing else goes wrong, the rule's two seconds hold.

    """

    waits_most_ms = 10_000

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody reading."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # invocation -> shard -> when it was last read or handed over; not while a call goes on
        self._moved: dict[str, dict[str, int]] = {}
        # (invocation, shard) -> when a neighbour failed, and what had been done to the worker
        self._waiting: dict[tuple[str, str], tuple[int, int, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn whose consumer failed, and who reads a shard no more."""
        if isinstance(event, TurnEnded):
            for shard_id in self._moved.pop(by.name, ()):
                self._waiting.pop((by.name, shard_id), None)
            return
        over = LeaseLost | LeaseReleased | ShardEnded | ShardStopped | ConsumerFailed
        if not isinstance(event, over):
            return
        moved = self._moved.setdefault(by.name, {})
        moved.pop(event.lease_key, None)
        self._waiting.pop((by.name, event.lease_key), None)
        if isinstance(event, ConsumerFailed):
            for shard_id, moved_ms in moved.items():
                if at_ms - moved_ms < _READ_LATELY_MS:
                    done = (at_ms, len(by.faults), by.frozen_ms)
                    self._waiting.setdefault((by.name, shard_id), done)

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """See a shard go on."""
        self._look(at_ms, by, shard_id)
        self._moved.setdefault(by.name, {})[shard_id] = at_ms
        self._waiting.pop((by.name, shard_id), None)

    def call_begun(self, call: CallBegun) -> None:
        """See a shard go on; how long its call takes is the handler's."""
        self._look(call.at_ms, call.by, call.shard_id)
        self._moved.get(call.by.name, {}).pop(call.shard_id, None)
        self._waiting.pop((call.by.name, call.shard_id), None)

    def lease_written(self, write: LeaseWrite) -> None:
        """See who holds a shard that does not go on."""
        self._look(write.at_ms, write.by, write.change.lease_key)

    def _look(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        truth = self.ledger.shards.get(shard_id)
        if truth is not None and truth.children and truth.first_unfinished() is None:
            return  # Read to its end; it waits for its children's leases.
        since_ms, *before = self._waiting.get((by.name, shard_id), (at_ms,))
        waited_ms = at_ms - since_ms
        if waited_ms >= self.waits_most_ms and before == [len(by.faults), by.frozen_ms]:
            del self._waiting[by.name, shard_id]
            text = f"{by.name} has left it alone for {waited_ms} ms, since a neighbour failed"
            self.found(at_ms, shard_id, text)
