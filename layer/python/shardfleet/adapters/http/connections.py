"""
HTTP/1.1 over kept connections, as little of it as a JSON service needs.

One request at a time on a connection, TCP_NODELAY (without it a request in two pieces waits 40 ms
for an acknowledgement), the answer's body read straight into one buffer. Errors are botocore's own,
so that whoever judges the SDK's errors judges these; none holds what came. Bounded: open
connections, the head, the body and the time of an answer.

Whoever has an event loop need not give a thread to waiting: :meth:`HttpConnections.send` sends on
a kept connection, and :meth:`SentRequest.arrive` waits in the loop for a short answer. To connect,
and to read a long answer, still takes a thread.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from shardfleet.adapters.http.answers import (
    CHUNK_BYTES,
    OK,
    TOO_LATE,
    HttpAnswer,
    Incoming,
    NotYet,
    WhatCame,
    read_answer,
)

IDLE_MS = 5_000
"""
A connection unused for longer is not trusted: it may have died without a word.

What Lambda freezes misses the end of its connections, and its next request is answered by nobody
until it times out (brianc/node-postgres issue 2243). The AWS SDK for Java 1 looks at a connection
again after as long (`ClientConfiguration.DEFAULT_VALIDATE_AFTER_INACTIVITY_MILLIS`); no look shows
a silent death.
"""
_KEEP_IDLE = next(  # macOS has a name of its own for it.
    getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE") if hasattr(socket, name)
)
PROBED = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, _KEEP_IDLE, 60),
)
"""
Options of a socket that is asked after a minute's silence whether the other side is there.

A path forgets a silent connection (a NAT after 350 s: boto/botocore#2916), and a call may last
longer; the kernel's own first probe comes after two hours.
"""
# Below this, head and body of a request are sent as one piece.
_ONE_PIECE = 64 * 1024
# In an event loop an answer may come in so many pieces: with each, all that came is looked at anew.
_PIECES_MOST = 16
_REQUEST_LINE = "POST / HTTP/1.1\r\n"


class Endpoint(Struct, frozen=True, kw_only=True):
    """
    Where requests go and how.

    Attributes:
        host: name or address.
        port: its port.
        tls: of an https endpoint; None: plain http.
        connect_timeout_s: for connecting, TLS's greeting included.
        read_timeout_s: the longest silence while waiting for an answer.
        connections: that threads use at once, at most; event loops may use as many besides, so
            twice as many are kept for later.
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

    def unanswered(self, error: OSError) -> Exception:
        """Return botocore's error for a request that was perhaps sent, and not answered."""
        # The SDK is not loaded before something fails: it takes as long as all else at a start.
        from botocore.exceptions import ConnectionClosedError, ReadTimeoutError  # noqa: PLC0415

        kind = ReadTimeoutError if isinstance(error, TimeoutError) else ConnectionClosedError
        return kind(endpoint_url=self.url, error=error)

    def unreachable(self, error: OSError) -> Exception:
        """Return botocore's error for a connection that could not be made."""
        from botocore.exceptions import (  # noqa: PLC0415 - see above
            ConnectTimeoutError,
            EndpointConnectionError,
            SSLError,
        )

        url = self.url
        if isinstance(error, ssl.SSLError):
            return SSLError(endpoint_url=url, error=error)
        if isinstance(error, TimeoutError):
            return ConnectTimeoutError(endpoint_url=url, error=error)
        return EndpointConnectionError(endpoint_url=url, error=error)


class HttpConnections:
    """Connections to one endpoint; safe to share between threads."""

    def __init__(
        self, endpoint: Endpoint, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Connect to nothing yet."""
        self.endpoint = endpoint
        self._monotonic_s = monotonic_s
        self._kept_most = 2 * max(1, endpoint.connections)
        self._idle: deque[tuple[socket.socket, float]] = deque(maxlen=self._kept_most)

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
        return SentRequest(self, connection, _pieces(headers, body)).answer()

    def send(self, headers: dict[str, str], body: bytes) -> SentRequest | None:
        """
        Send a request on a kept connection, once, without waiting; None if none is kept.

        Whatever fails, :meth:`SentRequest.answer` tells it.
        """
        connection = self._kept()
        if connection is None:
            return None
        sent = SentRequest(self, connection, _pieces(headers, body))
        sent.begin()
        return sent

    def until_s(self) -> float:
        """Return until when the answer of a request that is sent now has to be complete."""
        return self._monotonic_s() + self.endpoint.answer_timeout_s

    def incoming(self, connection: socket.socket, until_s: float, begun: bytes) -> Incoming:
        """Return what comes on a connection, behind what came already."""
        until_s = until_s or self.until_s()
        return Incoming(connection, until_s, begun, monotonic_s=self._monotonic_s)

    def give_back(self, connection: socket.socket, *, keep: bool) -> None:
        """Keep a connection for the next request, or close it."""
        if keep and len(self._idle) < self._kept_most:
            self._idle.append((connection, self._monotonic_s()))
        else:
            connection.close()

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
            if idle_s <= self.endpoint.idle_s and not poll.poll(0):
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        endpoint, connection = self.endpoint, None
        # As bytes: to load the codec of international names takes as long as to connect.
        host: Any = endpoint.host.encode() if endpoint.host.isascii() else endpoint.host
        try:
            connection = socket.create_connection((host, endpoint.port), endpoint.connect_timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in PROBED:
                connection.setsockopt(*option)
            if endpoint.tls is not None:
                connection = endpoint.tls.wrap_socket(connection, server_hostname=host)
            connection.settimeout(endpoint.read_timeout_s)
        except OSError as error:
            if connection is not None:
                connection.close()
            raise endpoint.unreachable(error) from error
        return connection


class SentRequest:
    """
    A request on its connection, and its answer; not shared.

    Args:
        connections: whose it is.
        connection: in use by this alone.
        unsent: what is to be sent, in pieces.

    """

    def __init__(
        self, connections: HttpConnections, connection: socket.socket, unsent: list[bytes]
    ) -> None:
        """Send nothing yet."""
        self._connections = connections
        self._connection: socket.socket | None = connection
        self._unsent = unsent
        self._until_s = 0.0
        self._came = b""
        self._read: tuple[HttpAnswer, bool] | None = None
        self._failure: OSError | None = None

    def __del__(self) -> None:
        """Leave no connection open whose answer nobody wants any more."""
        self._close()

    def begin(self) -> None:
        """Send as much as goes without waiting."""
        connection = self._open()
        if connection.gettimeout() != 0:  # One that was used in a loop before needs no system call.
            connection.settimeout(0)
        try:
            while self._unsent:
                piece = self._unsent[0]
                gone = connection.send(piece)
                self._unsent[:1] = [piece[gone:]] if gone < len(piece) else []
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error
        self._until_s = self._connections.until_s()

    async def arrive(self) -> bool:
        """
        Wait in the running event loop for the answer, as long as it is short and no refusal.

        Returns:
            True: ``answer`` returns at once. False: it may have to wait or has bad news, so let it
            do that in a thread.

        """
        try:
            for _ in range(_PIECES_MOST):
                if self._unsent or self._failure is not None or not await self._more():
                    return False
                try:
                    self._read = read_answer(WhatCame(self._came))
                except NotYet as error:
                    if error.is_long:
                        return False
                else:
                    return self._read[0].status == OK
        except OSError as error:
            self._failure = error
        except BaseException:
            self._close()
            raise
        return False

    def answer(self) -> HttpAnswer:
        """
        Return the answer, whatever its status; once.

        Raises:
            ReadTimeoutError, ConnectionClosedError: perhaps sent, not answered.

        """
        try:
            if self._failure is not None:
                raise self._failure
            answer, keep = self._read or self._read_slowly()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise self._connections.endpoint.unanswered(error) from error
            raise
        connection, self._connection = self._open(), None
        # What TLS has decrypted already no poll tells of; it belongs to no request of ours.
        over = isinstance(connection, ssl.SSLSocket) and connection.pending()
        self._connections.give_back(connection, keep=keep and not over)
        return answer

    def _read_slowly(self) -> tuple[HttpAnswer, bool]:
        connection = self._open()
        connection.settimeout(self._connections.endpoint.read_timeout_s)
        for piece in self._unsent:
            connection.sendall(piece)
        return read_answer(self._connections.incoming(connection, self._until_s, self._came))

    async def _more(self) -> bool:
        """Wait in the loop for what comes next and take it; False at the end."""
        loop, connection = asyncio.get_running_loop(), self._open()
        readable: asyncio.Future[bool] = loop.create_future()
        descriptor, silence_s = connection.fileno(), self._connections.endpoint.read_timeout_s
        loop.add_reader(descriptor, _resolve, readable, True)  # noqa: FBT003 - an argument of ours
        timer = loop.call_later(silence_s, _resolve, readable, False)  # noqa: FBT003 - as above
        try:
            in_time = await readable
        finally:
            loop.remove_reader(descriptor)
            timer.cancel()
        if not in_time:
            raise TimeoutError(TOO_LATE)
        try:
            piece = connection.recv(CHUNK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        self._came += piece
        return bool(piece)

    def _open(self) -> socket.socket:
        if self._connection is None:
            raise RuntimeError("the answer was taken already, or given up")
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _pieces(headers: dict[str, str], body: bytes) -> list[bytes]:
    """Return a request, in pieces."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"{_REQUEST_LINE}{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1")
    return [head + body] if len(body) < _ONE_PIECE else [head, body]


def _resolve(future: asyncio.Future[bool], outcome: bool) -> None:  # noqa: FBT001 - a callback
    if not future.done():
        future.set_result(outcome)
