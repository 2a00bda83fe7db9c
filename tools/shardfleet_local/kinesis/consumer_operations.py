"""Operations on enhanced fan-out consumers, all but SubscribeToShard (subscriptions.py)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import in_use, invalid_argument, limit_exceeded
from shardfleet_local.kinesis.requests import (
    MOST_RESULTS,
    Request,
    name,
    optional_text,
    text,
    timestamp_ms,
    whole_number,
)
from shardfleet_local.kinesis.shard_operations import check_incarnation
from shardfleet_local.kinesis.streams import Consumer, Stream
from shardfleet_local.kinesis.tag_operations import tag_map
from shardfleet_local.kinesis.tokens import PageToken, page_of

Response = dict[str, Any]

MOST_CONSUMERS: Final = 20  # fact K39
"""Consumers per stream (API reference, RegisterStreamConsumer)."""
MOST_WITH_ADVANTAGE: Final = 50  # fact K39
"""Consumers per On-demand Advantage stream (same page)."""
MOST_CREATING: Final = 5  # fact K39
"""Consumers that may be CREATING at once (same page)."""
CONSUMERS_PER_PAGE: Final = 100  # fact K97
"""Default and greatest page of ListStreamConsumers (API reference)."""


def register_consumer(account: Account, request: Request) -> Response:
    """RegisterStreamConsumer."""
    stream = account.stream_with_arn(text(request, "StreamARN"))
    consumer_name = name(request, "ConsumerName")
    account.require_active(stream)
    _check_room(account, stream, consumer_name=consumer_name)
    now_ms = account.now_ms()
    consumer = Consumer(
        name=consumer_name,
        arn=f"{stream.arn}/consumer/{consumer_name}:{now_ms // 1000}",
        stream_arn=stream.arn,
        status="CREATING",
        created_ms=now_ms,
        tags=tag_map(request) if request.get("Tags") is not None else {},
    )
    stream.consumers[consumer_name] = consumer

    def finish(_now_ms: int) -> None:
        consumer.status = "ACTIVE"

    account.after(account.settings.phases.consumer_ms, finish)
    # The answer always says CREATING: the status is the one at the time of the call.
    return {"Consumer": _described(consumer) | {"ConsumerStatus": "CREATING"}}


def _check_room(account: Account, stream: Stream, *, consumer_name: str) -> None:
    if consumer_name in stream.consumers:
        raise in_use(f"Consumer {consumer_name} of {stream.arn} already exists.")  # fact K64
    has_advantage = account.settings.on_demand_advantage and stream.settings.mode == "ON_DEMAND"
    most = MOST_WITH_ADVANTAGE if has_advantage else MOST_CONSUMERS
    if len(stream.consumers) >= most:
        raise limit_exceeded(f"The stream may have {most} consumers.")  # fact K39
    creating = sum(
        consumer.status == "CREATING"
        for each in account.streams.values()
        for consumer in each.consumers.values()
    )
    if creating >= MOST_CREATING:
        raise limit_exceeded(f"{MOST_CREATING} consumers are being created already.")  # fact K39


def describe_consumer(account: Account, request: Request) -> Response:
    """DescribeStreamConsumer."""
    _, consumer = account.consumer(request)
    return {"ConsumerDescription": _described(consumer) | {"StreamARN": consumer.stream_arn}}


def list_consumers(account: Account, request: Request) -> Response:
    """ListStreamConsumers, by name."""
    stream = account.stream_with_arn(text(request, "StreamARN"))
    check_incarnation(stream, timestamp_ms(request, "StreamCreationTimestamp"))
    limit = whole_number(
        request, "MaxResults", least=1, most=MOST_RESULTS, default=CONSUMERS_PER_PAGE
    )
    limit = min(limit, CONSUMERS_PER_PAGE)
    now_ms = account.now_ms()
    start, token = "", optional_text(request, "NextToken")
    if token is not None:
        page = page_of(token, "ListStreamConsumers", now_ms=now_ms)
        if (page.stream_arn, page.created_ms) != (stream.arn, stream.created_ms):
            raise invalid_argument(f"NextToken does not belong to {stream.arn}.")  # fact K84
        start = page.after
    names = sorted(each for each in stream.consumers if each > start)
    answer: Response = {"Consumers": [_described(stream.consumers[each]) for each in names[:limit]]}
    if len(names) > limit:
        answer["NextToken"] = PageToken(
            "ListStreamConsumers", stream.arn, stream.created_ms, names[limit - 1], {}, now_ms
        ).sealed()
    return answer


def deregister_consumer(account: Account, request: Request) -> Response:
    """DeregisterStreamConsumer; its subscriptions end."""
    stream, consumer = account.consumer(request)
    consumer.status = "DELETING"
    for subscription in tuple(consumer.live.values()):
        subscription.end()

    def finish(_now_ms: int) -> None:
        if stream.consumers.get(consumer.name) is consumer:
            del stream.consumers[consumer.name]

    account.after(account.settings.phases.consumer_ms, finish)
    return {}


def _described(consumer: Consumer) -> Response:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status,
        "ConsumerCreationTimestamp": consumer.created_ms / 1000,
    }


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "RegisterStreamConsumer": register_consumer,
    "DescribeStreamConsumer": describe_consumer,
    "ListStreamConsumers": list_consumers,
    "DeregisterStreamConsumer": deregister_consumer,
}
