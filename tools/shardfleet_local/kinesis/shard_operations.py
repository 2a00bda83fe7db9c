"""Operations on shards: listing them with filters and pages, and changing their number."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import (
    KinesisError,
    in_use,
    invalid_argument,
    limit_exceeded,
    not_found,
    validation,
)
from shardfleet_local.kinesis.faults import FaultKind, Site
from shardfleet_local.kinesis.requests import (
    MOST_RESULTS,
    Request,
    broken,
    choice,
    hash_key,
    name,
    optional_text,
    start_name,
    structure,
    timestamp_ms,
    whole_number,
)
from shardfleet_local.kinesis.shards import StoredShard, shard_description
from shardfleet_local.kinesis.streams import MS_PER_DAY, Stream, StreamStatus
from shardfleet_local.kinesis.tokens import PageToken, page_of

Response = dict[str, Any]

SHARDS_PER_PAGE: Final = 1_000  # fact K02
"""Default and greatest page of ListShards (API reference)."""
EXCLUDED_BY_TOKEN: Final = (
    "StreamARN",
    "StreamName",
    "StreamCreationTimestamp",
    "ExclusiveStartShardId",
    "ShardFilter",
)
"""
What a NextToken of ListShards stands for, and what may not be said beside it: the API reference
names three, AWS refuses ARN (aws-cli #9635) and filter (amazon-kinesis-client #788) likewise.
"""
FILTERS: Final = (
    "AFTER_SHARD_ID",
    "AT_TRIM_HORIZON",
    "FROM_TRIM_HORIZON",
    "AT_LATEST",
    "AT_TIMESTAMP",
    "FROM_TIMESTAMP",
)
SCALINGS_PER_DAY: Final = 10  # fact K41
"""UpdateShardCount calls per stream in a rolling 24 hours (API reference)."""
SCALED_MOST: Final = 10_000  # fact K42
"""Shards to which UpdateShardCount scales, up or down (API reference)."""


def list_shards(account: Account, request: Request) -> Response:
    """
    ListShards.

    Unlike DescribeStream it refuses a stream that is being created (ResourceInUseException is in
    its list of errors), and it goes on by NextToken, beside which MaxResults alone may stand.
    """
    now_ms = account.now_ms()
    limit = whole_number(request, "MaxResults", least=1, most=MOST_RESULTS, default=SHARDS_PER_PAGE)
    token = optional_text(request, "NextToken")
    if token is None:
        stream, filters = account.stream(request), _filters(request)
        check_incarnation(stream, timestamp_ms(request, "StreamCreationTimestamp"))
        after = _start(request) or filters.get("after") or ""
    else:
        page = _page(request, token, now_ms=now_ms)
        stream, filters, after = account.stream_with_arn(page.stream_arn), page.filters, page.after
        check_incarnation(stream, page.created_ms)
    if stream.status is StreamStatus.CREATING:
        raise in_use(f"Stream {stream.name} is CREATING.")  # fact K85
    matching = stream.shards_matching(filters["kind"], at_ms=filters["at"], now_ms=now_ms)
    shards = listed(account, stream, [shard for shard in matching if shard.shard_id > after])
    limit = min(limit, SHARDS_PER_PAGE)
    answer: Response = {"Shards": shards[:limit]}
    if len(shards) > limit:
        last = shards[limit - 1]["ShardId"]
        page = PageToken("ListShards", stream.arn, stream.created_ms, last, filters, now_ms)
        answer["NextToken"] = page.sealed()
    return answer


def listed(account: Account, stream: Stream, shards: Sequence[StoredShard]) -> list[Response]:
    """Return what a listing says of shards, which may be that of the middle of a reshard."""
    now_ms, faults, site = account.now_ms(), account.faults, Site(stream.name)
    unlisted = faults.take(FaultKind.CHILDREN_UNLISTED, site)  # K05
    if unlisted is not None:
        shards = [s for s in shards if not (s.parents and now_ms - s.opened_ms < unlisted.delay_ms)]
    descriptions = [shard_description(shard) for shard in shards]
    still_open = faults.take(FaultKind.PARENTS_LISTED_OPEN, site)  # K06
    if still_open is not None:
        for shard, description in zip(shards, descriptions, strict=True):
            if shard.closed_ms is not None and now_ms - shard.closed_ms < still_open.delay_ms:
                del description["SequenceNumberRange"]["EndingSequenceNumber"]
    return descriptions


def _start(request: Request) -> str:
    start = start_name(request, "ExclusiveStartShardId")
    if start.casefold().startswith("shardid-") and not start.startswith("shardId-"):
        raise KinesisError("InternalFailure", "Internal service failure.", status=500)  # fact K04
    return start


def _page(request: Request, token: str, *, now_ms: int) -> PageToken:
    for field in EXCLUDED_BY_TOKEN:
        if request.get(field) is not None:
            raise invalid_argument(
                f"NextToken and {field} cannot be provided together."
            )  # fact K01
    return page_of(token, "ListShards", now_ms=now_ms)


def _filters(request: Request) -> dict[str, Any]:
    given = structure(request, "ShardFilter")
    if given is None:
        return {"kind": "FROM_TRIM_HORIZON", "at": None, "after": None}
    kind = choice(given, "Type", allowed=FILTERS)
    after, at_ms = optional_text(given, "ShardId"), timestamp_ms(given, "Timestamp")
    if (after is not None) != (kind == "AFTER_SHARD_ID"):
        raise invalid_argument(  # fact K83
            f"ShardFilter.ShardId belongs to AFTER_SHARD_ID and to no other type; this is {kind}."
        )
    if (at_ms is not None) != kind.endswith("_TIMESTAMP"):
        raise invalid_argument(  # fact K83
            "ShardFilter.Timestamp belongs to AT_TIMESTAMP and FROM_TIMESTAMP and to no other "
            f"type; this is {kind}."
        )
    return {"kind": kind, "at": at_ms, "after": after}


def check_incarnation(stream: Stream, created_ms: int | None) -> None:
    """Refuse a stream that was created at another time than the caller says (epoch ms)."""
    if created_ms is not None and created_ms != stream.created_ms:
        raise not_found(
            f"Stream {stream.name} was created at another time than {created_ms} ms."
        )  # fact K84


def split_shard(account: Account, request: Request) -> Response:
    """SplitShard."""
    stream = _reshardable(account, request)
    parent = _open_shard(account, stream, shard_id=name(request, "ShardToSplit"))
    start = hash_key(request, "NewStartingHashKey")
    if start is None:
        raise broken(None, "newStartingHashKey", constraint="Member must not be null")  # fact K60
    if not parent.first_hash < start <= parent.last_hash:
        raise invalid_argument(  # fact K67
            f"NewStartingHashKey {start} used in SplitShard() on shard {parent.shard_id} in stream "
            f"{stream.name} is not both greater than one plus the shard's StartingHashKey "
            f"{parent.first_hash} and less than the shard's EndingHashKey {parent.last_hash}."
        )
    account.check_shard_room(1)
    account.begin_update(stream, lambda now_ms: stream.split(parent, start, now_ms=now_ms))
    return {}


def merge_shards(account: Account, request: Request) -> Response:
    """MergeShards."""
    stream = _reshardable(account, request)
    one = _open_shard(account, stream, shard_id=name(request, "ShardToMerge"))
    other = _open_shard(account, stream, shard_id=name(request, "AdjacentShardToMerge"))
    if one.last_hash + 1 != other.first_hash and other.last_hash + 1 != one.first_hash:
        raise invalid_argument(  # fact K66
            f"Shards {one.shard_id} and {other.shard_id} in stream {stream.name} under account "
            f"{account.settings.account_id} are not an adjacent pair of shards eligible for "
            "merging."
        )
    account.begin_update(stream, lambda now_ms: stream.merge(one, other, now_ms=now_ms))
    return {}


def update_shard_count(account: Account, request: Request) -> Response:
    """UpdateShardCount."""
    stream = _reshardable(account, request)
    choice(request, "ScalingType", allowed=("UNIFORM_SCALING",))
    target = whole_number(
        request, "TargetShardCount", least=1, most=1_000_000
    )  # ours: the model has no greatest
    current = len(stream.open_shards)
    if account.settings.quotas:
        _check_scaling(stream, target, now_ms=account.now_ms())
    account.check_shard_room(target - current)
    account.begin_update(stream, lambda now_ms: stream.scale_evenly(target, now_ms=now_ms))
    stream.settings.scaled_ms.append(account.now_ms())
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _reshardable(account: Account, request: Request) -> Stream:
    stream = account.stream(request)
    account.require_active(stream)
    if stream.settings.mode == "ON_DEMAND":
        raise validation(  # fact K68
            f"Stream {stream.name} is in ON_DEMAND mode; only PROVISIONED streams are resharded."
        )
    return stream


def _open_shard(account: Account, stream: Stream, *, shard_id: str) -> StoredShard:
    shard = account.shard(stream, shard_id)
    if not shard.is_open:
        raise invalid_argument(  # fact K65
            f"Shard {shard_id} in stream {stream.name} under account "
            f"{account.settings.account_id} has already been merged or split, and thus is not "
            "eligible for merging or splitting."
        )
    return shard


def _check_scaling(stream: Stream, target: int, *, now_ms: int) -> None:
    current = len(stream.open_shards)
    if target > 2 * current or 2 * target < current:
        raise limit_exceeded(  # fact K41
            f"UpdateShardCount cannot go from {current} shards to {target}: at most double, at "
            "least half."
        )
    if target > max(current - 1, SCALED_MOST):
        raise limit_exceeded(  # fact K42
            f"UpdateShardCount goes to {SCALED_MOST} shards at most; {target} were asked for."
        )
    settings = stream.settings
    settings.scaled_ms = [at_ms for at_ms in settings.scaled_ms if at_ms > now_ms - MS_PER_DAY]
    if len(settings.scaled_ms) >= SCALINGS_PER_DAY:
        raise limit_exceeded(  # fact K41
            f"UpdateShardCount was called {SCALINGS_PER_DAY} times for {stream.name} in the last "
            "24 hours."
        )


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "ListShards": list_shards,
    "SplitShard": split_shard,
    "MergeShards": merge_shards,
    "UpdateShardCount": update_shard_count,
}
