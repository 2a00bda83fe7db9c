"""
What was given up, as it was kept: read back, and in which order it goes through the handler again.

The document is the one that is written (`adapters/dead_letters.py`): the event source mapping's
invocation record with the whole event in ``payload``, or with ``payloadLocation`` where that did
not fit. What the mapping itself keeps in S3 has the event, too, and is read alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet.values import dataclass

# Of others' texts also: what is nested too deeply, and numbers and dates beyond all bounds.
_NO_DOCUMENT = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """
    One document: records of one shard that were given up together.

    Attributes:
        where: the object or message, for a person.
        stream_arn: of the stream.
        shard_id: the shard.
        place: sequence number and sub-sequence number of the first record, as integers.
        count: how many records.
        first_ms: when the first one arrived, epoch milliseconds.
        last_ms: when the last one did.
        payload: the event as text; empty where it is elsewhere.
        location: ``s3://bucket/key`` of the document that has the event; empty: this one.

    """

    where: str
    stream_arn: str
    shard_id: str
    place: tuple[int, int]
    count: int
    first_ms: int
    last_ms: int
    payload: str
    location: str


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
        document = json.loads(text)
        if document.get("Type") == "Notification":
            document = json.loads(document["Message"])
        batch, own = document["KinesisBatchInfo"], document.get("shardfleet", {})
        found = GivenUp(
            where=where,
            stream_arn=str(batch["streamArn"]),
            shard_id=str(batch["shardId"]),
            place=(int(batch["startSequenceNumber"]), int(own.get("startSubSequenceNumber", 0))),
            count=int(batch["batchSize"]),
            first_ms=_ms(batch["approximateArrivalOfFirstRecord"]),
            last_ms=_ms(batch["approximateArrivalOfLastRecord"]),
            payload=str(document.get("payload", "")),
            location=str(own.get("payloadLocation", "")),
        )
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
        event: Mapping[str, Any] = json.loads(document.payload)
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


def check_stream(documents: Iterable[GivenUp], stream_arn: str) -> None:
    """
    Refuse what another stream's fleet has given up.

    Raises:
        ConfigurationError: names the first of it.

    """
    for document in documents:
        if document.stream_arn != stream_arn:
            raise ConfigurationError(
                f"{document.where}: it is of the stream {document.stream_arn}, and the fleet reads "
                f"{stream_arn}; name a prefix or queue of this fleet alone"
            )


def _ms(text: str) -> int:
    at_ms = round(datetime.fromisoformat(text).timestamp() * 1000)
    if at_ms < 0:
        raise ValueError(text)  # Before there were streams, and beyond what can be shown.
    return at_ms
