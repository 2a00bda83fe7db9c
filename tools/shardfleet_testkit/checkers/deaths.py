"""Invariants about deaths: who is charged with one, and that what kills is stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.state.kinds import NOTE
from shardfleet.events.base import Event
from shardfleet.events.delivery import CrashCharged, RecordSkipped, ShardStopped
from shardfleet.events.worker import LeaseAdopted, TurnBegun
from shardfleet_testkit.checkers.checker import (
    CallBegun,
    Checker,
    DocumentWrite,
    LeaseWrite,
    Suspect,
    is_operator,
)

# A note is closed, or the call that it announces begun, in a few tries of a table that is out.
_CLOSING_MS = 20_000
# One that is out for longer refuses a try after the longest back-off, and a call without an answer.
_TRIES_MS, _REFUSALS = 7_000, ("throttled", "no answer", "odd answer")
# Whoever thaws when its time is over ends its process at once, beside one call under way.
_OVER_AT_ONCE_MS = 3_000
_FROZEN_MOST_MS = 50_000
# What a call that a record kills is called, and the record.
RECORD = "record"
_OWN_END = "process ended"
_DEATHS = (_OWN_END, "killed", "timed out", "killed by a record", "killed by user code")


@dataclass(slots=True)
class _UnderWay:
    """
    Calls of a shard in one invocation.

    Attributes:
        by: the invocation.
        noted_ms: since when a call is noted, or its worker has been frozen over that.
        begun: when each call has begun.

    """

    by: Suspect
    noted_ms: int | None = None
    begun: dict[str, int] = field(default_factory=dict)


class InnocentsAreNotCharged(Checker):
    """
    A shard is charged with a death only if a worker died while a call of that shard was under way.

    What a worker can know excuses nothing: a call that is over, or that never began because the
    worker ended its own process for another shard's call (H21). It cannot know whether a death by
    another hand, between the first try to note a call and the last one to close the note, had
    anything to do with the call; nor can it close a note if it freezes at the first try, and its
    time is over when it thaws, or if the table refuses each try until the turn must end.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no call."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # shard -> invocation -> its calls
        self._calls: dict[str, dict[str, _UnderWay]] = {}

    def _of(self, by: Suspect, shard_id: str) -> _UnderWay:
        return self._calls.setdefault(shard_id, {}).setdefault(by.name, _UnderWay(by))

    def document_written(self, write: DocumentWrite) -> None:
        """See a call noted, or its note closed."""
        if write.kind != NOTE or write.by.execution == (0, 0):
            return
        is_open = write.after.get("is_open", False)
        for calls in self._calls.get(write.name, {}).values():
            calls.noted_ms = None  # There is one note of a shard.
        if is_open:
            self._of(write.by, write.name).noted_ms = _tried_ms(write)

    def call_begun(self, call: CallBegun) -> None:
        """See a call begin."""
        self._of(call.by, call.shard_id).begun[str(call.call)] = call.at_ms

    def hook_told(self, at_ms: int, by: Suspect, shard_id: str, *, hook: Hook) -> None:
        """See a call of a hook begin."""
        self._of(by, shard_id).begun[hook] = at_ms

    def bare_call(self, at_ms: int, by: Suspect, shard_id: str, *, call: str, begins: bool) -> None:
        """See a call without records begin or come back."""
        if begins:
            self._of(by, shard_id).begun[call] = at_ms
        else:
            self._of(by, shard_id).begun.pop(call, None)
            self._came_back(at_ms, by, shard_id)

    def call_over(self, at_ms: int, by: Suspect, shard_id: str, *, call: int) -> None:
        """See a call come back."""
        self._of(by, shard_id).begun.pop(str(call), None)
        self._came_back(at_ms, by, shard_id)

    def _came_back(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        calls = self._of(by, shard_id)
        calls.noted_ms = None if calls.noted_ms is None else at_ms

    def hook_over(self, by: Suspect, shard_id: str, hook: Hook, *, failed: bool) -> None:
        """See a hook come back: its note is closed soon."""
        del failed
        self._of(by, shard_id).begun.pop(hook, None)

    def call_killed(self, at_ms: int, by: Suspect, shard_id: str, *, call: str) -> None:
        """See a call that kills: whatever it was, it was under way."""
        self._of(by, shard_id).begun[call] = at_ms - self.ledger.outlived_ms

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look for a death to charge."""
        if not isinstance(event, CrashCharged):
            return
        calls = self._calls.get(event.lease_key, {})
        others = (each for each in calls.values() if each.by != by)
        may_have = (
            _may_have_killed(each, at_ms, outlived_ms=self.ledger.outlived_ms) for each in others
        )
        if not any(may_have):
            text = f"{by.name} charges it with a death; no worker died in a call of it"
            self.found(at_ms, event.lease_key, text)


def _tried_ms(write: DocumentWrite) -> int:
    """Return when a write landed, or since when its sender has been frozen over it."""
    frozen_ms = [at_ms for at_ms, what in write.by.faults if what == "frozen"]
    thawed_ms = write.by.thawed_ms
    if frozen_ms and (thawed_ms is None or thawed_ms < frozen_ms[-1]):
        return frozen_ms[-1]
    return write.at_ms


def _may_have_killed(calls: _UnderWay, at_ms: int, *, outlived_ms: int) -> bool:
    deaths = [(died_ms, what) for died_ms, what in calls.by.faults if what in _DEATHS]
    died_ms, what = deaths[-1] if deaths else (at_ms, "")
    if what == _OWN_END:
        outlived = any(begun_ms <= died_ms - outlived_ms for begun_ms in calls.begun.values())
        if calls.noted_ms is None or calls.begun:
            return outlived
        return _had_no_time(calls.by, died_ms) or was_refused_to_its_end(calls.by, calls.noted_ms)
    if calls.noted_ms is None or calls.begun:
        return bool(calls.begun)
    froze = sum(at_ms >= calls.noted_ms and what == "frozen" for at_ms, what in calls.by.faults)
    closing_ms = _CLOSING_MS + froze * _FROZEN_MOST_MS
    return died_ms - _refused_until_ms(calls.by, calls.noted_ms) < closing_ms


def _refused_until_ms(by: Suspect, since_ms: int) -> int:
    """Return until when a worker was refused one try after the other, unless it was frozen."""
    within_ms = _TRIES_MS
    for at_ms, what in by.faults:
        if not 0 <= at_ms - since_ms < within_ms:
            continue
        if what == "frozen":
            within_ms += _FROZEN_MOST_MS
        elif what in _REFUSALS:
            since_ms, within_ms = at_ms, _TRIES_MS
    return since_ms


def was_refused_to_its_end(by: Suspect, since_ms: int) -> bool:
    """Return whether a worker that has ended was refused each try to close a note since then."""
    refused_ms = _refused_until_ms(by, since_ms)
    died_ms = by.faults[-1][0] if by.faults else since_ms
    return since_ms < refused_ms and died_ms - refused_ms < _TRIES_MS


def _had_no_time(by: Suspect, died_ms: int) -> bool:
    """Return whether a worker froze while it noted a call, and ended its process as it thawed."""
    return by.thawed_ms is not None and died_ms - by.thawed_ms < _OVER_AT_ONCE_MS


class WhatKillsIsStopped(Checker):
    """
    A shard whose calls kill is stopped, or what kills is given up, after a few deaths (H9).

    That is, after so many lives of the shard in a row that end with the same record and no
    progress, whoever has it, or with the same kind of call without records of one worker. A life
    that ends otherwise says that the call was survived, or not made, or was not what killed. Who
    begins behind a death of its slot is on the watch, unless the slot was ended and started anew;
    the death of one that is not counts for none, and what it stores makes stale what was noted.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no death."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # shard -> the invocation that has it, and the checkpoint that it found
        self._lives: dict[str, tuple[str, str]] = {}
        # shard -> what its lives have died of, from where or with whom; and how many in a row
        self._deaths: dict[str, tuple[tuple[str, str], int]] = {}
        self._is_dead: set[str] = set()
        # worker -> its latest turn; that one, if it has died; and those that are on the watch
        self._turns: dict[str, str] = {}
        self._died: dict[str, Suspect] = {}
        self._watchful: set[str] = set()

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """See what makes deaths count anew, and who is on the watch."""
        if isinstance(event, ShardStopped | RecordSkipped):
            self._deaths.pop(event.lease_key, None)
        elif isinstance(event, LeaseAdopted):
            before, found = self._lives.get(event.lease_key, ("", event.checkpoint))
            is_stale = found != event.checkpoint and before not in self._watchful
            if is_stale or event.lease_key not in self._is_dead:
                self._deaths.pop(event.lease_key, None)
            self._is_dead.discard(event.lease_key)
            self._lives[event.lease_key] = by.name, event.checkpoint
        elif isinstance(event, TurnBegun):
            self._turns[by.worker_id] = by.name
            died = self._died.pop(by.worker_id, None)
            if event.suspicious:
                self._watchful.add(by.name)
            elif died is not None and died.execution[0] == by.execution[0]:
                text = f"{by.name} follows {died.name}, which died of a call, and does not watch"
                self.found(at_ms, event.slot_id, text)

    def lease_written(self, write: LeaseWrite) -> None:
        """See a shard put elsewhere: what was noted of deaths counts no more (H20)."""
        if write.sets_place:
            self._deaths.pop(write.change.lease_key, None)

    def document_deleted(self, at_ms: int, by: Suspect, *, kind: str, name: str) -> None:
        """See a note dropped that could not be read: deaths are counted anew."""
        del at_ms
        if kind == NOTE and is_operator(by):
            self._deaths.pop(name, None)

    def call_killed(self, at_ms: int, by: Suspect, shard_id: str, *, call: str) -> None:
        """Count deaths."""
        if self._turns.get(by.worker_id) == by.name:
            self._died[by.worker_id] = by
        name, checkpoint = self._lives.get(shard_id, ("", ""))
        if name != by.name:
            return  # Overtaken.
        self._is_dead.add(shard_id)
        death = call, checkpoint if call.startswith(RECORD) else by.worker_id
        before, deaths = self._deaths.get(shard_id, (death, 0))
        deaths = (deaths if before == death else 0) + (by.name in self._watchful)
        self._deaths[shard_id] = death, deaths
        if deaths > 1 + self.ledger.max_crashes:  # One over a range, and those that count.
            text = f"{by.name} is the {deaths}th to die of its call ({call}), and nobody stops it"
            self.found(at_ms, shard_id, text)
