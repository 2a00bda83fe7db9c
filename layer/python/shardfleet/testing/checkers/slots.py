"""Invariants about slots, the turn lock, rights and pace."""

from __future__ import annotations

from collections import deque

from shardfleet.domain.slots import SlotState
from shardfleet.engine.fleet_state import LOCK, SLOT
from shardfleet.events import Event, TurnBegun
from shardfleet.testing.checkers.checker import Checker, DocumentWrite, LeaseWrite, Suspect

# Two managers' clocks may differ by as much (the configuration's clock_skew_ms).
_SKEW_MS = 2_000
# Kinesis quota: five GetRecords per second and shard; a page that took long lets two come close.
_READS_PER_S = 7
_SECOND_MS = 1_000
_WRITTEN_BY_WORKERS = ("create", "renew", "take", "assign", "evict", "checkpoint", "set_children")


class OneInvocationPerEpoch(Checker):
    """Each invocation of a slot has an epoch of its own, and outdated executions stop (H1, H3)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no turn seen."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._epochs: dict[str, int] = {}
        self._executions: dict[str, tuple[int, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Compare a turn that begins with those before it."""
        if not isinstance(event, TurnBegun):
            return
        if event.epoch <= self._epochs.get(by.worker_id, -1):
            text = f"{by.name} began with epoch {event.epoch}, as another invocation had before"
            self.found(at_ms, by.worker_id, text)
        latest = self._executions.get(by.worker_id, (0, 0))
        # Told after the claim was written: an invocation of the next execution may be quicker.
        if by.execution < latest and event.epoch > self._epochs[by.worker_id]:
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

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember finished leases: nobody needs to serve them."""
        if write.after is None or write.after.is_finished:
            self._finished.add(write.change.lease_key)

    def document_written(self, write: DocumentWrite) -> None:
        """Look at slots that end."""
        before, after = write.before, write.after
        if write.kind != SLOT or before is None:
            return
        if after["assign_seq"] > before["assign_seq"]:
            self._announced[write.name] = write.at_ms
        is_end = after["state"] == SlotState.ENDED != before["state"] and write.by.worker_id
        if not is_end or before["served_seq"] >= before["assign_seq"]:
            return
        waiting = [key for key in before["assigned"] if key not in self._finished]
        waited_ms = write.at_ms - self._announced[write.name]
        if waiting and waited_ms < 3 * self.renew_ms:
            text = f"ended {waited_ms} ms after {', '.join(waiting)} had been announced"
            self.found(write.at_ms, write.name, text)


class OneManagerAtATime(Checker):
    """The turn lock changes hands only when its time has run out (H13)."""

    def document_written(self, write: DocumentWrite) -> None:
        """Look at who takes the lock."""
        before, after = write.before, write.after
        if write.kind != LOCK or before is None or before["holder"] == after["holder"]:
            return
        left_ms = before["until_ms"] - write.epoch_ms
        if left_ms > _SKEW_MS:
            text = f"{write.by.name} took it {left_ms} ms before {before['holder']}'s time was over"
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

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Count the last second's calls."""
        reads = self._reads.setdefault((by.name, shard_id), deque(maxlen=_READS_PER_S + 1))
        reads.append(at_ms)
        if len(reads) > _READS_PER_S and at_ms - reads[0] < _SECOND_MS:
            text = f"{by.name} began {len(reads)} calls of GetRecords within {at_ms - reads[0]} ms"
            self.found(at_ms, shard_id, text)
