"""
The batch source: a stream between two positions, over all shards, splits and merges.

Partitions hold shards by generation: a shard is read after its ancestors in the same partition,
so a key's records are in order in each partition's output. Rows are handed out page by page;
nothing is kept. Arrival times of a shard ascend only nearly, so an instant is met by reading a
little further on both sides and keeping the rows whose arrival lies between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.sequence import PointKind, Position, StreamIncarnation
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.records import StreamRecord
from shardfleet_spark.access import kept_streams, read_ports
from shardfleet_spark.host.collector import leave_imports_alone
from shardfleet_spark.offsets.plan_token import Stand
from shardfleet_spark.options.source_options import BatchOptions
from shardfleet_spark.options.starting import INSTANT
from shardfleet_spark.plan.beginning import begin, common_start, opening_of
from shardfleet_spark.plan.planning import lay_out
from shardfleet_spark.read.arrow import Rows, batches_of
from shardfleet_spark.read.sealing import persist
from shardfleet_spark.read.shard_pages import FetchPorts, ShardPages, ShardRange, not_done

if TYPE_CHECKING:
    from shardfleet.kpl.deaggregate import MisroutedPolicy

# How far arrival times of one shard may be out of order and still be met.
DISORDER_MS = 5_000


@dataclass(frozen=True)
class BatchPartition(InputPartition):
    """
    One task.

    Attributes:
        generations: shards to read, ancestors before descendants.
        from_ms: rows that arrived earlier are dropped, 0 for none.
        until_ms: rows that arrived later are dropped.
        hashes: hash ranges by shard.

    """

    generations: tuple[tuple[ShardRange, ...], ...]
    from_ms: int
    until_ms: int
    hashes: dict[str, tuple[int, int]]


class KinesisBatchReader(DataSourceReader):
    """
    Reads a stream between two positions.

    Args:
        options: of the batch source.

    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[BatchPartition]:
        """Return the tasks: the shards between the two positions."""
        return asyncio.run(plan(self._options, read_ports(self._options)))

    def read(self, partition: BatchPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the rows of one task."""
        ports = read_ports(self._options)
        leave_imports_alone(kept_streams())
        with asyncio.Runner() as runner:
            for generation in partition.generations:
                readings = Readings(generation, partition.until_ms, ports)
                while True:
                    pages = runner.run(readings.next_pages())
                    if not pages:
                        break
                    yield from batches_of(
                        (_between(records, partition), self._rows(reading, partition))
                        for reading, records in pages
                    )

    def _rows(self, reading: ShardRange, partition: BatchPartition) -> Rows:
        return Rows(
            shard_id=reading.shard_id,
            stream=self._options.stream_name,
            done=reading.stand.position.done,
            deaggregate=self._options.deaggregate,
            misrouted=cast("MisroutedPolicy", self._options.misrouted),
            hash_range=partition.hashes.get(reading.shard_id),
            columns=self._options.columns,
        )


def _between(records: Sequence[StreamRecord], partition: BatchPartition) -> list[StreamRecord]:
    first, last = partition.from_ms, partition.until_ms
    # Of a record whose arrival Kinesis does not tell nobody knows that it lies outside.
    return [
        record
        for record in records
        if not record.approximate_arrival_ms or first <= record.approximate_arrival_ms <= last
    ]


async def plan(options: BatchOptions, ports: FetchPorts) -> list[BatchPartition]:
    """
    Return the tasks of a batch.

    Raises:
        ConfigurationError: positions that contradict each other, or shards that are not there.
        StreamGone: there is no such stream.

    """
    now_ms = ports.clock.now_ms()
    start, end = options.starting_position, options.ending_position
    until_ms = end.instant_ms if end.kind == INSTANT else now_ms
    if until_ms > now_ms:
        raise ConfigurationError(
            f"option endingPosition = {until_ms} ms lies in the future; it is {now_ms} ms now: "
            "take an instant that has passed, or LATEST"
        )
    from_ms = start.instant_ms if start.kind == INSTANT else 0
    if from_ms > until_ms:
        raise ConfigurationError(
            f"option startingPosition = {from_ms} ms lies behind endingPosition = {until_ms} ms"
        )
    graph, ranges = await _ranges(options, ports, now_ms=now_ms)
    layout = lay_out(dict.fromkeys(ranges, 0), partitions=_tasks(options, len(ranges)), turn=0)
    return [
        BatchPartition(
            generations=_generations(shards, ranges, graph),
            from_ms=from_ms,
            until_ms=until_ms,
            hashes={shard_id: _hashes(graph.shards[shard_id]) for shard_id in shards},
        )
        for shards in (layout if ranges else ())
    ]


async def _ranges(
    options: BatchOptions, ports: FetchPorts, *, now_ms: int
) -> tuple[ShardGraph, dict[str, ShardRange]]:
    """Return the stream's shards, and where each one that is wanted begins."""
    stream, start = ports.stream, options.starting_position
    opening = opening_of(common_start(start))

    async def listed() -> tuple[StreamIncarnation, Sequence[Shard], ShardGraph]:
        incarnation = await stream.incarnation()
        begun = await stream.list_shards(opening.listing, instant_ms=opening.instant_ms)
        return incarnation, begun, ShardGraph(await stream.list_shards())

    incarnation, begun, graph = await persist(listed, ports)
    opened = [shard.shard_id for shard in begun]
    family = begin(start, graph, opened, now_ms=now_ms, incarnation=incarnation)
    _check_shards(options.shards, graph)
    ranges: dict[str, ShardRange] = {}
    for shard_id in (*family.live, *sorted(family.waiting)):
        if options.shards and shard_id not in options.shards:
            continue
        beginning = Stand(Position(incarnation, shard_id, PointKind.TRIM_HORIZON))
        ranges[shard_id] = ShardRange(shard_id, family.stands.get(shard_id, beginning))
    return graph, ranges


def _hashes(shard: Shard) -> tuple[int, int]:
    return shard.hash_key_range.start, shard.hash_key_range.end


def _tasks(options: BatchOptions, shards: int) -> int:
    if options.shards_per_partition:
        return -(-shards // options.shards_per_partition)
    return options.tasks


def _check_shards(wanted: Sequence[str], graph: ShardGraph) -> None:
    strange = sorted(set(wanted) - set(graph.shards))
    if strange:
        raise ConfigurationError(
            f"option shards names {', '.join(strange)}; the stream has {', '.join(graph.shards)}"
        )


def _generations(
    shards: Sequence[str], ranges: dict[str, ShardRange], graph: ShardGraph
) -> tuple[tuple[ShardRange, ...], ...]:
    """Group shards by how many of them are their ancestors in a line, the oldest first."""
    among = set(shards)
    depth: dict[str, int] = {}
    for shard_id in sorted(shards, key=lambda each: len(graph.ancestors(each) & among)):
        older = [depth[ancestor] for ancestor in graph.ancestors(shard_id) & among]
        depth[shard_id] = max(older, default=-1) + 1
    return tuple(
        tuple(ranges[shard_id] for shard_id in shards if depth[shard_id] == level)
        for level in range(max(depth.values()) + 1)
    )


class Readings:
    """Some shards read at the same time, each at most one page ahead of what is handed out."""

    def __init__(self, ranges: Sequence[ShardRange], until_ms: int, ports: FetchPorts) -> None:
        """Read nothing yet."""
        self._waiting = list(ranges)
        self._until_ms = until_ms
        self._ports = ports
        self._tasks: dict[asyncio.Task[tuple[int, RecordsPage | None]], ShardRange] = {}
        self._pages: dict[str, ShardPages] = {}

    async def next_pages(self) -> list[tuple[ShardRange, Sequence[StreamRecord]]]:
        """
        Return what has come, at least one page; nothing when all shards are read.

        Raises:
            DataLost, Throttled, OutcomeUnknown: see the messages.
            ShardfleetError: nobody says where the stream ends.

        """
        while self._waiting and len(self._tasks) < self._ports.policy.concurrency:
            each = self._waiting.pop(0)
            self._pages[each.shard_id] = ShardPages(each, self._ports)
            self._go_on(each)
        if not self._tasks:
            return []
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        found: list[tuple[ShardRange, Sequence[StreamRecord]]] = []
        for task in done:
            reading = self._tasks.pop(task)
            asked_ms, page = task.result()
            assert page is not None
            found.append((reading, not_done(reading.stand, page.records)))
            if page.lag_ms < 0 and not page.records and asked_ms >= self._until_ms:
                raise ShardfleetError(
                    f"{reading.shard_id}: Kinesis does not say how far behind an empty page is "
                    "(MillisBehindLatest), so that a batch cannot tell where it ends; read it as "
                    "a stream"
                )
            if not self._is_over(page, asked_ms):
                self._go_on(reading)
        return found

    def _go_on(self, reading: ShardRange) -> None:
        task = asyncio.ensure_future(self._next(self._pages[reading.shard_id]))
        self._tasks[task] = reading

    async def _next(self, pages: ShardPages) -> tuple[int, RecordsPage | None]:
        await pages.wait()
        asked_ms = self._ports.clock.now_ms()
        return asked_ms, await pages.next(limit=self._ports.policy.records_per_read)

    def _is_over(self, page: RecordsPage, asked_ms: int) -> bool:
        if page.resume_token is None:
            return True
        beyond_ms = self._until_ms + DISORDER_MS
        if page.records and page.records[-1].approximate_arrival_ms > beyond_ms:
            return True
        return page.millis_behind_latest == 0 and asked_ms >= self._until_ms
