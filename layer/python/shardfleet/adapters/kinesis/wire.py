"""
GetRecords and PutRecords without the SDK's machinery, and GetShardIterator, which comes first.

What :mod:`shardfleet.adapters.http.json_service` cannot do as botocore would, and repeats, are left
to botocore: :func:`open_wire` then returns None, and the caller uses its client.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardfleet.adapters.http.connections import IDLE_MS
from shardfleet.adapters.http.json_service import JsonService, open_service
from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.kinesis.put_records_body import (
    CBOR,
    decode_put_records,
    encode_put_records,
)
from shardfleet.adapters.sdk_errors import UnreadableAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botocore.session import Session
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.adapters.http.connections import SentRequest
    from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
    from shardfleet.engine.ports import PutOutcome
    from shardfleet.kpl.packing import OutgoingRecord


class _GetRecords(msgspec.Struct):
    """``GetRecordsInput``."""

    ShardIterator: str
    Limit: int
    StreamARN: str


class _ShardIterator(msgspec.Struct):
    """``GetShardIteratorOutput``."""

    ShardIterator: str


class PageFormat(NamedTuple):
    """
    How a page is asked for and read.

    Attributes:
        content_type: of the request, and so of the answer, but for services that answer in JSON
            all the same (fact K100); None: the service's JSON.
        encode: returns a request's body, from iterator, limit and ARN of the stream.
        decode: returns the page in an answer's body, whichever of the two it is in.

    """

    content_type: str | None
    encode: Callable[[str, int, str], bytes]
    decode: Callable[[bytes | bytearray], RecordsPage]


def _asked(iterator: str, limit: int, stream_arn: str) -> bytes:
    return msgspec.json.encode(_GetRecords(iterator, limit, stream_arn))


JSON_PAGES = PageFormat(None, _asked, decode_page)
"""The format that every endpoint knows."""


def takes_cbor() -> bool:
    """
    Return whether the endpoint takes CBOR.

    The environment says so as it does to the AWS SDK for Java 2: it does unless
    ``CBOR_ENABLED=false``.
    """
    return os.environ.get("CBOR_ENABLED", "").lower() != "false"


class KinesisWire:
    """
    The busy calls on one stream; safe to share between threads.

    Args:
        stream_arn: the stream.
        service: at the endpoint of the stream.
        long_pages: the format of pages that are likely to be long.

    Attributes:
        service: as given.

    """

    def __init__(
        self, stream_arn: str, service: JsonService, *, long_pages: PageFormat = JSON_PAGES
    ) -> None:
        """Send nothing yet."""
        self._stream_arn = stream_arn
        self.service = service
        self._long_pages = long_pages

    def get_records(self, iterator: str, *, limit: int) -> RecordsPage:
        """
        Read a page that is likely to be long.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.
            UnreadableAnswer: an answer that is none; the next one is asked for in JSON.

        """
        pages = self._long_pages
        body = pages.encode(iterator, limit, self._stream_arn)
        answer = self.service.call("GetRecords", body, content_type=pages.content_type)
        try:
            return pages.decode(answer)
        except UnreadableAnswer:
            self._long_pages = JSON_PAGES
            raise

    def send_get_records(self, iterator: str, *, limit: int) -> SentRequest | None:
        """Ask for a page that is likely to be short, without waiting; None if that cannot be."""
        return self.service.send("GetRecords", _asked(iterator, limit, self._stream_arn))

    def page_of(self, sent: SentRequest) -> RecordsPage:
        """
        Return the page that was asked for; waits for it.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer.
            UnreadableAnswer: an answer that is none.

        """
        return decode_page(self.service.body_of("GetRecords", sent.answer()))

    def shard_iterator(self, shard_id: str, start: StartingPosition) -> str:
        """
        Return an iterator at a position.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.
            UnreadableAnswer: an answer that is none.

        """
        asked: dict[str, object] = {
            "StreamARN": self._stream_arn,
            "ShardId": shard_id,
            "ShardIteratorType": start.kind.value,
        }
        if start.sequence_number is not None:
            asked["StartingSequenceNumber"] = start.sequence_number
        if start.instant_ms is not None:
            asked["Timestamp"] = start.instant_ms / 1_000
        answer = self.service.call("GetShardIterator", msgspec.json.encode(asked))
        try:
            return msgspec.json.decode(answer, type=_ShardIterator).ShardIterator
        except ValueError as error:
            kind = type(error).__name__
            raise UnreadableAnswer(f"GetShardIterator: the answer cannot be read: {kind}") from None

    def put_records(self, entries: Sequence[OutgoingRecord]) -> list[PutOutcome]:
        """
        Write a batch; one outcome per entry, in order.

        Raises:
            ClientError: the service refused the whole.
            HTTPClientError, ConnectionError: no answer, or no connection.
            UnreadableAnswer: an answer that is none.

        """
        body = encode_put_records(self._stream_arn, entries)
        answer = self.service.call("PutRecords", body, content_type=CBOR)
        try:
            return decode_put_records(bytes(answer))
        except ValueError as error:
            kind = type(error).__name__
            raise UnreadableAnswer(f"PutRecords: the answer cannot be read: {kind}") from None

    def close(self) -> None:
        """Close the connections that are kept."""
        self.service.close()


OpenWire = Callable[[], KinesisWire | None]
"""Opens the wire when called first; None says that botocore's client must do."""


def open_wire(
    stream_arn: str,
    *,
    client: KinesisClient,
    session: Session,
    idle_ms: int = IDLE_MS,
    long_pages: PageFormat = JSON_PAGES,
) -> KinesisWire | None:
    """
    Return the wire that does as the client would, None if it cannot.

    Args:
        stream_arn: the stream.
        client: whose endpoint, region and time-outs are taken over.
        session: the client's, for credentials and the certificates to trust.
        idle_ms: a connection unused for longer is not used again.
        long_pages: the format of pages that are likely to be long.

    Raises:
        BotoCoreError: no credentials, no region, or no endpoint.

    """
    if (client.meta.config.retries or {}).get("total_max_attempts") != 1:  # type: ignore[attr-defined]
        return None
    example = {"StreamARN": stream_arn, "ShardIterator": "-"}
    service = open_service(client, session, example=("get_records", example), idle_ms=idle_ms)
    return None if service is None else KinesisWire(stream_arn, service, long_pages=long_pages)
