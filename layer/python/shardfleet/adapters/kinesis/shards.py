"""
What reader and writer share of Kinesis: listing shards, shapes and error codes.

``StreamARN`` is part of every request, so that streams of other accounts work.

A listing is read here whoever asked for it, as botocore's parser takes 6 ms of CPU for a page of
1,000 shards, and msgspec 0.4. A manager lists all shards each turn, and they seldom change: what
was read of the same text before is the answer again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from shardfleet.adapters.http.client_wire import ClientWire
from shardfleet.adapters.sdk_errors import SdkCall, UnreadableAnswer, pages
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import StreamGone

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

SHARDS_PER_PAGE = 1_000  # ListShards: a page has no more, whatever MaxResults says
_PAGING = ("NextToken", "NextToken")
_PAGES_KEPT = 32  # Some 0.7 MB each.
UNREAD = "shardfleet:unread"
"""Of an answer, the text of its body."""
_OK = 200
_READ_HERE: ContextVar[bool] = ContextVar("_READ_HERE", default=False)


def unread(
    client: KinesisClient, operation: str, call: Callable[..., Any], **arguments: Any
) -> tuple[bytes | None, Any]:
    """
    Ask, and return the body of the answer as it came; None, and botocore's answer, if it is none.

    botocore sends, repeats and judges refusals; what is no JSON is its own to read.
    """
    if not isinstance(client, ClientWire):  # That one does so by itself.
        leave_unread(client, operation)
    token = _READ_HERE.set(True)
    try:
        answer = call(**arguments)
    finally:
        _READ_HERE.reset(token)
    return answer.get(UNREAD), answer


def leave_unread(client: KinesisClient, operation: str) -> None:
    """Let the SDK's client hand on the body of an answer that is asked for by :func:`unread`."""
    client.meta.events.register(
        f"before-parse.kinesis.{operation}", _set_aside, unique_id=f"shardfleet-{operation}"
    )


# By the model; ``int`` alone would take blanks and signs, too.
HashKeyText = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,38})$")]


class _HashKeyRange(msgspec.Struct):
    """``HashKeyRange``."""

    StartingHashKey: HashKeyText
    EndingHashKey: HashKeyText


class _SequenceNumberRange(msgspec.Struct):
    """``SequenceNumberRange``."""

    StartingSequenceNumber: str
    EndingSequenceNumber: str | None = None


class _Shard(msgspec.Struct):
    """``Shard``."""

    ShardId: str
    HashKeyRange: _HashKeyRange
    SequenceNumberRange: _SequenceNumberRange
    ParentShardId: str | None = None
    AdjacentParentShardId: str | None = None


class _Listing(msgspec.Struct):
    """``ListShardsOutput``."""

    Shards: msgspec.Raw
    NextToken: str | None = None


def list_shards(
    client: KinesisClient, stream_arn: str, *, shard_filter: Mapping[str, Any] | None = None
) -> list[Shard]:
    """
    List all pages of a stream's shards, in the service's order.

    Args:
        client: may repeat.
        stream_arn: the stream.
        shard_filter: a ``ShardFilter``.

    The stream and the filter go with the first request only: AWS refuses a token that does not
    stand alone (aws-cli #9635, amazon-kinesis-client #788), ``MaxResults`` apart.

    Raises:
        StreamGone: there is no such stream.
        Throttled: try again later, from the first page; a token of more than 300 s is one reason.

    """
    codes = {"ResourceNotFoundException": StreamGone}
    call = SdkCall(f"ListShards of {stream_arn}", codes=codes)
    fetch = partial(call.run, partial(_page, client), MaxResults=SHARDS_PER_PAGE)
    first: dict[str, Any] = {"StreamARN": stream_arn}
    if shard_filter is not None:
        first["ShardFilter"] = shard_filter

    def page(**more: Any) -> Mapping[str, Any]:
        return fetch(**(more or first))

    return [shard for answer in pages(page, _PAGING) for shard in answer["Shards"]]


def _page(client: KinesisClient, **arguments: Any) -> dict[str, Any]:
    """Ask for one page."""
    body, answer = unread(client, "ListShards", client.list_shards, **arguments)
    try:
        if body is None:
            listed = msgspec.convert(answer["Shards"], type=list[_Shard])
            return {"Shards": tuple(map(_shard, listed)), "NextToken": answer.get("NextToken")}
        listing = msgspec.json.decode(body, type=_Listing)
        return {"Shards": _shards(bytes(listing.Shards)), "NextToken": listing.NextToken}
    except (KeyError, ValueError) as error:
        raise UnreadableAnswer(f"the answer cannot be read: {type(error).__name__}") from None


@lru_cache(maxsize=_PAGES_KEPT)
def _shards(listed: bytes) -> tuple[Shard, ...]:
    """Read the JSON of ``Shards``."""
    return tuple(map(_shard, msgspec.json.decode(listed, type=list[_Shard])))


def _set_aside(
    *, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Leave botocore's parser nothing to read; what is no JSON, and no listing, is its own."""
    is_json = "json" in response_dict["headers"].get("content-type", "")
    if _READ_HERE.get() and is_json and response_dict["status_code"] == _OK:
        customized_response_dict[UNREAD] = response_dict["body"]
        response_dict["body"] = b"{}"


def _shard(listed: _Shard) -> Shard:
    keys, numbers = listed.HashKeyRange, listed.SequenceNumberRange
    return Shard(
        shard_id=listed.ShardId,
        hash_key_range=HashKeyRange(int(keys.StartingHashKey), int(keys.EndingHashKey)),
        starting_sequence_number=numbers.StartingSequenceNumber,
        ending_sequence_number=numbers.EndingSequenceNumber,
        parent_shard_id=listed.ParentShardId,
        adjacent_parent_shard_id=listed.AdjacentParentShardId,
    )
