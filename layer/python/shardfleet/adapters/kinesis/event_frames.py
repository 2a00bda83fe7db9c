"""
Messages of an event stream, taken off the front of a buffer as they become complete.

A message (Smithy specification, "Amazon Event Stream") is: length of all (4 bytes), length of its
headers (4), CRC-32 of these eight (4), headers, payload, CRC-32 of all before it (4). A header is:
length of its name (1), name, type of its value (1), value. Equal to botocore's parser, whose
`EventStream` needs ten times as long (tests/adapters/test_event_frames.py); stricter only where
botocore reads behind the end of the headers.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from shardfleet.adapters.sdk_errors import UnreadableAnswer

# A record has up to 10 MiB, a third more in base64, and names and keys.
MESSAGE_BYTES_MOST = 16 * 1024 * 1024
_HEADERS_BYTES_MOST = 128 * 1024  # botocore's, and the specification's
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4
_STRING = 7
# Of the types without a length of their own; bytes (6) and string (7) have one of two bytes.
_VALUE_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_WITH_LENGTH = (6, _STRING)


class EventFrame(NamedTuple):
    """A message: its headers whose values are strings, and its payload."""

    headers: dict[str, str]
    payload: bytes


def take_frame(buffer: bytearray) -> EventFrame | None:
    """
    Remove the first message from a buffer and return it; None while it is not complete.

    Raises:
        UnreadableAnswer: it is none, or too long: told as soon as its first twelve bytes are there.

    """
    if len(buffer) < _PRELUDE_BYTES:
        return None
    total = int.from_bytes(buffer[:4], "big")
    headers_bytes = int.from_bytes(buffer[4:8], "big")
    if zlib.crc32(buffer[:8]) != int.from_bytes(buffer[8:_PRELUDE_BYTES], "big"):
        raise UnreadableAnswer("an event's lengths came damaged")
    payload_bytes = total - headers_bytes - _PRELUDE_BYTES - _CHECKSUM_BYTES
    if payload_bytes < 0 or headers_bytes > _HEADERS_BYTES_MOST or total > MESSAGE_BYTES_MOST:
        raise UnreadableAnswer(f"an event of {total} bytes, {headers_bytes} of them headers")
    if len(buffer) < total:
        return None
    end = total - _CHECKSUM_BYTES
    with memoryview(buffer) as view:
        if zlib.crc32(view[:end]) != int.from_bytes(view[end:total], "big"):
            raise UnreadableAnswer("an event came damaged")
        start = _PRELUDE_BYTES + headers_bytes
        headers = _headers(bytes(view[_PRELUDE_BYTES:start]))
        payload = bytes(view[start:end])
    del buffer[:total]
    return EventFrame(headers, payload)


def _headers(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    names: set[str] = set()
    at, end = 0, len(data)
    try:
        while at < end:
            after_name = at + 1 + data[at]
            kind, name = data[after_name], data[at + 1 : after_name].decode()
            at = after_name + 1
            size = _VALUE_BYTES.get(kind, 0)
            if kind in _WITH_LENGTH:
                size, at = int.from_bytes(data[at : at + 2], "big"), at + 2
            elif kind not in _VALUE_BYTES:
                raise UnreadableAnswer(f"an event's header of type {kind}")
            value, at = data[at : at + size], at + size
            if name in names or at > end:
                raise UnreadableAnswer("an event's headers cannot be read")
            names.add(name)
            if kind == _STRING:
                found[name] = value.decode()
    except (IndexError, UnicodeDecodeError):
        raise UnreadableAnswer("an event's headers cannot be read") from None
    return found
