"""`shardfleet tail`: the records of the fleet's stream as they arrive."""

import asyncio
import base64
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
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
from shardfleet_ops.cli.keys import keys
from shardfleet_ops.cli.telling import say, say_json, say_over
from shardfleet_ops.cli.watching import KeyedView

_HELD_MOST = 10_000
"""Records that are kept while a key holds them; of more the oldest are not shown."""


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
    wanted = _pattern_of(grep)

    def line_of(record: Record) -> str | None:
        if (key and record.partition_key != key) or not wanted.search(_text_of(record)):
            return None
        return json.dumps(_as_json(record)) if as_json else _line(record)

    printing = Printing(line_of, say_json if as_json else say, most=records)
    has_keys = not as_json and sys.stdout.isatty()

    async def follow(fleet: FleetAccess) -> None:
        following = _follow(fleet, shard or [], since=since, take=printing.take)
        await (_with_keys(printing, following) if has_keys else following)

    with suppress(KeyboardInterrupt):
        with_fleet(FleetName(stack, fleet_name), follow)


def _pattern_of(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise ConfigurationError(f"--grep {grep}: it is no regular expression: {error}") from None


class _Enough(Exception):
    """As many records as were asked for have been printed."""


class Printing(KeyedView):
    """
    Prints records, as the keys have it: those with the filter's words, and none while it is held.

    Args:
        line_of: a record's line; None: it is not wanted.
        out: prints a line.
        most: raises `_Enough` after so many; 0: never.

    """

    def __init__(
        self, line_of: Callable[[Record], str | None], out: Callable[[str], None], *, most: int
    ) -> None:
        super().__init__()
        self._line_of, self._out = line_of, out
        self._most, self._printed = most, 0
        self._waiting: deque[str] = deque(maxlen=_HELD_MOST)

    def take(self, record: Record) -> None:
        """Print a record, or keep it until the keys let it go."""
        if (line := self._line_of(record)) is not None:
            self._waiting.append(line)
            self._print()

    def press(self, key: str) -> bool:
        """Take a key, and return whether to go on."""
        goes_on = super().press(key)
        self._print()
        return goes_on

    def _print(self) -> None:
        while self._waiting and not (self.held or self.typing):
            if self._most and self._printed == self._most:
                raise _Enough  # Another shard has printed the last one.
            line = self._waiting.popleft()
            if self.wants(line):
                self._out(line)
                self._printed += 1
        if self._most and self._printed == self._most:
            raise _Enough


async def _with_keys(printing: Printing, following: Coroutine[Any, Any, None]) -> None:
    """Follow until the records end, or a key does; without a terminal's keys until the former."""
    with keys() as pressed:
        if pressed is None:
            await following
            return
        tasks = [asyncio.ensure_future(each) for each in (following, _press(printing, pressed))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in tasks:
            each.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, _Enough):
                raise ended


async def _press(printing: Printing, pressed: asyncio.Queue[str]) -> None:
    say_over(printing.keys_line().plain)
    while printing.press(await pressed.get()):
        say_over(printing.keys_line().plain, stays=printing.typing)


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
