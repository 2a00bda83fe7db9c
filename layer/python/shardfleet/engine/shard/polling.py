"""A source that is polled: it asks a shard when quotas allow it; no other source knows of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pacing import VISITOR, PolledShard, PollPace
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.domain.slots.usage import ShardWay
from shardfleet.engine.ports import Clock, ShardCalls
from shardfleet.engine.retry import Halt, Halted


class PolledSource:
    """
    The ``ShardSource`` port over calls for single pages, each shard at its pace.

    Args:
        calls: asks for a page.
        clock: time.
        pace: how often a shard is asked.

    """

    def __init__(self, calls: ShardCalls, clock: Clock, *, pace: PollPace = VISITOR) -> None:
        """Let each shard be asked at once."""
        self.ways: Mapping[str, ShardWay] = {}  # There is one.
        self._calls = calls
        self._clock = clock
        self._shards = defaultdict[ShardRef, PolledShard](
            lambda: PolledShard(pace, now_ms=clock.monotonic_ms())
        )

    @classmethod
    def of_worker(cls, calls: ShardCalls, clock: Clock, config: FleetConfig) -> PolledSource:
        """Poll as a fleet's workers do."""
        pace = PollPace(
            call_ms=config.busy_read_ms,
            bytes_per_s=config.read_bytes_per_s,
            idle_most_ms=config.idle_read_ms,
            window_ms=config.batch_window_ms,
        )
        return cls(calls, clock, pace=pace)

    async def page(
        self,
        shard: ShardRef,
        start: StartingPosition,
        *,
        resume_token: str | None,
        limit: int,
        halt: Halt,
    ) -> RecordsPage:
        """Ask once the shard may be asked; see the port."""
        clock, pace = self._clock, self._shards[shard]
        wait_ms = pace.next_call_ms - clock.monotonic_ms()
        if wait_ms > 0 and await halt.wait(wait_ms):
            raise Halted
        pace.asked(clock.monotonic_ms())
        page = await self._calls.page(shard.shard_id, start, resume_token=resume_token, limit=limit)
        pace.answered(page, clock.monotonic_ms())
        return page
