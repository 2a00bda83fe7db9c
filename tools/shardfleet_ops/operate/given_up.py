"""
What was given up, as it was kept: read back, and in which order it goes through the handler again.

The document is what a worker writes (`adapters/dead_letters.py`): the event source mapping's
invocation record with the whole event in ``payload``, or with ``payloadLocation`` where that did
not fit. What the mapping itself keeps in S3 has the event, too, and is read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from shardfleet.domain.delivery.given_up import S3_PREFIX, key_of
from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_json

# OverflowError: a date beyond all bounds.
_NO_DOCUMENT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_SHARD_ID = re.compile(r"(?!\.+$)[a-zA-Z0-9_.-]{1,128}")  # Kinesis, ShardId; a folder of its own.
_FLEETS_FOLDER = re.compile(rf"{S3_PREFIX}/[^/]+/[^/]+/[^/]+/")


class GivenUp(Struct, frozen=True, kw_only=True):
    """
    One document: records of one shard that were given up together.

    Attributes:
        where: the object or message, for a person.
        stream_arn: of the stream.
        shard_id: the shard.
        place: sequence number and sub-sequence number of the first record, as integers.
        through: those of the last one.
        count: how many records.
        first_ms: when the first one arrived, epoch milliseconds; 0: Kinesis did not say.
        last_ms: when the last one did.
        payload: the event as text; empty where it is elsewhere.
        location: ``s3://bucket/key`` of the document that has the event; empty: this one.
        etag: of the object that was read (S3, ETag); empty where none was.

    """

    where: str
    stream_arn: str
    shard_id: str
    place: tuple[int, int]
    through: tuple[int, int]
    count: int
    first_ms: int
    last_ms: int
    payload: str
    location: str
    etag: str = ""

    def has_records_of(self, other: GivenUp) -> bool:
        """Return whether it has the very records that another document speaks of."""
        return self._records == other._records

    @property
    def _records(self) -> tuple[object, ...]:
        span = (self.place, self.through, self.count, self.first_ms, self.last_ms)
        return (self.stream_arn, self.shard_id, *span)


class RefusedDocument(Struct, frozen=True, kw_only=True):
    """
    What was found and is nothing for this fleet: it is left where it is.

    Attributes:
        where: the object or message, for a person.
        reason: why; begins with ``where``.

    """

    where: str
    reason: str


class FailedBucket(Struct, frozen=True, kw_only=True):
    """
    Where a fleet keeps what it gives up and no message holds.

    Attributes:
        bucket: its name; empty: the fleet has none.
        folder: the fleet's own in it, see :func:`shardfleet.domain.delivery.given_up.folder_of`.

    """

    bucket: str
    folder: str

    def location_of(self, document: GivenUp) -> str:
        """Return the one place where this fleet keeps such records; empty: nowhere."""
        if not self.bucket:
            return ""
        key = key_of(
            self.folder,
            stream=document.stream_arn.rpartition("/")[2],
            shard_id=document.shard_id,
            first_ms=document.first_ms,
            span=(document.place, document.through),
        )
        return f"s3://{self.bucket}/{key}"

    def refusal_of(self, document: GivenUp) -> str:
        """Return why the place that a document names is not read or touched; empty: it may be."""
        if not document.location or document.location == self.location_of(document):
            return ""
        own = self.location_of(document) or "no bucket, for it has none"
        return (
            f"{document.where}: it names {document.location}, and such records of this fleet are "
            f"kept in {own}; nothing there is read or deleted. Look who sent it, and delete the "
            "message; records of the fleet that are there go by --from s3://BUCKET/PREFIX"
        )


def is_of_another_fleet(key: str, *, folder: str, prefix: str) -> bool:
    """
    Return whether an object lies in another fleet's folder that nobody has named.

    Args:
        key: of the object.
        folder: this fleet's own.
        prefix: what a person has asked for; one that lies in a fleet's folder names that fleet.

    """
    found, named = _FLEETS_FOLDER.match(key), _FLEETS_FOLDER.match(prefix)
    return found is not None and found[0] != folder and not named


def given_up_of(text: str | bytes, *, where: str) -> GivenUp:
    """
    Read a document.

    Args:
        text: of the object or message; what a topic wraps around it is taken off.
        where: it was found.

    Raises:
        ConfigurationError: it is none, or has neither the records nor where they are.

    """
    try:
        document = read_json(text)
        if document.get("Type") == "Notification":
            document = read_json(document["Message"])
        batch, own = document["KinesisBatchInfo"], document.get("shardfleet", {})
        found = GivenUp(
            where=where,
            stream_arn=str(batch["streamArn"]),
            shard_id=str(batch["shardId"]),
            place=(int(batch["startSequenceNumber"]), int(own.get("startSubSequenceNumber", 0))),
            through=(int(batch["endSequenceNumber"]), int(own.get("endSubSequenceNumber", 0))),
            count=int(batch["batchSize"]),
            first_ms=_ms(batch.get("approximateArrivalOfFirstRecord")),
            last_ms=_ms(batch.get("approximateArrivalOfLastRecord")),
            payload=str(document.get("payload", "")),
            location=str(own.get("payloadLocation", "")),
        )
        if not _SHARD_ID.fullmatch(found.shard_id):
            raise ValueError(found.shard_id)
    except _NO_DOCUMENT as error:
        raise ConfigurationError(
            f"{where}: it is no record of what was given up ({type(error).__name__}); name a "
            "prefix or queue that holds nothing else"
        ) from error
    if not found.payload and not found.location:
        raise ConfigurationError(
            f"{where}: it only says which records failed, and does not have them; while the stream "
            "does, `shardfleet rewind` reads them again"
        )
    return found


def event_of(document: GivenUp) -> Mapping[str, Any]:
    """
    Return the event that a document has.

    Raises:
        ConfigurationError: it has another number of records than it says, or none that can be read.

    """
    try:
        event: Mapping[str, Any] = read_json(document.payload)
        count = len(event["Records"])
    except _NO_DOCUMENT as error:
        raise ConfigurationError(f"{document.where}: its payload is no event") from error
    if not 0 < count == document.count:
        raise ConfigurationError(
            f"{document.where}: its payload has {count} records, its batchSize is {document.count}"
        )
    return event


def by_shard(documents: Iterable[GivenUp]) -> Mapping[str, Sequence[GivenUp]]:
    """Return what goes through the handler one after the other: each shard's, as it was put."""
    found: dict[str, list[GivenUp]] = {}
    for document in sorted(documents, key=lambda each: (each.shard_id, each.place)):
        found.setdefault(document.shard_id, []).append(document)
    return found


def sorted_out(
    found: Iterable[GivenUp | RefusedDocument], stream_arn: str
) -> tuple[list[GivenUp], list[RefusedDocument]]:
    """Return what is of a stream, and what is not or was refused already."""
    documents: list[GivenUp] = []
    refused: list[RefusedDocument] = []
    for each in found:
        if isinstance(each, RefusedDocument):
            refused.append(each)
        elif each.stream_arn == stream_arn:
            documents.append(each)
        else:
            reason = (
                f"{each.where}: it is of the stream {each.stream_arn}, and the fleet reads "
                f"{stream_arn}"
            )
            refused.append(RefusedDocument(where=each.where, reason=reason))
    return documents, refused


def _ms(text: str | None) -> int:
    if text is None:
        return 0  # Kinesis did not say.
    at_ms = round(datetime.fromisoformat(text).timestamp() * 1000)
    if at_ms < 0:
        raise ValueError(text)  # Before there were streams, and beyond what can be shown.
    return at_ms
