"""User records of a shard from an instant on, for the commands that look into a stream."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.config import FleetConfig
    from shardfleet.engine.ports import StreamRecord
    from shardfleet.records import Record

_PAGE_RECORDS = 1_000
# Kinesis quota: 5 GetRecords a second per shard, shared with the fleet's own readers.
_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class UserRecordsPage:
    """
    User records of one GetRecords.

    Attributes:
        records: in order, aggregates taken apart.
        lag_ms: how far this page lies behind the tip.
        ended: the shard is closed and read to its end.

    """

    records: "list[Record]"
    lag_ms: int
    ended: bool


async def pages(
    fleet: "FleetAccess", shard_id: str, *, since_ms: int
) -> AsyncIterator[UserRecordsPage]:
    """
    Yield one page a second, from the first record that arrived at or after an instant.

    One call a second leaves four of the shard's five to the fleet. Ends at the shard's end.

    Raises:
        ShardGone: no such shard.
        IteratorExpired, Throttled: the service would not go on.

    """
    from shardfleet.engine.ports import IteratorKind, IteratorStart

    start = IteratorStart(IteratorKind.AT_TIMESTAMP, instant_ms=since_ms)
    iterator: str | None = await fleet.stream.shard_iterator(shard_id, start)
    while iterator is not None:
        page = await fleet.stream.get_records(iterator, shard_id=shard_id, limit=_PAGE_RECORDS)
        iterator = page.next_iterator
        yield UserRecordsPage(
            records=_user_records(page.records, shard_id, config=fleet.config),
            lag_ms=page.millis_behind_latest or 0,
            ended=iterator is None,
        )
        await fleet.clock.sleep_ms(_PAUSE_MS)


def _user_records(
    found: "Sequence[StreamRecord]", shard_id: str, *, config: "FleetConfig"
) -> "list[Record]":
    from shardfleet.kpl.deaggregate import ExpansionLimits, Origin, deaggregate_records

    limits = ExpansionLimits(config.aggregate_records_most, config.aggregate_bytes_most)
    return [
        record
        for each in found
        for record in deaggregate_records(
            each.data,
            partition_key=each.partition_key,
            origin=Origin(
                each.sequence_number, shard_id, each.approximate_arrival_ms, each.encryption_type
            ),
            limits=limits,
            hash_range=None,
            policy="deliver",
        ).records
    ]
