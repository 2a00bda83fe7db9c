"""
The wire: JSON and CBOR bodies, event-stream frames, errors.

Two encodings carry the same requests (protocol "json 1.1" and its CBOR twin):

    application/x-amz-json-1.1   data in base64, timestamps in seconds with fractions
    application/x-amz-cbor-1.1   data as bytes, timestamps in whole milliseconds

The engine speaks the first; CBOR is translated at this edge, in both directions.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Final

import cbor2
import orjson

from shardfleet_local.kinesis.errors import KinesisError
from shardfleet_local.kinesis.record_log import StoredRecord

JSON: Final = "application/x-amz-json-1.1"
CBOR: Final = "application/x-amz-cbor-1.1"
EVENT_STREAM: Final = "application/vnd.amazon.eventstream"

_TIMESTAMPS: Final = frozenset(
    {
        "ApproximateArrivalTimestamp",
        "ConsumerCreationTimestamp",
        "StreamCreationTimestamp",
        "Timestamp",
    }
)
_CBOR_EPOCH_TAG: Final = 1
_CBOR_ARRAY: Final = 4  # ours
_CBOR_MAP: Final = 5  # ours
_STRING_HEADER: Final = b"\x07"


def content_type_of(headers: Mapping[str, str]) -> str:
    """Return the encoding of a request, and so of its answer; JSON unless it says CBOR."""
    return CBOR if "cbor" in headers.get("content-type", "") else JSON


def decode(body: bytes | bytearray | memoryview, content_type: str) -> dict[str, Any]:
    """
    Return the request in a body; an empty body is an empty request.

    Raises:
        KinesisError: SerializationException if the body is not of that type, or no structure.

    """
    if not body:
        return {}
    try:
        if content_type == CBOR:
            # The Java SDK tags timestamps as epochs but counts milliseconds; taken literally they
            # lie tens of thousands of years ahead, so the tag is ignored.
            decoders = {_CBOR_EPOCH_TAG: _untagged}
            request = _from_cbor(cbor2.loads(bytes(body), semantic_decoders=decoders), "")
        else:
            request = orjson.loads(body)
    except (ValueError, cbor2.CBORDecodeError) as error:
        raise KinesisError(  # fact K61
            "SerializationException", f"The body is no {content_type}: {error}"
        ) from error
    if not isinstance(request, dict):
        raise KinesisError("SerializationException", "The body must be a structure.")  # fact K61
    return request


def encode(answer: Mapping[str, Any], content_type: str) -> bytes:
    """Return an answer as a body."""
    if content_type == CBOR:
        return b"".join(_cbor_parts(answer))
    return orjson.dumps(answer)


def error_body(error: KinesisError, content_type: str) -> bytes:
    """Return the body of a refusal; clients read `__type` and `message`."""
    return encode({"__type": error.code, "message": error.message}, content_type)


def _untagged(value: Any, _immutable: bool) -> Any:  # noqa: FBT001 - cbor2's callback
    return value


def _from_cbor(value: Any, field: str) -> Any:
    if isinstance(value, dict):
        return {key: _from_cbor(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_cbor(each, field) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if field in _TIMESTAMPS and isinstance(value, int | float):
        return value / 1000
    return value


def _cbor_parts(answer: Mapping[str, Any]) -> Iterator[bytes]:
    yield _cbor_head(_CBOR_MAP, len(answer))
    for name, value in answer.items():
        yield cbor2.dumps(name)
        if isinstance(value, list) and value and isinstance(value[0], StoredRecord):
            yield _cbor_head(_CBOR_ARRAY, len(value))
            yield from map(_cbor_of, value)
        else:
            yield cbor2.dumps(_to_cbor(value, name))


def _cbor_of(record: StoredRecord) -> bytes:
    if record.cbor is None:
        record.cbor = cbor2.dumps(_to_cbor(record, ""))
    return record.cbor


def _cbor_head(kind: int, length: int) -> bytes:
    written = BytesIO()
    cbor2.CBOREncoder(written).encode_length(kind, length)
    return written.getvalue()


def _to_cbor(value: Any, field: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_cbor(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_cbor(each, field) for each in value]
    if field == "Data":
        return b64decode(value)
    if field in _TIMESTAMPS:
        return round(value * 1000)
    return value


# Event streams (Smithy specification, "Amazon event stream"): a message is
#   total length (4), headers length (4), CRC-32 of these 8 (4), headers, payload, CRC-32 of all
# and a header is name length (1), name, type (1; 7 = string), value length (2), value.


def event_frame(event_type: str, payload: Mapping[str, Any], *, content_type: str) -> bytes:
    """Return an event; `initial-response` must be the first of every stream (botocore)."""
    headers = {
        ":message-type": "event",
        ":event-type": event_type,
        ":content-type": content_type,
    }
    return _frame(headers, encode(payload, content_type))


def exception_frame(error: KinesisError, content_type: str) -> bytes:
    """Return the message that ends a stream with an exception of the model."""
    headers = {
        ":message-type": "exception",
        ":exception-type": error.code,
        ":content-type": content_type,
    }
    return _frame(headers, encode({"message": error.message}, content_type))


def _frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    raw = b"".join(_header(name, value) for name, value in headers.items())
    prelude = (16 + len(raw) + len(payload)).to_bytes(4, "big") + len(raw).to_bytes(4, "big")
    message = b"".join((prelude, _checksum(prelude), raw, payload))
    return message + _checksum(message)


def _header(name: str, value: str) -> bytes:
    text = value.encode()
    return b"".join(
        (bytes([len(name)]), name.encode(), _STRING_HEADER, len(text).to_bytes(2, "big"), text)
    )


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")
