"""`shardfleet where`: what became of the record of a key."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard
from shardfleet.records import Record
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.instants import date, instant_ms
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.explain.answer import whereabouts


def where(
    *,
    key: Annotated[str, typer.Option(metavar="KEY", help="The partition key.")],
    at: Annotated[
        str,
        typer.Option(metavar="TIME", help="The first record at or after: 15m, epoch ms, ISO 8601."),
    ] = "5m",
    pages_most: Annotated[
        int, typer.Option("--pages", help="Pages of 1,000 records to search, one a second.", min=1)
    ] = 60,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show whether the first record of a key since a point in time is processed, and by whom."""
    answer = with_fleet(
        FleetName(stack, fleet_name), lambda fleet: _where(fleet, key, at=at, pages_most=pages_most)
    )
    tell(answer, _lines(key, answer), as_json=as_json)


async def _where(fleet: FleetAccess, key: str, *, at: str, pages_most: int) -> dict[str, Any]:
    since_ms = instant_ms("--at", at, now_ms=fleet.clock.now_ms())
    shard, record, searched_ms = await _find(fleet, key, since_ms, pages_most=pages_most)
    place: dict[str, Any] = {"key": key, "since_ms": since_ms, "shard_id": shard}
    if record is None:
        return place | {"state": "NOT_FOUND", "searched_to_ms": searched_ms}
    reading = await fleet.reading()
    position = ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)
    answer = whereabouts(
        position,
        record.shard_id,
        leases=reading.leases,
        shards=await fleet.stream.list_shards(),
        stops=reading.stops,
        failing=reading.failing,
    )
    arrived_ms = record.approximate_arrival_ms or None
    return place | {
        "shard_id": record.shard_id,
        "state": answer.state.value,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "arrived_ms": arrived_ms,
        "waited_ms": None if arrived_ms is None else max(0, reading.at_ms - arrived_ms),
        "owner": answer.owner,
        "checkpoint": answer.checkpoint,
        "why": answer.why,
    }


async def _find(
    fleet: FleetAccess, key: str, since_ms: int, *, pages_most: int
) -> tuple[str, Record | None, int | None]:
    """
    Search the shards that took the key since then, parents before children.

    Returns the shard last searched, the record if it was found, and else up to which arrival time
    was searched, None for everything there is.
    """
    left, shard_id, arrived_ms = pages_most, "", since_ms
    for shard in await _shards_of(fleet, key, since_ms):
        shard_id = shard.shard_id
        async for records, lag_ms in fleet.records(shard_id, since_ms=since_ms):
            for record in records:
                arrived_ms = record.approximate_arrival_ms or arrived_ms
                if record.partition_key == key:
                    return shard_id, record, None
            left -= 1
            if not left:
                return shard_id, None, arrived_ms
            if lag_ms == 0:
                break
    return shard_id, None, None


async def _shards_of(fleet: FleetAccess, key: str, since_ms: int) -> list[Shard]:
    from shardfleet.engine.ports import ListingFilter
    from shardfleet.kpl.hash_keys import hash_of_partition_key

    hash_key = hash_of_partition_key(key)
    listed = await fleet.stream.list_shards(ListingFilter.AT_TIMESTAMP, instant_ms=since_ms)
    then = {each.shard_id: each for each in listed if each.hash_key_range.contains(hash_key)}
    begun = min((shard.creation_order for shard in then.values()), default=(0, ""))
    later = {
        shard.shard_id: shard
        for shard in await fleet.stream.list_shards()
        if shard.hash_key_range.contains(hash_key) and shard.creation_order >= begun
    }
    return sorted((later | then).values(), key=lambda shard: shard.creation_order)


def _lines(key: str, answer: dict[str, Any]) -> Iterator[str]:
    if answer["state"] == "NOT_FOUND":
        if answer["searched_to_ms"] is None:
            yield f"No record of key {key} has arrived since then."
            return
        yield (
            f"No record of key {key} found in the pages searched, up to arrival at "
            f"{date(answer['searched_to_ms'])} on {answer['shard_id']}; search more with "
            "--pages, or begin later with --at."
        )
        return
    record = f"{answer['sequence_number']}:{answer['sub_sequence_number']}"
    yield f"{answer['state'].lower()}: {answer['why']}."
    waited_ms = answer["waited_ms"]
    ago = "" if waited_ms is None else f", arrived {waited_ms / 1000:.1f} s ago"
    yield (
        f"Record {record} of {answer['shard_id']}{ago}; "
        f"owner {answer['owner'] or 'none'}, checkpoint {answer['checkpoint'] or 'none'}."
    )
