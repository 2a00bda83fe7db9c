"""
Without a seal store: the driver reads each batch itself, and the next one while Spark is at work.

Spark asks for the next batch when the one before is done. Until then nothing would be read, and a
query that has fallen behind would catch up for a part of its time alone. So the next batch is read
meanwhile, if the shards have more; it is handed out when Spark asks for what follows the batch
that it was planned behind, and forgotten otherwise. Nothing depends on it: an offset that Spark
was not given is none, and what it would have said is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardfleet.errors import ShardfleetError
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.plan_token import PlanToken, Quota
from shardfleet_spark.offsets.seals import Seal
from shardfleet_spark.plan.planning import DRIVER_BYTES
from shardfleet_spark.read.fetching import CARRIAGE_BYTES, fetch
from shardfleet_spark.read.sealing import PartitionRange, SealRange, split
from shardfleet_spark.read.shard_pages import FetchPorts

# What the tasks of a batch are handed at most, each record with what its carriage needs. A task of
# what is more reads again, exactly what was read; that is for large records of unknown size alone.
CARRIED_BYTES = DRIVER_BYTES * 5 // 4
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverRead:
    """
    A batch that was read here.

    Attributes:
        planned: the plan that was read.
        seals: of its partitions.
        bodies: of each partition the records by shard; empty where its task is to read them again.

    """

    planned: PlanToken
    seals: tuple[Seal, ...]
    bodies: Sequence[Mapping[str, Sequence[StreamRecord]]]

    @property
    def brought(self) -> bool:
        """Whether a record was read, or something else that moves a shard."""
        return any(e.count or e.ended or e.lost for seal in self.seals for e in seal.shards)

    @property
    def is_cut(self) -> bool:
        """Whether a shard had more than the limits allowed."""
        return any(each.is_cut for seal in self.seals for each in seal.shards)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """
    What Spark asks for.

    Attributes:
        start: key of the plan that the batch follows.
        records: most stream records, 0 for no limit.
        total_bytes: most bytes of data and keys, 0 for no limit.

    """

    start: str
    records: int
    total_bytes: int


class DriverReads:
    """
    Reads batches in the process beside the driver; one at a time ahead of Spark.

    Args:
        ports: the stream and the rest.

    """

    def __init__(self, ports: FetchPorts) -> None:
        self._ports = ports
        self._ahead: tuple[BatchRequest, asyncio.Task[DriverRead | None]] | None = None

    def begin_ahead(
        self, request: BatchRequest, planned: PlanToken, ranges: Sequence[PartitionRange]
    ) -> None:
        """Begin to read a plan for a request that Spark has not made yet."""
        assert self._ahead is None
        self._ahead = (request, asyncio.create_task(self._try(planned, ranges)))

    async def ahead(self, request: BatchRequest) -> DriverRead | None:
        """
        Return what was read ahead, once it is; None if it was for another request, or failed.

        Whatever was read ahead is forgotten.
        """
        if self._ahead is None:
            return None
        (expected, task), self._ahead = self._ahead, None
        read = await task
        return read if expected == request else None

    async def read(self, planned: PlanToken, ranges: Sequence[PartitionRange]) -> DriverRead:
        """
        Read all partitions of a plan at once.

        Raises:
            DataLost: records are gone, and that stops the query.
            Throttled, OutcomeUnknown: more failures in a row than ``retry_attempts``.

        """
        quotas = planned.quotas
        # When the room is not for all, another partition has the first answers each time.
        first = planned.number % max(1, len(ranges))
        turn = [*range(first, len(ranges)), *range(first)]
        records = [
            most
            for index in turn
            for most in quotas[index].records or (0,) * len(planned.layout[index])
        ]
        whole = Quota(
            total_bytes=min(DRIVER_BYTES, sum(each.total_bytes for each in quotas)),
            fetch_ms=max((each.fetch_ms for each in quotas), default=0),
            until_ms=max((each.until_ms for each in quotas), default=0),
            records=tuple(records) if any(records) else (),
        )
        fetched = await fetch(
            [each for index in turn for each in ranges[index].ranges],
            whole,
            self._ports,
            writer={},
            is_carried=True,
        )
        parts = [SealRange(ranges[index].parts[0].key, ranges[index].ranges) for index in turn]
        by_index = dict(zip(turn, split(fetched.seal, parts), strict=True))
        seals = tuple(by_index[index] for index in range(len(ranges)))
        return DriverRead(planned, seals, _carried(seals, fetched.records))

    async def _try(self, planned: PlanToken, ranges: Sequence[PartitionRange]) -> DriverRead | None:
        try:
            return await self.read(planned, ranges)
        except ShardfleetError as error:
            # It is read again when Spark asks for it, and then a failure is Spark's to see.
            LOG.info("a batch could not be read ahead: %s", error)
            return None


def _carried(
    seals: Sequence[Seal], records: Mapping[str, Sequence[StreamRecord]]
) -> list[Mapping[str, Sequence[StreamRecord]]]:
    bodies: list[Mapping[str, Sequence[StreamRecord]]] = []
    left = CARRIED_BYTES
    for seal in seals:
        size = sum(each.size_bytes + CARRIAGE_BYTES * each.count for each in seal.shards)
        fits = size <= left
        left -= size if fits else 0
        shards = [each.shard_id for each in seal.shards] if fits else []
        bodies.append({shard_id: records[shard_id] for shard_id in shards})
    return bodies
