"""User records of a shard from an instant on, for the commands that look into a stream."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.records import Record


async def pages(
    fleet: "FleetAccess", shard_id: str, *, since_ms: int
) -> AsyncIterator[tuple[Sequence["Record"], int]]:
    """
    Yield one page a second, from the first record that arrived at or after an instant.

    One call a second leaves four of the shard's five to the fleet. Ends at the shard's end.

    Yields:
        The records in order, aggregates taken apart, and how far they lie behind the tip.

    Raises:
        ShardGone: no such shard.

    """
    from shardfleet.domain.reading.cursor import ReadFrom, ReadPace
    from shardfleet.domain.reading.pages import StartingPosition, StartKind
    from shardfleet.engine.shard.deaggregation import Deaggregator
    from shardfleet.engine.shard.reader import ShardReader

    ports = fleet.read_ports
    reader = ShardReader(
        shard_id,
        ReadFrom(start=StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=since_ms)),
        pace=ReadPace.of_visitor(ports.patience.back_off_ms),
        ports=ports,
    )
    expander = Deaggregator(shard_id, None, config=fleet.config, sink=ports.events)
    async for page in reader.pages():
        expanded = await expander.expand(page.records, None)
        yield expanded.records, page.millis_behind_latest or 0
