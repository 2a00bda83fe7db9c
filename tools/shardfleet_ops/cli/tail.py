"""`shardfleet tail`: the records of the fleet's stream as they arrive."""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.errors import ConfigurationError, StreamError
from shardfleet.records import Record
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    refuse_unknown,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.instants import instant_ms
from shardfleet_ops.cli.telling import say, say_json


def tail(
    *,
    shard: Annotated[
        list[str] | None, typer.Option(metavar="SHARD", help="Only these shards.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="KEY", help="Only this partition key.")] = "",
    grep: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Only payloads that it is found in (a regular expression; in UTF-8).",
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From when on: 15m, epoch ms, ISO 8601.")
    ] = "0s",
    records: Annotated[
        int, typer.Option(help="End after so many records; 0: at Ctrl-C.", min=0)
    ] = 0,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print records as they arrive, aggregates taken apart; one GetRecords a second per shard."""
    printed, wanted = 0, _pattern_of(grep)

    def take(record: Record) -> None:
        nonlocal printed
        if records and printed == records:
            raise _Enough  # Another shard has printed the last one.
        if (key and record.partition_key != key) or not wanted.search(_text_of(record)):
            return
        if as_json:
            say_json(json.dumps(_as_json(record)))
        else:
            say(_line(record))
        printed += 1
        if printed == records:
            raise _Enough

    try:
        with_fleet(
            FleetName(stack, fleet_name),
            lambda fleet: _follow(fleet, shard or [], since=since, take=take),
        )
    except KeyboardInterrupt:
        return


def _pattern_of(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise ConfigurationError(f"--grep {grep}: it is no regular expression: {error}") from None


class _Enough(Exception):
    """As many records as were asked for have been printed."""


class _Follower:
    """Reads shards beside each other, and their children after them."""

    def __init__(self, fleet: FleetAccess, since_ms: int, take: Callable[[Record], None]) -> None:
        self._fleet = fleet
        self._since_ms = since_ms
        self._take = take
        self._begun: set[str] = set()

    async def follow(self, shard_ids: list[str]) -> None:
        """Read until every shard and descendant has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                self._begin(shard_ids, group)
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, StreamError):
                first = ConfigurationError(f"{first}; begin later with --since, or try again")
            if not isinstance(first, _Enough):
                raise first from None

    def _begin(self, shard_ids: Iterable[str], group: asyncio.TaskGroup) -> None:
        for shard_id in sorted(set(shard_ids) - self._begun):
            self._begun.add(shard_id)
            group.create_task(self._read(shard_id, group))

    async def _read(self, shard_id: str, group: asyncio.TaskGroup) -> None:
        async for records, _ in self._fleet.records(shard_id, since_ms=self._since_ms):
            for record in records:
                self._take(record)
        graph = ShardGraph(await self._fleet.stream.list_shards())
        self._begin(graph.children(shard_id), group)


async def _follow(
    fleet: FleetAccess, given: list[str], *, since: str, take: Callable[[Record], None]
) -> None:
    since_ms = instant_ms("--since", since, now_ms=fleet.clock.now_ms())
    listed = [each.shard_id for each in await fleet.stream.list_shards()]
    refuse_unknown(given, listed, "--shard: {unknown} not in the stream; its shards are: {known}")
    await _Follower(fleet, since_ms, take).follow(given or listed)


def _line(record: Record) -> str:
    place = f"{record.shard_id} {record.sequence_number}:{record.sub_sequence_number}"
    return f"{_arrival_of(record)} {place} {record.partition_key} {_text_of(record)}"


def _arrival_of(record: Record) -> str:
    if not record.approximate_arrival_ms:
        return "-"
    arrived = datetime.fromtimestamp(record.approximate_arrival_ms / 1000, UTC)
    return f"{arrived:%Y-%m-%dT%H:%M:%S}.{arrived.microsecond // 1000:03}Z"


def _text_of(record: Record) -> str:
    return record.data.decode("utf-8", "backslashreplace")


def _as_json(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {
        "shard_id": record.shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "partition_key": record.partition_key,
        "explicit_hash_key": record.explicit_hash_key,
        "arrived_ms": record.approximate_arrival_ms or None,
        "aggregated": record.aggregated,
    }
    try:
        return found | {"data": record.data.decode()}
    except UnicodeDecodeError:
        return found | {"data_base64": base64.b64encode(record.data).decode()}
