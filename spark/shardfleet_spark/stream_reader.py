"""
The streaming source as Spark sees it: one class for Spark 4.0 to 4.3.

Spark 4.2 and newer pass the start offset and a read limit to ``latestOffset`` (they look at the
number of its parameters) and know Trigger.AvailableNow in many batches; older ones call it without
arguments. Spark may ask often, ask for the initial offset again, read a partition several times
and never call ``stop``: nothing here depends on any of that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shardfleet_spark.access import (
    figures_of,
    kept_streams,
    leases_of,
    publishing_of,
    read_ports,
    seal_store,
)
from shardfleet_spark.host.background_loop import BackgroundLoop
from shardfleet_spark.host.collector import leave_imports_alone
from shardfleet_spark.host.compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from shardfleet_spark.offsets.plan_token import Emission
from shardfleet_spark.offsets.seals import needed
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.plan.driver import DriverSettings, PlannedPartition, SourceDriver
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.plan.probing import ProbePace
from shardfleet_spark.read.sealing import SealedRecords, conform, read_sealed
from shardfleet_spark.read.shard_pages import FetchPorts, ShardRange

if TYPE_CHECKING:
    from shardfleet.kpl.deaggregate import MisroutedPolicy
    from shardfleet_spark.publish.figures import Figures
    from shardfleet_spark.publish.publishing import Publishing
    from shardfleet_spark.read.arrow import Rows

T = TypeVar("T")

# Tasks beyond the cores run one after the other, and each round makes the batch longer.
_GROWTH_MOST = 4


@dataclass
class StreamPartition(InputPartition):
    """One task of a batch."""

    planned: PlannedPartition


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Reads a stream as micro-batches.

    Args:
        options: of the source.

    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._driver: SourceDriver | None = None
        self._loop: BackgroundLoop | None = None
        self._publishing: Publishing | None = None
        self._figures: Figures | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Travel to the executors with the options alone."""
        here = ("_driver", "_loop", "_publishing", "_figures")
        return {"_options": self._options, **dict.fromkeys(here)}

    # --- beside the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch."""
        return self._run(self._the_driver().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options name: records before bytes."""
        if self._options.max_records_per_batch:
            return ReadMaxRows(self._options.max_records_per_batch)
        if self._options.max_bytes_per_batch:
            return ReadMaxBytes(self._options.max_bytes_per_batch)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take this moment as the one up to which everything is to be read."""
        self._the_driver().prepare_available_now()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch, or ``start`` when there is nothing to read."""
        records = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        total_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        latest = self._the_driver().latest(start, records=records, total_bytes=total_bytes)
        offset = self._run(latest)
        self._publish()
        if not self._the_driver().is_rested:
            self._tell()
        if self._the_driver().is_over:
            self.stop()
        return offset

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return lag, counts and calls: ``sources[].latestOffset`` of the query progress."""
        found = self._the_driver().report()
        if self._publishing is not None:
            found["publishing"] = self._publishing.report()
        if self._figures is not None and self._figures.trouble:
            found["metrics_trouble"] = self._figures.trouble
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        """Return the tasks of a batch."""
        planned = self._run(self._the_driver().partitions(start, end))
        self._publish()
        return [StreamPartition(each) for each in planned]

    def commit(self, end: dict[str, Any]) -> None:
        """Delete seals that no replay can need."""
        self._run(self._the_driver().commit(end))

    def stop(self) -> None:
        """Publish the last figures, and give the leases up; Spark does not always call this."""
        if self._figures is not None:
            self._figures.flush()
        if self._publishing is not None:
            self._publishing.finish()

    def _publish(self) -> None:
        """Hand on what Spark has committed; before a first record leaves, own its lease."""
        standing = self._the_driver().standing
        if not self._options.publish_to or standing is None:
            return
        if self._publishing is None:
            from shardfleet_spark.publish.publishing import leave_in_order  # noqa: PLC0415 - see access.py

            self._publishing = publishing_of(self._options, standing.sid)
            leave_in_order()
        self._publishing.committed(standing)

    def _tell(self) -> None:
        driver = self._the_driver()
        if self._figures is None:
            self._figures = figures_of(self._options)
        if self._figures is not None and driver.standing is not None:
            from shardfleet_spark.publish.figures import is_at_tip  # noqa: PLC0415 - see access.py

            now_ms = self._figures.clock.now_ms()
            at_tip = driver.is_idle and is_at_tip(driver.standing, now_ms=now_ms)
            self._figures.take(driver.report(), at_tip=at_tip)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        self._loop = self._loop or BackgroundLoop()
        return self._loop.run(call)

    def _the_driver(self) -> SourceDriver:
        if self._driver is None:
            options = self._options
            store = seal_store(options)
            self._driver = SourceDriver(
                settings_of(options),
                read_ports(options, probes_alone=store is not None),
                store,
                leases=partial(leases_of, options),
            )
            if options.available_now_target_ms:
                self._driver.prepare_available_now(options.available_now_target_ms)
        return self._driver

    # --- on an executor

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the rows of one task: read, sealed, and only then handed out."""
        from shardfleet_spark.read.arrow import batches_of  # noqa: PLC0415 - see access.py

        planned = partition.planned
        ports = read_ports(self._options)
        leave_imports_alone(kept_streams())
        sealed = asyncio.run(self._sealed(planned, ports))
        yield from batches_of(
            (each.records, self._rows(reading, planned))
            for each, reading in zip(sealed, planned.range.ranges, strict=True)
        )

    def _rows(self, reading: ShardRange, planned: PlannedPartition) -> Rows:
        from shardfleet_spark.read.arrow import Rows  # noqa: PLC0415 - see access.py

        return Rows(
            shard_id=reading.shard_id,
            stream=self._options.stream_name,
            done=reading.stand.position.done,
            deaggregate=planned.emission.deaggregate,
            misrouted=cast("MisroutedPolicy", planned.emission.misrouted),
            hash_range=planned.hashes.get(reading.shard_id),
            columns=self._options.columns,
        )

    async def _sealed(self, planned: PlannedPartition, ports: FetchPorts) -> list[SealedRecords]:
        if planned.sealed is not None:
            (part,) = planned.range.parts
            return await conform(part, planned.sealed, ports, buffers=planned.records)
        store = needed(seal_store(self._options))
        return await read_sealed(planned.range, store, ports, writer=writer())


def settings_of(options: SourceOptions) -> DriverSettings:
    """Return what the options say about planning."""
    return DriverSettings(
        start=options.starting_position,
        limits=BatchLimits(
            records=options.max_records_per_batch,
            total_bytes=options.max_bytes_per_batch,
            records_per_shard=options.max_records_per_shard,
            bytes_per_partition=options.max_bytes_per_partition,
            fetch_ms=options.max_fetch_time_ms,
            skew_ms=options.max_shard_skew_ms,
            partitions=options.tasks,
            partitions_most=_GROWTH_MOST * options.tasks,
            shards_per_partition=options.shards_per_partition,
        ),
        emission=Emission(options.deaggregate, options.misrouted),
        pace=ProbePace(interval_ms=options.probe_interval_ms, per_second=options.probes_per_second),
        discovery_interval_ms=options.discovery_interval_ms,
        plans_retained=options.seals_retained,
    )


def writer() -> dict[str, str]:
    """Return who writes a seal: for a person who looks at one."""
    context = TaskContext.get()
    found = {"host": socket.gethostname(), "pid": str(os.getpid())}
    if context is not None:
        found |= {
            "query": context.getLocalProperty("sql.streaming.queryId") or "",
            "batch": context.getLocalProperty("streaming.sql.batchId") or "",
            "attempt": str(context.attemptNumber()),
            "task": str(context.taskAttemptId()),
        }
    return found
