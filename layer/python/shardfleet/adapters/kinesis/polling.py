"""
Reading a stream by polling: GetShardIterator, GetRecords, ListShards, DescribeStreamSummary.

Requests for records are sent once; the reader of the engine paces and repeats them (protocol.md
§5.1, §8 row 8a). The event loop waits for short pages itself; everything else has a thread pool of
its own, so that a hung call delays no renewal (hazard H17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from shardfleet.adapters.http.answers import instant_of
from shardfleet.adapters.kinesis.decode import decode_page, epoch_ms, page_of
from shardfleet.adapters.kinesis.shards import list_shards, unread
from shardfleet.adapters.sdk_errors import ErrorFactory, SdkCall, unsettled
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import ListingFilter
from shardfleet.errors import (
    ConfigurationError,
    ForeignPosition,
    IteratorExpired,
    PositionTrimmed,
    ShardfleetError,
    ShardGone,
    StreamGone,
    Throttled,
)

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.adapters.http.connections import SentRequest
    from shardfleet.adapters.kinesis.wire import KinesisWire, OpenWire

_FOREIGN = ("It encodes shardId-", "did not come from this ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A page of less is decoded in less time than the way to a thread takes.
_MUCH_BYTES = 64 * 1024
# Kinesis has no filter of this name: AT_TIMESTAMP takes an instant, the others take nothing.
_FILTERS = {
    ListingFilter.AT_TRIM_HORIZON: "AT_TRIM_HORIZON",
    ListingFilter.AT_LATEST: "AT_LATEST",
    ListingFilter.AT_TIMESTAMP: "AT_TIMESTAMP",
}


class Asked(NamedTuple):
    """What a page is asked for with."""

    iterator: str
    shard_id: str
    limit: int


class PageSource:
    """
    GetRecords.

    Args:
        stream_arn: the stream.
        records: client for it; sends once.
        wire: opens the quick way when first needed; None, or an answer of None: the client does it.

    """

    def __init__(
        self, stream_arn: str, *, records: KinesisClient, wire: OpenWire | None = None
    ) -> None:
        """Ask nothing yet."""
        self._stream_arn = stream_arn
        self._records = records
        self._open_wire = wire
        self._wire: KinesisWire | None = None

    def send(self, iterator: str, *, shard_id: str, limit: int) -> SentRequest | None:
        """Ask for a page without waiting for anything; None if that cannot be (yet)."""
        if self._wire is None:
            return None
        call = self._call(shard_id)
        return call.run(self._wire.send_get_records, iterator=iterator, limit=limit)

    def page_of(self, sent: SentRequest, *, shard_id: str) -> RecordsPage:
        """
        Return the page that was asked for; waits for it.

        Raises:
            IteratorExpired, Throttled, ShardGone: as ``page``.

        """
        assert self._wire is not None, "nothing was sent without it"
        return self._call(shard_id).run(self._wire.page_of, sent=sent)

    def page(self, iterator: str, *, shard_id: str, limit: int) -> RecordsPage:
        """
        Read one page, in this thread.

        Raises:
            IteratorExpired: older than 5 minutes, or refused.
            Throttled: try again later.
            ShardGone: no such shard.

        """
        call = self._call(shard_id)
        if self._open_wire is not None and self._wire is None:
            self._wire = call.run(self._open_wire)
        if self._wire is not None:
            return call.run(self._wire.get_records, iterator=iterator, limit=limit)
        return call.run(self._by_client, ShardIterator=iterator, Limit=limit)

    def _by_client(self, **asked: Any) -> RecordsPage:
        client = self._records
        body, answer = unread(
            client, "GetRecords", client.get_records, StreamARN=self._stream_arn, **asked
        )
        return page_of(answer) if body is None else decode_page(body)

    def _call(self, shard_id: str) -> SdkCall:
        return shard_call("GetRecords", shard_id, self._stream_arn, invalid=IteratorExpired)


class KinesisPolling:
    """
    The ``StreamDirectory`` and ``ShardCalls`` ports over one stream.

    Args:
        stream_arn: the stream, also of another account or region.
        records: client for GetShardIterator and GetRecords; sends once.
        control: client for ListShards and DescribeStreamSummary; may repeat.
        pool: threads of all these.
        wire: opens the quick way for GetRecords when first needed; None, or an answer of None:
            the client does it.

    """

    def __init__(
        self,
        stream_arn: str,
        *,
        records: KinesisClient,
        control: KinesisClient,
        pool: ThreadPool,
        wire: OpenWire | None = None,
    ) -> None:
        """Ask nothing yet."""
        self._source = PageSource(stream_arn, records=records, wire=wire)
        self._open_wire = wire
        self._stream_arn = stream_arn
        self._records = records
        self._control = control
        self._pool = pool
        self._busy: set[str] = set()
        self._in_loop = 0
        # Iterators that were got, and whose first read was refused: quotas count both calls.
        self._unread: dict[tuple[str, StartingPosition], str] = {}

    async def incarnation(self) -> StreamIncarnation:
        """
        Describe the stream.

        Raises:
            StreamGone: there is no such stream.
            Throttled: try again later.

        """
        return await self._pool.run(self._incarnation)

    async def list_shards(
        self, listing: ListingFilter = ListingFilter.NONE, *, instant_ms: int | None = None
    ) -> Sequence[Shard]:
        """
        List shards, all pages.

        Raises:
            StreamGone: there is no such stream.
            Throttled: try again later.

        """
        shard_filter: dict[str, Any] | None = None
        if listing is not ListingFilter.NONE:
            shard_filter = {"Type": _FILTERS[listing]}
        if shard_filter is not None and instant_ms is not None:
            shard_filter |= {"Timestamp": instant_ms / 1_000}
        call = partial(list_shards, self._control, self._stream_arn, shard_filter=shard_filter)
        return await self._pool.run(call)

    async def page(
        self, shard_id: str, start: StartingPosition, *, resume_token: str | None, limit: int
    ) -> RecordsPage:
        """
        Read one page; the resume token is an iterator.

        Raises:
            IteratorExpired: older than 5 minutes, or refused.
            ShardGone: no such shard.
            PositionTrimmed: the service refuses the sequence number as too old.
            ForeignPosition: it refuses it as another shard's, or another stream's.
            ConfigurationError: the service refuses the instant (it lies in the future).
            Throttled: try again later.

        """
        iterator = resume_token or self._unread.pop((shard_id, start), None)
        if iterator is None:
            iterator = await self._pool.run(partial(self._shard_iterator, shard_id, start))
        try:
            return await self._read(Asked(iterator, shard_id, limit))
        except (Throttled, ShardGone):
            if resume_token is None:
                self._unread[shard_id, start] = iterator
            raise

    def _incarnation(self) -> StreamIncarnation:
        call = SdkCall(
            f"DescribeStreamSummary of {self._stream_arn}",
            codes={"ResourceNotFoundException": StreamGone},
        )
        answer = call.run(self._control.describe_stream_summary, StreamARN=self._stream_arn)
        summary = answer["StreamDescriptionSummary"]
        return StreamIncarnation(
            self._stream_arn,
            epoch_ms(summary["StreamCreationTimestamp"]),
            retention_ms=summary["RetentionPeriodHours"] * 3_600_000,
            service_ms=service_time_ms(answer),
        )

    def _shard_iterator(self, shard_id: str, start: StartingPosition) -> str:
        by_number = start.sequence_number is not None
        call = shard_call(
            f"GetShardIterator {start.kind} {stated(start)}",
            shard_id,
            self._stream_arn,
            invalid=refused_number if by_number else unsettled(ConfigurationError),
        )
        wire = call.run(self._open_wire) if self._open_wire is not None else None
        if wire is not None:
            return call.run(wire.shard_iterator, shard_id=shard_id, start=start)
        arguments: dict[str, Any] = {"ShardIteratorType": start.kind.value}
        if start.sequence_number is not None:
            arguments["StartingSequenceNumber"] = start.sequence_number
        if start.instant_ms is not None:
            arguments["Timestamp"] = _instant(start.instant_ms)
        answer = call.run(
            self._records.get_shard_iterator,
            StreamARN=self._stream_arn,
            ShardId=shard_id,
            **arguments,
        )
        return answer["ShardIterator"]

    async def _read(self, asked: Asked) -> RecordsPage:
        """Read a page: in the loop if it is likely to be short, which saves the way to a thread."""
        page = None
        # Of the connections as many are the loop's as the threads': so nobody has to make a new
        # one, for the loop took all, each time that more shards than usual are asked at once.
        if asked.shard_id not in self._busy and self._in_loop < self._pool.threads_most:
            page = await self._read_in_loop(asked)
        if page is None:
            page = await self._pool.run(partial(self._get_records, asked))
        # A shard that had much will have much again.
        (self._busy.add if page.size >= _MUCH_BYTES else self._busy.discard)(asked.shard_id)
        return page

    async def _read_in_loop(self, asked: Asked) -> RecordsPage | None:
        """Read a page; None if nothing could be sent."""
        sent = self._source.send(asked.iterator, shard_id=asked.shard_id, limit=asked.limit)
        if sent is None:
            return None
        self._in_loop += 1
        try:
            is_here = await sent.arrive()
        finally:
            self._in_loop -= 1
        if is_here:
            return self._page_of(sent, asked)
        return await self._pool.run(partial(self._page_of, sent, asked))

    def _page_of(self, sent: SentRequest, asked: Asked) -> RecordsPage:
        return _sized(self._source.page_of(sent, shard_id=asked.shard_id), asked)

    def _get_records(self, asked: Asked) -> RecordsPage:
        page = self._source.page(asked.iterator, shard_id=asked.shard_id, limit=asked.limit)
        return _sized(page, asked)


def _sized(page: RecordsPage, asked: Asked) -> RecordsPage:
    """Return a page with its size, counted where its records were made: they are in that cache."""
    return replace(page, page_token=asked.iterator, size_bytes=page.size)


def shard_call(operation: str, shard_id: str, stream_arn: str, *, invalid: ErrorFactory) -> SdkCall:
    """Return how the errors of a call about one shard are to be understood."""
    codes: dict[str, ErrorFactory] = {
        "ResourceNotFoundException": ShardGone,
        "ExpiredIteratorException": IteratorExpired,
        "InvalidArgumentException": invalid,
    }
    return SdkCall(f"{operation} on {shard_id} of {stream_arn}", codes=codes)


def refused_number(text: str) -> ShardfleetError:
    """
    Return what a refused number is: another shard's, or too old; Kinesis has one code for both.

    Texts: boto/boto3#1478, awslabs/amazon-kinesis-client#391 (another shard's: "It encodes
    shardId-…, while it was used in a call to shardId-…"); amazon-kinesis-connectors#8 (of a stream
    of this name that was deleted: "it did not come from this stream").
    """
    is_foreign = any(words in text for words in _FOREIGN)
    return ForeignPosition(text) if is_foreign else PositionTrimmed(text)


def service_time_ms(answer: Mapping[str, Any]) -> int | None:
    """Return the time by the service's clock: HTTP's ``Date``, to the second below (RFC 9110)."""
    try:
        return epoch_ms(instant_of(answer["ResponseMetadata"]["HTTPHeaders"]["date"]))
    except (KeyError, ValueError, TypeError):  # None, or none that can be read or has a zone.
        return None


def stated(start: StartingPosition) -> str:
    """Return a position's number or instant, for a person."""
    if start.sequence_number is not None:
        return start.sequence_number
    return "" if start.instant_ms is None else _instant(start.instant_ms).isoformat()


def _instant(instant_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=instant_ms)
