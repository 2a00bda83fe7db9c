"""
A large fleet in the simulation: how long until every shard is read again after a great loss.

The manager, the workers and their renewals are the production engine; calls take 1 to 20 ms and
nothing fails but what is lost on purpose. No records flow and idle shards are read rarely: what is
measured is ownership, and what it costs at the lease table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from shardfleet.config import FleetConfig
from shardfleet_testkit.checkers import (
    CHECKERS,
    Checker,
    LeaseWrite,
    Violation,
    WhoRenewsReads,
    Window,
)
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import Actor, SimulationLoop
from shardfleet_testkit.simulation.calm_fleet import MANAGER_EVERY_S, CalmFleet

_SAMPLE_S = 1.0
_TOLD_EVERY = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """
    How large, and for how long.

    Attributes:
        shards: all open.
        slots: workers; the fleet keeps as many.
        leases_most: most leases one worker holds; more than shards / slots leaves room.
        lost_part: of the slots are lost at once, e.g. 0.1.
        idle_read_ms: pause after an empty read.
        settle_s: after each recovery, virtual seconds; long enough for a turn of the manager.
        window_s: how long the quiet fleet is measured.
        patience_s: a recovery that takes longer is given up.
        seed: of the delays.

    """

    shards: int = 10_000
    slots: int = 1_000
    leases_most: int = 12
    lost_part: float = 0.1
    idle_read_ms: int = 60_000
    settle_s: float = 30.0
    window_s: float = 60.0
    patience_s: float = 1_800.0
    seed: int = 1

    @property
    def config(self) -> FleetConfig:
        """Return the fleet's configuration: defaults but for its size and idle reads."""
        return FleetConfig(
            fleet="fleet",
            stream_arn=MEMORY_STREAM_ARN,
            lease_table="leases",
            state_table="state",
            leases_per_worker=self.leases_most,
            min_workers=self.slots,
            max_workers=self.slots,
            idle_read_ms=self.idle_read_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """
    From a loss, or from nothing, to full ownership.

    Attributes:
        name: what was lost.
        slots_lost: how many.
        leases_lost: how many were theirs.
        half_s: until half of them were renewed by a living owner.
        most_s: until 99 % of them were.
        full_s: until all were; None: not within the patience.
        moved: leases that changed hands until then.
        moved_in_vain: of those, leases of workers that were not lost. Not among them is what such
            a worker itself hands to one whose leases were taken: a slot that starts again in the
            turn that gives what it had to others has none, and gets its share from those with most.
        curve: seconds since the loss, and leases that no living owner has renewed yet.
        calls: port calls by operation until then.

    """

    name: str
    slots_lost: int
    leases_lost: int
    half_s: float | None
    most_s: float | None
    full_s: float | None
    moved: int
    moved_in_vain: int
    curve: tuple[tuple[float, int], ...]
    calls: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """
    What a scale run came to.

    Attributes:
        recoveries: from nothing, processes killed, executions gone.
        quiet: the window without a loss.
        per_shard_hour: port calls by operation in that window, per shard and hour.
        virtual_ms: how long the fleet lived.
        violations: none if all is well.

    """

    recoveries: tuple[Recovery, ...]
    quiet: Window
    per_shard_hour: dict[str, float]
    virtual_ms: int
    violations: tuple[Violation, ...]


class _Served(Checker):
    """
    Which leases a living owner has renewed.

    Attributes:
        waiting: lease keys of which that is not so.
        moved: leases that changed hands, by the worker that they were taken from and, if that one
            handed them over, by the next; else by None.

    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.waiting: set[str] = set()
        self.moved: Counter[tuple[str | None, str | None]] = Counter()

    def lease_written(self, write: LeaseWrite) -> None:
        """Take a lease off the list when its owner writes to it."""
        after = write.after
        if after is None:
            return
        if write.before is None:
            self.waiting.add(after.lease_key)
        elif write.before.effective_owner not in (None, after.effective_owner):
            owner = write.before.effective_owner
            handed_to = after.effective_owner if write.by.worker_id == owner else None
            self.moved[owner, handed_to] += 1
        if write.by.worker_id and write.by.worker_id == after.effective_owner:
            self.waiting.discard(after.lease_key)


def run_scale(scale: Scale, say: Callable[[str], None]) -> ScaleResult:
    """Run one large fleet; ``say`` is told of each phase."""
    return run_virtual(_ScaleRun(scale, say).run(), loop_factory=SimulationLoop)


class _ScaleRun:
    def __init__(self, scale: Scale, say: Callable[[str], None]) -> None:
        self._scale = scale
        self._say = say

    async def run(self) -> ScaleResult:
        """Build the fleet from nothing, measure it quiet, then lose a part of it twice."""
        self._deploy()
        around = self._fleet.around
        around.spawn(self._schedule(), "schedule")
        recoveries = [await self._recover("from nothing", slots=[])]
        await asyncio.sleep(self._scale.settle_s)
        quiet, rates = await self._quiet()
        for name, is_gone in (("processes killed", False), ("executions gone", True)):
            slots = self._chosen()
            self._lose(slots, is_gone=is_gone)
            recoveries.append(await self._recover(name, slots=slots))
            await asyncio.sleep(self._scale.settle_s)
        self._fleet.kill()
        return ScaleResult(
            recoveries=tuple(recoveries),
            quiet=quiet,
            per_shard_hour=rates,
            virtual_ms=around.now_ms,
            violations=tuple(around.violations),
        )

    def _deploy(self) -> None:
        # Idle shards are read more rarely here than a working fleet would.
        kept = (kind for kind in CHECKERS if kind is not WhoRenewsReads)
        scale = self._scale
        self._fleet = CalmFleet(
            scale.config, seed=scale.seed, shards=scale.shards, checkers=(*kept, _Served)
        )
        self._served = self._fleet.checker(_Served)

    async def _schedule(self) -> None:
        while True:
            self._fleet.call_manager()
            await asyncio.sleep(MANAGER_EVERY_S)

    def _chosen(self) -> list[str]:
        """Draw the slots that are lost."""
        names = sorted({actor.name.split("#")[0] for actor in self._workers()})
        count = round(len(names) * self._scale.lost_part)
        return self._fleet.around.chance(f"loss at {self._fleet.around.now_ms}").sample(
            names, count
        )

    def _workers(self) -> list[Actor]:
        return [actor for actor in self._fleet.functions.alive if actor.worker_id]

    def _lose(self, slots: list[str], *, is_gone: bool) -> None:
        lost = {f"{self._scale.config.fleet}-{slot_id}" for slot_id in slots}
        for lease in self._fleet.leases.store.leases.values():
            if lease.effective_owner in lost:
                self._served.waiting.add(lease.lease_key)
        for slot_id in slots if is_gone else ():
            self._fleet.machine.abort(slot_id)
        for actor in self._workers():
            if actor.worker_id in lost:
                actor.suffered("killed")
                actor.kill()

    async def _recover(self, name: str, *, slots: list[str]) -> Recovery:
        """Wait until a living owner has renewed every lease."""
        around, waiting = self._fleet.around, self._served.waiting
        began_ms, calls, moved = around.now_ms, around.calls.copy(), self._served.moved.copy()
        whole = len(waiting) or self._scale.shards
        curve = [(0.0, whole)]
        while not self._is_over(curve[-1][0]):
            await asyncio.sleep(_SAMPLE_S)
            missing = self._scale.shards - len(self._fleet.leases.store.leases)
            curve.append(((around.now_ms - began_ms) / 1000, len(waiting) + missing))
            if len(curve) % _TOLD_EVERY == 0:
                self._say(f"{name}: {curve[-1][1]:,} leases wait after {curve[-1][0]:.0f} s")
        lost = {f"{self._scale.config.fleet}-{slot_id}" for slot_id in slots}
        moves = self._served.moved - moved
        robbed = lost & {owner for owner, _ in moves}
        recovery = Recovery(
            name=name,
            slots_lost=len(slots),
            leases_lost=whole,
            half_s=_reached(curve, whole // 2),
            most_s=_reached(curve, whole // 100),
            full_s=_reached(curve, 0),
            moved=moves.total(),
            moved_in_vain=sum(n for hands, n in moves.items() if robbed.isdisjoint(hands)),
            curve=tuple(curve),
            calls=dict(sorted((around.calls - calls).items())),
        )
        self._say(str(replace(recovery, curve=())))
        return recovery

    def _is_over(self, elapsed_s: float) -> bool:
        are_all_there = len(self._fleet.leases.store.leases) >= self._scale.shards
        if are_all_there and not self._served.waiting:
            return True
        return bool(self._fleet.around.violations) or elapsed_s >= self._scale.patience_s

    async def _quiet(self) -> tuple[Window, dict[str, float]]:
        around, scale = self._fleet.around, self._scale
        calls, changes = around.calls.copy(), self._fleet.leases.owner_changes
        await asyncio.sleep(scale.window_s)
        window = Window(
            duration_ms=round(scale.window_s * 1000),
            shards=scale.shards,
            calls=dict(sorted((around.calls - calls).items())),
            owner_changes=self._fleet.leases.owner_changes - changes,
            renew_ms=scale.config.renew_ms,
        )
        for checker in around.checkers:
            checker.calm_window(around.now_ms, window)
        shard_hours = scale.shards * scale.window_s / 3_600
        rates = {name: round(n / shard_hours, 2) for name, n in window.calls.items()}
        self._say(f"quiet: {window}, per shard-hour {rates}")
        return window, rates


def _reached(curve: list[tuple[float, int]], level: int) -> float | None:
    return next((at_s for at_s, waiting in curve if waiting <= level), None)
