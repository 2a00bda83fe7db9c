"""
The body of a PutRecords request and of its answer, in CBOR: data travels as it is.

In JSON data is base64, a third more to digest for the signature, to encrypt and to send. The AWS
SDK for Java speaks CBOR to Kinesis unless told not to (fact K100), and what is written here is,
byte for byte, what it writes (tests/adapters/test_put_records_body.py). An answer has the encoding
of its request, but may come as JSON all the same (aws/aws-sdk-java-v2 issue 1595): both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec

from shardfleet.adapters.http import cbor
from shardfleet.engine.ports import PutOutcome

if TYPE_CHECKING:
    from shardfleet.kpl.packing import OutgoingRecord

CBOR = "application/x-amz-cbor-1.1"
"""The type of a request's body: ``AwsCborProtocolFactory`` of the AWS SDK for Java 2."""

_LENGTHS_REMEMBERED = 16_384  # Of data; about 1 MB.
# The Java SDK marks the ends of structures, and writes members in this order.
_MAP, _ARRAY, _END = b"\xbf", b"\x9f", b"\xff"
_BEGIN = _MAP + b"gRecords" + _ARRAY
_DATA, _HASH_KEY, _KEY = b"dData", b"oExplicitHashKey", b"lPartitionKey"
_STREAM = b"iStreamARN"


class _Answer(msgspec.Struct, gc=False):
    """``PutRecordsOutput``."""

    Records: list[PutOutcome]


_FROM_JSON: Callable[[bytes], _Answer] = msgspec.json.Decoder(_Answer).decode
_FROM_CBOR: Callable[..., _Answer] = partial(msgspec.convert, type=_Answer)


@lru_cache(maxsize=_LENGTHS_REMEMBERED)
def _before_data(length: int) -> bytes:
    return _MAP + _DATA + cbor.bytes_head(length)


@lru_cache
def _before_key(length: int) -> bytes:
    return _KEY + cbor.text_head(length)


def encode_put_records(stream_arn: str, entries: Sequence[OutgoingRecord]) -> bytes:
    """Return the CBOR body of a PutRecords request."""
    parts = [_BEGIN]
    for key, data, hash_key in entries:
        raw = key.encode()
        parts += (_before_data(len(data)), data)
        if hash_key is not None:
            parts += (_HASH_KEY, cbor.text(hash_key))
        parts += (_before_key(len(raw)), raw, _END)
    parts += (_END, _STREAM, cbor.text(stream_arn), _END)
    return b"".join(parts)


def decode_put_records(body: bytes) -> list[PutOutcome]:
    """
    Return the outcomes of a PutRecords answer, one per entry, in their order.

    Raises:
        ValueError: the body is no such answer.

    """
    if cbor.is_cbor(body):
        return _FROM_CBOR(cbor.decode(body)).Records
    return _FROM_JSON(body).Records
