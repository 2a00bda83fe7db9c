"""A running fleet's tables, through the project's own stores, and what `explain` says of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import FleetConfig
from shardfleet.domain.turn_log import Happening
from shardfleet.engine.ports import LeaseStore
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.base import Event
from shardfleet_local.rig.fleet import RunningFleet
from shardfleet_local.rig.waiting import until
from shardfleet_ops.explain.answer import Explanation, explain_shard
from shardfleet_ops.operate.read import read_fleet, read_known

NOTED_MOST_MS = 45_000
"""The manager notes what workers did at its next turn, which is a cycle away at most."""

_MOVES = frozenset(
    {Happening.TAKEN_OVER, Happening.MOVED, Happening.HANDOVER, Happening.FORCED, Happening.TAKEN}
)


class _NobodyListens:
    def emit(self, event: Event) -> None:
        pass


@contextlib.asynccontextmanager
async def opened_tables(fleet: RunningFleet) -> AsyncIterator[tuple[LeaseStore, FleetState]]:
    """Open a fleet's tables, and close what reaches them at the end."""
    client, pool = fleet.aws.client("dynamodb"), ThreadPool("tables", threads=2)
    pools = TablePools(writes=pool, reads=pool, write_client=client, read_client=client)
    outputs = fleet.stack.outputs
    try:
        yield (
            DynamoDBLeaseStore(outputs["LeaseTable"], pools, events=_NobodyListens()),
            FleetState(DynamoDBStateStore(outputs["StateTable"], pools), SystemClock()),
        )
    finally:
        await pool.close(within_ms=10_000)


async def explained_leases(fleet: RunningFleet) -> Sequence[Explanation]:
    """
    Explain every lease of a fleet, once the manager has noted where each of them is.

    Returns:
        One answer per lease, ordered by key; without `since_ms` where the manager is too slow.

    """
    answers: list[Explanation] = []
    config = FleetConfig.from_env(fleet.function("ManagerFunction")["Environment"]["Variables"])
    async with opened_tables(fleet) as (leases, state):

        async def are_all_noted() -> bool:
            reading = await read_fleet(
                leases, state, clock=SystemClock(), failover_ms=config.failover_ms
            )
            known = await read_known(reading, state, shards=fleet.shards())
            keys = sorted(lease.lease_key for lease in reading.leases)
            answers[:] = [answer for key in keys if (answer := explain_shard(known, key))]
            return bool(answers) and all(each.since_ms is not None for each in answers)

        await until(are_all_noted, clock=SystemClock(), within_ms=NOTED_MOST_MS)
    return answers


def example_of(explanations: Sequence[Explanation]) -> Explanation | None:
    """Return the answer that shows most: the lease that moved most, and is still read."""
    return max(
        explanations,
        key=lambda each: (
            sum(event.what in _MOVES for event in each.story),
            each.owner is not None,
            len(each.story),
            each.subject,
        ),
        default=None,
    )
