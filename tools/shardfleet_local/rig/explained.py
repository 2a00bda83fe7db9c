"""What `shardfleet explain` answers for the demo's run, lease by lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardfleet.adapters.system import SystemClock
from shardfleet.config import FleetConfig
from shardfleet.domain.turn_log import Happening
from shardfleet_local.rig.fleet import RunningFleet
from shardfleet_local.rig.tables import Tables, opened_tables
from shardfleet_ops.explain.answer import Explanation, explain_shard
from shardfleet_ops.operate.read import read_fleet, read_known

# The manager notes what workers did at its next turn, which is a cycle away at most.
NOTED_MOST_MS = 45_000
_LOOK_EVERY_MS = 1_000
_MOVES = frozenset(
    {Happening.TAKEN_OVER, Happening.MOVED, Happening.HANDOVER, Happening.FORCED, Happening.TAKEN}
)


async def explained_leases(fleet: RunningFleet) -> tuple[Explanation, ...]:
    """
    Explain every lease of a fleet, once the manager has noted where each of them is.

    Returns:
        One answer per lease, ordered by key; without `since_ms` where the manager is too slow.

    """
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + NOTED_MOST_MS
    async with opened_tables(fleet) as tables:
        while True:
            found = await _explain(fleet, tables)
            all_noted = all(each.since_ms is not None for each in found)
            if (found and all_noted) or clock.monotonic_ms() > deadline_ms:
                return found
            await clock.sleep_ms(_LOOK_EVERY_MS)


async def _explain(fleet: RunningFleet, tables: Tables) -> tuple[Explanation, ...]:
    reading = await read_fleet(
        tables.leases,
        tables.state,
        clock=SystemClock(),
        failover_ms=FleetConfig.from_env(_manager_environment(fleet)).failover_ms,
    )
    shards = await asyncio.to_thread(fleet.shards)
    known = await read_known(reading, tables.state, shards=shards)
    keys = sorted(lease.lease_key for lease in reading.leases)
    return tuple(answer for key in keys if (answer := explain_shard(known, key)) is not None)


def _manager_environment(fleet: RunningFleet) -> dict[str, str]:
    function = fleet.aws.client("lambda").get_function_configuration(
        FunctionName=fleet.manager_function
    )
    return dict(function["Environment"]["Variables"])


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
