"""GetShardIterator and GetRecords, and what a starting position means."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import (
    invalid_argument,
    not_found,
    rate_exceeded_text,
    throughput_exceeded,
)
from shardfleet_local.kinesis.faults import FaultKind, Site
from shardfleet_local.kinesis.quotas import GET_RECORDS_BYTES, GET_RECORDS_COUNT
from shardfleet_local.kinesis.requests import (
    Request,
    broken,
    choice,
    name,
    optional_text,
    text,
    timestamp_ms,
)
from shardfleet_local.kinesis.sequence import is_well_formed, shard_number_of
from shardfleet_local.kinesis.shards import StoredShard, child_shards, shard_id_of
from shardfleet_local.kinesis.streams import Stream
from shardfleet_local.kinesis.tokens import Iterator, expired_iterator, iterator_of

Response = dict[str, Any]

POSITIONS: Final = (
    "AT_SEQUENCE_NUMBER",
    "AFTER_SEQUENCE_NUMBER",
    "TRIM_HORIZON",
    "LATEST",
    "AT_TIMESTAMP",
)

# The offset of an iterator that brings nothing (faults.py, SILENT_POSITIONS).
_SILENT: Final = -1
# The most pages without records with which a new iterator begins: "many in a row".
_EMPTY_MOST: Final = 12  # fact K20
# The most lag that a shard has though nothing is left.
_PHANTOM_MOST_MS: Final = 60_000  # fact K21


def get_shard_iterator(account: Account, request: Request) -> Response:
    """GetShardIterator."""
    stream = account.usable_stream(request)
    shard = account.shard(stream, name(request, "ShardId"))
    now_ms = account.now_ms()
    kind = choice(request, "ShardIteratorType", allowed=POSITIONS)
    number = optional_text(request, "StartingSequenceNumber")
    offset = starting_offset(
        stream,
        shard,
        kind=kind,
        number=number,
        at_ms=timestamp_ms(request, "Timestamp"),
        now_ms=now_ms,
    )
    if account.settings.quotas and not shard.quota.take_iterator(now_ms):
        raise _throttled(account, stream, shard=shard)  # fact K75
    site, faults = Site(stream.name, shard.shard_id), account.faults
    if number is not None and shard.log.has_trimmed(number):
        if faults.take(FaultKind.REFUSED_POSITIONS, site) is not None:
            raise invalid_argument(  # fact K14
                f"StartingSequenceNumber {number} used in GetShardIterator on shard "
                f"{shard.shard_id} in stream {stream.name} has expired."
            )
        is_silent = faults.take(FaultKind.SILENT_POSITIONS, site) is not None  # K15
        offset = _SILENT if is_silent else offset
    is_end = kind in ("TRIM_HORIZON", "LATEST")
    iterator = Iterator(
        stream.name,
        stream.created_ms,
        shard.shard_id,
        offset,
        now_ms,
        empty=_empty_pages(account, site),
        lags=is_end and faults.take(FaultKind.FIRST_READ_LAG, site) is not None,  # K22
    )
    return {"ShardIterator": iterator.sealed()}


def _empty_pages(account: Account, site: Site) -> int:
    """Return with how many pages without records an iterator begins (K20)."""
    if account.faults.take(FaultKind.EMPTY_STARTS, site) is None:
        return 0
    return account.faults.random.randint(1, _EMPTY_MOST)


def starting_offset(
    stream: Stream,
    shard: StoredShard,
    *,
    kind: str,
    number: str | None,
    at_ms: int | None,
    now_ms: int,
) -> int:
    """
    Return the offset in the shard that a ShardIteratorType and its argument mean.

    A number beside a kind that takes none, or none beside one that does, is refused as in
    akkadotnet/Alpakka#160. A sequence number or instant older than the oldest record means that
    record, as TRIM_HORIZON.

    Raises:
        KinesisError: InvalidArgumentException for an argument that is missing, lies in the future,
            or never belonged to the shard.

    """
    takes_number = kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    if takes_number != (number is not None):
        stated = "no" if takes_number else "also a"
        raise invalid_argument(  # fact K10
            "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and "
            "StartingSequenceNumber or (2) TRIM_HORIZON or LATEST and no StartingSequenceNumber. "
            f"Request specified {kind} and {stated} StartingSequenceNumber."
        )
    match kind:
        case "TRIM_HORIZON":
            return shard.log.oldest
        case "LATEST":
            return shard.log.end
        case "AT_TIMESTAMP":
            if at_ms is None:
                raise invalid_argument("AT_TIMESTAMP needs a Timestamp.")  # fact K10
            if at_ms > now_ms:
                raise invalid_argument(  # fact K71
                    "The timestampInMillis parameter cannot be greater than the "
                    f"currentTimestampInMillis. timestampInMillis: {at_ms}, "
                    f"currentTimestampInMillis: {now_ms}"
                )
            return shard.log.offset_at_time(at_ms)
        case _:
            assert number is not None
            _check_number(stream, shard, number=number)
            if kind == "AT_SEQUENCE_NUMBER":
                return shard.log.offset_at_sequence(number)
            return shard.log.offset_after_sequence(number)


def _check_number(stream: Stream, shard: StoredShard, *, number: str) -> None:
    if not is_well_formed(number):
        raise broken(  # fact K60
            number,
            "startingSequenceNumber",
            constraint=r"Member must satisfy regular expression pattern: 0|([1-9]\d{0,128})",
        )
    # boto/boto3#1478, awslabs/amazon-kinesis-client#391
    encoded = shard_number_of(number)
    if encoded not in (None, shard.number):
        raise invalid_argument(  # fact K11
            f"Invalid StartingSequenceNumber. It encodes {shard_id_of(encoded or 0)}, while it was "
            f"used in a call to {shard.shard_id}"
        )
    last = shard.ending_number or stream.mint.last
    if not int(shard.starting_number) <= int(number) <= int(last):
        raise invalid_argument(  # fact K12
            f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard.shard_id} "
            f"in stream {stream.name} under account {stream.arn.split(':')[4]} is invalid because "
            "it did not come from this stream."
        )


def get_records(account: Account, request: Request) -> Response:
    """
    GetRecords.

    Every answer of an open shard, or of a closed one with records left, has NextShardIterator;
    the one that drains a closed shard has ChildShards instead (protocol.md section 4.5).
    """
    now_ms = account.now_ms()
    iterator = iterator_of(text(request, "ShardIterator"), now_ms)
    limit = _limit(request)
    stream, shard = _place(account, request, iterator=iterator)
    site = Site(stream.name, shard.shard_id)
    faults = account.faults
    if faults.take(FaultKind.EXPIRED_ITERATORS, site) is not None:
        raise expired_iterator(iterator, now_ms)  # fact K18
    if _is_throttled(account, site, shard=shard):
        _count(account, site, values={"ReadProvisionedThroughputExceeded": 1})
        raise _throttled(account, stream, shard=shard)  # fact K26, K75
    account.check_key(stream, "decrypt")
    retention_ms = now_ms - stream.horizon_ms(now_ms)
    again = iterator._replace(issued_ms=now_ms, empty=max(0, iterator.empty - 1), lags=False)
    is_silent = iterator.offset == _SILENT
    if is_silent or iterator.empty or faults.take(FaultKind.EMPTY_READS, site) is not None:
        behind = shard.millis_behind(iterator.offset, last_read=None, now_ms=now_ms)
        lag_ms = retention_ms if is_silent or iterator.lags else max(1, behind)
        return {"Records": [], "NextShardIterator": again.sealed(), "MillisBehindLatest": lag_ms}
    found = shard.log.read(iterator.offset, limit=limit, max_bytes=GET_RECORDS_BYTES)
    if account.settings.quotas:
        shard.quota.charge_read(found.size_bytes)
    last_read = found.next_offset - 1 if found.records else None
    behind = shard.millis_behind(found.next_offset, last_read=last_read, now_ms=now_ms)
    if iterator.lags:
        behind = retention_ms
    elif not behind and not found.records and faults.take(FaultKind.PHANTOM_LAG, site) is not None:
        behind = faults.random.randint(1, _PHANTOM_MOST_MS)  # K21
    _count(
        account,
        site,
        values={
            "GetRecords.Records": len(found.records),
            "GetRecords.Bytes": found.size_bytes,
            "GetRecords.IteratorAgeMilliseconds": behind,
            "ReadProvisionedThroughputExceeded": 0,
        },
    )
    following = again._replace(offset=found.next_offset)
    answer: Response = {"Records": found.records, "MillisBehindLatest": behind}
    return answer | _continuation(account, site, shard=shard, following=following)


def _continuation(
    account: Account, site: Site, *, shard: StoredShard, following: Iterator
) -> Response:
    if account.faults.take(FaultKind.END_WITHOUT_CHILDREN, site) is not None:
        return {}
    if account.faults.take(FaultKind.CHILDREN_WITHOUT_END, site) is not None:
        return {"NextShardIterator": following.sealed(), "ChildShards": child_shards(shard)}
    if shard.is_drained(following.offset):
        return {"ChildShards": child_shards(shard)}
    return {"NextShardIterator": following.sealed()}


def _limit(request: Request) -> int:
    limit = request.get("Limit")
    if limit is None:
        return GET_RECORDS_COUNT
    if not isinstance(limit, int) or not 1 <= limit <= GET_RECORDS_COUNT:
        # The page of the operation promises InvalidArgumentException, not ValidationException.
        raise invalid_argument(
            f"Limit is {limit!r}; it must be from 1 to {GET_RECORDS_COUNT}."
        )  # fact K73
    return limit


def _place(account: Account, request: Request, *, iterator: Iterator) -> tuple[Stream, StoredShard]:
    stream = account.stream_named(iterator.stream)
    if request.get("StreamARN") not in (None, stream.arn):
        raise invalid_argument(  # fact K72
            f"The ShardIterator belongs to {stream.arn}, not to {request['StreamARN']}."
        )
    if stream.created_ms != iterator.created_ms:
        raise not_found(  # fact K12
            f"Stream {stream.name} was deleted and created again since the ShardIterator was "
            "returned."
        )
    return stream, account.shard(stream, iterator.shard)


def _is_throttled(account: Account, site: Site, *, shard: StoredShard) -> bool:
    if account.faults.take(FaultKind.THROTTLE_READS, site) is not None:
        return True
    return account.settings.quotas and not shard.quota.take_read(account.now_ms())


def _throttled(account: Account, stream: Stream, *, shard: StoredShard) -> Exception:
    return throughput_exceeded(
        rate_exceeded_text(
            shard_id=shard.shard_id,
            stream_name=stream.name,
            account_id=account.settings.account_id,
        )
    )


def _count(account: Account, site: Site, *, values: Mapping[str, int]) -> None:
    now_ms = account.now_ms()
    for metric, value in values.items():
        account.metrics.add(metric, value, stream=site.stream, shard=site.shard, now_ms=now_ms)


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "GetShardIterator": get_shard_iterator,
    "GetRecords": get_records,
}
