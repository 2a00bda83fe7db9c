"""
What reader and writer share of Kinesis: listing shards, shapes and error codes.

``StreamARN`` is part of every request, so that streams of other accounts work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from shardfleet.adapters.sdk_errors import SdkCall, pages
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import StreamGone

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

SHARDS_PER_PAGE = 1_000  # ListShards: a page has no more, whatever MaxResults says
_PAGING = ("NextToken", "NextToken")


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
    fetch = partial(call.run, client.list_shards, MaxResults=SHARDS_PER_PAGE)
    first: dict[str, Any] = {"StreamARN": stream_arn}
    if shard_filter is not None:
        first["ShardFilter"] = shard_filter

    def page(**more: Any) -> Mapping[str, Any]:
        return fetch(**(more or first))

    return [_shard(shard) for answer in pages(page, _PAGING) for shard in answer["Shards"]]


def hash_key_range(answer: Mapping[str, Any]) -> HashKeyRange:
    """Read the ``HashKeyRange`` of a shard or child shard."""
    found = answer["HashKeyRange"]
    return HashKeyRange(int(found["StartingHashKey"]), int(found["EndingHashKey"]))


def _shard(answer: Mapping[str, Any]) -> Shard:
    numbers = answer["SequenceNumberRange"]
    return Shard(
        shard_id=answer["ShardId"],
        hash_key_range=hash_key_range(answer),
        starting_sequence_number=numbers["StartingSequenceNumber"],
        ending_sequence_number=numbers.get("EndingSequenceNumber"),
        parent_shard_id=answer.get("ParentShardId"),
        adjacent_parent_shard_id=answer.get("AdjacentParentShardId"),
    )
