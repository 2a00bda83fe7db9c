"""
A shard source whose pages come by themselves, as SubscribeToShard sends them.

A subscription lives 5 minutes and pushes events: records, how far they lie behind, and a
continuation sequence number, behind which the next subscription begins; a shard takes one
subscription in 5 seconds (Kinesis API reference, SubscribeToShard). What is in the stream, and what
goes wrong with it, is :class:`~shardfleet_testkit.memory_stream.MemoryStream`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition, StartKind
from shardfleet.engine.ports import Clock
from shardfleet.engine.retry import Halt, Signal
from shardfleet.errors import IteratorExpired, ShardfleetError, Throttled
from shardfleet.records import StreamRecord
from shardfleet_testkit.memory_stream import MemoryStream

SUBSCRIPTION_LIFE_MS = 300_000
SUBSCRIPTIONS_APART_MS = 5_000
_EVENTS_APART_MS = 200
# Without records an event comes all the same, now and then: it tells the lag.
_QUIET_EVENTS_APART_MS = 1_000
_EVENTS_AHEAD = 4
_EVENT_RECORDS = 100


@dataclass(slots=True)
class _Subscription:
    token: str
    events: asyncio.Queue[RecordsPage | ShardfleetError | None] = field(
        default_factory=lambda: asyncio.Queue(_EVENTS_AHEAD)
    )
    pushed: Signal = field(default_factory=Signal)
    rest: RecordsPage | None = None

    async def push(self, event: RecordsPage | ShardfleetError | None) -> None:
        await self.events.put(event)
        self.pushed.set()

    async def next(self, halt: Halt) -> RecordsPage | ShardfleetError | None:
        while self.events.empty():
            self.pushed.clear()
            await halt.unless(self.pushed)
        return self.events.get_nowait()


class PushedStream:
    """
    The ``ShardSource`` port on subscriptions, whose pace is the service's; close it.

    Attributes:
        subscribed: monotonic milliseconds of each subscription, by shard.

    """

    def __init__(self, stream: MemoryStream, clock: Clock) -> None:
        """Subscribe to nothing yet."""
        self.subscribed: dict[str, list[int]] = {}
        self._stream = stream
        self._clock = clock
        self._subscriptions: dict[str, _Subscription] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def page(
        self,
        shard: ShardRef,
        start: StartingPosition,
        *,
        resume_token: str | None,
        limit: int,
        halt: Halt,
    ) -> RecordsPage:
        """Return what was pushed next, or a part of it; the token is a continuation number."""
        shard_id = shard.shard_id
        current = self._subscriptions.get(shard_id)
        if current is None or current.token != resume_token:
            current = await self._subscribe(shard_id, start, resume_token)
        event = current.rest or await current.next(halt)
        while event is None:  # Its five minutes are over.
            current = await self._subscribe(shard_id, start, current.token)
            event = await current.next(halt)
        if isinstance(event, ShardfleetError):
            await self._cancel(shard_id)
            raise event
        found, current.rest = _cut(event, limit, now_ms=self._clock.now_ms())
        found = replace(found, page_token=current.token)
        if found.resume_token is None:
            await self._cancel(shard_id)
        else:
            current.token = found.resume_token
        return found

    async def close(self) -> None:
        """End all subscriptions."""
        for shard_id in list(self._subscriptions):
            await self._cancel(shard_id)

    async def _cancel(self, shard_id: str) -> None:
        if self._subscriptions.pop(shard_id, None) is not None:
            task = self._tasks.pop(shard_id)
            task.cancel()
            await asyncio.wait([task])

    async def _subscribe(
        self, shard_id: str, start: StartingPosition, token: str | None
    ) -> _Subscription:
        await self._cancel(shard_id)
        now_ms, before = self._clock.monotonic_ms(), self.subscribed.setdefault(shard_id, [])
        if before and now_ms - before[-1] < SUBSCRIPTIONS_APART_MS:
            message = f"SubscribeToShard of {shard_id}: ResourceInUseException"
            raise Throttled(message)
        if token is not None:
            start = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, token)
        iterator = await self._stream.shard_iterator(shard_id, start)
        before.append(now_ms)
        token = self._stream.continuation(shard_id, iterator)
        self._subscriptions[shard_id] = found = _Subscription(token)
        self._tasks[shard_id] = asyncio.create_task(self._push(shard_id, iterator, found))
        return found

    async def _push(self, shard_id: str, iterator: str, current: _Subscription) -> None:
        """Do as the service does: send what there is, and now and then that there is nothing."""
        until_ms, token = self._clock.monotonic_ms() + SUBSCRIPTION_LIFE_MS, current.token
        told_ms = -_QUIET_EVENTS_APART_MS
        while self._clock.monotonic_ms() < until_ms:
            try:
                page = await self._stream.get_records(
                    iterator, shard_id=shard_id, limit=_EVENT_RECORDS
                )
            except IteratorExpired:
                break
            except ShardfleetError as error:
                await current.push(error)
                return
            token = page.records[-1].sequence_number if page.records else token
            is_quiet = not page.records and page.resume_token is not None
            if not is_quiet or self._clock.monotonic_ms() - told_ms >= _QUIET_EVENTS_APART_MS:
                told_ms = self._clock.monotonic_ms()
                await current.push(replace(page, resume_token=page.resume_token and token))
            if page.resume_token is None:
                return
            iterator = page.resume_token
            await self._clock.sleep_ms(_EVENTS_APART_MS)
        await current.push(None)


def _cut(event: RecordsPage, limit: int, *, now_ms: int) -> tuple[RecordsPage, RecordsPage | None]:
    """Return so many records of an event, as far behind as the next one, and what is left of it."""
    if len(event.records) <= limit:
        return event, None
    first: Sequence[StreamRecord] = event.records[:limit]
    token = first[-1].sequence_number
    rest = replace(event, records=event.records[limit:], size_bytes=None)
    lag_ms = max(1, now_ms - rest.records[0].approximate_arrival_ms)
    return RecordsPage(records=first, resume_token=token, millis_behind_latest=lag_ms), rest
