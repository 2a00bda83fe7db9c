"""
How far does one have to read to follow a record, and four leases that a manager gives out?

Five records from their page to the checkpoint, and a manager's turn from its first call to its
report: over memory ports, every option off, in virtual time. Counted are the files of the
library in which a call begins or goes on, and how often the next one lies in another file.

    python benchmarks/record_walk.py [--verbose]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace

import shardfleet
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import ChangeResult, Lease, LeaseChange
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.slots.slot import SlotState, intend_start
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.progress import Progress
from shardfleet.engine.state.fleet_state import FleetState, slot_body
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.turn import worker_turn
from shardfleet.records import Batch
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import (
    MemoryEvents,
    MemoryKcl3Store,
    MemoryLauncher,
    MemoryLeaseStore,
    MemoryProcess,
    MemoryStateStore,
    SeededEntropy,
)
from shardfleet_testkit.memory_handler import MemoryHandler
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN, MemoryStream

LIBRARY = str(Path(shardfleet.__file__).parent)
RECORDS, SHARD, WORKER = 5, "shardId-000000000000", "walk-s0001"
LEASES = 4  # that a turn of the manager gives out
CONFIG = FleetConfig(fleet="walk", stream_arn=MEMORY_STREAM_ARN, lease_table="-", state_table="-")


class Walk:
    """Calls of functions of the library, in order: the file, and what is called."""

    def __init__(self) -> None:
        """Begin with none."""
        self.calls: list[tuple[str, str]] = []

    def seen(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, as `sys.setprofile` tells of it."""
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and file.startswith(LIBRARY):
            self.calls.append((file.removeprefix(f"{LIBRARY}/"), name))

    @property
    def files(self) -> set[str]:
        """Return in which files they are."""
        return {file for file, _ in self.calls}

    @property
    def moves(self) -> int:
        """Return how often the next one is in another file."""
        return sum(here != there for (here, _), (there, _) in pairwise(self.calls))


async def walked() -> Walk:
    """Return the calls between the answer that has the records and the write of a checkpoint."""
    walk, clock = Walk(), VirtualClock()
    stream = MemoryStream(clock, shards=1)
    for number in range(RECORDS):
        stream.put(str(number).encode(), key=f"key-{number}", shard_id=SHARD)
    lease = Lease(lease_key=SHARD, checkpoint=AT_TRIM_HORIZON, lease_owner=WORKER)
    leases, state = MemoryLeaseStore([lease]), MemoryStateStore()

    async def page(*arguments: Any, **options: Any) -> RecordsPage:
        found = await MemoryStream.page(stream, *arguments, **options)
        if found.records:
            sys.setprofile(walk.seen)
        return found

    async def handled(batch: Batch) -> HandlerResult:
        return HandlerResult(done_count=len(batch))

    async def apply(change: LeaseChange) -> ChangeResult:
        sys.setprofile(None)
        return await MemoryLeaseStore.apply(leases, change)

    stream.page, leases.apply = page, apply  # type: ignore[method-assign]
    slot = intend_start(
        None, slot_id="s0001", worker_id=WORKER, name_prefix="walk", now_ms=clock.now_ms()
    )
    await state.write("slot", "s0001", slot_body(slot), expected_version=None)
    ports = WorkerPorts(
        clock=clock,
        entropy=SeededEntropy(5),
        leases=leases,
        state=state,
        stream=stream,
        source=PolledSource.of_worker(stream, clock, CONFIG),
        handler=MemoryHandler(clock, handled),
        progress=Progress,
        policy=FailurePolicy(CONFIG.policy_terms),
        events=MemoryEvents(),
        process=MemoryProcess(),
    )
    end_ms = clock.monotonic_ms() + CONFIG.max_turn_ms
    await worker_turn(slot.slot_input(), config=CONFIG, ports=ports, deadline_ms=end_ms)
    assert not leases.leases[SHARD].checkpoint.is_sentinel
    return walk


async def managed() -> Walk:
    """Return the calls of a manager's turn that gives leases to one running slot."""
    walk, clock = Walk(), VirtualClock()
    stream = MemoryStream(clock, shards=LEASES)
    leases = MemoryLeaseStore(
        [
            Lease(
                lease_key=shard.shard_id,
                checkpoint=AT_TRIM_HORIZON,
                hash_key_range=shard.hash_key_range,
            )
            for shard in await stream.list_shards()
        ]
    )
    state, now_ms = MemoryStateStore(), clock.now_ms()
    begun = intend_start(None, slot_id="s0001", worker_id=WORKER, name_prefix="walk", now_ms=now_ms)
    slot = replace(begun, state=SlotState.RUNNING, epoch=1, heartbeat_ms=now_ms)
    await state.write("slot", "s0001", slot_body(slot), expected_version=None)
    ports = ManagerPorts(
        leases=leases,
        kcl3=MemoryKcl3Store(),
        state=FleetState(state, clock),
        stream=stream,
        source=PolledSource(stream, clock),
        launcher=MemoryLauncher(),
        clock=clock,
        entropy=SeededEntropy(5),
        events=MemoryEvents(),
    )
    manager = LeaseManager(CONFIG, ports)
    sys.setprofile(walk.seen)
    report = await manager.turn()
    sys.setprofile(None)
    assert len(report.plan.assignment.assignments) == LEASES
    return walk


def main() -> None:
    """Print the figures."""
    for what, walk in (
        (f"{RECORDS} records", run_virtual(walked())),
        (f"a manager's turn that gives out {LEASES} leases", run_virtual(managed())),
    ):
        print(f"{what}: {len(walk.files)} files, {walk.moves} moves, {len(walk.calls)} calls")
        if "--verbose" in sys.argv:
            print(*(f"{file:36} {name}" for file, name in walk.calls), sep="\n")


if __name__ == "__main__":
    main()
