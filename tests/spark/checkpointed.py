"""
A query's checkpoint and its sink in small, over runs that come and go: what Spark asks, in order.

Spark 4.2 and newer say where a batch starts. Spark 4.0 and 4.1 do not: on a restart they ask for
the partitions of an empty batch at the last offset, by which a source learns where it is.
"""

import copy

from shardfleet_spark.plan.driver import SourceDriver
from shardfleet_spark.read.sealing import conform, read_sealed

BATCHES_MOST = 300


class Checkpointed:
    """
    One query: its offset log, its commit log, and what its sink has of each batch.

    Args:
        query: stream, clock and settings; several queries may share them.
        store: of seals, None for none; a restart may name another one.
        said: how Spark asks: "4.2" or "4.0".

    """

    def __init__(self, query, store, *, said="4.2"):
        self.query = query
        self.store = store
        self.said = said
        self.offsets = []
        self.committed = 0
        self.sink = {}
        self.told = []
        self.driver = None
        self.may_differ = False  # Whether a repeated batch may be another one.

    def copied(self):
        """Return a query whose checkpoint, and sink, are a copy of this one's at this moment."""
        twin = copy.copy(self)
        twin.offsets, twin.sink, twin.told = [*self.offsets], dict(self.sink), []
        twin.driver = None
        return twin

    def roll_back(self, batches):
        """Take the last batches out of both logs, and out of the sink."""
        self.committed = len(self.offsets) - batches
        self.offsets = self.offsets[: self.committed]
        self.sink = {batch: rows for batch, rows in self.sink.items() if batch < self.committed}

    def rows(self):
        return [row for _, rows in sorted(self.sink.items()) for row in rows]

    async def start(self, *, until_now=False):
        """Begin a run; repeat the batch that is not committed, if there is one."""
        ports = self.query.fresh_ports()
        self.driver = SourceDriver(self.query.settings, ports, self.store)
        if until_now:
            self.driver.prepare_available_now()
        if self.committed < len(self.offsets):
            await self._execute(self.committed)
            self.committed += 1
        elif self.offsets and self.said == "4.0":
            assert await self.driver.partitions(self.offsets[-1], self.offsets[-1]) == []

    async def run(self, batches=BATCHES_MOST, *, dies=""):
        """
        Run so many batches, or until there is nothing to read.

        Args:
            batches: at most.
            dies: where the last of them stops: "" nowhere, "offset" when its offset is written,
                "sink" when its rows are in the sink as well.

        """
        idle = 0
        for number in range(batches):
            while not await self._plan():
                idle += 1
                if idle > 3:
                    return
                await self.query.clock.sleep_ms(2_000)
            idle = 0
            if dies == "offset" and number == batches - 1:
                return
            await self._execute(len(self.offsets) - 1)
            if dies == "sink" and number == batches - 1:
                return
            self.committed = len(self.offsets)
            await self.query.clock.sleep_ms(1_000)

    async def _plan(self):
        start = self.offsets[-1] if self.offsets else await self.driver.initial()
        end = await self.driver.latest(start if self.said == "4.2" else None)
        if end == start:
            return False
        self.told += end["stats"].get("lost", ())
        if self.offsets:
            await self.driver.commit(start)
        self.offsets.append(end)
        return True

    async def _execute(self, batch):
        # Spark makes the initial offset of batch 0 anew when it is repeated.
        start = self.offsets[batch - 1] if batch else {"v": 1}
        rows = []
        for planned in await self.driver.partitions(start, self.offsets[batch]):
            rows += await self._task(planned)
        before = self.sink.setdefault(batch, rows)
        assert before == rows or self.may_differ, "a batch was not the same again"

    async def _task(self, planned):
        ports = self.query.fresh_ports()
        if planned.sealed is not None:
            (part,) = planned.range.parts
            read = await conform(part, planned.sealed, ports, buffers=planned.records)
        else:
            read = await read_sealed(planned.range, self.store, ports, writer={})
        return [record.data for each in read for record in each.records]
