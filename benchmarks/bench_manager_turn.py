"""
What does a whole turn of the manager cost at 10,000 leases: tables, stream, planning and all?

The production turn, with the function's own clients and stores, on the embedded AWS in a process of
its own. All is steady: 157 slots at work, each lease renewed and each slot's heartbeat written
between two turns. CPU time of the manager's process, its threads included. Step Functions is in
memory: a steady turn asks nothing of it.

    python benchmarks/bench_manager_turn.py [--folder DIR]
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import side_by_side
from msgspec.structs import replace
from side_by_side import Figures

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.dynamodb.tables import ensure_lease_table
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import Slot, SlotState, intend_start
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.ports import StreamDirectory
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet.runtime import bootstrap
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads, open_sandbox
from shardfleet.runtime.managing import collect_seldom, manager_ports
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_testkit.memory import MemoryLauncher

LEASES, PER_SLOT, TURNS, CPU_MOST_S = 10_000, 64, 7, 0.3
NAME, STATE = "bench", "bench-state"
# Of the writers that play the workers; DynamoDB takes 25 items a request.
WRITERS, ITEMS_MOST = 8, 25


class SteadyFleet:
    """Tables, a stream, and what workers would have written by now."""

    def __init__(self, aws: EmbeddedAws) -> None:
        self.kinesis, self.tables = aws.client("kinesis"), aws.client("dynamodb")
        self.kinesis.create_stream(StreamName=NAME, ShardCount=LEASES)
        self.kinesis.get_waiter("stream_exists").wait(StreamName=NAME)
        ensure_lease_table(self.tables, NAME)
        keys = {"kind": "HASH", "id": "RANGE"}
        self.tables.create_table(
            TableName=STATE,
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            BillingMode="PAY_PER_REQUEST",
        )
        told = self.kinesis.describe_stream_summary(StreamName=NAME)["StreamDescriptionSummary"]
        self.config = FleetConfig(
            fleet=NAME,
            stream_arn=told["StreamARN"],
            lease_table=NAME,
            state_table=STATE,
            leases_per_worker=PER_SLOT,
            max_workers=-(-LEASES // PER_SLOT),
            # All is renewed between two turns, which takes longer here than a failover time.
            failover_ms=120_000,
            cycle_ms=240_000,
        )
        self._counter = 7
        self._versions: dict[str, int] = {}

    async def learn(self, stream: StreamDirectory) -> None:
        """Make a lease for each shard."""
        shards = await stream.list_shards()
        assert len(shards) == LEASES
        self._leases = [
            Lease(
                lease_key=shard.shard_id,
                checkpoint=ExtendedSequenceNumber(shard.starting_sequence_number),
                lease_owner=f"{NAME}-s{n // PER_SLOT + 1:04}",
                lease_counter=self._counter,
                hash_key_range=shard.hash_key_range,
            )
            for n, shard in enumerate(shards)
        ]

    async def renew(self, sandbox: Sandbox, threads: TurnThreads) -> None:
        """Do what all workers do between two turns."""
        self._counter += 1
        items = [
            item_from_fields(fields_of(replace(lease, lease_counter=self._counter)))
            for lease in self._leases
        ]
        parts = [items[n : n + ITEMS_MOST] for n in range(0, len(items), ITEMS_MOST)]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self._put, parts))
        store = bootstrap.state_store(sandbox, threads)
        for n in range(self.config.max_workers):
            slot = self._slot(f"s{n + 1:04}", sandbox.clock.now_ms())
            version = self._versions.get(slot.slot_id)
            await store.write("slot", slot.slot_id, slot_body(slot), expected_version=version)
            self._versions[slot.slot_id] = (version or 0) + 1

    def _put(self, items: list[dict[str, Any]]) -> None:
        puts = [{"PutRequest": {"Item": item}} for item in items]
        answer = self.tables.batch_write_item(RequestItems={NAME: puts})
        assert not answer["UnprocessedItems"]

    def _slot(self, slot_id: str, now_ms: int) -> Slot:
        worker_id = f"{NAME}-{slot_id}"
        begun = intend_start(
            None, slot_id=slot_id, worker_id=worker_id, name_prefix=NAME, now_ms=now_ms
        )
        held = {le.lease_key: 0 for le in self._leases if le.lease_owner == worker_id}
        return replace(
            begun, state=SlotState.RUNNING, epoch=1, heartbeat_ms=now_ms, turn_open=True,
            lags_ms=held, busy=100, cpu=100,
        )  # fmt: skip


async def turns(fleet: SteadyFleet, sandbox: Sandbox) -> list[float]:
    """Run some turns; return the CPU seconds of each."""
    threads = TurnThreads(fleet.config)
    ports = manager_ports(sandbox, threads, MemoryLauncher())
    await fleet.learn(ports.stream)
    manager = LeaseManager(fleet.config, ports)
    took = []
    # The first one has connections to open, and all leases to see for the first time.
    for n in range(TURNS + 1):
        await fleet.renew(sandbox, threads)
        began = time.process_time()
        report = await manager.turn()
        if n:
            took.append(time.process_time() - began)
            assert report.plan.is_calm
            assert not report.plan.assignment.assignments
    await threads.close(within_ms=10_000)
    return took


def contests() -> Iterator[Figures]:
    with EmbeddedAws() as aws:
        os.environ.update(aws.environment())
        fleet = SteadyFleet(aws)
        # What it tells is written as always, and not to be read here.
        with contextlib.redirect_stdout(io.StringIO()):
            sandbox = open_sandbox(fleet.config.to_env())
            collect_seldom()
            took = asyncio.run(turns(fleet, sandbox))
            sandbox.events.flush()
    median_s = statistics.median(took)
    yield Figures(
        name="manager_turn",
        compares=f"CPU of a steady turn of the manager with its I/O, {LEASES:,} leases",
        summary=f"{median_s:.2f} s (median of {TURNS}, {min(took):.2f} to {max(took):.2f})",
        goal=f"at most {CPU_MOST_S} s",
        details={"cpu_s": [round(each, 3) for each in took]},
        time_goes_to="the scan, and leases made of its items; the plan; the report; the listing.",
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
