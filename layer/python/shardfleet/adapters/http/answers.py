"""
An HTTP/1.1 answer, out of what comes on a connection: by a thread that waits, or as far as it came.

An answer is read exactly (RFC 9112) or not at all: framing that two readers may understand in two
ways would let one answer pass for the next one. Bounded: the head, the body and the time.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

HEAD_BYTES_MOST = 64 * 1024
# An answer has up to 10 MiB of data (Kinesis quota), a third more in base64, and names and keys.
BODY_BYTES_MOST = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
"""Of what comes, so much is taken at once."""
SHORT_BYTES = 64 * 1024
"""What lacks more is long, and no event loop waits for it."""
OK = 200
TOO_LATE = "the answer was not complete in time"
# Of a chunk's length and extensions, and of a number of bytes in decimal or hexadecimal digits.
_LINE_BYTES_MOST = 1024
_DIGITS_MOST = 9
_OK_LINE = b"http/1.1 200 ok\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"http/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?(?=\r|\Z)")
# The fields on which it depends where an answer ends, with what is not allowed as a part of them:
# blanks before the colon, half an end of a line, a line that goes on. In a head in lower case; no
# other field is looked at, for this is done for each empty page of each idle shard.
_FRAMING = re.compile(
    rb"\r\n((?:content-length|transfer-encoding|connection)[ \t]*):[ \t]*"
    rb"([^\r]*(?:\r(?!\n[^ \t])[^\r]*)*)"
)
_FRAMING_FIELDS = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;.*)?", re.DOTALL)


class HttpAnswer(NamedTuple):
    """
    An HTTP answer.

    Attributes:
        status: e.g. 200.
        head: the status line and the headers as they came.
        body: all of it.

    """

    status: int
    head: bytes
    body: bytes | bytearray

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by lower-case name."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        named = (line.partition(":") for line in lines)
        return {name.lower(): value.strip() for name, _, value in named}


def instant_of(date: str) -> datetime:
    """
    Return the instant of an answer's ``Date``, in the one form that is sent (RFC 9110).

    ``email.utils`` reads the two obsolete ones, too, and takes as long to load as a call.

    Raises:
        ValueError: another form, or no instant.

    """
    return datetime.fromisoformat(
        f"{date[12:16]}-{_MONTHS.index(date[8:11]) + 1:02}-{date[5:7]}T{date[17:25]}Z"
    )


class _Broken(OSError):
    """What came is no HTTP answer, not all of one, or more than is allowed."""


class Incoming:
    """What comes on a connection, behind what came already, as long as the answer may take."""

    __slots__ = ("_begun", "_connection", "_monotonic_s", "_until_s")

    def __init__(
        self,
        connection: socket.socket,
        until_s: float,
        begun: bytes,
        *,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._until_s = until_s
        self._begun = begun
        self._monotonic_s = monotonic_s

    def more(self) -> bytes:
        """Return what comes next; nothing at the end."""
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun
        if self._monotonic_s() > self._until_s:
            raise TimeoutError(TOO_LATE)
        return self._connection.recv(CHUNK_BYTES)

    def some(self) -> bytes:
        """Return what comes next; the end is too early."""
        got = self.more()
        if not got:
            raise _Broken("the connection was closed before the answer was complete")
        return got

    def body(self, size: int, begun: bytes) -> bytearray:
        """Return a body of a size, of which the beginning came."""
        body = bytearray(size)
        body[: len(begun)] = begun
        self.fill(body, len(begun))
        return body

    def fill(self, body: bytearray, filled: int) -> None:
        """Put what comes next into the rest of a body."""
        with memoryview(body) as view:
            while filled < len(view):
                if self._monotonic_s() > self._until_s:
                    raise TimeoutError(TOO_LATE)
                got = self._connection.recv_into(view[filled:])
                if not got:
                    raise _Broken(f"{filled} of {len(view)} bytes of the body came")
                filled += got


class NotYet(Exception):
    """There is more to come."""

    def __init__(self, *, is_long: bool = False) -> None:
        super().__init__()
        self.is_long = is_long


class WhatCame:
    """What has come of an answer, to read as far as it goes."""

    __slots__ = ("_came",)

    def __init__(self, came: bytes) -> None:
        self._came = came

    def more(self) -> bytes:
        """Return what there is, and nothing twice."""
        if not self._came:
            raise NotYet
        came, self._came = self._came, b""
        return came

    some = more

    def body(self, size: int, begun: bytes) -> bytearray:
        """Raise NotYet with whether much is missing."""
        raise NotYet(is_long=size - len(begun) > SHORT_BYTES)

    def fill(self, body: bytearray, filled: int) -> None:
        """Raise NotYet with whether much is missing."""
        raise NotYet(is_long=len(body) - filled > SHORT_BYTES)


def read_answer(incoming: Incoming | WhatCame) -> tuple[HttpAnswer, bool]:
    """Return the answer, and whether the connection may be used again."""
    status, head, begun, framing = _read_head(incoming)
    keep = b"close" not in framing.get(b"connection", b"")
    coding, length = framing.get(b"transfer-encoding"), framing.get(b"content-length")
    if coding is not None:
        if length is not None or coding.rstrip(b" \t") != b"chunked":
            raise _Broken("a Transfer-Encoding other than chunked alone")
        return HttpAnswer(status, head, _read_chunks(incoming, begun)), keep
    if length is None:
        return HttpAnswer(status, head, _read_to_the_end(incoming, begun)), False
    length = length.rstrip(b" \t")
    if not length.isdigit() or len(length) > _DIGITS_MOST or int(length) > BODY_BYTES_MOST:
        raise _Broken(f"a Content-Length that is no number up to {BODY_BYTES_MOST}")
    size = int(length)
    if len(begun) > size:
        raise _Broken("more came than was announced")
    if len(begun) == size:
        return HttpAnswer(status, head, begun), keep
    return HttpAnswer(status, head, incoming.body(size, begun)), keep


def _read_head(incoming: Incoming | WhatCame) -> tuple[int, bytes, bytes, dict[bytes, bytes]]:
    """Return status, head, what already came of the body, and the fields that say how it ends."""
    data = b""
    while True:
        searched = 0
        while (end := data.find(_END_OF_HEAD, searched)) < 0:
            if len(data) > HEAD_BYTES_MOST:
                raise _Broken(f"the head is longer than {HEAD_BYTES_MOST} bytes")
            searched = max(0, len(data) - len(_END_OF_HEAD))
            data += incoming.some()
        head, data = data[:end], data[end + len(_END_OF_HEAD) :]
        low = head.lower()
        status = OK if low.startswith(_OK_LINE) else _status_of(low)
        if status >= OK:
            break
    fields = _FRAMING.findall(low)
    framing = dict(fields)
    if len(framing) < len(fields) or not framing.keys() <= _FRAMING_FIELDS:
        raise _Broken("a field that says where the answer ends is there twice, or misspelt")
    if low.startswith(b"http/1.0"):
        framing[b"connection"] = b"close"
    return status, head, data, framing


def _status_of(head: bytes) -> int:
    line = _STATUS_LINE.match(head)
    if line is None:
        raise _Broken("no status line of HTTP/1.1")
    return int(line[1])


def _read_chunks(incoming: Incoming | WhatCame, begun: bytes) -> bytearray:
    """Return a chunked body; each byte is copied a few times, however the chunks are cut."""
    body, came, at = bytearray(), bytearray(begun), 0
    while True:
        size, at = _size_of_chunk(incoming, came, at)
        if len(body) + size > BODY_BYTES_MOST:
            raise _Broken(f"a body of more than {BODY_BYTES_MOST} bytes")
        here = came[at : at + size]
        body += here
        at += len(here)
        if len(here) < size:
            filled = len(body)
            body += bytes(size - len(here))
            incoming.fill(body, filled)
        while len(came) < at + 2:
            came += incoming.some()
        if came[at : at + 2] != b"\r\n":
            raise _Broken("a chunk of another length than it says, or with trailers")
        at += 2
        if not size:
            if len(came) > at:
                raise _Broken("more came than was announced")
            return body
        if at > CHUNK_BYTES:
            del came[:at]
            at = 0


def _size_of_chunk(incoming: Incoming | WhatCame, came: bytearray, at: int) -> tuple[int, int]:
    """Return the size that is said at a place, and where the chunk begins."""
    while (end := came.find(b"\r\n", at)) < 0:
        if len(came) - at > _LINE_BYTES_MOST:
            raise _Broken("a chunk without a length")
        came += incoming.some()
    length = _CHUNK_SIZE.fullmatch(came, at, end)
    if length is None or len(length[1]) > _DIGITS_MOST or end - at > _LINE_BYTES_MOST:
        raise _Broken("a chunk whose length is no number")
    return int(length[1], 16), end + 2


def _read_to_the_end(incoming: Incoming | WhatCame, begun: bytes) -> bytes:
    parts, total = [begun], len(begun)
    while got := incoming.more():
        parts.append(got)
        total += len(got)
        if total > BODY_BYTES_MOST:
            raise _Broken(f"a body of more than {BODY_BYTES_MOST} bytes")
    return b"".join(parts)
