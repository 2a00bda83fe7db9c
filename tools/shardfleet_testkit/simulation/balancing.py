"""
A fleet whose shards are unevenly loaded in the simulation: how evenly its slots come to carry them.

The manager and the workers are the production engine; calls take 2 to 40 ms there and back and
nothing fails. The shards' loads follow Zipf's law and, at the beginning, the heaviest ones are all
on one slot; or they are dealt by chance. What the fleet knows of them is what its workers measure.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from shardfleet.config import FleetConfig
from shardfleet.engine.ports import Clock
from shardfleet.events.base import Event
from shardfleet.events.manager import HandoverForced, LeaseAssigned, ManagerTurnDone
from shardfleet.records import Batch
from shardfleet_testkit.checkers import CHECKERS, Checker, Suspect, Violation
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import Actor, SimulationLoop
from shardfleet_testkit.simulation.calm_fleet import MANAGER_EVERY_S, CalmFleet
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_handler import UserHandler

_PATIENCE_S = 600.0
# Half as many calls as by default; a renewal interval's throughput is rougher by that.
_READ_EVERY_MS = 1_000
# What comes in a second is put as one record, as a producer that aggregates would.
_PUT_EVERY_S = 1.0
# The size of what comes varies as if it were single events of so many bytes.
_EVENT_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """
    How large a fleet, how uneven, and who evens it out.

    Attributes:
        shards: all open.
        slots: workers; the fleet keeps as many.
        exponent: of Zipf's law: the n-th shard carries a share of ``n ** -exponent``.
        starts_together: the heaviest shards are on one slot at first; else dealt by chance.
        assignment: of the configuration.
        total_kbps: what comes in all.
        busy_percent: part of its time that a slot's handler would be at work if all were even;
            0: handlers overlap, so that nobody measures that and throughput decides.
        runs: balancing runs before the fleet is watched.
        watched_runs: how many more, one a minute.
        seed: of the delays, sizes and the dealing.

    """

    shards: int = 64
    slots: int = 8
    exponent: float = 1.0
    starts_together: bool = True
    assignment: str = "balanced"
    total_kbps: float = 800.0
    busy_percent: int = 0
    runs: int = 10
    watched_runs: int = 60
    seed: int = 1

    @property
    def config(self) -> FleetConfig:
        """Return the fleet's configuration: defaults but for its size."""
        return FleetConfig(
            fleet="fleet",
            stream_arn=MEMORY_STREAM_ARN,
            lease_table="leases",
            state_table="state",
            assignment=self.assignment,
            leases_per_worker=2 * self.shards // self.slots,
            min_workers=self.slots,
            max_workers=self.slots,
            busy_read_ms=_READ_EVERY_MS,
        )

    @property
    def rates(self) -> tuple[float, ...]:
        """Return KB/s of each shard, the heaviest first."""
        weights = [rank**-self.exponent for rank in range(1, self.shards + 1)]
        return tuple(self.total_kbps * weight / sum(weights) for weight in weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenResult:
    """
    What a run came to.

    Attributes:
        at_first: the most loaded slot as a part of max(average, heaviest shard), at the beginning.
        ratios: the same a minute after each balancing run began, so with its handovers done.
        moves: leases given to another slot in that minute.
        balancing_runs: how many there were, as the managers tell: one a minute.
        moves_watched: in the time after the first ``runs``.
        forced: handovers that the old owner did not end in time.
        records: put in all.
        lost: records that nobody handled.
        repetitions: records handled again.
        virtual_ms: how long the fleet lived.
        violations: none if all is well.

    """

    at_first: float
    ratios: tuple[float, ...]
    moves: tuple[int, ...]
    balancing_runs: int
    moves_watched: int
    forced: int
    records: int
    lost: int
    repetitions: int
    virtual_ms: int
    violations: tuple[Violation, ...]


class _Told(Checker):
    """
    What the managers tell.

    Attributes:
        turns: by invocation.
        given: leases given to a slot.
        forced: handovers that the old owner did not end in time.

    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.turns: Counter[str] = Counter()
        self.given = 0
        self.forced = 0

    def balancing_runs(self, every: int) -> int:
        """Return how many turns evened out load: the first of an invocation, then each so many."""
        return sum(-(-turns // every) for turns in self.turns.values())

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Count an event."""
        del at_ms
        self.turns[by.name] += isinstance(event, ManagerTurnDone)
        self.given += isinstance(event, LeaseAssigned)
        self.forced += isinstance(event, HandoverForced)


class _SteadyHandler(UserHandler):
    """Takes as long as a batch is large."""

    def __init__(
        self, actor: Actor, around: Surroundings, clock: Clock, *, seconds_per_kb: float
    ) -> None:
        super().__init__(actor, around, clock, overlaps=not seconds_per_kb)
        self._seconds_per_kb = seconds_per_kb

    async def _script(self, batch: Batch) -> None:
        size_kb = sum(len(record.data) for record in batch) / 1024
        await asyncio.sleep(size_kb * self._seconds_per_kb)
        self._actor.check()
        for record in batch:
            self._take_effect(batch, record)


@lru_cache(maxsize=4_096)
def _payload(events: int) -> bytes:
    """Return a second's worth of events; the ledger and the stream share it."""
    return bytes(max(1, events) * _EVENT_BYTES)


def run_uneven(uneven: Uneven) -> UnevenResult:
    """Run one unevenly loaded fleet."""
    return run_virtual(_UnevenRun(uneven).run(), loop_factory=SimulationLoop)


class _UnevenRun:
    def __init__(self, uneven: Uneven) -> None:
        self._uneven = uneven
        self._rate_of: dict[str, float] = {}
        self._puts = True

    async def run(self) -> UnevenResult:
        """Spread idle shards by count, load them unevenly, watch balancing run after run."""
        self._deploy()
        around, uneven, told = self._fleet.around, self._uneven, self._told
        around.spawn(self._schedule(), "schedule")
        await self._until(self._is_spread)
        await self._next_minute()
        self._load()
        at_first = self._ratio()
        await self._next_minute()  # So that the first run finds something measured.
        ratios, moves, every = [], [], uneven.config.rebalance_turns
        runs_before = told.balancing_runs(every)
        for _ in range(uneven.runs + uneven.watched_runs):
            before = told.given
            await self._next_minute()
            ratios.append(self._ratio())
            moves.append(told.given - before)
        balancing_runs = told.balancing_runs(every) - runs_before
        self._puts = False
        await self._until(self._fleet.all_read)
        self._fleet.judge()
        self._fleet.kill()
        return UnevenResult(
            at_first=at_first,
            ratios=tuple(ratios),
            moves=tuple(moves),
            balancing_runs=balancing_runs,
            moves_watched=sum(moves[uneven.runs :]),
            forced=told.forced,
            records=around.ledger.records,
            lost=sum(1 for _ in around.ledger.unfinished()),
            repetitions=around.ledger.repetitions,
            virtual_ms=around.now_ms,
            violations=tuple(around.violations),
        )

    def _deploy(self) -> None:
        uneven = self._uneven
        self._fleet = CalmFleet(
            uneven.config,
            seed=uneven.seed,
            shards=uneven.shards,
            checkers=(*CHECKERS, _Told),
            handlers_overlap=not uneven.busy_percent,
        )
        self._told = self._fleet.checker(_Told)
        even_kbps = uneven.total_kbps / uneven.slots
        self._fleet.functions.handler_of = lambda actor, clock: _SteadyHandler(
            actor, self._fleet.around, clock, seconds_per_kb=uneven.busy_percent / 100 / even_kbps
        )
        self._minute = asyncio.Event()

    async def _schedule(self) -> None:
        while True:
            self._minute.set()
            self._minute = asyncio.Event()
            self._fleet.call_manager()
            await asyncio.sleep(MANAGER_EVERY_S)

    async def _next_minute(self) -> None:
        await self._minute.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._fleet.until(condition, patience_s=_PATIENCE_S)

    def _owners(self) -> dict[str, str]:
        leases = self._fleet.leases.store.leases
        return {key: leases[key].effective_owner or "" for key in sorted(leases)}

    def _is_spread(self) -> bool:
        """Return whether each slot has as many shards as the others."""
        counts = Counter(self._owners().values())
        each = self._uneven.shards // self._uneven.slots
        return counts.total() == self._uneven.shards and set(counts.values()) == {each}

    def _load(self) -> None:
        """Deal the loads to the shards, and let records flow."""
        owners = self._owners()
        shard_ids = sorted(owners, key=lambda key: (owners[key], key))
        if not self._uneven.starts_together:
            self._fleet.around.chance("dealing").shuffle(shard_ids)
        self._rate_of = dict(zip(shard_ids, self._uneven.rates, strict=True))
        waiting, number = set(shard_ids), 0
        while waiting:
            key, number = f"key-{number}", number + 1
            if self._fleet.stream.shard_of(key) in waiting:
                waiting.remove(self._fleet.stream.shard_of(key))
                self._fleet.around.spawn(self._produce(key), f"producer of {key}")

    async def _produce(self, key: str) -> None:
        """Put what comes for one shard, each second."""
        chance = self._fleet.around.chance(f"load/{key}")
        kbps = self._rate_of[self._fleet.stream.shard_of(key)]
        events = kbps * 1024 * _PUT_EVERY_S / _EVENT_BYTES
        await asyncio.sleep(chance.uniform(0, _PUT_EVERY_S))
        while self._puts:
            # As many as a Poisson process brings.
            count = round(chance.gauss(events, events**0.5))
            self._fleet.stream.send(key, [_payload(count)])
            await asyncio.sleep(_PUT_EVERY_S)

    def _ratio(self) -> float:
        """Return the most loaded slot as a part of max(average, heaviest shard)."""
        loads: defaultdict[str, float] = defaultdict(float)
        for key, owner in self._owners().items():
            loads[owner] += self._rate_of[key]
        most = max(loads.values())
        return most / max(self._uneven.total_kbps / self._uneven.slots, *self._rate_of.values())
