"""Invariants about sleep: only idle shards sleep, and whoever has something to read is woken."""

from __future__ import annotations

from shardfleet.events.base import Event
from shardfleet.events.manager import LeaseWoken, ManagerTurnDone
from shardfleet.events.worker import LeaseAsleep, TurnBegun
from shardfleet_testkit.checkers.checker import Checker, LeaseWrite, Suspect, is_process

# A record that was put so long before a read is in its answer, whatever is late in the stream.
_VISIBLE_MS = 1_500
# Looks may fail, a manager may die of what it has found; so many in a row are no coincidence.
_LOOKS_MOST = 5
_ASLEEP_MOST = 3


class OnlyIdleShardsSleep(Checker):
    """
    A shard falls asleep only when all that came before its last read is done.

    And nothing may have come for as long as its worker says that it was idle (hazard H6).
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no read."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._reads: dict[tuple[str, str], int] = {}

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Remember the last read."""
        self._reads[by.name, shard_id] = at_ms

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Compare with what is in the shard."""
        if not isinstance(event, LeaseAsleep):
            return
        read_ms = self._reads.get((by.name, event.lease_key), 0)
        seen_ms = read_ms - _VISIBLE_MS
        for entry in self.ledger.shards[event.lease_key].entries:
            if entry.put_ms >= seen_ms:
                break
            if not entry.is_done:
                text = f"{by.name} let it sleep with {entry}, put {read_ms - entry.put_ms} ms ago"
                self.found(at_ms, event.lease_key, text)
                return
            # Idle since then at the latest: a freeze may lie between the read and its answer.
            if entry.put_ms > at_ms - event.idle_ms + _VISIBLE_MS and not entry.is_left_out:
                text = f"{by.name} says idle for {event.idle_ms} ms; {entry} came meanwhile"
                self.found(at_ms, event.lease_key, text)
                return


class SleepersAreWoken(Checker):
    """A sleeping shard with something to read, or an end, wakes within a few looks (H6, H14)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nobody asleep."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # shard -> looks in a row that changed nothing, whose the last was, and its faults then
        self._looks: dict[str, tuple[int, str, int]] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn who sleeps."""
        del at_ms, by
        if isinstance(event, LeaseAsleep):
            self._looks[event.lease_key] = (0, "", 0)
        elif isinstance(event, LeaseWoken):
            self._looks.pop(event.lease_key, None)

    def lease_written(self, write: LeaseWrite) -> None:
        """Learn who is awake: it has an owner again, or is gone."""
        after = write.after
        if write.change.operation in ("assign", "take") or after is None or after.is_finished:
            self._looks.pop(write.change.lease_key, None)

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Count the manager's looks at a shard in which there is something."""
        if by.worker_id or shard_id not in self._looks:
            return
        truth = self.ledger.shards[shard_id]
        first = truth.first_unfinished()
        waits = bool(truth.children) if first is None else first.put_ms < at_ms - _VISIBLE_MS
        looks, name, faults = self._looks[shard_id]
        # Of a look whose manager was refused anything afterwards, the fleet may know nothing.
        looks += (name, faults) == (by.name, len(by.faults))
        self._looks[shard_id] = (looks, by.name, len(by.faults)) if waits else (0, "", 0)
        if waits and looks >= _LOOKS_MOST:
            what = "its end" if first is None else f"{first}, put {at_ms - first.put_ms} ms ago,"
            text = f"sleeps on, with {what} before {_LOOKS_MOST} looks"
            self.found(at_ms, shard_id, text)


class SleepersCostNoTurns(Checker):
    """While every shard sleeps, a manager on Lambda looks at them, and does not turn (H14)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no turn."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._turns: dict[str, int] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Count a manager's turns in a row that found everything asleep."""
        if isinstance(event, LeaseWoken):
            self._turns.pop(by.name, None)
        if isinstance(event, TurnBegun):
            # A worker that has nothing asks for leases, until its slot ends.
            self._turns.clear()
        if not isinstance(event, ManagerTurnDone) or is_process(by):
            return
        sleeps = bool(event.sleeping_leases) and not event.slots_wanted and not event.unread_shards
        self._turns[by.name] = self._turns.get(by.name, 0) + 1 if sleeps else 0
        # A prompt may come late, of a worker that has just ended.
        if self._turns[by.name] > _ASLEEP_MOST:
            text = f"{by.name} found everything asleep for the {self._turns[by.name]}th time"
            self.found(at_ms, "fleet", text)
