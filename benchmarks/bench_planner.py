"""
How much CPU does one manager turn think, at 1,000, 10,000 and 100,000 leases?

A tenth as many workers as leases, one in ten of which is lost, with all its leases; a twentieth of
the shards has been split. Measured are the pure planners of a turn, one after the other, on the
same snapshot: lease sync, lease clean-up, sightings and expiry, slots, and the balanced assignment
of all that has no owner. Reading and writing the tables is not in it: that is the network's time.

The bound is 2 s of CPU for sync, expiry and assignment together, at 100,000 leases and 10,000
workers. The decisions are counted, and compared with what they must be, before a figure is
believed.

    python benchmarks/bench_planner.py [--folder DIR]
"""

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import side_by_side
from msgspec.structs import replace
from side_by_side import Figures

from shardfleet.domain.balance.by_count import (
    AssignmentKind,
    WorkerView,
    plan_balanced,
)
from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.expiry import Reading, Sighting, sighted
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotFacts, SlotPlan, plan_slots
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard

ROUNDS = 5
SIZES = (1_000, 10_000, 100_000)
LEASES_PER_WORKER, LEASES_MOST = 10, 12
LOST_EVERY, SPLIT_EVERY = 10, 20
BOUND_S = 2.0
BOUNDED = ("sync", "expiry", "assignment")
NOW_MS, FAILOVER_MS, SKEW_MS = 1_700_000_000_000, 10_000, 2_000
SIZING = SizingLimits(
    leases_per_worker=LEASES_MOST,
    min_workers=1,
    max_workers=10**6,
    target=0.7,
    lag_most_ms=60_000,
    scale_down_ms=600_000,
)
READ = ExtendedSequenceNumber("49590338271490256608559692538361571095921575989136588898", 3)


@dataclass(frozen=True)
class Fleet:
    """A snapshot: `unborn` children of finished shards have no lease yet."""

    shards: list[Shard]
    leases: list[Lease]
    sightings: dict[str, Sighting]
    slots: list[Slot]
    lost: frozenset[str]
    unborn: int


def fleet_of(size: int) -> Fleet:
    workers = [f"fleet-s{n:05d}" for n in range(size // LEASES_PER_WORKER)]
    lost = frozenset(workers[::LOST_EVERY])
    shards: list[Shard] = []
    leases: list[Lease] = []
    sightings: dict[str, Sighting] = {}
    unborn = 0
    for index in range(size):
        shard = _shard(index, size)
        owner = workers[index % len(workers)]
        lease = Lease(
            lease_key=shard.shard_id,
            checkpoint=READ,
            lease_owner=owner,
            lease_counter=1_000 + index,
            hash_key_range=shard.hash_key_range,
        )
        seen_ms = NOW_MS - (60_000 if owner in lost else 2_000)
        if index % SPLIT_EVERY == 0:
            children = _split(shard, index, size)
            shard = replace(shard, ending_sequence_number="9")
            lease = replace(lease, checkpoint=AT_SHARD_END)
            shards += children
            unborn += len(children)
        shards.append(shard)
        leases.append(lease)
        sightings[shard.shard_id] = Sighting(lease.lease_counter, owner, seen_ms)
    return Fleet(shards, leases, sightings, _slots(workers, lost), lost, unborn)


def _shard(index: int, size: int) -> Shard:
    width = (HASH_KEY_MAX + 1) // size
    end = HASH_KEY_MAX if index == size - 1 else (index + 1) * width - 1
    return Shard(
        shard_id=f"shardId-{index:012d}",
        hash_key_range=HashKeyRange(index * width, end),
        starting_sequence_number=str(10**54 + index),
    )


def _split(shard: Shard, index: int, size: int) -> list[Shard]:
    whole = shard.hash_key_range
    middle = (whole.start + whole.end) // 2
    ranges = (HashKeyRange(whole.start, middle), HashKeyRange(middle + 1, whole.end))
    return [
        Shard(
            shard_id=f"shardId-{size + 2 * index + side:012d}",
            hash_key_range=half,
            starting_sequence_number=str(10**54 + size + 2 * index + side),
            parent_shard_id=shard.shard_id,
        )
        for side, half in enumerate(ranges)
    ]


def _slots(workers: list[str], lost: frozenset[str]) -> list[Slot]:
    return [
        Slot(
            slot_id=worker_id.removeprefix("fleet-"),
            worker_id=worker_id,
            state=SlotState.RUNNING,
            name=worker_id,
            start_epoch=1,
            heartbeat_ms=NOW_MS - (60_000 if worker_id in lost else 1_000),
        )
        for worker_id in workers
    ]


class Turn:
    """The planners of one turn; `cpu_s` has the seconds of each."""

    def __init__(self, fleet: Fleet) -> None:
        self.cpu_s: dict[str, float] = {}
        self._fleet = fleet

    def run(self) -> int:
        """Plan; assert that the decisions are the right ones; return how many leases are given."""
        fleet = self._fleet
        initial = ExtendedSequenceNumber("TRIM_HORIZON")
        sync = self._timed(
            "sync",
            lambda: plan_lease_sync(
                fleet.shards, fleet.leases, initial=initial, listed_at_initial=None
            ),
        )
        current = [*fleet.leases, *(wanted.lease for wanted in sync.create)]
        cleanup = self._timed("clean-up", lambda: plan_lease_cleanup(fleet.shards, fleet.leases))
        expired = self._timed("expiry", self._expired)
        unfinished = sum(not lease.is_finished for lease in current)
        self._timed("slots", lambda: self._slot_plan(unfinished))
        views = [
            WorkerView(worker_id=slot.worker_id, leases_most=LEASES_MOST)
            for slot in fleet.slots
            if slot.worker_id not in fleet.lost
        ]
        plan = self._timed(
            "assignment", lambda: plan_balanced(current, expired=expired, workers=views)
        )
        assert len(sync.create) == fleet.unborn
        assert not cleanup.delete
        lost = [le for le in fleet.leases if not le.is_finished and le.lease_owner in fleet.lost]
        assert expired == {lease.lease_key for lease in lost}
        given = Counter(assignment.kind for assignment in plan.assignments)
        assert given[AssignmentKind.UNOWNED] == fleet.unborn
        assert given[AssignmentKind.EXPIRED] == len(expired)
        assert not plan.left
        return len(plan.assignments)

    def _slot_plan(self, unfinished: int) -> SlotPlan:
        slots = self._fleet.slots
        sizing = plan_size(
            [SlotNeed(slot_id=slot.slot_id, leases=LEASES_PER_WORKER) for slot in slots],
            unfinished=unfinished,
            pace=Pace(),
            limits=SIZING,
            now_ms=NOW_MS,
        )
        facts = SlotFacts(now_ms=NOW_MS, silent_ms=20_000)
        return plan_slots(slots, sizing=sizing, facts=facts)

    def _expired(self) -> frozenset[str]:
        fleet = self._fleet
        reading = Reading(began_ms=NOW_MS, ended_ms=NOW_MS + 1_000, skew_ms=SKEW_MS)
        _, expired = sighted(
            fleet.sightings, fleet.leases, reading=reading, failover_ms=FAILOVER_MS, graces={}
        )
        return expired

    def _timed(self, name: str, plan: Callable[[], Any]) -> Any:
        gc.collect()
        began_s = time.process_time()
        result = plan()
        self.cpu_s[name] = time.process_time() - began_s
        return result


def measure(size: int, rounds: int) -> dict[str, Any]:
    fleet = fleet_of(size)
    turns, assignments = [], 0
    for _ in range(rounds):
        turn = Turn(fleet)
        assignments = turn.run()
        turns.append(turn.cpu_s)
    bounded = [sum(turn[name] for name in BOUNDED) for turn in turns]
    return {
        "leases": size,
        "workers": size // LEASES_PER_WORKER,
        "assignments": assignments,
        "cpu_s": {name: round(statistics.median(t[name] for t in turns), 4) for name in turns[0]},
        "bounded_cpu_s": round(statistics.median(bounded), 4),
        "bounded_cpu_s_most": round(max(bounded), 4),
        "bounded_us_per_lease": round(statistics.median(bounded) / size * 1e6, 2),
    }


def figures() -> Iterator[Figures]:
    """Measure all sizes."""
    sizes = [measure(size, ROUNDS) for size in SIZES]
    for row in sizes:
        parts = ", ".join(f"{name} {cpu_s * 1000:,.0f} ms" for name, cpu_s in row["cpu_s"].items())
        print(f"{row['leases']:>7,} leases, {row['workers']:>6,} workers: {parts}")
    growth = ", ".join(
        f"{row['bounded_cpu_s']:.3f} s at {row['leases']:,} x {row['workers']:,} "
        f"({row['bounded_us_per_lease']} us a lease)"
        for row in sizes
    )
    yield Figures(
        name="planner",
        compares=f"CPU of {', '.join(BOUNDED)} in one manager turn, leases x workers",
        summary=growth,
        gate=f"under {BOUND_S:g} s at {SIZES[-1]:,} leases",
        met=sizes[-1]["bounded_cpu_s"] < BOUND_S,
        details={"bound_cpu_s": BOUND_S, "sizes": sizes},
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
