"""Handing over leases of a fleet under load, and what that cost: duplicates, losses, pauses."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from embedded_fleet import Delivered, FleetUnderLoad, fleet_under_load, wait_until

from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import Assignment, AssignmentKind
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import Quoted
from shardfleet.domain.slots.slot import Slot
from shardfleet.engine.manager.assigner import Assigner
from shardfleet.engine.retry import Box
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.base import Event
from shardfleet.events.manager import LeaseAssigned

TOGETHER = 4
"""So many leases change hands at once, half of them in either direction."""

HANDOVER_MOST_S = 60.0
AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Handover:
    """
    One lease that changed hands.

    Attributes:
        shard_id: whose.
        begun_ms: when it was begun, epoch milliseconds.
        let_go_ms: from then until the table said that the old owner had let go.
        pause_ms: from the old owner's last batch to the end of the next owner's first.
        waits_ms: usual time between two batches of that shard.

    """

    shard_id: str
    begun_ms: int
    let_go_ms: int
    pause_ms: int
    waits_ms: int


@dataclass(frozen=True, kw_only=True)
class Handovers:
    """What a run of handovers came to."""

    handovers: tuple[Handover, ...]
    delivered: Delivered
    forced: int
    lasted_s: float
    shards: int
    records_per_s: float

    def body(self) -> dict[str, Any]:
        """Return it JSON-like, with medians and maxima."""
        pauses = [each.pause_ms for each in self.handovers]
        per_shard: dict[str, list[int]] = {}
        for each in self.handovers:
            per_shard.setdefault(each.shard_id, []).append(each.pause_ms)
        return {
            "handovers": len(self.handovers),
            "forced": self.forced,
            **asdict(self.delivered),
            "pause_ms": _spread(pauses),
            "let_go_ms": _spread([each.let_go_ms for each in self.handovers]),
            "usual_gap_ms": _spread([each.waits_ms for each in self.handovers]),
            "pause_ms_per_lease": {key: _spread(v) for key, v in sorted(per_shard.items())},
            "shards": self.shards,
            "records_per_s": self.records_per_s,
            "lasted_s": round(self.lasted_s, 1),
            "each": [asdict(each) for each in self.handovers],
        }


def _spread(values: list[int]) -> dict[str, float]:
    return {"median": statistics.median(values), "max": max(values), "min": min(values)}


@dataclass
class _Told:
    """The events of the assigner that works here."""

    kinds: Counter[str] = field(default_factory=Counter)

    def emit(self, event: Event) -> None:
        name = event.kind if isinstance(event, LeaseAssigned) else type(event).__name__
        self.kinds[name] += 1


def hand_over(
    count: int, *, shards: int = 8, records_per_s: float = 400, say: Callable[[str], None] = print
) -> Handovers:
    """
    Move leases between two workers under load, and judge.

    The moves are planned here, and carried out by the engine's own assigner exactly as the manager
    does it; the fleet's manager goes on beside it.
    """
    config = {
        "min_workers": 2,
        "max_workers": 2,
        "leases_per_worker": shards,
        "assignment": "count",
        "max_batch_records": 50,
    }
    with fleet_under_load(
        shards=shards, config=config, records_per_s=records_per_s, per_record_ms=2, say=say
    ) as load:
        say("waiting for two workers with half of the shards each")
        wait_until(lambda: _is_even(load, shards), what="an even fleet", within_s=180)
        began = time.monotonic()
        mover = asyncio.run(_Mover(load, say).move(count))
        time.sleep(2)
        load.feed.stop()
        wait_until(load.drained, what="every record handled", within_s=120)
        say("judging")
        time.sleep(1)
        return Handovers(
            handovers=tuple(mover.measured()),
            delivered=load.delivered(),
            forced=mover.forced,
            lasted_s=time.monotonic() - began,
            shards=shards,
            records_per_s=records_per_s,
        )


def _is_even(load: FleetUnderLoad, shards: int) -> bool:
    counts = Counter(load.owners().values())
    return load.is_settled(workers=2) and sorted(counts.values()) == [shards // 2] * 2


def _box() -> Box:
    """Return the time of a wave: none of its few calls is left out."""
    return Box(SystemClock(), SystemClock().monotonic_ms() + 60_000)


@dataclass(frozen=True)
class _Begun:
    shard_id: str
    begun_ms: int
    let_go_ms: int
    old_pid: int | None


class _Mover:
    def __init__(self, load: FleetUnderLoad, say: Callable[[str], None]) -> None:
        self._load = load
        self._say = say
        self._events = _Told()
        self._begun: list[_Begun] = []
        self.forced = 0

    async def move(self, count: int) -> _Mover:
        fleet = self._load.fleet
        config = FleetConfig.from_env(self._environment())
        pool = ThreadPool("mover", threads=4)
        client = fleet.aws.client("dynamodb")
        tables = TablePools(writes=pool, reads=pool, write_client=client, read_client=client)
        leases = DynamoDBLeaseStore(config.lease_table, tables, events=self._events)
        state = FleetState(DynamoDBStateStore(config.state_table, tables), SystemClock())
        assigner = Assigner(leases=leases, state=state, events=self._events)
        try:
            while len(self._begun) < count:
                await self._wave(assigner, most=count - len(self._begun))
                self._say(f"{len(self._begun)} leases handed over")
        finally:
            await pool.close(within_ms=10_000)
        return self

    def _environment(self) -> dict[str, str]:
        found = self._load.fleet.aws.client("lambda").get_function_configuration(
            FunctionName=self._load.fleet.stack.outputs["ManagerFunction"]
        )
        variables: dict[str, str] = found["Environment"]["Variables"]
        return variables

    async def _wave(self, assigner: Assigner, *, most: int) -> None:
        """Exchange some leases, and wait until their next owners have handled records."""
        able = self._load.slots()
        chosen = self._chosen(able, min(most, TOGETHER))
        old_pids = {a.lease.lease_key: self._load.pid_of(a.lease.lease_key) for a in chosen}
        begun_ms = time.time_ns() // 1_000_000
        await assigner.carry_out(chosen, able.values(), graceful=able.keys(), box=_box())
        waiting = {a.lease.lease_key: a.worker_id for a in chosen}
        let_go: dict[str, int] = {}
        deadline, again_s = time.monotonic() + HANDOVER_MOST_S, time.monotonic() + AGAIN_S
        while waiting and time.monotonic() < deadline:
            if time.monotonic() > again_s:
                again_s += AGAIN_S
                await self._once_more(assigner, waiting)
            owners = await asyncio.to_thread(self._load.owners)
            now_ms = time.time_ns() // 1_000_000
            for key, worker_id in list(waiting.items()):
                if owners.get(key) != worker_id:
                    continue
                let_go.setdefault(key, now_ms - begun_ms)
                if self._load.pid_of(key) not in (None, old_pids[key]):
                    del waiting[key]
            await asyncio.sleep(0.05)
        if waiting:
            raise TimeoutError(f"not handed over within {HANDOVER_MOST_S} s: {waiting}")
        limit_ms = 40_000
        self.forced += sum(took_ms > limit_ms for took_ms in let_go.values())
        self._begun += [_Begun(k, begun_ms, took_ms, old_pids[k]) for k, took_ms in let_go.items()]

    async def _once_more(self, assigner: Assigner, waiting: dict[str, str]) -> None:
        """Begin what was not begun: a slot takes no leases while its worker is replaced."""
        able, leases = self._load.slots(), self._load.fleet.leases()
        left = [
            Assignment(lease, target, AssignmentKind.STEAL, Quoted("benchmark"))
            for lease in leases
            if (target := waiting.get(lease.lease_key)) in able
            and lease.checkpoint_owner is None
            and lease.lease_owner in able.keys() - {target}
        ]
        await assigner.carry_out(left, able.values(), graceful=able.keys(), box=_box())

    def _chosen(self, able: dict[str, Slot], most: int) -> list[Assignment]:
        """Choose leases that have moved least, as many of one worker as of the other."""
        moved = Counter(each.shard_id for each in self._begun)
        held: dict[str, list[Lease]] = {worker_id: [] for worker_id in sorted(able)}
        for lease in self._load.fleet.leases():
            if not lease.is_finished and lease.lease_owner in held:
                held[lease.lease_owner].append(lease)
        one, other = held
        pairs = [(one, other), (other, one)]
        return [
            Assignment(lease, target, AssignmentKind.STEAL, Quoted("benchmark"))
            for n, (owner, target) in enumerate(pairs)
            for lease in sorted(held[owner], key=lambda le: (moved[le.lease_key], le.lease_key))[
                : (most + 1 - n) // 2
            ]
        ]

    def measured(self) -> list[Handover]:
        """Find each handover's pause in the ledger."""
        lines = self._load.lines()
        found = []
        for each in self._begun:
            mine = [line for line in lines if line.shard_id == each.shard_id]
            after = next(
                n
                for n, line in enumerate(mine)
                if line.at_ms >= each.begun_ms and line.pid != each.old_pid
            )
            gaps = [b.at_ms - a.at_ms for a, b in pairwise(mine)]
            found.append(
                Handover(
                    shard_id=each.shard_id,
                    begun_ms=each.begun_ms,
                    let_go_ms=each.let_go_ms,
                    pause_ms=mine[after].at_ms - mine[after - 1].at_ms,
                    waits_ms=round(statistics.median(gaps)),
                )
            )
        return found
