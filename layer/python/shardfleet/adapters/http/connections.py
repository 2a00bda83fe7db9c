"""
HTTP/1.1 over kept connections, as little of it as a JSON service needs.

One request at a time on a connection, TCP_NODELAY (without it a request in two pieces waits 40 ms
for an acknowledgement), the answer's body read straight into one buffer. Errors are botocore's own,
so that whoever judges the SDK's errors judges these. Bounded: open connections, the head and the
body of an answer.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from dataclasses import dataclass

from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
    SSLError,
)

HEAD_BYTES_MOST = 64 * 1024
# An answer has up to 10 MiB of data (Kinesis quota), a third more in base64, and names and keys.
BODY_BYTES_MOST = 64 * 1024 * 1024
# Below this, head and body of a request are sent as one piece.
_ONE_PIECE = 64 * 1024
_CHUNK = 64 * 1024
_REQUEST_LINE = "POST / HTTP/1.1\r\n"
_FIRST_FINAL = 200


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

    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect_timeout_s: float
    read_timeout_s: float
    connections: int

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


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """
    An HTTP answer.

    Attributes:
        status: e.g. 200.
        headers: by lower-case name.
        body: all of it.

    """

    status: int
    headers: dict[str, str]
    body: bytes | bytearray


class _Broken(OSError):
    """What came is no HTTP answer, not all of one, or more than is allowed."""


class HttpConnections:
    """Connections to one endpoint; safe to share between threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Connect to nothing yet."""
        self._endpoint = endpoint
        self._idle: deque[socket.socket] = deque(maxlen=max(1, endpoint.connections))

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
            if isinstance(error, TimeoutError):
                raise ReadTimeoutError(endpoint_url=self._endpoint.url, error=error) from error
            if isinstance(error, OSError):
                raise ConnectionClosedError(endpoint_url=self._endpoint.url, error=error) from error
            raise
        if keep and len(self._idle) < self._endpoint.connections:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the connections that are kept; those in use close when they come back."""
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> socket.socket | None:
        """Return a kept connection; one that has become readable was closed by the other side."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(0):
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

    def _unreachable(self, error: OSError) -> Exception:
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
        return _read_answer(connection)


def _read_answer(connection: socket.socket) -> tuple[HttpAnswer, bool]:
    """Return the answer, and whether the connection may be used again."""
    status, headers, begun = _read_head(connection)
    keep = headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return HttpAnswer(status, headers, _read_chunks(connection, begun)), keep
    length = headers.get("content-length")
    if length is None:
        return HttpAnswer(status, headers, _read_to_the_end(connection, begun)), False
    if not length.isdecimal() or int(length) > BODY_BYTES_MOST:
        raise _Broken(f"Content-Length {length}; at most {BODY_BYTES_MOST} is allowed")
    size = int(length)
    if len(begun) > size:
        raise _Broken("more came than was announced")
    if len(begun) == size:
        return HttpAnswer(status, headers, begun), keep
    body = bytearray(size)
    body[: len(begun)] = begun
    view, filled = memoryview(body), len(begun)
    while filled < size:
        got = connection.recv_into(view[filled:])
        if not got:
            raise _Broken(f"{filled} of {size} bytes of the body came")
        filled += got
    return HttpAnswer(status, headers, body), keep


def _read_head(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and what already came of the body."""
    data = b""
    while True:
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > HEAD_BYTES_MOST:
                raise _Broken(f"the head is longer than {HEAD_BYTES_MOST} bytes")
            data += _received(connection)
        lines = data[:end].decode("latin-1").split("\r\n")
        data = data[end + 4 :]
        protocol, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if not protocol.startswith("HTTP/1.") or not status.isdecimal():
            raise _Broken(f"{lines[0][:80]!r} is no status line of HTTP/1.1")
        if int(status) >= _FIRST_FINAL:
            break
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status), headers, data


def _read_chunks(connection: socket.socket, begun: bytes) -> bytes:
    """Return a chunked body."""
    body: list[bytes] = []
    data, total = begun, 0
    while True:
        while (end := data.find(b"\r\n")) < 0:
            if len(data) > HEAD_BYTES_MOST:
                raise _Broken("a chunk without a length")
            data += _received(connection)
        try:
            size = int(data[:end].partition(b";")[0], 16)
        except ValueError as error:
            raise _Broken(f"{data[:end][:20]!r} is no length of a chunk") from error
        total += size
        if size < 0 or total > BODY_BYTES_MOST:
            raise _Broken(f"a body of more than {BODY_BYTES_MOST} bytes")
        data = data[end + 2 :]
        while len(data) < size + 2:
            data += _received(connection)
        if data[size : size + 2] != b"\r\n":
            raise _Broken("a chunk of another length than it says, or with trailers")
        if not size:
            return b"".join(body)
        body.append(data[:size])
        data = data[size + 2 :]


def _read_to_the_end(connection: socket.socket, begun: bytes) -> bytes:
    parts, total = [begun], len(begun)
    while got := connection.recv(_CHUNK):
        parts.append(got)
        total += len(got)
        if total > BODY_BYTES_MOST:
            raise _Broken(f"a body of more than {BODY_BYTES_MOST} bytes")
    return b"".join(parts)


def _received(connection: socket.socket) -> bytes:
    got = connection.recv(_CHUNK)
    if not got:
        raise _Broken("the connection was closed before the answer was complete")
    return got
