"""
A fleet without records in the simulation: it falls asleep, sleeps an hour, and wakes.

The manager and the workers are the production engine; calls take 2 to 40 ms there and back and
nothing fails. What an hour of sleep costs is counted in the units of the bill. Then shards are
split and merged in their sleep, and at last records come back to all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.usage import Consumption
from shardfleet.domain.leases.lease import Survey
from shardfleet.engine.ports import Conflict, Document, DocumentPage, Written
from shardfleet_testkit.checkers import Violation
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryLeaseStore, MemoryStateStore
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import SimulationLoop
from shardfleet_testkit.simulation.calm_fleet import MANAGER_EVERY_S, CalmFleet

_HOUR_S = 3_600.0
_PATIENCE_S = 1_800.0
# DynamoDB: 4 KB of a consistent read or 8 KB of another are a unit, and 1 KB of a write.
_READ_BYTES, _WRITE_BYTES = 4_096, 1_024
# A shard iterator of Kinesis: the memory stream's are shorter.
_ITERATOR_BYTES = 220
_MORE_THAN_A_LEASE = 100  # bytes of an item's attribute names
_MANAGER_MB = 256  # the construct's default
_LOG_BYTES = 4_000  # a turn's events and metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """
    How large a fleet, and how it sleeps.

    Attributes:
        shards: all open.
        sleep_after_ms: of the configuration.
        max_wake_ms: of the configuration.
        splits: shards that are split in their sleep.
        merges: pairs of neighbours that are merged.
        seed: of the delays.

    """

    shards: int = 100
    sleep_after_ms: int = 60_000
    max_wake_ms: int = 60_000
    splits: int = 3
    merges: int = 2
    seed: int = 1

    @property
    def config(self) -> FleetConfig:
        """Return the fleet's configuration: defaults but for its size and its sleep."""
        return FleetConfig(
            fleet="fleet",
            stream_arn=MEMORY_STREAM_ARN,
            lease_table="leases",
            state_table="state",
            sleep=True,
            sleep_after_ms=self.sleep_after_ms,
            max_wake_ms=self.max_wake_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """
    What one hour of sleep took.

    Attributes:
        worker_turns: invocations of the worker.
        manager_runs: invocations of the manager.
        manager_ms: how long they lasted in all.
        calls: port calls by operation.
        read_units: of DynamoDB, as billed on demand.
        write_units: likewise.

    """

    worker_turns: int
    manager_runs: int
    manager_ms: int
    calls: Mapping[str, int]
    read_units: float
    write_units: int

    @property
    def used(self) -> Consumption:
        """Return what the ledger counts, of a manager with the memory that it has by default."""
        return Consumption(
            mb_ms=self.manager_ms * _MANAGER_MB,
            requests=self.manager_runs,
            read_tenths=round(self.read_units * 10),
            # The ledger itself is one write per invocation.
            write_tenths=(self.write_units + self.manager_runs) * 10,
            log_bytes=self.manager_runs * _LOG_BYTES,
            scheduled_runs=self.manager_runs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleResult:
    """
    What a run came to.

    Attributes:
        asleep_s: from the last record until no worker ran.
        hour: of sleep.
        reshard_s: from the reshard until the children slept.
        children: of the reshard, each read by somebody before it slept.
        wakes_ms: from a record put into each sleeping shard until it was handled, sorted.
        records: put in all.
        lost: records that nobody handled.
        repetitions: records handled again.
        virtual_ms: how long the fleet lived.
        violations: none if all is well.

    """

    asleep_s: float
    hour: Hour
    reshard_s: float
    children: int
    wakes_ms: tuple[int, ...]
    records: int
    lost: int
    repetitions: int
    virtual_ms: int
    violations: tuple[Violation, ...]


class _Meter:
    """What DynamoDB would bill."""

    def __init__(self) -> None:
        self.read_units = 0.0
        self.write_units = 0

    def read(self, size: int, *, consistent: bool = True) -> None:
        self.read_units += max(1, -(-size // _READ_BYTES)) * (1.0 if consistent else 0.5)

    def write(self, size: int) -> None:
        self.write_units += max(1, -(-size // _WRITE_BYTES))


def _size(kind: str, body: Mapping[str, Any]) -> int:
    """Return about how many bytes an item has; iterators as long as Kinesis' are."""
    iterators = len(json.loads(body["leases"])) if kind == "glances" else kind == "nap"
    return len(json.dumps(body)) + len(kind) + iterators * _ITERATOR_BYTES + 60


class _MeteredState(MemoryStateStore):
    def __init__(self, meter: _Meter) -> None:
        super().__init__()
        self._meter = meter

    async def read(self, kind: str, id: str) -> Document | None:  # noqa: A002 - the port's name
        found = await super().read(kind, id)
        self._meter.read(0 if found is None else _size(kind, found.body))
        return found

    async def list(self, kind: str) -> Sequence[Document]:
        found = await super().list(kind)
        self._meter.read(sum(_size(kind, document.body) for document in found))
        return found

    async def page(self, after: tuple[str, str] | None = None) -> DocumentPage:
        found = await super().page(after)
        size = sum(_size(each.kind, each.body) for each in found.documents)
        self._meter.read(size, consistent=False)
        return found

    async def write(
        self,
        kind: str,
        id: str,  # noqa: A002 - the port's name
        body: Mapping[str, Any],
        *,
        expected_version: int | None,
        expires_ms: int | None = None,
    ) -> Written | Conflict:
        # A refused write is billed, too.
        self._meter.write(_size(kind, body))
        return await super().write(
            kind, id, body, expected_version=expected_version, expires_ms=expires_ms
        )

    async def increment(self, kind: str, id: str) -> int:  # noqa: A002 - the port's name
        self._meter.write(1)
        return await super().increment(kind, id)

    async def delete(self, kind: str, id: str, *, expected_version: int) -> bool:  # noqa: A002
        found = self.documents.get((kind, id))
        self._meter.write(1 if found is None else _size(kind, found.body))
        return await super().delete(kind, id, expected_version=expected_version)


class _MeteredLeases(MemoryLeaseStore):
    def __init__(self, meter: _Meter) -> None:
        super().__init__()
        self._meter = meter

    async def survey(self) -> Survey:
        found = await super().survey()
        size = sum(len(repr(lease)) // 2 + _MORE_THAN_A_LEASE for lease in found.leases)
        self._meter.read(size, consistent=False)
        return found


def run_idle(idle: Idle) -> IdleResult:
    """Run one idle fleet."""
    return run_virtual(_IdleRun(idle).run(), loop_factory=SimulationLoop)


class _IdleRun:
    def __init__(self, idle: Idle) -> None:
        self._idle = idle
        self._meter = _Meter()

    async def run(self) -> IdleResult:
        """Read a record of each shard, sleep, reshard, sleep again, wake."""
        self._deploy()
        around = self._fleet.around
        around.spawn(self._schedule(), "schedule")
        await self._until(lambda: len(self._fleet.leases.store.leases) >= self._idle.shards)
        self._put_everywhere()
        await self._until(self._fleet.all_read)
        asleep_s = await self._until(self._sleeps)
        hour = await self._hour()
        reshard_s, children = await self._reshard()
        self._put_everywhere()
        await self._until(self._fleet.all_read)
        wakes_ms = self._wakes()
        await self._until(self._sleeps)
        self._fleet.judge()
        self._fleet.kill()
        return IdleResult(
            asleep_s=asleep_s,
            hour=hour,
            reshard_s=reshard_s,
            children=children,
            wakes_ms=wakes_ms,
            records=around.ledger.records,
            lost=sum(1 for _ in around.ledger.unfinished()),
            repetitions=around.ledger.repetitions,
            virtual_ms=around.now_ms,
            violations=tuple(around.violations),
        )

    def _deploy(self) -> None:
        idle = self._idle
        self._fleet = CalmFleet(
            idle.config, seed=idle.seed, shards=idle.shards, state=_MeteredState(self._meter)
        )
        self._fleet.leases.store = _MeteredLeases(self._meter)
        self._manager_runs = self._manager_ms = 0

    async def _schedule(self) -> None:
        while True:
            before = set(self._fleet.functions.alive)
            self._fleet.call_manager()
            for actor in set(self._fleet.functions.alive) - before:
                self._fleet.around.spawn(self._time(actor.ended), "timer")
            await asyncio.sleep(MANAGER_EVERY_S)

    async def _time(self, ended: asyncio.Future[Any]) -> None:
        began_ms = self._fleet.around.now_ms
        await asyncio.wait([ended])
        self._manager_runs += 1
        self._manager_ms += self._fleet.around.now_ms - began_ms

    async def _until(self, condition: Callable[[], bool]) -> float:
        return await self._fleet.until(condition, patience_s=_PATIENCE_S)

    def _sleeps(self) -> bool:
        """Return whether no worker runs, and every open shard has a lease that nobody has."""
        leases = self._fleet.leases.store.leases
        unfinished = {key for key, lease in leases.items() if not lease.is_finished}
        is_owned = any(leases[key].lease_owner for key in unfinished)
        workers = any(actor.worker_id for actor in self._fleet.functions.alive)
        is_complete = unfinished == set(self._fleet.stream.memory.open_shard_ids)
        return is_complete and not is_owned and not workers

    def _put_everywhere(self) -> None:
        """Put a record into each open shard, by as many keys as it takes to meet them all."""
        waiting = set(self._fleet.stream.memory.open_shard_ids)
        for number in count():
            if not waiting:
                break
            key = f"key-{number}"
            if self._fleet.stream.shard_of(key) in waiting:
                waiting.remove(self._fleet.stream.shard_of(key))
                self._fleet.stream.put(key)
        self._last_put_ms = self._fleet.around.now_ms

    async def _hour(self) -> Hour:
        meter, functions = self._meter, self._fleet.functions
        await asyncio.sleep(MANAGER_EVERY_S)
        calls, turns = self._fleet.around.calls.copy(), functions.turns
        runs, runs_ms = self._manager_runs, self._manager_ms
        reads, writes = meter.read_units, meter.write_units
        await asyncio.sleep(_HOUR_S)
        return Hour(
            worker_turns=functions.turns - turns,
            manager_runs=self._manager_runs - runs,
            manager_ms=self._manager_ms - runs_ms,
            calls=dict(sorted((self._fleet.around.calls - calls).items())),
            read_units=meter.read_units - reads,
            write_units=meter.write_units - writes,
        )

    async def _reshard(self) -> tuple[float, int]:
        """Split and merge shards in their sleep; wait until all sleep again."""
        open_ids = list(self._fleet.stream.memory.open_shard_ids)
        before = set(open_ids)
        for shard_id in open_ids[: self._idle.splits]:
            self._fleet.stream.split(shard_id)
        pairs = open_ids[self._idle.splits :]
        for number in range(self._idle.merges):
            self._fleet.stream.merge(pairs[2 * number], pairs[2 * number + 1])
        elapsed_s = await self._until(self._sleeps)
        return elapsed_s, len(set(self._fleet.stream.memory.open_shard_ids) - before)

    def _wakes(self) -> tuple[int, ...]:
        ledger = self._fleet.around.ledger
        return tuple(
            sorted(
                entry.at_ms - entry.put_ms
                for truth in ledger.shards.values()
                for entry in truth.entries
                if entry.put_ms == self._last_put_ms
            )
        )


def body_of(idle: Idle, result: IdleResult) -> dict[str, Any]:
    """Return a result as JSON-like values."""
    body = asdict(result)
    body["violations"] = [str(violation) for violation in result.violations]
    body["calls_per_shard_hour"] = {
        name: round(n / idle.shards, 2) for name, n in Counter(result.hour.calls).items()
    }
    return {"idle": asdict(idle), **body}
