"""
Reading a stream by subscriptions: SubscribeToShard, over HTTP/2.

To sign and to read a refusal may take a call to somebody, so that is done in threads; what is
pushed is read in the event loop, an event of at most 1 MiB at a time (fact K86).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Never

import msgspec
from msgspec.structs import replace

from shardfleet.adapters.http.answers import OK
from shardfleet.adapters.http.h2_connection import ArrivingAnswer, H2Connections
from shardfleet.adapters.http.json_service import JsonService, trusting
from shardfleet.adapters.kinesis.decode import decode_event
from shardfleet.adapters.kinesis.event_frames import EventFrame, take_frame
from shardfleet.adapters.kinesis.polling import refused_number, shard_call, stated
from shardfleet.adapters.kinesis.wire import OpenWire
from shardfleet.adapters.sdk_errors import SdkCall, UnreadableAnswer, UsualRefusal, unsettled
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.errors import (
    ConfigurationError,
    ShardfleetError,
    ShardGone,
    SubscriptionHeld,
    Unsettled,
)

_SUBSCRIBE = "SubscribeToShard"
_FIRST, _EVENT = "initial-response", "SubscribeToShardEvent"


class PushedShard:
    """The ``ShardSubscription`` port over an answer that goes on."""

    def __init__(self, answer: ArrivingAnswer, call: SdkCall) -> None:
        """Take nothing yet."""
        self.is_over = False
        self._answer = answer
        self._call = call
        self._has_begun = False

    def take(self) -> RecordsPage | None:
        """Return the next event that has come; see the port."""
        return self._call.run(self._take)

    def close(self) -> None:
        """Want no more of it."""
        self._answer.close()

    def _take(self) -> RecordsPage | None:
        answer = self._answer
        while (frame := take_frame(answer.body)) is not None:
            if frame.headers.get(":message-type") != "event":
                raise _refusal(frame)
            kind = frame.headers.get(":event-type")
            if not self._has_begun and kind != _FIRST:
                raise UnreadableAnswer(f"a subscription begins with {kind}")
            self._has_begun = True
            if kind == _EVENT:
                return decode_event(frame.payload)
        answer.give_back()
        if answer.failure is not None:
            raise UnreadableAnswer(str(answer.failure))
        if answer.is_over and answer.body:
            raise UnreadableAnswer("the last event is not complete")
        self.is_over = answer.is_over
        return None


def _refusal(frame: EventFrame) -> UsualRefusal:
    """Return what the last message of a subscription says."""
    headers, said = frame.headers, ""
    with suppress(ValueError, KeyError):
        said = str(msgspec.json.decode(frame.payload, type=dict[str, str])["message"])
    code = headers.get(":exception-type") or headers.get(":error-code", "")
    said = said or headers.get(":error-message", "")
    return UsualRefusal({"Error": {"Code": code, "Message": said}}, _SUBSCRIBE)


class KinesisPushing:
    """
    The ``ShardSubscriptions`` port over one consumer of a stream; for one event loop.

    Args:
        stream_arn: the stream.
        consumer_arn: of its registered consumer.
        wire: opens what signs and reads refusals.
        pool: threads for that.

    """

    def __init__(
        self, stream_arn: str, consumer_arn: str, *, wire: OpenWire, pool: ThreadPool
    ) -> None:
        """Connect to nothing yet."""
        self._stream_arn = stream_arn
        self._consumer_arn = consumer_arn
        self._open_wire = wire
        self._pool = pool
        self._connections: H2Connections | None = None

    async def subscribe(
        self, shard_id: str, start: StartingPosition, *, wake: Callable[[], None]
    ) -> PushedShard:
        """Subscribe to a shard; see the port."""
        call = self._call(shard_id, start)
        service, headers, body = await self._pool.run(
            partial(call.run, self._signed, shard_id=shard_id, start=start)
        )
        if self._connections is None:
            tls = None if service.endpoint.tls is None else trusting(service.site.bundle, "h2")
            self._connections = H2Connections(service.endpoint, tls)
        try:
            answer = await self._connections.request(headers, body, wake)
        except Exception as error:  # noqa: BLE001 - judged, and raised as what it is
            call.run(_raise, error=error)
        if answer.status != OK:
            refused = partial(service.body_of, _SUBSCRIBE, answer.whole())
            await self._pool.run(partial(call.run, refused))
        return PushedShard(answer, call)

    async def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            await self._connections.close()

    def _signed(
        self, *, shard_id: str, start: StartingPosition
    ) -> tuple[JsonService, dict[str, str], bytes]:
        wire = self._open_wire()
        if wire is None:
            words = "records are pushed by connections of our own, and there is a proxy between"
            raise Unsettled(ConfigurationError(words))
        position: dict[str, object] = {"Type": start.kind.value}
        if start.sequence_number is not None:
            position["SequenceNumber"] = start.sequence_number
        if start.instant_ms is not None:
            position["Timestamp"] = start.instant_ms / 1_000
        body = msgspec.json.encode(
            {"ConsumerARN": self._consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        )
        headers = wire.service.headers(_SUBSCRIBE, body) | {"content-length": str(len(body))}
        return wire.service, headers, body

    def _call(self, shard_id: str, start: StartingPosition) -> SdkCall:
        by_number = start.sequence_number is not None
        invalid = refused_number if by_number else unsettled(ConfigurationError)
        operation = f"{_SUBSCRIBE} {start.kind} {stated(start)}"
        call = shard_call(operation, shard_id, self._stream_arn, invalid=invalid)

        def missing(text: str) -> ShardfleetError:
            # The operation has one code for a shard and for the consumer that are not there.
            is_consumer = "onsumer" in text.removeprefix(call.what)
            return unsettled(ConfigurationError)(text) if is_consumer else ShardGone(text)

        special = {"ResourceInUseException": SubscriptionHeld, "ResourceNotFoundException": missing}
        return replace(call, codes={**call.codes, **special})


def _raise(*, error: Exception) -> Never:
    raise error
