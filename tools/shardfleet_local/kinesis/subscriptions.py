"""
SubscribeToShard: records of one shard pushed to one consumer as they arrive.

API reference, SubscribeToShard: a subscription lives five minutes; a second one for the same
consumer and shard is refused within five seconds of the first, though that has ended, and takes
over after that; a consumer gets 2 MiB a second per shard, whoever else reads. The last event of a
closed shard has ChildShards and no ContinuationSequenceNumber (protocol.md section 4.5).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import in_use, not_found
from shardfleet_local.kinesis.faults import FaultKind, Site
from shardfleet_local.kinesis.get_operations import POSITIONS, starting_offset
from shardfleet_local.kinesis.quotas import GET_RECORDS_COUNT, MIB, READ_BYTES_PER_S
from shardfleet_local.kinesis.requests import (
    Request,
    broken,
    choice,
    name,
    optional_text,
    structure,
    timestamp_ms,
)
from shardfleet_local.kinesis.shards import StoredShard, child_shards
from shardfleet_local.kinesis.streams import Consumer, Stream

SUBSCRIBE: Final = "SubscribeToShard"
"""The operation."""
LIFE_MS: Final = 300_000  # fact K86
"""A subscription ends after five minutes."""
TAKEOVER_MS: Final = 5_000  # fact K34
"""For so long a subscription cannot be taken over by the next."""
HEARTBEAT_MS: Final = 5_000  # fact K86
"""Without records, an empty event is sent this often."""
EVENT_BYTES: Final = MIB  # fact K86
"""Most bytes of records in one event."""
LOOK_MS: Final = 100  # ours
"""While it is silent, whether it is silent still is looked at this often."""


class SubscriptionReset(Exception):
    """The connection of a subscription broke off: whoever carries it says so in its own way."""


class Subscription:
    """One subscription; `events` yields what is to be sent until it is over."""

    def __init__(
        self,
        account: Account,
        *,
        stream: Stream,
        consumer: Consumer,
        shard: StoredShard,
        offset: int,
    ) -> None:
        self.stream = stream
        self.consumer = consumer
        self.shard = shard
        self.started_ms = account.now_ms()
        self._account = account
        self._offset = offset
        self._is_over = False
        self._is_half_open = False
        self._sent_ms: int | None = None

    def end(self) -> None:
        """End it from outside: another one takes over, or the consumer is deregistered."""
        self._is_over = True
        self.shard.wake()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """
        Yield SubscribeToShardEvent payloads in wire form.

        Raises:
            KinesisError: ResourceInUseException when another subscription took over,
                ResourceNotFoundException when the stream or the consumer was deleted.
            SubscriptionReset: that was asked for.

        """
        woken = asyncio.Event()
        # Another thread may put the record that wakes us.
        waker = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        with self._account.lock:
            self.shard.wakers.add(waker)
        try:
            while True:
                woken.clear()
                with self._account.lock:
                    now_ms = self._account.settle()
                    event, size_bytes, patience_s = None, 0, LOOK_MS / 1000
                    if not self._is_silent():
                        self._check()
                        if now_ms - self.started_ms >= LIFE_MS:
                            return
                        event, size_bytes = self._next_event(now_ms)
                        patience_s = self._patience_s(now_ms)
                if event is None:
                    await _wait(woken, patience_s)
                    continue
                yield event
                if "ChildShards" in event:
                    return
                if self._account.settings.quotas:
                    await asyncio.sleep(size_bytes / READ_BYTES_PER_S)
        finally:
            with self._account.lock:
                self._forget(waker)

    def _forget(self, waker: Callable[[], object]) -> None:
        self.shard.wakers.discard(waker)
        if self.consumer.live.get(self.shard.shard_id) is self:
            del self.consumer.live[self.shard.shard_id]

    def _is_silent(self) -> bool:
        """Return whether nothing is said, not even that it is over; do what else was asked for."""
        faults = self._account.faults
        if self._is_half_open or not faults.any:
            return self._is_half_open
        site = Site(self.stream.name, self.shard.shard_id, SUBSCRIBE)
        if faults.take(FaultKind.RESET, site):
            raise SubscriptionReset
        if faults.take(FaultKind.TAKE_OVER, site):
            self._is_over = True
        silence = faults.take(FaultKind.SILENCE, site)
        # One that is counted is for life, as that of a connection whose other side has gone.
        self._is_half_open = silence is not None and silence.remaining is not None
        return silence is not None

    def _check(self) -> None:
        if self._account.streams.get(self.stream.name) is not self.stream:
            raise not_found(f"Stream {self.stream.name} was deleted.")  # fact K62
        if self.stream.consumers.get(self.consumer.name) is not self.consumer:
            raise not_found(f"Consumer {self.consumer.arn} was deregistered.")  # fact K87
        if self._is_over:
            raise in_use("Another subscription for this consumer and shard took over.")  # fact K34

    def _next_event(self, now_ms: int) -> tuple[dict[str, Any] | None, int]:
        log = self.shard.log
        log.trim(self.stream.horizon_ms(now_ms))
        found = log.read(self._offset, limit=GET_RECORDS_COUNT, max_bytes=EVENT_BYTES)
        self._offset = found.next_offset
        event: dict[str, Any] = {
            "Records": found.records,
            "MillisBehindLatest": self.shard.millis_behind(
                found.next_offset,
                last_read=found.next_offset - 1 if found.records else None,
                now_ms=now_ms,
            ),
        }
        if self.shard.is_drained(found.next_offset):
            event["ChildShards"] = child_shards(self.shard)
        elif found.records or self._sent_ms is None or now_ms - self._sent_ms >= HEARTBEAT_MS:
            event["ContinuationSequenceNumber"] = self._continuation(found.records, now_ms)
        else:
            return None, 0
        self._sent_ms = now_ms
        self._count(event, found.size_bytes, now_ms=now_ms)
        return event, found.size_bytes

    def _continuation(self, records: Sequence[dict[str, Any]], now_ms: int) -> str:
        """Return a number to go on after; without a record it moves on all the same (K35)."""
        if records:
            return str(records[-1]["SequenceNumber"])
        return self.stream.mint.mint(self.shard.number, now_ms)

    def _patience_s(self, now_ms: int) -> float:
        due_ms = self._account.next_due_ms()
        patience_ms = HEARTBEAT_MS if due_ms is None else min(HEARTBEAT_MS, due_ms - now_ms)
        return max(patience_ms, 1) / 1000

    def _count(self, event: dict[str, Any], size_bytes: int, *, now_ms: int) -> None:
        for metric, value in (
            ("SubscribeToShardEvent.Records", len(event["Records"])),
            ("SubscribeToShardEvent.Bytes", size_bytes),
            ("SubscribeToShardEvent.MillisBehindLatest", event["MillisBehindLatest"]),
        ):
            self._account.metrics.add(
                metric,
                value,
                stream=self.stream.name,
                shard=self.shard.shard_id,
                now_ms=now_ms,
            )


async def _wait(woken: asyncio.Event, patience_s: float) -> None:
    try:
        async with asyncio.timeout(patience_s):
            await woken.wait()
    except TimeoutError:
        pass


def subscribe(account: Account, request: Request) -> Subscription:
    """
    Check a SubscribeToShard request and register its subscription.

    Raises:
        KinesisError: as the operation documents; ResourceInUseException if the consumer is not
            ACTIVE or subscribed to the shard less than five seconds ago (with quotas on).

    """
    stream, consumer = account.consumer({"ConsumerARN": request.get("ConsumerARN") or ""})
    shard = account.shard(stream, name(request, "ShardId"))
    position = structure(request, "StartingPosition")
    if position is None:
        raise broken(None, "startingPosition", constraint="Member must not be null")  # fact K60
    now_ms = account.now_ms()
    offset = starting_offset(
        stream,
        shard,
        kind=choice(position, "Type", allowed=POSITIONS),
        number=optional_text(position, "SequenceNumber"),
        at_ms=timestamp_ms(position, "Timestamp"),
        now_ms=now_ms,
    )
    if consumer.status != "ACTIVE":
        raise in_use(  # fact K87
            f"Consumer {consumer.name} with creation timestamp {consumer.created_ms // 1000} under "
            f"stream: {stream.name} , account {account.settings.account_id} is not in ACTIVE "
            "status."
        )
    last_ms = consumer.subscribed_ms.get(shard.shard_id, now_ms - TAKEOVER_MS)
    if account.settings.quotas and now_ms - last_ms < TAKEOVER_MS:
        raise in_use(
            f"Consumer {consumer.arn} subscribed to {shard.shard_id} just now."
        )  # fact K34
    before: Subscription | None = consumer.live.get(shard.shard_id)
    if before is not None:
        before.end()
    subscription = Subscription(
        account, stream=stream, consumer=consumer, shard=shard, offset=offset
    )
    consumer.live[shard.shard_id] = subscription
    consumer.subscribed_ms[shard.shard_id] = now_ms
    return subscription
