"""
Opaque texts handed to clients: shard iterators and the NextToken of listings.

A token is JSON, base64 and a checksum: readable by nobody by accident, and any change is noticed.
It holds all its state, so the engine keeps none and every token works as often as it is used.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from shardfleet_local.kinesis.errors import KinesisError, invalid_argument
from shardfleet_local.kinesis.requests import Request

ITERATOR_LIFE_MS: Final = 300_000  # fact K18
"""A shard iterator expires five minutes after it was returned (API reference)."""
NEXT_TOKEN_LIFE_MS: Final = 300_000  # fact K03
"""So does a NextToken ("tokens expire after 300 seconds")."""


class Iterator(NamedTuple):
    """
    A place in a shard, as it stood at `issued_ms` (epoch ms).

    `created_ms` is the stream's: an iterator of a deleted stream is none of its namesake
    (hazard H12). `empty` pages come before the next record; `lags` says that its first answer has
    the lag of a retention.
    """

    stream: str
    created_ms: int
    shard: str
    offset: int
    issued_ms: int
    empty: int = 0
    lags: bool = False

    def sealed(self) -> str:
        """Return the text for the client."""
        return _seal(["iterator", *self])


class PageToken(NamedTuple):
    """
    Where a listing goes on: after the item named `after`; `filters` repeats the first call's.

    `stream_arn` is empty where the listing is of no stream's.
    """

    listing: str
    stream_arn: str
    created_ms: int
    after: str
    filters: dict[str, Any]
    issued_ms: int

    def sealed(self) -> str:
        """Return the text for the client."""
        return _seal(["page", *self])


def iterator_of(token: str, now_ms: int) -> Iterator:
    """
    Return the iterator behind a text.

    Raises:
        KinesisError: InvalidArgumentException if it is none of ours, ExpiredIteratorException if
            it is older than five minutes.

    """
    fields = _unseal(token, "iterator")
    if fields is None:
        raise invalid_argument("Invalid ShardIterator.")  # fact K72
    iterator = Iterator(*fields)
    if now_ms - iterator.issued_ms > ITERATOR_LIFE_MS:
        raise expired_iterator(iterator, now_ms)  # fact K18
    return iterator


def expired_iterator(iterator: Iterator, now_ms: int) -> KinesisError:
    """Return the ExpiredIteratorException for an iterator, in the words of AWS."""
    return KinesisError(
        "ExpiredIteratorException",
        f"Iterator expired. The iterator was created at time {_said(iterator.issued_ms)} while "
        f"right now it is {_said(now_ms)} which is further in the future than the tolerated delay "
        f"of {ITERATOR_LIFE_MS} milliseconds.",
    )


def _said(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%a %b %d %H:%M:%S UTC %Y}"


def page_of(token: str, listing: str, *, now_ms: int) -> PageToken:
    """
    Return where the listing goes on.

    Raises:
        KinesisError: InvalidArgumentException if the text is no token of this listing,
            ExpiredNextTokenException if it is older than 300 seconds.

    """
    fields = _unseal(token, "page")
    if fields is None or fields[0] != listing:
        raise invalid_argument(f"NextToken is no token of {listing}.")  # fact K84
    page = PageToken(*fields)
    if now_ms - page.issued_ms > NEXT_TOKEN_LIFE_MS:
        raise KinesisError(
            "ExpiredNextTokenException", "NextToken is older than 300 seconds."
        )  # fact K03
    return page


def named_arn(request: Request) -> str:
    """Return the ARN of a stream or consumer that a request names, itself or by its NextToken."""
    for field in ("StreamARN", "ConsumerARN", "ResourceARN"):
        if isinstance(request.get(field), str):
            return str(request[field])
    token = request.get("NextToken")
    fields = _unseal(token, "page") if isinstance(token, str) else None
    return "" if fields is None else PageToken(*fields).stream_arn


def named_stream(request: Request) -> str:
    """Return the name of the stream that a request is about, by name or ARN; "" if it says none."""
    in_arn = named_arn(request).partition(":stream/")[2].partition("/")[0]
    return str(request.get("StreamName") or in_arn)


def _seal(fields: list[Any]) -> str:
    body = orjson.dumps(fields)
    return urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode()


def _unseal(token: str, kind: str) -> list[Any] | None:
    try:
        raw = urlsafe_b64decode(token.encode())
    except ValueError:
        return None
    body = raw[4:]
    if not body or zlib.crc32(body).to_bytes(4, "big") != raw[:4]:
        return None
    fields: list[Any] = orjson.loads(body)
    return fields[1:] if fields[0] == kind else None
