"""Both tables of a running fleet, through the project's own stores."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import LeaseStore
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.base import Event
from shardfleet_local.rig.fleet import RunningFleet


@dataclass(frozen=True, slots=True)
class Tables:
    """
    The tables.

    Attributes:
        leases: the lease table.
        state: the fleet-state table.

    """

    leases: LeaseStore
    state: FleetState


class _NobodyListens:
    def emit(self, event: Event) -> None:
        pass


@contextlib.asynccontextmanager
async def opened_tables(fleet: RunningFleet) -> AsyncIterator[Tables]:
    """Open a fleet's tables, and close what reaches them at the end."""
    client = fleet.aws.client("dynamodb")
    pools = TablePools(
        writes=ThreadPool("writes", threads=1),
        reads=ThreadPool("reads", threads=1),
        write_client=client,
        read_client=client,
    )
    outputs = fleet.stack.outputs
    try:
        yield Tables(
            DynamoDBLeaseStore(outputs["LeaseTable"], pools, events=_NobodyListens()),
            FleetState(DynamoDBStateStore(outputs["StateTable"], pools), SystemClock()),
        )
    finally:
        await pools.writes.close(within_ms=1_000)
        await pools.reads.close(within_ms=10_000)
