"""Invariants about single invocations: overtaken ones stop, beats tell all, writes are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.kinds import LOCK, SLOT
from shardfleet.events.base import Event
from shardfleet.events.delivery import PageRead, RecordSkipped
from shardfleet.events.worker import (
    LeaseAdopted,
    LeaseLost,
    LeaseReleased,
    ShardEnded,
    TurnBegun,
    TurnEnded,
)
from shardfleet_testkit.checkers.checker import (
    GARBLED_MS,
    CallBegun,
    Checker,
    DocumentWrite,
    LeaseWrite,
    Suspect,
)

# Between the answer that tells it and the last task that hears of it; no call is made meanwhile.
_HEARS_MS = 100
# So many renewals in a row that were not due are no coincidence of a turn's end.
_EARLY_MOST = 3
# No longer than a call takes that is not slow.
_QUICK_MS = 100
# A step of decoding costs less, whatever is in 10 MiB (kpl/content.py, content_in_steps).
_STRETCH_MOST_MS = 250
# A few calls, each as slow as calls may be.
_AT_ONCE_MS = 10_000
# Batches of one shard while another one waits with a page in hand.
_CALLS_MOST = 6
# The longest turn of a worker, and the last pages that it has in hand.
_LAST_READ_MS = 120_000


class NobodyOutdatedAdopts(Checker):
    """Nobody adopts a lease by a write that landed after its slot was claimed anew (H1)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no claim."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._order = 0
        self._epochs: dict[str, int] = {}
        self._claims: dict[str, list[tuple[int, int]]] = {}
        self._writes: dict[tuple[str, str], tuple[int, str]] = {}

    def document_written(self, write: DocumentWrite) -> None:
        """Remember in what order epochs rose."""
        self._order += 1
        before, after = write.before, write.after
        if write.kind == SLOT and (before is None or before["epoch"] < after["epoch"]):
            claims = self._claims.setdefault(after["worker_id"], [])
            claims.append((after["epoch"], self._order))

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember each invocation's latest write to each lease."""
        self._order += 1
        self._writes[write.change.lease_key, write.by.name] = (self._order, write.change.operation)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at who adopts what."""
        if isinstance(event, TurnBegun):
            self._epochs[by.name] = event.epoch
        if not isinstance(event, LeaseAdopted):
            return
        order, operation = self._writes.get((event.lease_key, by.name), (0, "take"))
        epoch = self._epochs.get(by.name, 0)
        later = [n for n, at in self._claims.get(by.worker_id, ()) if n > epoch and at < order]
        if later and operation != "take":
            text = f"{by.name}, of epoch {epoch}, adopted it after epoch {later[0]} was claimed"
            self.found(at_ms, event.lease_key, text)


class WhoIsOvertakenStops(Checker):
    """Who has read that its slot was claimed anew writes to no lease any more (H1)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody overtaken."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._epochs: dict[str, int] = {}
        self._knows: dict[str, tuple[int, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn which epoch an invocation has."""
        del at_ms
        if isinstance(event, TurnBegun):
            self._epochs[by.name] = event.epoch

    def document_read(self, at_ms: int, by: Suspect, *, kind: str, body: Mapping[str, Any]) -> None:
        """Learn who knows."""
        epoch = self._epochs.get(by.name)
        is_own = kind == SLOT and epoch is not None and body["worker_id"] == by.worker_id
        if is_own and epoch is not None and body["epoch"] > epoch:
            self._knows.setdefault(by.name, (at_ms, by.frozen_ms))

    def lease_sent(self, at_ms: int, by: Suspect, change: LeaseChange) -> None:
        """Look at what it sends nevertheless."""
        known_ms, frozen_ms = self._knows.get(by.name, (at_ms, by.frozen_ms))
        late_ms = at_ms - known_ms - (by.frozen_ms - frozen_ms)
        if late_ms > _HEARS_MS:
            text = f"{by.name} sends {change.operation} {late_ms} ms after it read that it is over"
            self.found(at_ms, change.lease_key, text)


class BeatsTellEveryLease(Checker):
    """A heartbeat names each lease that is held, with its lag (H18, and how it is found again)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing held."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # (invocation, lease) -> how many heartbeats have landed since it was adopted
        self._held: dict[tuple[str, str], int] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn what is held."""
        del at_ms
        if isinstance(event, LeaseAdopted):
            self._held[by.name, event.lease_key] = 0
        elif isinstance(event, LeaseLost | LeaseReleased | ShardEnded):
            self._held.pop((by.name, event.lease_key), None)

    def lease_written(self, write: LeaseWrite) -> None:
        """Forget what somebody is about to let go of, in its own words, or finds deleted."""
        key, after = write.change.lease_key, write.after
        is_over = after is None or after.is_finished
        if is_over or write.change.operation in ("evict", "assign", "take"):
            self._held = {held: n for held, n in self._held.items() if held[1] != key}

    def document_written(self, write: DocumentWrite) -> None:
        """Look at heartbeats: what was held at the last one is held at this one."""
        before, after = write.before, write.after
        if write.kind != SLOT or before is None or after["state"] != SlotState.RUNNING:
            return
        # A failure that is told is none, and has the lags of the last one.
        is_beat = after["heartbeat_ms"] != before["heartbeat_ms"] and after["turn_open"]
        is_beat = is_beat and after["epoch"] == before["epoch"]
        if not write.by.worker_id or not is_beat:
            return
        for name, key in self._held:
            if name != write.by.name:
                continue
            self._held[name, key] += 1
            if self._held[name, key] > 1 and key not in after["lags_ms"]:
                self.found(write.at_ms, key, f"{name} holds it and tells no lag of it")


class RenewalsAreDue(Checker):
    """A lease is renewed when it is due, and every accepted write counts as a renewal (H14)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no write."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._sent: dict[tuple[str, str], int] = {}
        self._written: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._early: Counter[tuple[str, str]] = Counter()

    def lease_sent(self, at_ms: int, by: Suspect, change: LeaseChange) -> None:
        """Remember when a write was sent."""
        self._sent[change.lease_key, by.name] = at_ms

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at the time between an invocation's quick writes to a lease."""
        by, operation = write.by, write.change.operation
        if by.execution == (0, 0) or operation not in ("renew", "checkpoint", "take"):
            return
        key = (write.change.lease_key, by.name)
        known = self._written.get(key)
        ahead_ms = by.wall_ms() - write.at_ms
        self._written[key] = (write.at_ms, by.frozen_ms, ahead_ms)
        if write.at_ms - self._sent.get(key, 0) > _QUICK_MS:
            # What came due while it was on its way is renewed as soon as it is answered.
            self._early[key] = 0
            self._written.pop(key)
        if known is None or operation != "renew":
            return
        waited_ms = write.at_ms - known[0] - (by.frozen_ms - known[1])
        # By a clock that has jumped ahead meanwhile it is due.
        is_early = waited_ms < self.renew_ms // 2 and ahead_ms - known[2] < self.renew_ms
        self._early[key] = self._early[key] + 1 if is_early else 0
        if self._early[key] >= _EARLY_MOST and not by.faults:
            text = f"{by.name} renews it {waited_ms} ms after its last write, as before"
            self.found(write.at_ms, key[0], text)


@dataclass(slots=True)
class _Given:
    owner: str
    at_ms: int
    faults: int


class TakenBackAtOnce(Checker):
    """What a manager gives to a slot that has ended it takes back before its next turn (H2)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing given."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._ended: set[str] = set()
        self._given: dict[tuple[str, str], _Given] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at what is given to whom."""
        after, by, key = write.after, write.by, write.change.lease_key
        self._given = {which: given for which, given in self._given.items() if which[1] != key}
        is_gift = write.change.operation in ("assign", "take") and not by.worker_id
        if is_gift and after is not None and after.lease_owner in self._ended:
            given = _Given(after.lease_owner, write.at_ms, len(by.faults))
            self._given[by.name, key] = given

    def document_written(self, write: DocumentWrite) -> None:
        """Look for what was not taken back when a manager takes the lock anew or leaves it."""
        after, by = write.after, write.by
        if write.kind == SLOT and after["state"] == SlotState.ENDED:
            self._ended.add(after["worker_id"])
        elif write.kind == SLOT:
            self._ended.discard(after["worker_id"])
            kept = {w: g for w, g in self._given.items() if g.owner != after["worker_id"]}
            self._given = kept
        if write.kind != LOCK:
            return
        for (name, key), given in list(self._given.items()):
            if name == by.name and given.faults == len(by.faults):
                text = f"{name} gave it to {given.owner}, which had ended, and left it there"
                self.found(write.at_ms, key, text)


@dataclass(slots=True)
class _Ending:
    at_ms: int
    faults: int
    children: Sequence[str] = field(default_factory=tuple)


class ChildrenAreTaken(Checker):
    """Who ends its only shard begins on a child that can start, and asks nobody (H13)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._leases: dict[str, Lease] = {}
        # lease -> when somebody made its row unreadable
        self._garbled: dict[str, int] = {}
        self._endings: dict[str, _Ending] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Keep the leases; whoever takes a child, it is taken, and nobody can an unreadable one."""
        key, after = write.change.lease_key, write.after
        is_garbled = write.change.operation == "garble"
        if is_garbled:
            self._garbled[key] = write.at_ms
        if after is None:
            self._leases.pop(key, None)
            return
        self._leases[key] = after
        if is_garbled or after.effective_owner is not None:
            self._endings = {n: e for n, e in self._endings.items() if key not in e.children}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at who ends what."""
        if isinstance(event, TurnEnded | LeaseAdopted):
            self._endings.pop(by.name, None)
        if not isinstance(event, ShardEnded):
            return
        owned = (le.effective_owner for le in self._leases.values() if not le.is_finished)
        free = [key for key in event.children if self._can_start(key, at_ms)]
        if free and by.worker_id not in owned:
            self._endings[by.name] = _Ending(at_ms, len(by.faults), free)

    def _can_start(self, key: str, at_ms: int) -> bool:
        lease = self._leases.get(key)
        if lease is None or lease.is_finished or lease.effective_owner is not None:
            return False
        if at_ms - self._garbled.get(key, -GARBLED_MS) < GARBLED_MS:
            return False
        parents = [self._leases.get(parent) for parent in lease.parent_shard_ids]
        return all(parent is None or parent.is_finished for parent in parents)

    def document_written(self, write: DocumentWrite) -> None:
        """Look whether a living worker has left them all."""
        by = write.by
        ending = self._endings.get(by.name)
        if ending is None or write.kind != SLOT or write.after["drain"]:
            return
        waited_ms = write.at_ms - ending.at_ms
        if waited_ms > _AT_ONCE_MS and ending.faults == len(by.faults) and not by.frozen_ms:
            text = f"{by.name} ended its parent {waited_ms} ms ago, holds nothing, and leaves it"
            self.found(write.at_ms, ending.children[0], text)


class CallsTakeTurns(Checker):
    """While a shard waits with records in hand, no other shard gets call after call (H17)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody waiting."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # invocation -> shard that has a page in hand -> since when, calls of each other shard since
        self._waiting: dict[str, dict[str, tuple[int, Counter[str]]]] = {}
        # (invocation, shard) that was read since the lease was got
        self._reads: set[tuple[str, str]] = set()
        self._suspicious: set[str] = set()

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn who waits."""
        waiting = self._waiting.setdefault(by.name, {})
        if isinstance(event, TurnBegun) and event.suspicious:
            # One after the other, and those that may be guilty first (H9).
            self._suspicious.add(by.name)
        elif isinstance(event, PageRead) and event.brings:
            # What was on its way when the lease was lost is dropped when it comes.
            if (by.name, event.lease_key) in self._reads:
                waiting.setdefault(event.lease_key, (at_ms, Counter()))
        elif isinstance(event, RecordSkipped) and not event.attempts:
            waiting.pop(event.lease_key, None)  # Held back: no call is made for it.
        elif isinstance(event, LeaseLost | LeaseReleased | ShardEnded):
            waiting.pop(event.lease_key, None)
            self._reads.discard((by.name, event.lease_key))

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Remember who reads what: not before the reader of before has left."""
        del at_ms
        self._reads.add((by.name, shard_id))

    def lease_written(self, write: LeaseWrite) -> None:
        """Forget what somebody else takes."""
        if write.change.operation in ("take", "assign", "evict", "initiate_handover", "rewind"):
            for waiting in self._waiting.values():
                waiting.pop(write.change.lease_key, None)

    def batch_failed(self, at_ms: int, by: Suspect, shard_id: str, *, call: int = 0) -> None:
        """Forget a shard that waits before it tries again."""
        del at_ms, call
        self._waiting.get(by.name, {}).pop(shard_id, None)

    def call_begun(self, call: CallBegun) -> None:
        """Count calls while others wait."""
        by = call.by
        waiting = self._waiting.get(by.name, {})
        waiting.pop(call.shard_id, None)
        if by.faults or by.name in self._suspicious:
            return
        for shard_id, (since_ms, calls) in waiting.items():
            calls[call.shard_id] += 1
            # It may have to renew before, and each call of a table may be slow.
            is_long = call.at_ms - since_ms > _AT_ONCE_MS
            if is_long and calls[call.shard_id] > _CALLS_MOST * self.ledger.lanes:
                text = (
                    f"{by.name} called for {call.shard_id} {calls[call.shard_id]} times meanwhile"
                )
                self.found(call.at_ms, shard_id, text)
                return


class ReplacedStreamIsLeft(Checker):
    """A stream that was deleted and created again is not read for its predecessor (H12)."""

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Look at reads long after."""
        since_ms = self.ledger.recreated_ms
        if since_ms is not None and at_ms - since_ms > _LAST_READ_MS:
            text = f"{by.name} reads it, {at_ms - since_ms} ms after the stream was created again"
            self.found(at_ms, shard_id, text)


class DecodingMakesWay(Checker):
    """Nobody takes records apart for so long at a stretch that renewals have no turn (H17)."""

    def computed(self, at_ms: int, by: Suspect, *, lasted_ms: int) -> None:
        """Look at how long a stretch lasted."""
        if lasted_ms > _STRETCH_MOST_MS:
            text = f"{by.name} did nothing else for {lasted_ms} ms"
            self.found(at_ms, by.worker_id, text)
