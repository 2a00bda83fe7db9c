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

import msgspec

from shardfleet.adapters.http import cbor
from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.packing import OutgoingRecord

CBOR = "application/x-amz-cbor-1.1"
"""The type of a request's body: ``AwsCborProtocolFactory`` of the AWS SDK for Java 2."""

_BYTES, _TEXT = 0x40, 0x60  # What a value is, in the three high bits of its head (RFC 8949, 3.1).
_INLINE_MOST = 23  # Longer ones have their length in the 1, 2, 4 or 8 bytes behind the head.
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


def _head(kind: int, length: int) -> bytes:
    """Return what stands before so many bytes, in the fewest bytes."""
    if length <= _INLINE_MOST:
        return bytes((kind + length,))
    width = max(0, (length.bit_length() - 1).bit_length() - 3)  # 8, 16, 32 or 64 bits.
    return bytes((kind + _INLINE_MOST + 1 + width,)) + length.to_bytes(1 << width, "big")


@lru_cache(maxsize=_LENGTHS_REMEMBERED)
def _before_data(length: int) -> bytes:
    return _MAP + _DATA + _head(_BYTES, length)


@lru_cache
def _before_key(length: int) -> bytes:
    return _KEY + _head(_TEXT, length)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _head(_TEXT, len(raw)) + raw


def encode_put_records(stream_arn: str, entries: Sequence[OutgoingRecord]) -> bytes:
    """Return the CBOR body of a PutRecords request."""
    parts = [_BEGIN]
    for key, data, hash_key in entries:
        raw = key.encode()
        parts += (_before_data(len(data)), data)
        if hash_key is not None:
            parts += (_HASH_KEY, _text(hash_key))
        parts += (_before_key(len(raw)), raw, _END)
    parts += (_END, _STREAM, _text(stream_arn), _END)
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
