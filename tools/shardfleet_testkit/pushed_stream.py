"""
A consumer of a stream in memory, whose records are pushed as SubscribeToShard sends them.

A subscription lives 5 minutes and pushes events: records, how far they lie behind, and a
continuation sequence number, behind which the next subscription begins. Within 5 seconds of one a
shard takes no other, and after that the next one takes over (Kinesis API reference,
SubscribeToShard). What is in the stream, and what goes wrong with it, is
:class:`~shardfleet_testkit.memory_stream.MemoryStream`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Protocol

from msgspec.structs import replace

from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.engine.ports import Clock
from shardfleet.errors import IteratorExpired, ShardfleetError, SubscriptionHeld
from shardfleet_testkit.memory_stream import MemoryStream

SUBSCRIPTION_LIFE_MS = 300_000
SUBSCRIPTIONS_APART_MS = 5_000
_EVENTS_APART_MS = 200
# Without records an event comes all the same, now and then: it tells the lag.
_QUIET_EVENTS_APART_MS = 1_000
_EVENTS_AHEAD = 4
_EVENT_RECORDS = 100


class PagesOf(Protocol):
    """Returns what an iterator brings: iterator, shard, most records."""

    def __call__(self, iterator: str, /, *, shard_id: str, limit: int) -> Awaitable[RecordsPage]:
        """Return a page."""


class MemorySubscription:
    """
    The ``ShardSubscription`` port.

    Attributes:
        is_over: its five minutes are.
        is_silent: nothing more comes of it, and nobody says so.

    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Wait for the first event."""
        self.is_over = False
        self.is_silent = False
        self.pushing: asyncio.Task[None] | None = None
        self._wake = wake
        self._events: deque[RecordsPage] = deque()
        self._failure: ShardfleetError | None = None
        self._has_ended = False

    @property
    def is_full(self) -> bool:
        """Return whether nothing more is sent until something is taken."""
        return len(self._events) >= _EVENTS_AHEAD

    def push(self, event: RecordsPage) -> None:
        """Send an event."""
        if not self.is_silent:
            self._events.append(event)
            self._wake()

    def end(self, failure: ShardfleetError | None = None) -> None:
        """Send that it is over."""
        if not self.is_silent:
            self._failure, self._has_ended = failure, True
            self._wake()

    def take(self) -> RecordsPage | None:
        """Return the next event; see the port."""
        if self._events:
            return self._events.popleft()
        if self._failure is not None:
            raise self._failure
        self.is_over = self._has_ended
        return None

    def close(self) -> None:
        """Push no more."""
        if self.pushing is not None:
            self.pushing.cancel()


class MemoryConsumer:
    """
    The ``ShardSubscriptions`` port, shared by all who read by one consumer.

    Attributes:
        subscribed: monotonic milliseconds of each subscription, by shard.
        live: the last subscription to each shard.
        fault: called with each shard that is to be subscribed to; raises what goes wrong.

    """

    def __init__(self, stream: MemoryStream | Callable[[], MemoryStream], clock: Clock) -> None:
        """Subscribe to nothing yet; the stream is looked up anew, if something returns it."""
        self.subscribed: dict[str, list[int]] = {}
        self.live: dict[str, MemorySubscription] = {}
        self.fault: Callable[[str], object] = bool
        self._stream = stream
        self._clock = clock

    @property
    def _now(self) -> MemoryStream:
        return self._stream if isinstance(self._stream, MemoryStream) else self._stream()

    async def subscribe(
        self,
        shard_id: str,
        start: StartingPosition,
        *,
        wake: Callable[[], None],
        pages: PagesOf | None = None,
    ) -> MemorySubscription:
        """Subscribe to a shard, whose pages are got otherwise if told; see the port."""
        self.fault(shard_id)
        now_ms, before = self._clock.monotonic_ms(), self.subscribed.setdefault(shard_id, [])
        if before and now_ms - before[-1] < SUBSCRIPTIONS_APART_MS:
            message = f"SubscribeToShard of {shard_id}: ResourceInUseException"
            raise SubscriptionHeld(message)
        stream = self._now
        iterator = await stream.shard_iterator(shard_id, start)
        token = stream.continuation(shard_id, iterator)
        before.append(now_ms)
        if taken_over := self.live.get(shard_id):
            taken_over.close()
            taken_over.end(SubscriptionHeld(f"{shard_id}: another subscription took over"))
        self.live[shard_id] = found = MemorySubscription(wake)
        pushing = self._push(
            shard_id, iterator, found, token=token, pages=pages or stream.get_records
        )
        # It is the service that pushes, whatever becomes of who has subscribed.
        found.pushing = asyncio.create_task(pushing, context=Context())
        return found

    async def close(self) -> None:
        """Leave each subscription to whoever has it."""

    async def _push(
        self,
        shard_id: str,
        iterator: str,
        current: MemorySubscription,
        *,
        token: str,
        pages: PagesOf,
    ) -> None:
        """Do as the service does: send what there is, and now and then that there is nothing."""
        until_ms = self._clock.monotonic_ms() + SUBSCRIPTION_LIFE_MS
        told_ms = -_QUIET_EVENTS_APART_MS
        while self._clock.monotonic_ms() < until_ms:
            try:
                page = await pages(iterator, shard_id=shard_id, limit=_EVENT_RECORDS)
            except IteratorExpired:
                break
            except ShardfleetError as error:
                current.end(error)
                return
            token = page.records[-1].sequence_number if page.records else token
            is_quiet = not page.records and page.resume_token is not None
            if not is_quiet or self._clock.monotonic_ms() - told_ms >= _QUIET_EVENTS_APART_MS:
                told_ms = self._clock.monotonic_ms()
                current.push(replace(page, resume_token=page.resume_token and token))
            if page.resume_token is None:
                return
            iterator = page.resume_token
            await self._clock.sleep_ms(_EVENTS_APART_MS)
            while current.is_full and self._clock.monotonic_ms() < until_ms:
                await self._clock.sleep_ms(_EVENTS_APART_MS)
        current.end()
