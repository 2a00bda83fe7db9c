"""Invariants about slots, the turn lock, rights and pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from shardfleet.domain.balance.kcl3 import LEADERLESS_MS
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.kinds import LOCK, PAUSE, SLOT, STOP
from shardfleet.events.base import Event
from shardfleet.events.manager import LeaseWoken
from shardfleet.events.worker import (
    LeaseAdopted,
    LeaseAsleep,
    LeaseLost,
    LeaseReleased,
    ShardEnded,
    TurnBegun,
)
from shardfleet_testkit.checkers.checker import (
    GARBLED_MS,
    CallBegun,
    Checker,
    DocumentWrite,
    LeaseWrite,
    Suspect,
)

# Kinesis quota: five GetRecords per second and shard; a page that took long lets two come close.
_READS_PER_S = 7
_SECOND_MS = 1_000
# An operator resumes stopped shards each 30 s, and a worker looks each failover time.
_STOPPED_MS = 60_000
# Longer than an import, a call that hangs and the longest back-off together.
_IDLE_MS = 105_000
# A table that has answered nobody for so long, in a fleet whose every worker asks it each second.
_OUT_MS = 4_000
# Two turns of the slowest manager, and the start of a slot between them.
# A manager that is calm comes with the schedule, once a minute; and its turn takes some time.
_OWNED_MS = 60_000 + 5_000
_WRITTEN_BY_WORKERS = ("create", "renew", "take", "assign", "evict", "checkpoint", "set_children")


class OneInvocationPerEpoch(Checker):
    """Each invocation of a slot has an epoch of its own, and outdated executions stop (H1, H3)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no turn seen."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._claimed: set[tuple[str, int]] = set()
        self._epochs: dict[str, int] = {}
        self._executions: dict[str, tuple[int, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Compare a turn that begins with those before it."""
        if not isinstance(event, TurnBegun):
            return
        # Not <=: who claims later may be told of it earlier.
        if (by.worker_id, event.epoch) in self._claimed:
            text = f"{by.name} began with epoch {event.epoch}, as another invocation had before"
            self.found(at_ms, by.worker_id, text)
        self._claimed.add((by.worker_id, event.epoch))
        latest = self._executions.get(by.worker_id, (0, 0))
        # Told after the claim was written: an invocation of the next execution may be quicker.
        if by.execution < latest and event.epoch > self._epochs.get(by.worker_id, -1):
            text = f"{by.name} began in execution {by.execution}, after one of {latest}"
            self.found(at_ms, by.worker_id, text)
        self._epochs[by.worker_id] = max(event.epoch, self._epochs.get(by.worker_id, -1))
        self._executions[by.worker_id] = max(latest, by.execution)


class SlotsEndServed(Checker):
    """A worker ends its slot only when each announced lease was found or long in vain (H2)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no announcement."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._announced: dict[str, int] = {}
        self._finished: set[str] = set()
        # What each worker holds, and what of it, or since, it has held since it was last told.
        self._held: dict[str, set[str]] = {}
        self._found: dict[str, set[str]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn what is found: what is held when it is to end need not be in its record yet."""
        del at_ms
        if isinstance(event, LeaseAdopted):
            self._held.setdefault(by.worker_id, set()).add(event.lease_key)
            self._found.setdefault(by.worker_id, set()).add(event.lease_key)
        elif isinstance(event, LeaseLost | LeaseReleased | ShardEnded):
            self._held.get(by.worker_id, set()).discard(event.lease_key)

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember finished leases: nobody needs to serve them."""
        if write.after is None or write.after.is_finished:
            self._finished.add(write.change.lease_key)

    def document_written(self, write: DocumentWrite) -> None:
        """Look at slots that end."""
        before, after = write.before, write.after
        if write.kind != SLOT or before is None:
            return
        worker_id = after["worker_id"]
        if after["assign_seq"] > before["assign_seq"]:
            self._announced[write.name] = write.at_ms
            self._found[worker_id] = self._held.get(worker_id, set()).copy()
        elif after.get("epoch", 0) > before.get("epoch", 0):
            self._held[worker_id] = set()
        is_end = after["state"] == SlotState.ENDED != before["state"] and write.by.worker_id
        if not is_end or before["served_seq"] >= before["assign_seq"]:
            return
        known = self._finished | self._found.get(worker_id, set())
        waiting = [key for key in before["assigned"] if key not in known]
        waited_ms = write.at_ms - self._announced[write.name]
        if waiting and waited_ms < 3 * self.renew_ms:
            text = f"ended {waited_ms} ms after {', '.join(waiting)} had been announced"
            self.found(write.at_ms, write.name, text)


class AnnouncedFirst(Checker):
    """
    A manager gives a lease only to a slot that it has told before (H2).

    Whom a leader of another kind hands over to learns of it as its workers do: by the index. Who
    takes a lease himself knows; a KCL 2 leaves the mark of a handover on it, which is forced then.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing announced."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._announced: set[tuple[str, str]] = set()

    def document_written(self, write: DocumentWrite) -> None:
        """Remember announcements."""
        if write.kind == SLOT:
            self._announced |= {(write.after["worker_id"], key) for key in write.after["assigned"]}

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at who is given what."""
        after, key = write.after, write.change.lease_key
        owner = (after.lease_owner or "") if after else ""
        if write.by.worker_id and write.change.operation in ("initiate_handover", "take"):
            self._announced.add((owner, key))
        if after is None or write.change.operation not in ("assign", "take"):
            return
        if not write.by.worker_id and (owner, key) not in self._announced:
            text = f"{write.by.name} gave it to {owner}, which had not been told"
            self.found(write.at_ms, key, text)


class WhoRenewsReads(Checker):
    """A lease that is renewed is read, unless it waits for its parents, a stop or a handover."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._leases: dict[str, Lease] = {}
        # lease -> when somebody made its row unreadable
        self._garbled: dict[str, int] = {}
        self._stopped: dict[str, int] = {}
        # lease -> invocation -> when it last did something for it, and its excuses until then
        self._alive: dict[str, dict[str, tuple[int, int]]] = {}
        # when the state table last answered anybody, and how long it has answered nobody
        self._answered_ms = self._silent_ms = 0
        # lease -> when the table last took a write of its owner
        self._confirmed: dict[str, int] = {}

    def document_written(self, write: DocumentWrite) -> None:
        """Remember stops: they are taken back by an operator after a while."""
        self._answers(write.at_ms)
        if write.kind == STOP:
            self._stopped[write.name] = write.at_ms

    def document_read(self, at_ms: int, by: Suspect, *, kind: str, body: Mapping[str, Any]) -> None:
        """See that the table answers: without its notes nothing is handled (H9)."""
        del by, kind, body
        self._answers(at_ms)

    def _answers(self, at_ms: int) -> None:
        silent_ms = at_ms - self._answered_ms
        self._silent_ms += silent_ms if silent_ms > _OUT_MS else 0
        self._answered_ms = at_ms

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Forget what was before somebody lost a lease: it may get it again."""
        del at_ms
        if isinstance(event, LeaseLost | LeaseReleased):
            self._of(event.lease_key).pop(by.name, None)

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """See a sign of life."""
        self._of(shard_id)[by.name] = (at_ms, self._excused_ms(by, at_ms))

    def call_begun(self, call: CallBegun) -> None:
        """See a sign of life."""
        self._of(call.shard_id)[call.by.name] = (
            call.at_ms,
            self._excused_ms(call.by, call.at_ms),
        )

    def _excused_ms(self, by: Suspect, at_ms: int) -> int:
        """Return how long an invocation could not do anything so far, or nothing without notes."""
        silent_ms = at_ms - self._answered_ms
        return by.frozen_ms + self._silent_ms + (silent_ms if silent_ms > _OUT_MS else 0)

    def _of(self, lease_key: str) -> dict[str, tuple[int, int]]:
        return self._alive.setdefault(lease_key, {})

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at renewals without a sign of life."""
        after, key, by = write.after, write.change.lease_key, write.by
        if after is None:
            self._leases.pop(key, None)
            return
        self._leases[key] = after
        if write.change.operation == "garble":
            self._garbled[key] = write.at_ms
        if write.before is not None and write.before.effective_owner != after.effective_owner:
            # Whoever had it may get it again; what is given back at once is told by nobody.
            self._alive.pop(key, None)
        # A worker of Java's has a pace of its own.
        is_ours = by.execution != (0, 0)
        if write.change.operation not in ("renew", "checkpoint") or not is_ours:
            return
        parents = [self._leases.get(parent) for parent in after.parent_shard_ids]
        waits = any(parent is not None and not parent.is_finished for parent in parents)
        # Whether a parent is finished cannot be told of a row that nobody can read.
        garbled_ms = [self._garbled.get(parent, -GARBLED_MS) for parent in after.parent_shard_ids]
        waits = waits or any(write.at_ms - since_ms < GARBLED_MS for since_ms in garbled_ms)
        # A shard that is read to its end may wait for the other parent of a merge (§4.6).
        truth = self.ledger.shards[key]
        waits = waits or bool(truth.children and truth.first_unfinished() is None)
        stopped_ms = write.at_ms - self._stopped.get(key, -_STOPPED_MS)
        # Nothing is read of a lease that the table does not confirm (H17); it begins again here.
        waits = waits or write.at_ms - self._confirmed.get(key, 0) > 3 * self.renew_ms
        self._confirmed[key] = write.at_ms
        if waits or after.checkpoint_owner is not None or stopped_ms < _STOPPED_MS:
            self._of(key).pop(by.name, None)
            return
        excused_ms = self._excused_ms(by, write.at_ms)
        alive_ms, before_ms = self._of(key).setdefault(by.name, (write.at_ms, excused_ms))
        idle_ms = write.at_ms - alive_ms - (excused_ms - before_ms)
        if idle_ms > _IDLE_MS:
            text = f"{by.name} renews it, and has not read or handled anything for {idle_ms} ms"
            self.found(write.at_ms, key, text)


class OwnedSoon(Checker):
    """
    While nothing goes wrong, a lease that can start has an owner within a minute.

    Beside workers of a KCL 3 it is their leader that gives it one: where something happens to one
    of them, the minute begins when a leader that died by then is replaced (protocol.md §1.7).
    And it begins when nothing is paused any more.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease and nobody harmed."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._free_since: dict[str, int] = {}
        self._asleep: set[str] = set()
        self._is_paused = False
        self._known: dict[str, Suspect] = {}
        self._java: dict[str, Suspect] = {}

    def row_written(self, at_ms: int, by: Suspect) -> None:
        """Learn which workers of a KCL 3 there are."""
        del at_ms
        if by.worker_id:
            self._java[by.name] = by

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Learn who there is."""
        del at_ms, shard_id
        self._known[by.name] = by

    def document_written(self, write: DocumentWrite) -> None:
        """Learn who there is, and what is paused."""
        self._known[write.by.name] = write.by
        if write.kind == PAUSE:
            self._is_paused = any(map(write.after.get, ("fleet", "leases", "migration")))
            self._free_since = dict.fromkeys(self._free_since, write.at_ms)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Leave out those asleep, until they are woken."""
        del by
        if isinstance(event, LeaseAsleep):
            self._asleep.add(event.lease_key)
        elif isinstance(event, LeaseWoken):
            # Also of one that its owner has renewed once more before it gave it up.
            self._asleep.discard(event.lease_key)
            self._free_since[event.lease_key] = at_ms

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at leases that get an owner."""
        after, key = write.after, write.change.lease_key
        sleeps = key in self._asleep and after is not None and after.effective_owner is None
        if after is None or after.is_finished or sleeps:
            self._free_since.pop(key, None)
        elif after.effective_owner is None:
            self._free_since.setdefault(key, write.at_ms)
        else:
            self._asleep.discard(key)
            since_ms = self._free_since.pop(key, write.at_ms)
            waited_ms = write.at_ms - max(since_ms, self._led_again_ms())
            is_harmed = any(by.faults for by in self._known.values())
            is_excused = is_harmed or self._is_paused or after.parent_shard_ids
            if waited_ms > _OWNED_MS and not is_excused:
                text = f"nobody had it for {waited_ms} ms"
                self.found(write.at_ms, key, text)

    def _led_again_ms(self) -> int:
        """Return when at the latest Java's workers have a leader again."""
        harmed = [at_ms for by in self._java.values() for at_ms, _ in by.faults]
        return max(harmed, default=-LEADERLESS_MS) + LEADERLESS_MS


class OneManagerAtATime(Checker):
    """
    The turn lock changes hands only when its time is over by the clock of who takes it (H13).

    Two whose clocks differ may hold it at once, as may one that thaws: what they must not do then
    is what all other invariants say.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody having looked."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # The latest time at which it has looked, by its own clock, which may go back.
        self._looked: dict[str, int] = {}

    def document_read(self, at_ms: int, by: Suspect, *, kind: str, body: Mapping[str, Any]) -> None:
        """Remember when somebody looked at the lock."""
        del at_ms, body
        if kind == LOCK:
            self._looked[by.name] = max(by.wall_ms(), self._looked.get(by.name, 0))

    def document_written(self, write: DocumentWrite) -> None:
        """Look at who takes the lock."""
        before, after, name = write.before, write.after, write.by.name
        if write.kind != LOCK or before is None or before["holder"] == after["holder"]:
            return
        left_ms = before["until_ms"] - self._looked.get(name, 0)
        if left_ms > 0:
            text = f"{name} took it {left_ms} ms before {before['holder']}'s time was over"
            self.found(write.at_ms, "lock", text)


class WithinRights(Checker):
    """A worker deletes no lease and makes no other writes than its role allows (H19)."""

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at what a worker writes."""
        is_worker = write.by.execution != (0, 0)
        if is_worker and write.change.operation not in _WRITTEN_BY_WORKERS:
            text = f"{write.by.name} wrote {write.change.operation}"
            self.found(write.at_ms, write.change.lease_key, text)


class ReadsArePaced(Checker):
    """Nobody calls GetRecords more often than the quota of the shard allows (§8 row 8a)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no read."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._reads: dict[tuple[str, str], deque[int]] = {}

    def get_records_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Count the last second's calls."""
        reads = self._reads.setdefault((by.name, shard_id), deque(maxlen=_READS_PER_S + 1))
        reads.append(at_ms)
        if len(reads) > _READS_PER_S and at_ms - reads[0] < _SECOND_MS:
            text = f"{by.name} began {len(reads)} calls of GetRecords within {at_ms - reads[0]} ms"
            self.found(at_ms, shard_id, text)
