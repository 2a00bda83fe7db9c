"""
What is done to the fleet while records flow: kills, a split, a merge, a throttled minute.

Each incident waits until it can be done (a process to kill must be alive and at work), does it,
and notes what it did. The order and the spacing are those of `plan_incidents`; which shard and
which process come from the seed and from what is there.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import Clock
from shardfleet.errors import ShardfleetError
from shardfleet_local.rig.fleet import RunningFleet
from shardfleet_local.rig.recovery import Blackout, Kill
from shardfleet_local.rig.timeline import FleetDisturbance

THROTTLED_MS = 60_000
"""How long a shard refuses every read."""

WAIT_MOST_MS = 60_000
"""Longest wait until an incident can be done."""

POLL_MS = 100


class IncidentFailed(ShardfleetError):
    """An incident could not be done in time: the fleet is not in the state that it needs."""


@dataclass(slots=True)
class IncidentLog:
    """
    What was done.

    Attributes:
        happenings: everything, for a person and for the report.
        kills: of worker processes.
        manager_kills: how many.
        blackouts: shards that could not be read.
        reshards: splits and merges.

    """

    happenings: list[FleetDisturbance] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    manager_kills: int = 0
    blackouts: list[Blackout] = field(default_factory=list)
    reshards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """
    One thing to do.

    Attributes:
        at: when, as a part of the feed's duration (0 to 1).
        kind: ``kill worker``, ``kill manager``, ``split``, ``merge`` or ``throttle``.

    """

    at: float
    kind: str


FULL_SCENARIO = (
    Incident(at=0.10, kind="kill worker"),
    Incident(at=0.18, kind="split"),
    Incident(at=0.27, kind="kill worker"),
    Incident(at=0.33, kind="throttle"),
    Incident(at=0.42, kind="kill manager"),
    Incident(at=0.52, kind="merge"),
    Incident(at=0.62, kind="kill worker"),
    Incident(at=0.90, kind="kill worker"),
)
"""Four kills of workers, one of the manager, a split, a merge, a throttled minute."""


class Troublemaker:
    """
    Does the incidents of a scenario to a fleet.

    Args:
        fleet: the fleet; its ledger is read on by somebody else.
        clock: for the times of the scenario.
        seed: of its choices.
        say: told of each incident.

    Attributes:
        log: what was done so far.

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
        self.log = IncidentLog()

    async def run(self, scenario: tuple[Incident, ...], *, duration_ms: int) -> None:
        """
        Do all incidents of a scenario, each at its time.

        Raises:
            IncidentFailed: one could not be done within `WAIT_MOST_MS`.

        """
        began_ms = self._clock.monotonic_ms()
        for incident in scenario:
            due_ms = began_ms + incident.at * duration_ms
            await self._clock.sleep_ms(max(0, due_ms - self._clock.monotonic_ms()))
            await self._until_done(incident)

    async def _until_done(self, incident: Incident) -> None:
        attempts: dict[str, Callable[[], str | None]] = {
            "kill worker": self._kill_worker,
            "kill manager": self._kill_manager,
            "split": self._split,
            "merge": self._merge,
            "throttle": self._throttle,
        }
        deadline_ms = self._clock.monotonic_ms() + WAIT_MOST_MS
        while (obstacle := await asyncio.to_thread(attempts[incident.kind])) is not None:
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
        shard_ids = tuple(sorted(self._fleet.ledger.shards_of(pid) & unfinished))
        now_ms = self._clock.now_ms()
        if not self._fleet.kill(pid):
            return f"worker process {pid} has just ended"
        self.log.kills.append(Kill(at_ms=now_ms, pid=pid, shard_ids=shard_ids))
        names = ", ".join(short(each) for each in shard_ids)
        self._note("kill", f"kill -9 of worker process {pid}, which was reading {names}")
        return None

    def _hits(self, pid: int) -> int:
        """Count the kills that have hit a process's shards already: trouble goes round."""
        mine = self._fleet.ledger.shards_of(pid)
        return sum(not mine.isdisjoint(kill.shard_ids) for kill in self.log.kills)

    def _readable(self, shard_ids: frozenset[str]) -> bool:
        now_ms = self._clock.now_ms()
        still_open = {shard.shard_id for shard in self._open_shards()}
        return any(
            shard_id in still_open
            and not any(each.covers(shard_id, now_ms) for each in self.log.blackouts)
            for shard_id in shard_ids
        )

    def _kill_manager(self) -> str | None:
        busy = [each.pid for each in self._fleet.managers() if each.busy]
        if not busy:
            return "the manager is not running just now"
        if not self._fleet.kill(busy[0]):
            return "the manager has just ended"
        self.log.manager_kills += 1
        self._note("kill", f"kill -9 of manager process {busy[0]}")
        return None

    def _split(self) -> str | None:
        shard = self._random.choice(self._open_shards())
        bounds = shard.hash_key_range
        middle = (bounds.start + bounds.end + 1) // 2
        try:
            self._fleet.aws.client("kinesis").split_shard(
                StreamARN=self._fleet.stream_arn,
                ShardToSplit=shard.shard_id,
                NewStartingHashKey=str(middle),
            )
        except ClientError as error:
            return str(error)
        self.log.reshards += 1
        self._note("split", f"split of {short(shard.shard_id)}")
        return None

    def _merge(self) -> str | None:
        shards = [
            each for each in self._open_shards() if self._readable(frozenset({each.shard_id}))
        ]
        pairs = [
            (left, right)
            for left, right in itertools.pairwise(shards)
            if left.hash_key_range.end + 1 == right.hash_key_range.start
        ]
        if not pairs:
            return "no two readable neighbours"
        left, right = self._random.choice(pairs)
        try:
            self._fleet.aws.client("kinesis").merge_shards(
                StreamARN=self._fleet.stream_arn,
                ShardToMerge=left.shard_id,
                AdjacentShardToMerge=right.shard_id,
            )
        except ClientError as error:
            return str(error)
        self.log.reshards += 1
        self._note("merge", f"merge of {short(left.shard_id)} and {short(right.shard_id)}")
        return None

    def _throttle(self) -> str | None:
        shard_id = self._random.choice(self._open_shards()).shard_id
        self._fleet.inject(
            {"Kind": "ThrottleReads", "ShardId": shard_id, "DurationMs": THROTTLED_MS}
        )
        now_ms = self._clock.now_ms()
        until_ms = now_ms + THROTTLED_MS
        self.log.blackouts.append(Blackout(shard_id=shard_id, from_ms=now_ms, until_ms=until_ms))
        text = f"{short(shard_id)} refuses every read for {THROTTLED_MS // 1000} s"
        self._note("throttle", text, until_ms=until_ms)
        return None

    def _open_shards(self) -> list[Shard]:
        shards = [shard for shard in self._fleet.shards() if shard.is_open]
        return sorted(shards, key=lambda shard: shard.hash_key_range)

    def _note(self, kind: str, text: str, *, until_ms: int | None = None) -> None:
        happening = FleetDisturbance(
            at_ms=self._clock.now_ms(), kind=kind, text=text, until_ms=until_ms
        )
        self.log.happenings.append(happening)
        self._say(happening)


def short(shard_id: str) -> str:
    """Return a shard's number as people say it: `shardId-000000000003` is `shard 3`."""
    number = shard_id.rpartition("-")[2]
    return f"shard {int(number)}" if number.isdigit() else shard_id
