"""Operations on streams as a whole: their life, their settings, and what describes them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import (
    in_use,
    invalid_argument,
    limit_exceeded,
    not_found,
    validation,
)
from shardfleet_local.kinesis.requests import (
    MOST_RESULTS,
    Request,
    choice,
    name,
    optional_text,
    start_name,
    structure,
    switch,
    text,
    text_list,
    text_of,
    whole_number,
)
from shardfleet_local.kinesis.shard_operations import listed
from shardfleet_local.kinesis.streams import (
    DEFAULT_RECORD_KIB,
    DEFAULT_RETENTION_HOURS,
    MS_PER_DAY,
    Stream,
    StreamSettings,
    StreamStatus,
)
from shardfleet_local.kinesis.tag_operations import tag_map
from shardfleet_local.kinesis.tokens import PageToken, page_of

Response = dict[str, Any]

MOST_CREATING: Final = 5  # fact K70
"""Streams that may be CREATING at once (API reference, CreateStream)."""
ON_DEMAND_SHARDS: Final = 4  # fact K45
"""Shards of a new on-demand stream (developer guide: 4 MB/s of write capacity)."""
ON_DEMAND_STREAMS: Final = 50  # fact K46
"""On-demand streams per account (quota)."""
LONGEST_RETENTION_HOURS: Final = 8_760  # fact K81
"""365 days (API reference, IncreaseStreamRetentionPeriod)."""
STREAMS_PER_PAGE: Final = 100  # fact K08, K97
"""Default and greatest page of ListStreams, and of the shards in DescribeStream."""
KEYS_PER_DAY: Final = 25  # fact K48
"""Keys that a stream may be given in a rolling 24 hours (API reference, StartStreamEncryption)."""
MODES: Final = ("PROVISIONED", "ON_DEMAND")
METRIC_NAMES: Final = (
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
)


def create_stream(account: Account, request: Request) -> Response:
    """CreateStream."""
    stream_name = name(request, "StreamName")
    mode = _mode(request) or "PROVISIONED"
    if mode == "PROVISIONED" and request.get("ShardCount") is None:
        raise invalid_argument(
            "ShardCount must be given for a stream in PROVISIONED mode."
        )  # fact K69
    count = whole_number(
        request, "ShardCount", least=1, most=1_000_000, default=ON_DEMAND_SHARDS
    )  # ours: the model has no greatest
    _check_unsupported(request)
    if stream_name in account.streams:
        raise in_use(  # fact K64
            f"Stream {stream_name} under account {account.settings.account_id} already exists."
        )
    _check_account_limits(account, count, mode=mode)
    now_ms = account.now_ms()
    settings = StreamSettings(mode=mode, max_record_kib=_record_kib(request, DEFAULT_RECORD_KIB))
    stream = Stream(
        name=stream_name, arn=account.arn_of(stream_name), created_ms=now_ms, settings=settings
    )
    stream.tags.update(tag_map(request) if request.get("Tags") is not None else {})

    def finish(at_ms: int) -> None:
        stream.open_evenly(count, at_ms)
        stream.status = StreamStatus.ACTIVE

    account.streams[stream_name] = stream
    account.after(account.settings.phases.creating_ms, finish)
    return {}


def _check_account_limits(account: Account, shards: int, *, mode: str) -> None:
    streams = account.streams.values()
    if sum(each.status is StreamStatus.CREATING for each in streams) >= MOST_CREATING:
        raise limit_exceeded(f"{MOST_CREATING} streams are being created already.")  # fact K70
    account.check_shard_room(shards)
    on_demand = sum(each.settings.mode == "ON_DEMAND" for each in streams)
    if mode == "ON_DEMAND" and on_demand >= ON_DEMAND_STREAMS:
        raise limit_exceeded(
            f"The account may have {ON_DEMAND_STREAMS} on-demand streams."
        )  # fact K46


def _check_unsupported(request: Request) -> None:
    """Refuse what the model forbids of members that change nothing here, and AUTO, which would."""
    whole_number(request, "WarmThroughputMiBps", least=0, most=2**31 - 1, default=0)  # fact K60
    if request.get("RecordDistributionStrategy") is not None:
        choice(request, "RecordDistributionStrategy", allowed=("USER_PARTITION_KEY",))


def _mode(request: Request) -> str | None:
    details = structure(request, "StreamModeDetails")
    return None if details is None else choice(details, "StreamMode", allowed=MODES)


def _record_kib(request: Request, default: int | None) -> int:
    return whole_number(
        request, "MaxRecordSizeInKiB", least=1_024, most=10_240, default=default
    )  # fact K77


def delete_stream(account: Account, request: Request) -> Response:
    """DeleteStream; its readers find out by ResourceNotFoundException."""
    stream = account.stream(request)
    if stream.status in {StreamStatus.CREATING, StreamStatus.UPDATING}:
        account.require_active(stream)
    if stream.consumers and not switch(request, "EnforceConsumerDeletion"):
        raise in_use(  # fact K49
            f"Stream {stream.name} has registered consumers; deregister them, or set "
            "EnforceConsumerDeletion."
        )

    def finish(_now_ms: int) -> None:
        if account.streams.get(stream.name) is stream:
            del account.streams[stream.name]
        for shard in stream.shards.values():
            shard.wake()

    if stream.status is not StreamStatus.DELETING:
        stream.status = StreamStatus.DELETING
        account.after(account.settings.phases.deleting_ms, finish)
    return {}


def describe_stream(account: Account, request: Request) -> Response:
    """DescribeStream: the summary and a page of shards."""
    stream = account.stream(request)
    limit = whole_number(request, "Limit", least=1, most=MOST_RESULTS, default=STREAMS_PER_PAGE)
    limit = min(limit, STREAMS_PER_PAGE)
    start = start_name(request, "ExclusiveStartShardId")
    stream.expire(account.now_ms())
    shards = [shard for shard in stream.shards.values() if shard.shard_id > start]
    description = {
        **_described(stream),
        "Shards": listed(account, stream, shards)[:limit],
        "HasMoreShards": len(shards) > limit,
    }
    return {"StreamDescription": description}


def describe_stream_summary(account: Account, request: Request) -> Response:
    """DescribeStreamSummary."""
    stream = account.stream(request)
    summary = {
        **_described(stream),
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(stream.consumers),
        "MaxRecordSizeInKiB": stream.settings.max_record_kib,
    }
    return {"StreamDescriptionSummary": summary}


def _described(stream: Stream) -> Response:
    described: Response = {
        **_listed(stream),
        "RetentionPeriodHours": stream.settings.retention_hours,
        "EnhancedMonitoring": [{"ShardLevelMetrics": stream.settings.shard_level_metrics}],
        "EncryptionType": stream.settings.encryption,
    }
    if stream.settings.key_id is not None:
        described["KeyId"] = stream.settings.key_id
    return described


def _listed(stream: Stream) -> Response:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status.value,
        "StreamModeDetails": {"StreamMode": stream.settings.mode},
        "StreamCreationTimestamp": stream.created_ms / 1000,
    }


def list_streams(account: Account, request: Request) -> Response:
    """ListStreams, by name, at most 100 at a time."""
    limit = whole_number(request, "Limit", least=1, most=MOST_RESULTS, default=STREAMS_PER_PAGE)
    limit = min(limit, STREAMS_PER_PAGE)
    now_ms = account.now_ms()
    start = start_name(request, "ExclusiveStartStreamName")
    token = optional_text(request, "NextToken")
    if token is not None:
        start = page_of(token, "ListStreams", now_ms=now_ms).after
    names = sorted(each for each in account.streams if each > start)
    page, more = names[:limit], len(names) > limit
    answer: Response = {
        "StreamNames": page,
        "StreamSummaries": [_listed(account.streams[each]) for each in page],
        "HasMoreStreams": more,
    }
    if more:
        answer["NextToken"] = PageToken("ListStreams", "", 0, page[-1], {}, now_ms).sealed()
    return answer


def describe_limits(account: Account, _request: Request) -> Response:
    """DescribeLimits."""
    on_demand = [each for each in account.streams.values() if each.settings.mode == "ON_DEMAND"]
    return {
        "ShardLimit": account.settings.shard_limit,
        "OpenShardCount": account.open_shard_count(),
        "OnDemandStreamCount": len(on_demand),
        "OnDemandStreamCountLimit": ON_DEMAND_STREAMS,
    }


def increase_retention(account: Account, request: Request) -> Response:
    """IncreaseStreamRetentionPeriod; what has expired before stays so."""
    stream = account.stream(request)
    hours = _retention_hours(request)
    if hours < stream.settings.retention_hours:
        raise invalid_argument(  # fact K81
            f"The retention period is {stream.settings.retention_hours} hours; {hours} is no "
            "increase."
        )
    return _set_retention(account, stream, hours=hours)


def decrease_retention(account: Account, request: Request) -> Response:
    """DecreaseStreamRetentionPeriod; older records are gone at once."""
    stream = account.stream(request)
    hours = _retention_hours(request)
    if hours > stream.settings.retention_hours:
        raise invalid_argument(  # fact K81
            f"The retention period is {stream.settings.retention_hours} hours; {hours} is no "
            "decrease."
        )
    return _set_retention(account, stream, hours=hours)


def _retention_hours(request: Request) -> int:
    hours = request.get("RetentionPeriodHours")
    if (
        not isinstance(hours, int)
        or not DEFAULT_RETENTION_HOURS <= hours <= LONGEST_RETENTION_HOURS
    ):
        raise invalid_argument(  # fact K81
            f"RetentionPeriodHours is {hours!r}; it must be from {DEFAULT_RETENTION_HOURS} to "
            f"{LONGEST_RETENTION_HOURS}."
        )
    return hours


def _set_retention(account: Account, stream: Stream, *, hours: int) -> Response:
    def change(now_ms: int) -> None:
        stream.expire(now_ms)
        stream.settings.retention_hours = hours
        stream.expire(now_ms)

    account.begin_update(stream, change)
    return {}


def update_stream_mode(account: Account, request: Request) -> Response:
    """UpdateStreamMode; the shards stay as they are."""
    stream = account.stream_with_arn(text(request, "StreamARN"))
    mode = _mode(request)
    _check_unsupported(request)
    if mode is None:
        raise validation("StreamModeDetails must be given.")  # fact K60

    def change(_now_ms: int) -> None:
        stream.settings.mode = mode

    account.begin_update(stream, change)
    return {}


def update_max_record_size(account: Account, request: Request) -> Response:
    """UpdateMaxRecordSize."""
    stream = account.stream(request)
    kib = _record_kib(request, None)

    def change(_now_ms: int) -> None:
        stream.settings.max_record_kib = kib

    account.begin_update(stream, change)
    return {}


def start_encryption(account: Account, request: Request) -> Response:
    """StartStreamEncryption: records written from now on carry EncryptionType KMS."""
    return _set_key(account, request, key_id=_key_id(request))


def stop_encryption(account: Account, request: Request) -> Response:
    """StopStreamEncryption; records written before keep their EncryptionType."""
    _key_id(request)
    return _set_key(account, request, key_id=None)


def _key_id(request: Request) -> str:
    return text_of(request, "KeyId", most=2_048) or text(request, "KeyId")  # fact K60


def _set_key(account: Account, request: Request, *, key_id: str | None) -> Response:
    stream = account.stream(request)
    choice(request, "EncryptionType", allowed=("KMS",))
    if account.settings.quotas and key_id is not None:
        _count_key(stream, account.now_ms())

    def change(now_ms: int) -> None:
        stream.settings.key_id, stream.settings.key_since_ms = key_id, now_ms

    account.begin_update(stream, change)
    return {}


def _count_key(stream: Stream, now_ms: int) -> None:
    settings = stream.settings
    settings.keyed_ms = [at_ms for at_ms in settings.keyed_ms if at_ms > now_ms - MS_PER_DAY]
    if len(settings.keyed_ms) >= KEYS_PER_DAY:
        raise limit_exceeded(  # fact K48
            f"{stream.name} was given {KEYS_PER_DAY} keys in the last 24 hours."
        )
    settings.keyed_ms.append(now_ms)


def enable_monitoring(account: Account, request: Request) -> Response:
    """EnableEnhancedMonitoring (the engine keeps shard-level metrics in any case)."""
    return _set_monitoring(account, request, wanted=lambda each, asked: each or asked)


def disable_monitoring(account: Account, request: Request) -> Response:
    """DisableEnhancedMonitoring."""
    return _set_monitoring(account, request, wanted=lambda each, asked: each and not asked)


def _set_monitoring(
    account: Account, request: Request, *, wanted: Callable[[bool, bool], bool]
) -> Response:
    stream = account.stream(request)
    asked = text_list(request, "ShardLevelMetrics", most=7)  # fact K95
    unknown = set(asked) - {*METRIC_NAMES, "ALL"}
    if unknown:
        raise validation(
            f"ShardLevelMetrics has {sorted(unknown)}; allowed: {METRIC_NAMES}, ALL."
        )  # fact K95
    account.require_active(stream)
    before = stream.settings.shard_level_metrics
    after = [
        each for each in METRIC_NAMES if wanted(each in before, each in asked or "ALL" in asked)
    ]
    stream.settings.shard_level_metrics = after
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": after,
    }


def put_policy(account: Account, request: Request) -> Response:
    """PutResourcePolicy: kept and handed back, not evaluated."""
    account.stream_with_arn(text(request, "ResourceARN")).settings.policy = text(request, "Policy")
    return {}


def get_policy(account: Account, request: Request) -> Response:
    """GetResourcePolicy; ResourceNotFoundException if there is none."""
    arn = text(request, "ResourceARN")
    policy = account.stream_with_arn(arn).settings.policy
    if policy is None:
        raise not_found(f"No policy is attached to {arn}.")  # fact K89
    return {"Policy": policy}


def delete_policy(account: Account, request: Request) -> Response:
    """DeleteResourcePolicy."""
    account.stream_with_arn(text(request, "ResourceARN")).settings.policy = None
    return {}


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "CreateStream": create_stream,
    "DeleteStream": delete_stream,
    "DescribeStream": describe_stream,
    "DescribeStreamSummary": describe_stream_summary,
    "ListStreams": list_streams,
    "DescribeLimits": describe_limits,
    "IncreaseStreamRetentionPeriod": increase_retention,
    "DecreaseStreamRetentionPeriod": decrease_retention,
    "UpdateStreamMode": update_stream_mode,
    "UpdateMaxRecordSize": update_max_record_size,
    "StartStreamEncryption": start_encryption,
    "StopStreamEncryption": stop_encryption,
    "EnableEnhancedMonitoring": enable_monitoring,
    "DisableEnhancedMonitoring": disable_monitoring,
    "PutResourcePolicy": put_policy,
    "GetResourcePolicy": get_policy,
    "DeleteResourcePolicy": delete_policy,
}
