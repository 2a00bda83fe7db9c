"""What `shardfleet release --ended` would do to a shard that the service does not know."""

from collections.abc import Collection
from dataclasses import replace

from shardfleet.cli.fleet_access import FleetAccess
from shardfleet.cli.instants import spoken_instant
from shardfleet.domain.stream.gone_shards import GoneNote, GoneVerdict, judge_gone
from shardfleet.errors import ConfigurationError


async def preview(fleet: FleetAccess, lease_keys: Collection[str], *, person: str) -> list[str]:
    """
    Return what is known of missing shards, and what their end would make of them.

    Args:
        fleet: the fleet.
        lease_keys: the shards that were named.
        person: who decides.

    Raises:
        ConfigurationError: one of them is not missed by its worker.
        StreamGone: there is no such stream.

    """
    from shardfleet.engine.state.gone_record import GoneRecord

    missed = {note.lease_key: note for note in await GoneRecord(fleet.state.store).missed()}
    unknown = [key for key in lease_keys if key not in missed]
    if unknown:
        raise ConfigurationError(
            f"--ended: {', '.join(unknown)} found, of which no worker has been told that the "
            f"service does not know it; such shards are: {', '.join(missed) or 'none'}"
        )
    stream = await fleet.stream.incarnation()
    before_ms = fleet.clock.now_ms()
    listing = await fleet.stream.list_shards()
    listed_ms = (before_ms, fleet.clock.now_ms())
    lines = [f"The stream keeps records for {stream.retention_ms // 3_600_000} h."]
    for key in lease_keys:
        verdict = judge_gone(
            replace(missed[key], ended_by=person),
            listing,
            retention_ms=stream.retention_ms,
            failover_ms=fleet.config.failover_ms,
            listed_ms=listed_ms,
        )
        lines += _lines(missed[key], verdict, now_ms=before_ms)
    return lines


def _lines(note: GoneNote, verdict: GoneVerdict, *, now_ms: int) -> list[str]:
    def since(instant_ms: int) -> str:
        return spoken_instant(instant_ms, now_ms=now_ms) if instant_ms else "unknown"

    lines = [
        f"{note.lease_key}: {note.reason or 'not found'}",
        f"  not found since: {since(note.first_ms)}",
        f"  first missing from a whole listing: {since(note.unlisted_ms)}",
        f"  last known to have had records, or to be open: {since(note.known_ms)}",
    ]
    if not verdict.is_over:
        return [*lines, f"  it would not end now: {verdict.reason}"]
    children = ", ".join(child.shard_id for child in verdict.children)
    return [
        *lines,
        f"  its worker would make leases for its children: {children or 'none are listed'}",
        f"  records after {note.checkpoint} that it may have had are lost; that is told",
    ]
