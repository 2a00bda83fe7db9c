"""
HTTP/1.1 over kept connections, as little of it as a JSON service needs.

One request at a time on a connection, TCP_NODELAY (without it a request in two pieces waits 40 ms
for an acknowledgement), the answer's body read straight into one buffer. Errors are botocore's own,
so that whoever judges the SDK's errors judges these; none holds what came. Bounded: open
connections, the head, the body and the time of an answer.

An answer is read exactly (RFC 9112) or not at all: framing that two readers may understand in two
ways would let one answer pass for the next one.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shardfleet.values import dataclass

IDLE_MS = 5_000
"""
A connection unused for longer is not trusted: it may have died without a word.

What Lambda freezes misses the end of its connections, and its next request is answered by nobody
until it times out (brianc/node-postgres issue 2243). The AWS SDK for Java 1 looks at a connection
again after as long (`ClientConfiguration.DEFAULT_VALIDATE_AFTER_INACTIVITY_MILLIS`); no look shows
a silent death.
"""
HEAD_BYTES_MOST = 64 * 1024
# An answer has up to 10 MiB of data (Kinesis quota), a third more in base64, and names and keys.
BODY_BYTES_MOST = 64 * 1024 * 1024
# Below this, head and body of a request are sent as one piece.
_ONE_PIECE = 64 * 1024
_CHUNK = 64 * 1024
# Of a chunk's length and extensions, and of a number of bytes in decimal or hexadecimal digits.
_LINE_BYTES_MOST = 1024
_DIGITS_MOST = 9
_REQUEST_LINE = "POST / HTTP/1.1\r\n"
_OK = 200
_OK_LINE = b"http/1.1 200 ok\r\n"
_TOO_LATE = "the answer was not complete in time"
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
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """
    Where requests go and how.

    Attributes:
        host: name or address.
        port: its port.
        tls: of an https endpoint; None: plain http.
        connect_timeout_s: for connecting, TLS's greeting included.
        read_timeout_s: the longest silence while waiting for an answer.
        connections: kept open for later, at most.
        answer_timeout_s: for a whole answer, however steadily it drips: a page of 10 MiB (Kinesis
            quota) needs that long at 1.4 Mbit/s. Up to a silence more, if it ends in one.
        idle_s: a connection that was not used for longer is not used again.

    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect_timeout_s: float
    read_timeout_s: float
    connections: int
    answer_timeout_s: float = 60.0
    idle_s: float = IDLE_MS / 1000

    @property
    def authority(self) -> str:
        """Return the Host header: the port only if it is not the scheme's own."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = 80 if self.tls is None else 443
        return name if self.port == usual else f"{name}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL, for messages."""
        return f"{'http' if self.tls is None else 'https'}://{self.authority}/"


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


class _Broken(OSError):
    """What came is no HTTP answer, not all of one, or more than is allowed."""


class HttpConnections:
    """Connections to one endpoint; safe to share between threads."""

    def __init__(
        self, endpoint: Endpoint, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Connect to nothing yet."""
        self._endpoint = endpoint
        self._monotonic_s = monotonic_s
        most = max(1, endpoint.connections)
        self._idle: deque[tuple[socket.socket, float]] = deque(maxlen=most)

    def __del__(self) -> None:
        """Leave no connection open when the client that had them is gone."""
        self.close()

    def post(self, headers: dict[str, str], body: bytes) -> HttpAnswer:
        """
        Send a request, once, and return the answer, whatever its status.

        Raises:
            ConnectTimeoutError, EndpointConnectionError: never sent.
            SSLError: TLS refused.
            ReadTimeoutError, ConnectionClosedError: perhaps sent, not answered.

        """
        connection = self._kept() or self._connect()
        try:
            answer, keep = self._exchange(connection, headers, body)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise self._unanswered(error) from error
            raise
        if keep and len(self._idle) < self._endpoint.connections:
            self._idle.append((connection, self._monotonic_s()))
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the connections that are kept; those in use close when they come back."""
        while self._idle:
            self._idle.pop()[0].close()

    def _kept(self) -> socket.socket | None:
        """
        Return a kept connection that is alive, as far as can be told.

        One that has become readable was closed by the other side.
        """
        while True:
            try:
                connection, since_s = self._idle.pop()
            except IndexError:
                return None
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            idle_s = self._monotonic_s() - since_s
            if idle_s <= self._endpoint.idle_s and not poll.poll(0):
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        endpoint, connection = self._endpoint, None
        try:
            where = (endpoint.host, endpoint.port)
            connection = socket.create_connection(where, endpoint.connect_timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if endpoint.tls is not None:
                connection = endpoint.tls.wrap_socket(connection, server_hostname=endpoint.host)
            connection.settimeout(endpoint.read_timeout_s)
        except OSError as error:
            if connection is not None:
                connection.close()
            raise self._unreachable(error) from error
        return connection

    def _unanswered(self, error: OSError) -> Exception:
        # The SDK is not loaded before something fails: it takes as long as all else at a start.
        from botocore.exceptions import ConnectionClosedError, ReadTimeoutError  # noqa: PLC0415

        kind = ReadTimeoutError if isinstance(error, TimeoutError) else ConnectionClosedError
        return kind(endpoint_url=self._endpoint.url, error=error)

    def _unreachable(self, error: OSError) -> Exception:
        from botocore.exceptions import (  # noqa: PLC0415 - see above
            ConnectTimeoutError,
            EndpointConnectionError,
            SSLError,
        )

        url = self._endpoint.url
        if isinstance(error, ssl.SSLError):
            return SSLError(endpoint_url=url, error=error)
        if isinstance(error, TimeoutError):
            return ConnectTimeoutError(endpoint_url=url, error=error)
        return EndpointConnectionError(endpoint_url=url, error=error)

    def _exchange(
        self, connection: socket.socket, headers: dict[str, str], body: bytes
    ) -> tuple[HttpAnswer, bool]:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"{_REQUEST_LINE}{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1")
        if len(body) < _ONE_PIECE:
            connection.sendall(head + body)
        else:
            connection.sendall(head)
            connection.sendall(body)
        until_s = self._monotonic_s() + self._endpoint.answer_timeout_s
        answer, keep = _read_answer(_Incoming(connection, until_s, self._monotonic_s))
        # What TLS has decrypted already no poll tells of; it belongs to no request of ours.
        return answer, keep and not (isinstance(connection, ssl.SSLSocket) and connection.pending())


class _Incoming:
    """What comes on a connection, as long as the answer may take."""

    __slots__ = ("_connection", "_monotonic_s", "_until_s")

    def __init__(
        self, connection: socket.socket, until_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._until_s = until_s
        self._monotonic_s = monotonic_s

    def more(self) -> bytes:
        """Return what comes next; nothing at the end."""
        if self._monotonic_s() > self._until_s:
            raise TimeoutError(_TOO_LATE)
        return self._connection.recv(_CHUNK)

    def some(self) -> bytes:
        """Return what comes next; the end is too early."""
        got = self.more()
        if not got:
            raise _Broken("the connection was closed before the answer was complete")
        return got

    def fill(self, body: bytearray, filled: int) -> None:
        """Put what comes next into the rest of a body."""
        with memoryview(body) as view:
            while filled < len(view):
                if self._monotonic_s() > self._until_s:
                    raise TimeoutError(_TOO_LATE)
                got = self._connection.recv_into(view[filled:])
                if not got:
                    raise _Broken(f"{filled} of {len(view)} bytes of the body came")
                filled += got


def _read_answer(incoming: _Incoming) -> tuple[HttpAnswer, bool]:
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
    body = bytearray(size)
    body[: len(begun)] = begun
    incoming.fill(body, len(begun))
    return HttpAnswer(status, head, body), keep


def _read_head(incoming: _Incoming) -> tuple[int, bytes, bytes, dict[bytes, bytes]]:
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
        status = _OK if low.startswith(_OK_LINE) else _status_of(low)
        if status >= _OK:
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


def _read_chunks(incoming: _Incoming, begun: bytes) -> bytearray:
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
        if at > _CHUNK:
            del came[:at]
            at = 0


def _size_of_chunk(incoming: _Incoming, came: bytearray, at: int) -> tuple[int, int]:
    """Return the size that is said at a place, and where the chunk begins."""
    while (end := came.find(b"\r\n", at)) < 0:
        if len(came) - at > _LINE_BYTES_MOST:
            raise _Broken("a chunk without a length")
        came += incoming.some()
    length = _CHUNK_SIZE.fullmatch(came, at, end)
    if length is None or len(length[1]) > _DIGITS_MOST or end - at > _LINE_BYTES_MOST:
        raise _Broken("a chunk whose length is no number")
    return int(length[1], 16), end + 2


def _read_to_the_end(incoming: _Incoming, begun: bytes) -> bytes:
    parts, total = [begun], len(begun)
    while got := incoming.more():
        parts.append(got)
        total += len(got)
        if total > BODY_BYTES_MOST:
            raise _Broken(f"a body of more than {BODY_BYTES_MOST} bytes")
    return b"".join(parts)
