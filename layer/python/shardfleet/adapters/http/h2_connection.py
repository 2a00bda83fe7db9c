"""
HTTP/2 to one endpoint, for answers that go on for minutes: many of them on one connection.

`h2` reads and writes everything but the data of such answers, which would cost it twice what
decoding them does (docs/performance.md): whole DATA frames are taken out before it, and of each
answer's last one it is told that it was the last. So the windows (RFC 9113, section 5.2) are ours
to open: the connection's at once, an answer's when its reader has taken what came. Whoever does not
read stops its own answer so, and no other.

In one event loop, and not shared. Errors are botocore's own, as in
:mod:`shardfleet.adapters.http.connections`. Bounded: what of an answer was not taken, the body of a
refusal, answers on a connection, and the time for a connection and for an answer's head.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import Struct
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from shardfleet.adapters.http.answers import OK, HttpAnswer
from shardfleet.adapters.http.connections import PROBED, Endpoint

WINDOW_BYTES = 2 * 1024 * 1024
"""So much of an answer may come before its reader takes any."""
QUIET_MOST_S = 12
"""A connection that said nothing for so long, twice a subscription's pause, is not used anew."""
_ANSWERS_MOST = 100
_REFUSAL_BYTES_MOST = 64 * 1024
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_HEAD_BYTES = 9
_HEAD = Struct(">HBBBL")  # its length in two parts, type, flags, stream
_FRAME_BYTES_MOST = 16_384  # of SETTINGS_MAX_FRAME_SIZE, which we leave at its default
_DATA, _GOAWAY, _WINDOW_UPDATE = 0, 7, 8
_END_STREAM, _PADDED = 1, 8
_STREAM_ID = 0x7FFFFFFF


class BrokenOff(OSError):
    """An answer, or its connection, ended before it was complete."""


class ArrivingAnswer:
    """
    What comes of one request.

    Args:
        wake: called whenever something of it has changed.

    Attributes:
        status: of HTTP; 0 until its head is there.
        head: as of :class:`HttpAnswer`.
        body: what came and was not taken: its reader removes that from the front.
        is_over: it came to its end.
        failure: why nothing more will come of it.

    """

    def __init__(
        self, connection: SharedConnection, stream_id: int, wake: Callable[[], None]
    ) -> None:
        """Wait for everything."""
        self.status = 0
        self.head = b""
        self.body = bytearray()
        self.is_over = False
        self.failure: OSError | None = None
        self.stream_id = stream_id
        self._connection = connection
        self._wake = wake
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None

    def came(self, data: memoryview | bytes, size: int) -> None:
        """
        Take data.

        Raises:
            ProtocolError: it is more than the window was open for.

        """
        self._unread += size
        if self._unread > WINDOW_BYTES:
            raise ProtocolError("more data than the window was open for")
        self.body += data

    def give_back(self) -> None:
        """Let as much more come as its reader has taken, once that is half of the window."""
        if self._unread >= WINDOW_BYTES // 2:
            self._connection.open_window(self.stream_id, self._unread)
            self._unread = 0

    def notify(self) -> None:
        """Tell whoever waits that something changed."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._wake()

    def fail(self, failure: OSError) -> None:
        """Note that nothing more will come."""
        self.failure = self.failure or failure
        self.notify()

    async def until(self, is_enough: Callable[[ArrivingAnswer], bool]) -> None:
        """
        Wait.

        Raises:
            OSError: nothing more will come.

        """
        while not is_enough(self):
            if self.failure is not None:
                raise self.failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def whole(self) -> HttpAnswer:
        """Return it, once it is complete."""
        return HttpAnswer(self.status, self.head, self.body)

    def close(self) -> None:
        """Want no more of it."""
        self._connection.forget(self.stream_id)


class SharedConnection(asyncio.Protocol):
    """
    One connection, with many answers.

    Attributes:
        heard_s: when something last came, by the loop's clock.

    """

    def __init__(self) -> None:
        """Send nothing yet."""
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._answers: dict[int, ArrivingAnswer] = {}
        self._changed: set[ArrivingAnswer] = set()
        self._inbound = bytearray()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._is_going = False
        self._unread = 0
        self.heard_s = self._loop.time()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what is wanted of the other side."""
        self._transport = cast("asyncio.Transport", transport)
        settings = self._http.local_settings
        settings[SettingCodes.ENABLE_PUSH] = 0
        settings[SettingCodes.INITIAL_WINDOW_SIZE] = WINDOW_BYTES
        # Sent before any request is, so that all of them are answered by them.
        settings.acknowledge()
        self._http.initiate_connection()
        self._http.increment_flow_control_window(_LARGEST_WINDOW - _FIRST_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take whole frames off what came."""
        self.heard_s = self._loop.time()
        inbound = self._inbound
        inbound += data
        at, end = 0, len(inbound)
        try:
            with memoryview(inbound) as view:
                while end - at >= _HEAD_BYTES:
                    high, low, kind, flags, stream_id = _HEAD.unpack_from(view, at)
                    size = high << 8 | low
                    if size > _FRAME_BYTES_MOST:
                        raise ProtocolError(f"a frame of {size} bytes")
                    after = at + _HEAD_BYTES + size
                    if after > end:
                        break
                    self._take(kind, flags, stream_id & _STREAM_ID, frame=view[at:after])
                    at = after
            del inbound[:at]
        except ProtocolError as error:
            self._break_off(f"{type(error).__name__}: {error}")
            return
        changed, self._changed = self._changed, set()
        for answer in changed:
            answer.notify()
        if self._unread > WINDOW_BYTES:
            self.open_window(0, self._unread)
            self._unread = 0
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all answers."""
        self._is_going = True
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.fail(BrokenOff(f"the connection was lost: {exc or 'closed'}"))

    # Called by us

    @property
    def is_idle(self) -> bool:
        """Return whether no answer is waited for."""
        return not self._answers

    @property
    def takes_more(self) -> bool:
        """Return whether another request may be sent on it."""
        most = min(_ANSWERS_MOST, self._http.remote_settings.max_concurrent_streams)
        is_quiet = self._loop.time() - self.heard_s > QUIET_MOST_S
        return not (self._is_going or is_quiet) and len(self._answers) < most

    def request(
        self, headers: Mapping[str, str], body: bytes, wake: Callable[[], None]
    ) -> ArrivingAnswer:
        """Send a request; its headers have the pseudo ones first."""
        stream_id = self._http.get_next_available_stream_id()
        self._answers[stream_id] = answer = ArrivingAnswer(self, stream_id, wake)
        self._http.send_headers(stream_id, list(headers.items()))
        self._http.send_data(stream_id, body, end_stream=True)
        self._flush()
        return answer

    def open_window(self, stream_id: int, size: int) -> None:
        """Let so many bytes more come, of an answer, or (0) on the connection."""
        if stream_id == 0 or stream_id in self._answers:
            frame = (4).to_bytes(3, "big") + bytes((_WINDOW_UPDATE, 0))
            self._write(frame + stream_id.to_bytes(4, "big") + size.to_bytes(4, "big"))

    def forget(self, stream_id: int) -> None:
        """Want no more of an answer."""
        if self._answers.pop(stream_id, None) is not None:
            with suppress(ProtocolError):
                self._http.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._flush()
        self._close_if_done()

    def close(self) -> None:
        """Close it, with all that is waited for."""
        self._is_going = True
        with suppress(ProtocolError):
            self._http.close_connection()
        self._flush()
        if self._transport is not None:
            self._transport.abort()  # TLS would wait for the other side, beyond its event loop.

    # Frames

    def _take(self, kind: int, flags: int, stream_id: int, *, frame: memoryview) -> None:
        answer = self._answers.get(stream_id)
        if kind == _DATA and (answer is None or answer.status == OK):
            size = len(frame) - _HEAD_BYTES
            # Of what nobody waits for any more the connection's window is opened all the same.
            self._unread += size
            if answer is not None:
                content = frame[_HEAD_BYTES:]
                answer.came(_unpadded(content) if flags & _PADDED else content, size)
                self._changed.add(answer)
                if flags & _END_STREAM:
                    last = _HEAD.pack(0, 0, _DATA, _END_STREAM, stream_id)
                    self._understand(self._http.receive_data(last))
        elif kind == _GOAWAY:
            # Not for h2, which would end what the other side still sends to its end.
            last_id = int.from_bytes(frame[_HEAD_BYTES : _HEAD_BYTES + 4], "big") & _STREAM_ID
            self._go(last_id)
        else:
            self._understand(self._http.receive_data(bytes(frame)))

    def _understand(self, events: list[Event]) -> None:
        for event in events:
            answer = self._answers.get(getattr(event, "stream_id", 0) or 0)
            if answer is None:
                continue
            if isinstance(event, ResponseReceived):
                fields = [(str(name), str(value)) for name, value in event.headers or ()]
                answer.status = int(dict(fields)[":status"])
                lines = [f"HTTP/2 {answer.status}", *(f"{n}: {v}" for n, v in fields[1:])]
                answer.head = "\r\n".join(lines).encode("latin-1")
            elif isinstance(event, DataReceived):
                # Of a refusal, which is short.
                answer.body += event.data[: _REFUSAL_BYTES_MOST - len(answer.body)]
                length = event.flow_controlled_length
                self._http.acknowledge_received_data(length, answer.stream_id)
            elif isinstance(event, StreamEnded):
                answer.is_over = True
                self._drop(answer)
            elif isinstance(event, StreamReset):
                answer.failure = BrokenOff(f"the answer was reset: {event.error_code!r}")
                self._drop(answer)
            self._changed.add(answer)

    def _drop(self, answer: ArrivingAnswer) -> None:
        del self._answers[answer.stream_id]
        self._close_if_done()

    def _go(self, last_id: int) -> None:
        self._is_going = True
        for answer in [each for each in self._answers.values() if each.stream_id > last_id]:
            del self._answers[answer.stream_id]
            answer.fail(BrokenOff("the connection takes no more requests"))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_going and not self._answers and self._transport is not None:
            self._transport.close()

    def _break_off(self, why: str) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(BrokenOff(why))

    def _flush(self) -> None:
        if data := self._http.data_to_send():
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _unpadded(content: memoryview) -> memoryview:
    """
    Return what a padded DATA frame carries.

    Raises:
        ProtocolError: it is all padding, and more.

    """
    end = len(content) - (content[0] if len(content) else 0)
    if end < 1:
        raise ProtocolError("more padding than frame")
    return content[1:end]


class H2Connections:
    """
    Connections to one endpoint, made when one is needed.

    Args:
        endpoint: how it is reached; without TLS HTTP/2 is spoken at once (prior knowledge).
        tls: trusts what the endpoint's does, and offers ``h2``.

    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        """Connect to nothing yet."""
        self._endpoint = endpoint
        self._tls = tls
        self._open: list[SharedConnection] = []
        self._connecting = asyncio.Lock()

    async def request(
        self, headers: Mapping[str, str], body: bytes, wake: Callable[[], None]
    ) -> ArrivingAnswer:
        """
        Send a POST, once; return its answer when its head is there, a refusal when it is complete.

        Args:
            headers: signed.
            body: of the request.
            wake: see :class:`ArrivingAnswer`.

        Raises:
            ConnectTimeoutError, EndpointConnectionError, SSLError: never sent.
            ReadTimeoutError, ConnectionClosedError: perhaps sent, not answered.

        """
        endpoint = self._endpoint
        async with self._connecting:
            connection = await self._connection()
        pseudo = {
            ":method": "POST",
            ":scheme": "http" if self._tls is None else "https",
            ":authority": endpoint.authority,
            ":path": "/",
        }
        own = {name: value for name, value in headers.items() if name != "host"}
        answer = connection.request({**pseudo, **own}, body, wake)
        try:
            async with asyncio.timeout(endpoint.read_timeout_s):
                await answer.until(lambda it: it.status == OK or (it.status > 0 and it.is_over))
        except OSError as error:  # TimeoutError is one, too.
            answer.close()
            raise endpoint.unanswered(error) from error
        return answer

    async def close(self) -> None:
        """Close all connections; the event loop may end after that."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        await asyncio.sleep(0)  # In which the loop lets go of their sockets.

    async def _connection(self) -> SharedConnection:
        for connection in [each for each in self._open if each.is_idle and not each.takes_more]:
            self._open.remove(connection)
            connection.close()
        for connection in self._open:
            if connection.takes_more:
                return connection
        endpoint = self._endpoint
        host = endpoint.host if self._tls is not None else None
        try:
            async with asyncio.timeout(endpoint.read_timeout_s):
                transport, made = await asyncio.get_running_loop().create_connection(
                    SharedConnection,
                    endpoint.host,
                    endpoint.port,
                    ssl=self._tls,
                    server_hostname=host,
                )
        except OSError as error:
            raise endpoint.unreachable(error) from error
        for option in PROBED:
            transport.get_extra_info("socket").setsockopt(*option)
        greeted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if greeted is not None and greeted.selected_alpn_protocol() != "h2":
            transport.abort()
            raise endpoint.unreachable(BrokenOff("the endpoint does not speak HTTP/2"))
        self._open.append(made)
        return made
