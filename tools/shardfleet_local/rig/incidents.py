"""
What is done to the fleet while records flow: kills, freezes, reshards, reads that fail.

Each incident waits until it can be done (a process to kill must be alive and at work), does it,
and notes what it did. The order and the spacing are those of a scenario; which shard and which
process come from the seed and from what is there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import Clock
from shardfleet.errors import ShardfleetError
from shardfleet_local.aws.launcher import WorkerProcess
from shardfleet_local.rig.fleet import RunningFleet

THROTTLED_MS = 60_000
"""How long a shard refuses every read."""

WAIT_MOST_MS = 60_000
"""Longest wait until an incident can be done."""

POLL_MS = 100

PAUSE_MS = (4_000, 9_500)
"""
Between two strikes. Much more often, and every worker dies before its first turn is over: then the
state machine waits longer after each crash (hazard H9), and nothing is left to strike at.
"""

MANAGER_ONE_IN = 4
FREEZE_ONE_IN = 8
FREEZE_MS = (2_000, 14_000)
"""Shorter and longer than the failover time of 10 s: a frozen worker may wake up robbed."""

RESHARD_EVERY_MS = 30_000
WRONG_ANSWER_EVERY_MS = 10_000
WRONG_ANSWERS = (
    {"Kind": "EmptyReads", "Count": 5},
    {"Kind": "EndWithoutChildren", "Count": 2},
    {"Kind": "ChildrenWithoutEnd", "Count": 2},
)
"""What no proxy can do: answers of the stream that are wrong without being errors."""

WRONG_PUSHES = tuple({"Kind": kind, "Count": 1} for kind in ("Reset", "TakeOver", "Silence"))
"""The same of subscriptions, where records are pushed."""

KILL_WORKER, KILL_MANAGER, FREEZE = "kill worker", "kill manager", "freeze"
SPLIT, MERGE, THROTTLE, WRONG_ANSWER = "split", "merge", "throttle", "wrong answer"
STRIKE = "strike"
"""An incident that kills or freezes whatever process is busy; what it did is of another kind."""

_FEWEST_SHARDS, _FIRST_SHARDS, _MOST_SHARDS = 3, 4, 6


class IncidentFailed(ShardfleetError):
    """An incident could not be done in time: the fleet is not in the state that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDisturbance:
    """
    Something that was done to the fleet.

    Attributes:
        at_ms: epoch milliseconds.
        kind: of the incident.
        text: for a person.
        pid: the process that it was done to.
        shard_ids: what a killed worker had been reading, by the ledger, or what cannot be read.
        until_ms: the end of what lasts.

    """

    at_ms: int
    kind: str
    text: str
    pid: int = 0
    shard_ids: tuple[str, ...] = ()
    until_ms: int = 0

    def covers(self, shard_id: str, at_ms: int) -> bool:
        """Return whether it lasts for a shard at a time."""
        return shard_id in self.shard_ids and self.at_ms <= at_ms < self.until_ms


def of_kind(happenings: Iterable[FleetDisturbance], *kinds: str) -> list[FleetDisturbance]:
    """Return those of some kinds."""
    return [each for each in happenings if each.kind in kinds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """
    One thing to do.

    Attributes:
        at: when, as a part of the feed's duration (0 to 1).
        kind: of what.
        once: whether it is passed over where it cannot be done at once.

    """

    at: float
    kind: str
    once: bool = False


FULL_SCENARIO = (
    Incident(at=0.10, kind=KILL_WORKER),
    Incident(at=0.18, kind=SPLIT),
    Incident(at=0.27, kind=KILL_WORKER),
    Incident(at=0.33, kind=THROTTLE),
    Incident(at=0.42, kind=KILL_MANAGER),
    Incident(at=0.52, kind=MERGE),
    Incident(at=0.62, kind=KILL_WORKER),
    Incident(at=0.90, kind=KILL_WORKER),
)
"""The demo's: four kills of workers, one of the manager, a split, a merge, a throttled minute."""


def chaos_scenario(duration_ms: int, *, seed: int) -> tuple[Incident, ...]:
    """
    Plan strikes every few seconds, a wrong answer of the stream every 10 s, a reshard every 30 s.

    The number of open shards stays between three and six.
    """
    chance = random.Random(seed)
    shards, at_ms, plan = _FIRST_SHARDS, chance.randint(*PAUSE_MS), []
    while at_ms < duration_ms:
        plan.append((at_ms, STRIKE))
        at_ms += chance.randint(*PAUSE_MS)
    wrong_answers = range(WRONG_ANSWER_EVERY_MS, duration_ms, WRONG_ANSWER_EVERY_MS)
    plan += [(at_ms, WRONG_ANSWER) for at_ms in wrong_answers]
    for at_ms in range(RESHARD_EVERY_MS // 2, duration_ms, RESHARD_EVERY_MS):
        may_split, may_merge = shards < _MOST_SHARDS, shards > _FEWEST_SHARDS
        splits = may_split and (not may_merge or chance.random() < 0.5)  # noqa: PLR2004 - a coin
        shards += 1 if splits else -1
        plan.append((at_ms, SPLIT if splits else MERGE))
    return tuple(
        Incident(at=at_ms / duration_ms, kind=kind, once=kind == STRIKE)
        for at_ms, kind in sorted(plan)
    )


class Troublemaker:
    """
    Does the incidents of a scenario to a fleet.

    Args:
        fleet: the fleet; its ledger is read on by somebody else.
        clock: for the times of the scenario.
        seed: of its choices.
        say: told of each incident.

    Attributes:
        happenings: what was done so far.

    """

    def __init__(
        self,
        fleet: RunningFleet,
        *,
        clock: Clock,
        seed: int,
        say: Callable[[FleetDisturbance], None] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._random = random.Random(seed)
        self._say = say
        self._frozen: dict[int, int] = {}
        self.happenings: list[FleetDisturbance] = []

    async def run(self, scenario: Sequence[Incident], *, duration_ms: int) -> None:
        """
        Do all incidents of a scenario, each at its time; what is frozen goes on at the end.

        Raises:
            IncidentFailed: one could not be done within `WAIT_MOST_MS`.

        """
        began_ms = self._clock.monotonic_ms()
        try:
            for incident in scenario:
                due_ms = began_ms + incident.at * duration_ms
                await self._clock.sleep_ms(max(0, due_ms - self._clock.monotonic_ms()))
                await asyncio.to_thread(self._thaw)
                await self._until_done(incident)
        finally:
            self._thaw(everything=True)

    async def _until_done(self, incident: Incident) -> None:
        attempts: dict[str, Callable[[], str | None]] = {
            KILL_WORKER: self._kill_worker,
            KILL_MANAGER: self._kill_manager,
            STRIKE: self._strike,
            SPLIT: self._split,
            MERGE: self._merge,
            THROTTLE: self._throttle,
            WRONG_ANSWER: self._answer_wrongly,
        }
        attempt = attempts[incident.kind]
        deadline_ms = self._clock.monotonic_ms() + WAIT_MOST_MS
        while (obstacle := await asyncio.to_thread(attempt)) is not None and not incident.once:
            if self._clock.monotonic_ms() > deadline_ms:
                raise IncidentFailed(
                    f"{incident.kind}: not possible for {WAIT_MOST_MS // 1000} s: {obstacle}"
                )
            await self._clock.sleep_ms(POLL_MS)

    # Each of these does its incident and returns None, or returns what stands in its way.

    def _kill_worker(self) -> str | None:
        """Kill a process that is at work on shards that can be read."""
        alive = {each.pid for each in self._fleet.workers() if each.busy}
        at_work = sorted(pid for pid in alive if self._readable(self._fleet.ledger.shards_of(pid)))
        if not at_work:
            return f"none of the {len(alive)} busy worker processes has handled a record yet"
        least = min(map(self._hits, at_work))
        pid = self._random.choice([each for each in at_work if self._hits(each) == least])
        unfinished = {each.lease_key for each in self._fleet.leases() if not each.is_finished}
        return self._kill(
            "worker", pid, tuple(sorted(self._fleet.ledger.shards_of(pid) & unfinished))
        )

    def _kill_manager(self) -> str | None:
        busy = self._able(self._fleet.managers())
        return self._kill("manager", busy[0]) if busy else "the manager is not running just now"

    def _strike(self) -> str | None:
        """Kill or freeze one busy process."""
        wants_manager = self._random.randrange(MANAGER_ONE_IN) == 0
        wants_freeze = self._random.randrange(FREEZE_ONE_IN) == 0
        managers = self._able(self._fleet.managers())
        workers = self._able(self._fleet.workers())
        what = "manager" if managers and (wants_manager or not workers) else "worker"
        victims = managers if what == "manager" else workers
        if not victims:
            return "no process is busy"
        pid = self._random.choice(victims)
        return self._freeze(pid) if wants_freeze else self._kill(what, pid)

    def _able(self, processes: Iterable[WorkerProcess]) -> list[int]:
        return sorted(each.pid for each in processes if each.busy and each.pid not in self._frozen)

    def _kill(self, what: str, pid: int, shard_ids: tuple[str, ...] = ()) -> str | None:
        now_ms = self._clock.now_ms()
        if not self._fleet.kill(pid):
            return f"{what} process {pid} has just ended"
        names = ", ".join(short(each) for each in shard_ids)
        text = f"kill -9 of {what} process {pid}{', which was reading ' * bool(names)}{names}"
        self._note(f"kill {what}", text, at_ms=now_ms, pid=pid, shard_ids=shard_ids)
        return None

    def _freeze(self, pid: int) -> str | None:
        duration_ms = self._random.randint(*FREEZE_MS)
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return f"process {pid} has just ended"
        self._frozen[pid] = self._clock.monotonic_ms() + duration_ms
        self._note(FREEZE, f"process {pid} is frozen for {duration_ms / 1000:.1f} s", pid=pid)
        return None

    def _thaw(self, *, everything: bool = False) -> None:
        """
        Let frozen processes go on whose time has come.

        One that is no longer busy was stopped by Lambda itself after its reply: it stays so.
        """
        now_ms = self._clock.monotonic_ms()
        due = [pid for pid, until_ms in self._frozen.items() if everything or until_ms <= now_ms]
        if not due:
            return
        busy = {p.pid for p in (*self._fleet.workers(), *self._fleet.managers()) if p.busy}
        for pid in due:
            del self._frozen[pid]
            if pid in busy:
                os.kill(pid, signal.SIGCONT)

    def _hits(self, pid: int) -> int:
        """Count the kills that have hit a process's shards already: trouble goes round."""
        mine = self._fleet.ledger.shards_of(pid)
        kills = of_kind(self.happenings, KILL_WORKER)
        return sum(not mine.isdisjoint(kill.shard_ids) for kill in kills)

    def _readable(self, shard_ids: frozenset[str]) -> bool:
        now_ms = self._clock.now_ms()
        throttled = of_kind(self.happenings, THROTTLE)
        return any(
            shard.shard_id in shard_ids
            and not any(each.covers(shard.shard_id, now_ms) for each in throttled)
            for shard in open_shards(self._fleet.shards())
        )

    def _split(self) -> str | None:
        shard = self._random.choice(open_shards(self._fleet.shards()))
        return self._reshard(SPLIT, split_of(shard), f"split of {short(shard.shard_id)}")

    def _merge(self) -> str | None:
        shards = open_shards(self._fleet.shards())
        pairs = [
            (left, right)
            for left, right in itertools.pairwise(shards)
            if left.hash_key_range.end + 1 == right.hash_key_range.start
            and all(self._readable(frozenset({each.shard_id})) for each in (left, right))
        ]
        if not pairs:
            return "no two readable neighbours"
        left, right = self._random.choice(pairs)
        text = f"merge of {short(left.shard_id)} and {short(right.shard_id)}"
        return self._reshard(MERGE, merge_of(left, right), text)

    def _reshard(self, kind: str, request: Mapping[str, str], text: str) -> str | None:
        kinesis = self._fleet.aws.client("kinesis")
        call = kinesis.split_shard if kind == SPLIT else kinesis.merge_shards
        try:
            call(StreamARN=self._fleet.stream_arn, **request)
        except ClientError as error:
            return str(error)
        self._note(kind, text)
        return None

    def _throttle(self) -> str | None:
        shard_id = self._random.choice(open_shards(self._fleet.shards())).shard_id
        for kind in ("ThrottleReads", "Silence"):  # Whichever way it is read.
            self._fleet.inject({"Kind": kind, "ShardId": shard_id, "DurationMs": THROTTLED_MS})
        until_ms = self._clock.now_ms() + THROTTLED_MS
        text = f"{short(shard_id)} refuses every read for {THROTTLED_MS // 1000} s"
        self._note(THROTTLE, text, shard_ids=(shard_id,), until_ms=until_ms)
        return None

    def _answer_wrongly(self) -> str | None:
        fault = self._random.choice(WRONG_ANSWERS + WRONG_PUSHES * self._fleet.is_pushed)
        self._fleet.inject(fault)
        self._note(WRONG_ANSWER, f"the stream answers wrongly: {fault['Kind']}")
        return None

    def _note(self, kind: str, text: str, **more: Any) -> None:
        about = {"at_ms": self._clock.now_ms(), **more}
        self.happenings.append(FleetDisturbance(kind=kind, text=text, **about))
        self._say(self.happenings[-1])


def open_shards(shards: Iterable[Shard]) -> list[Shard]:
    """Return those that take records, in the order of their hash ranges."""
    return sorted((s for s in shards if s.is_open), key=lambda shard: shard.hash_key_range)


def split_of(shard: Shard) -> dict[str, str]:
    """Return what SplitShard is asked for, to halve a shard."""
    middle = (shard.hash_key_range.start + shard.hash_key_range.end + 1) // 2
    return {"ShardToSplit": shard.shard_id, "NewStartingHashKey": str(middle)}


def merge_of(left: Shard, right: Shard) -> dict[str, str]:
    """Return what MergeShards is asked for, of two neighbours."""
    return {"ShardToMerge": left.shard_id, "AdjacentShardToMerge": right.shard_id}


def short(shard_id: str) -> str:
    """Return a shard's number as people say it: `shardId-000000000003` is `shard 3`."""
    number = shard_id.rpartition("-")[2]
    return f"shard {int(number)}" if number.isdigit() else shard_id


def clock_text(elapsed_ms: float) -> str:
    """Return minutes and seconds: `1:05`."""
    seconds = max(0, math.floor(elapsed_ms / 1000))
    return f"{seconds // 60}:{seconds % 60:02d}"
