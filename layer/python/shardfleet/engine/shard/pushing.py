"""
A source that is pushed: it subscribes to shards, and polls one whose subscriptions fail.

A subscription lives five minutes, and the next one begins behind the last continuation number,
which is the resume token, and no checkpoint ever (facts K13, K35). Of one consumer a shard has one
subscription: within five seconds of a success nobody gets another, and after that whoever comes
takes over (K34). So a refusal is waited out without a back-off, or who comes later would always
win; and who is taken over looks whether its lease still stands, before it takes the shard back.

A lease is renewed however silent a subscription is (K36), so silence ends it; time in which nobody
reads does not count. Both ways of reading stand at the same records: to change the way, the token
alone is given up.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition, StartKind, divided
from shardfleet.domain.slots.usage import ShardWay
from shardfleet.engine.ports import Clock, EventSink, ShardSubscription, ShardSubscriptions
from shardfleet.engine.retry import Halt, Halted, Signal
from shardfleet.engine.shard.reader import ShardSource
from shardfleet.errors import (
    IteratorExpired,
    OutcomeUnknown,
    ShardfleetError,
    SubscriptionHeld,
    SubscriptionTaken,
    Throttled,
    kind_of,
)
from shardfleet.events.delivery import PushLost

APART_MS = 5_000
"""Between two subscriptions to a shard (fact K34)."""
_AGAIN_MS = 1_000
# Somebody else may subscribe just before us once or twice; more is a second fleet on one consumer.
_HELD_MOST_MS = 15_000
SILENCE_MS = 35_000
"""A subscription sends something each five seconds or so (fact K86); as long as the KCL's first."""
FAILURES_MOST, _WITHIN_MS, POLLED_MS = 3, 60_000, 300_000
"""So many failures within a minute, and a shard is polled for five."""
_PUSHED = ShardWay()


class _Shard(Struct, eq=False):
    """
    A shard and its subscription.

    Attributes:
        at: where the next page of the subscription begins.
        rest: what of an event was not asked for yet.
        subscribed_ms: when that last succeeded, on the steady clock.
        failed_ms: of the last failures, likewise.
        polled_until_ms: likewise.
        waits_since_ms: for an event, likewise; -1: nobody does.

    """

    subscription: ShardSubscription | None = None
    at: StartingPosition | None = None
    rest: RecordsPage | None = None
    came: Signal = field(default_factory=Signal)
    subscribed_ms: int | None = None
    failed_ms: list[int] = []
    polled_until_ms: int = 0
    waits_since_ms: int = -1

    def leave(self) -> None:
        """Want no more of the subscription."""
        subscription, self.subscription, self.rest = self.subscription, None, None
        if subscription is not None:
            subscription.close()


class PushedSource:
    """
    The ``ShardSource`` port over subscriptions.

    Args:
        subscriptions: subscribes.
        polled: of the same stream, for shards whose subscriptions fail.
        clock: time.
        events: told of that.

    Attributes:
        ways: see the port.

    """

    def __init__(
        self,
        subscriptions: ShardSubscriptions,
        polled: ShardSource,
        *,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """Subscribe to nothing yet."""
        self._subscriptions = subscriptions
        self._polled = polled
        self._clock = clock
        self._events = events
        self.ways: dict[str, ShardWay] = {}
        self._shards = defaultdict[ShardRef, _Shard](_Shard)

    async def page(
        self,
        shard: ShardRef,
        start: StartingPosition,
        *,
        resume_token: str | None,
        limit: int,
        halt: Halt,
    ) -> RecordsPage:
        """
        Return what was pushed next, or a part of it; see the port.

        Raises:
            SubscriptionTaken: another one took over: confirm the lease, and ask again.

        """
        found = self._shards[shard]
        # A number is a continuation; an iterator is none, and longer than any.
        is_pushed = resume_token is not None and resume_token.isdecimal()
        if is_pushed:
            start = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, resume_token)
        now_ms = self._clock.monotonic_ms()
        if now_ms < found.polled_until_ms:
            token = None if is_pushed else resume_token
            return await self._polled.page(shard, start, resume_token=token, limit=limit, halt=halt)
        if resume_token is not None and not is_pushed:
            raise IteratorExpired(f"{shard.shard_id}: it was polled, and is pushed again")
        if found.waits_since_ms < 0:
            found.waits_since_ms = now_ms
        try:
            page = await self._next(shard, found, start, halt=halt)
        except (Throttled, OutcomeUnknown, SubscriptionTaken) as error:
            found.leave()
            self._failed(shard, found, error)
            raise
        except (Halted, ShardfleetError):
            found.leave()
            raise
        way = self.ways.get(shard.lease_key, _PUSHED)
        gap_ms = max(way.gap_ms, self._clock.monotonic_ms() - found.waits_since_ms)
        self.ways[shard.lease_key], found.waits_since_ms = ShardWay(gap_ms=gap_ms), -1
        part, found.rest = divided(page, limit, now_ms=self._clock.now_ms())
        if part.resume_token is None:
            found.leave()
        else:
            found.at = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, part.resume_token)
        return replace(part, page_token=resume_token)

    async def close(self) -> None:
        """End all subscriptions."""
        for found in self._shards.values():
            found.leave()
        await self._subscriptions.close()

    async def _next(
        self, shard: ShardRef, found: _Shard, start: StartingPosition, *, halt: Halt
    ) -> RecordsPage:
        if found.subscription is None or found.at != start:
            await self._subscribe(shard, found, start, halt=halt)
        while found.rest is None:
            page = await self._event(shard, found, halt)
            if page is not None:
                return page
            # Its five minutes are over.
            await self._subscribe(shard, found, start, halt=halt)
        return found.rest

    async def _event(self, shard: ShardRef, found: _Shard, halt: Halt) -> RecordsPage | None:
        """Return the next event, None at the end of the subscription's time."""
        subscription = found.subscription
        assert subscription is not None, "it was subscribed to"
        while True:
            halt.check()
            found.came.clear()
            try:
                page = subscription.take()
            except SubscriptionHeld as error:
                raise SubscriptionTaken(str(error)) from error
            if page is not None or subscription.is_over:
                return page
            if not await halt.unless(found.came, within_ms=SILENCE_MS):
                raise OutcomeUnknown(
                    f"SubscribeToShard of {shard.shard_id}: nothing came for {SILENCE_MS} ms"
                )

    async def _subscribe(
        self, shard: ShardRef, found: _Shard, start: StartingPosition, *, halt: Halt
    ) -> None:
        """Subscribe as soon as that is allowed."""
        found.leave()
        began_ms = self._clock.monotonic_ms()
        due_ms = 0 if found.subscribed_ms is None else found.subscribed_ms + APART_MS
        while True:
            wait_ms = due_ms - self._clock.monotonic_ms()
            if wait_ms > 0 and await halt.wait(wait_ms):
                raise Halted
            halt.check()
            found.came = Signal()
            try:
                found.subscription = await self._subscriptions.subscribe(
                    shard.shard_id, start, wake=found.came.set
                )
            except SubscriptionHeld:
                due_ms = self._clock.monotonic_ms() + _AGAIN_MS
                if due_ms - began_ms > _HELD_MOST_MS:
                    raise
            else:
                found.subscribed_ms = self._clock.monotonic_ms()
                found.at = start
                return

    def _failed(self, shard: ShardRef, found: _Shard, error: ShardfleetError) -> None:
        """Count a failure; after too many the shard is polled."""
        now_ms = self._clock.monotonic_ms()
        found.failed_ms = [at for at in found.failed_ms if now_ms - at < _WITHIN_MS] + [now_ms]
        if len(found.failed_ms) >= FAILURES_MOST:
            found.failed_ms, found.waits_since_ms = [], -1
            found.polled_until_ms = now_ms + POLLED_MS
            way = self.ways.get(shard.lease_key, _PUSHED)
            self.ways[shard.lease_key] = replace(way, polled=str(error))
            self._events.emit(
                PushLost(lease_key=shard.lease_key, error=kind_of(error), polled_ms=POLLED_MS)
            )
