"""From the lease table of a drained fleet to the start of a query (hazards H4, H5). Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, TRIM_HORIZON
from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.starting import AFTER, INSTANT, SHARDS, Start
from shardfleet_spark.plan.beginning import ended_start

LeaseReader = Callable[[str], Awaitable[Sequence[Lease]]]
"""Reads all leases of the application of this name."""


def start_after(application: str, leases: Sequence[Lease]) -> Start:
    """
    Return a start that goes on where a fleet stopped, in the middle of an aggregate too.

    Args:
        application: whose leases; the name of its lease table.
        leases: all of them.

    Raises:
        ConfigurationError: somebody still owns a lease, a lease has no position of its own, or
            there are no leases.

    """
    option = f"option startingPosition = fleet:{application}"
    if not leases:
        raise ConfigurationError(f"{option}: the lease table is empty")
    owned = sorted(
        f"{lease.lease_key} ({lease.lease_owner})"
        for lease in leases
        if lease.lease_owner and not lease.is_finished
    )
    if owned:
        raise ConfigurationError(
            f"{option}: the fleet is not drained, these leases have owners: {', '.join(owned)}. "
            "Stop it first, or both would process the same records"
        )
    starts = {lease.lease_key: _start_of(lease) for lease in leases}
    vague = sorted(shard_id for shard_id, start in starts.items() if start is None)
    if vague:
        raise ConfigurationError(
            f"{option}: nothing was ever checkpointed in {', '.join(vague)}, so the lease does "
            "not say where to begin. Give a JSON startingPosition"
        )
    shards = {shard_id: start for shard_id, start in starts.items() if start is not None}
    # A shard without a lease or leased relative was never read by anybody.
    return Start(SHARDS, shards=shards, default=Start(TRIM_HORIZON))


def _start_of(lease: Lease) -> Start | None:
    done = lease.checkpoint
    if done.is_shard_end:
        return ended_start()
    if not done.is_sentinel:
        return Start(AFTER, done=done)
    if done.sequence_number == TRIM_HORIZON:
        return Start(TRIM_HORIZON)
    if done.sequence_number == AT_TIMESTAMP and done.sub_sequence_number:
        # kcl-rust keeps the instant in the row, Java in its configuration (protocol.md §1.5).
        return Start(INSTANT, instant_ms=done.sub_sequence_number)
    return None
