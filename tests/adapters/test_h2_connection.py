"""HTTP/2 for answers that go on, against a server of the library h2 that does what a test says."""

import asyncio
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, GoAwayFrame

from shardfleet.adapters.http import h2_connection
from shardfleet.adapters.http.connections import Endpoint
from shardfleet.adapters.http.h2_connection import WINDOW_BYTES, BrokenOff, H2Connections
from shardfleet.adapters.http.json_service import trusting
from tests.adapters.loopback import Service, serving
from tests.adapters.tls import certificate, tls_front
from tests.virtual import in_a_loop

PATIENCE_S = 60
HALF = WINDOW_BYTES // 2


class Peer(asyncio.Protocol):
    """One connection of the server; `requests` are the streams that were asked for."""

    def __init__(self, server):
        self.server = server
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.http = h2.connection.H2Connection(config)
        self.requests, self.seen = [], []
        server.peers.append(self)

    def connection_made(self, transport):
        self.transport = transport
        self.http.local_settings = h2.settings.Settings(
            client=False, initial_values=self.server.settings
        )
        self.http.initiate_connection()
        self.flush()

    def data_received(self, data):
        for event in self.http.receive_data(data):
            self.seen.append(event)
            if isinstance(event, h2.events.StreamEnded):
                self.requests.append(event.stream_id)
                self.server.answer(self, event.stream_id)
        self.flush()
        self.server.changed.set()

    def flush(self):
        self.transport.write(self.http.data_to_send())

    def begin(self, stream, status=200, **headers):
        fields = [(":status", str(status)), *((k.replace("_", "-"), v) for k, v in headers.items())]
        self.http.send_headers(stream, fields)
        self.flush()

    def send(self, stream, data, *, end=False, pad=None):
        """Send as many frames as it takes."""
        while len(data) > 16_384:
            self.http.send_data(stream, data[:16_384])
            data = data[16_384:]
        self.http.send_data(stream, data, end_stream=end, pad_length=pad)
        self.flush()

    def room(self, stream):
        return self.http.local_flow_control_window(stream)

    def has(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


class Server:
    def __init__(self, **settings):
        self.peers, self.changed = [], asyncio.Event()
        self.settings = {h2.settings.SettingCodes[name]: n for name, n in settings.items()}
        self.answer = Peer.begin

    async def until(self, is_so):
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving_h2(*, read_timeout_s=PATIENCE_S, **settings):
    server = Server(**settings)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Peer(server), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = H2Connections(endpoint(port, read_timeout_s=read_timeout_s), None)
    try:
        yield server, client
    finally:
        await client.close()
        listening.close()


def endpoint(port, *, read_timeout_s=PATIENCE_S, tls=None):
    return Endpoint(
        host="127.0.0.1",
        port=port,
        tls=tls,
        connect_timeout_s=PATIENCE_S,
        read_timeout_s=read_timeout_s,
        connections=1,
    )


class Reader:
    """An answer that is read, and what wakes its reader."""

    def __init__(self, answer, woken):
        self.answer, self.woken = answer, woken

    @classmethod
    async def ask(cls, client):
        woken = asyncio.Event()
        answer = await client.request({"host": "left out", "x-a": "1"}, b"{}", woken.set)
        return cls(answer, woken)

    async def until(self, is_so):
        async with asyncio.timeout(PATIENCE_S):
            while not is_so(self.answer):
                self.woken.clear()
                await self.woken.wait()

    async def take(self, size):
        """Take so much, as a reader who leaves nothing."""
        await self.until(lambda it: len(it.body) >= size)
        taken = bytes(self.answer.body[:size])
        del self.answer.body[:size]
        self.answer.give_back()
        return taken


@in_a_loop
async def test_an_answer_comes_in_pieces_and_says_when_it_is_over():
    async with serving_h2() as (server, client):
        reader = await Reader.ask(client)
        (peer,) = server.peers
        (asked,) = peer.has(h2.events.RequestReceived)
        assert dict(asked.headers) == {
            ":method": "POST",
            ":scheme": "http",
            ":authority": client._endpoint.authority,
            ":path": "/",
            "x-a": "1",
        }
        peer.send(1, b"one", pad=7)
        assert await reader.take(3) == b"one"
        assert not reader.answer.is_over
        peer.send(1, b"two", end=True)
        await reader.until(lambda it: it.is_over)
        assert bytes(reader.answer.body) == b"two"


@in_a_loop
async def test_a_refusal_is_whole_when_it_is_returned():
    async with serving_h2() as (server, client):

        def refuse(peer, stream):
            peer.begin(stream, 400, content_length="6", date="Mon, 01 Jan 2024 00:00:00 GMT")
            peer.send(stream, b"refu")
            peer.send(stream, b"se", end=True)

        server.answer = refuse
        answer = (await Reader.ask(client)).answer.whole()
        assert (answer.status, bytes(answer.body)) == (400, b"refuse")
        assert answer.headers["date"] == "Mon, 01 Jan 2024 00:00:00 GMT"


@in_a_loop
async def test_who_does_not_read_stops_its_own_answer_and_no_other():
    async with serving_h2() as (server, client):
        slow, quick = await Reader.ask(client), await Reader.ask(client)
        (peer,) = server.peers
        first, second = peer.requests
        peer.send(first, bytes(WINDOW_BYTES))
        assert peer.room(first) == 0
        await slow.until(lambda it: len(it.body) == WINDOW_BYTES)
        slow.answer.give_back()  # Nothing was taken: whoever calls it says that all was.
        await server.until(lambda: peer.room(first) == WINDOW_BYTES)
        peer.send(first, bytes(WINDOW_BYTES))
        for _ in range(20):
            peer.send(second, bytes(HALF))
            await quick.take(HALF)
            await server.until(lambda: peer.room(second) >= HALF)
        assert peer.room(first) == 0
        assert len(slow.answer.body) == 2 * WINDOW_BYTES


@in_a_loop
async def test_the_connection_takes_more_than_its_own_window_ever_was():
    """Its window is 2**31 - 1 at most: what came is given back though the library never saw it."""
    async with serving_h2() as (server, client):
        reader = await Reader.ask(client)
        (peer,) = server.peers
        whole = peer.http.outbound_flow_control_window
        for _ in range(8):
            peer.send(1, bytes(HALF))
            await reader.take(HALF)
            await server.until(lambda: peer.room(1) >= HALF)
        assert whole - peer.http.outbound_flow_control_window <= 2 * WINDOW_BYTES


@in_a_loop
async def test_more_than_the_window_is_open_for_ends_the_connection():
    async with serving_h2() as (server, client):
        reader = await Reader.ask(client)
        (peer,) = server.peers
        frame = DataFrame(1, bytes(16_000)).serialize()
        for _ in range(WINDOW_BYTES // 16_000 + 1):
            peer.transport.write(frame)
        await reader.until(lambda it: it.failure is not None)
        assert len(reader.answer.body) <= WINDOW_BYTES


@pytest.mark.parametrize(
    "frame",
    [
        (20_000).to_bytes(3, "big") + bytes((0, 0, 0, 0, 0, 1)),
        (3).to_bytes(3, "big") + bytes((0, 8, 0, 0, 0, 1)) + bytes((9, 0, 0)),
        (0).to_bytes(3, "big") + bytes((1, 4, 0, 0, 0, 0)),
    ],
    ids=["a frame too long", "all padding", "headers of no stream"],
)
@in_a_loop
async def test_what_is_no_http_ends_the_connection(frame):
    async with serving_h2() as (server, client):
        reader = await Reader.ask(client)
        server.peers[0].transport.write(frame)
        await reader.until(lambda it: it.failure is not None)


@in_a_loop
async def test_an_answer_that_is_reset_fails_and_no_other():
    async with serving_h2() as (server, client):
        one, two = await Reader.ask(client), await Reader.ask(client)
        (peer,) = server.peers
        peer.http.reset_stream(1, ErrorCodes.ENHANCE_YOUR_CALM)
        peer.flush()
        await one.until(lambda it: it.failure is not None)
        assert isinstance(one.answer.failure, BrokenOff)
        peer.send(3, b"on")
        assert await two.take(2) == b"on"


@in_a_loop
async def test_what_is_begun_goes_on_to_its_end_when_the_connection_takes_no_more():
    async with serving_h2() as (server, client):
        one, two = await Reader.ask(client), await Reader.ask(client)
        peer = server.peers[0]
        peer.transport.write(GoAwayFrame(0, last_stream_id=1, error_code=0).serialize())
        await two.until(lambda it: it.failure is not None)
        await Reader.ask(client)
        assert [other.requests for other in server.peers] == [[1, 3], [1]]
        peer.send(1, b"still", end=True)
        await one.until(lambda it: it.is_over)
        assert (one.answer.failure, bytes(one.answer.body)) == (None, b"still")
        await server.until(lambda: peer.has(h2.events.StreamEnded))


@in_a_loop
async def test_all_answers_of_a_connection_that_is_lost_fail():
    async with serving_h2() as (server, client):
        readers = [await Reader.ask(client) for _ in range(3)]
        server.peers[0].transport.abort()
        for reader in readers:
            await reader.until(lambda it: it.failure is not None)
        await Reader.ask(client)
        assert len(server.peers) == 2


@in_a_loop
async def test_a_ping_is_answered():
    async with serving_h2() as (server, client):
        await Reader.ask(client)
        (peer,) = server.peers
        peer.http.ping(b"12345678")
        peer.flush()
        await server.until(lambda: peer.has(h2.events.PingAckReceived))


@in_a_loop
async def test_who_wants_no_more_of_an_answer_says_so_and_what_is_on_its_way_is_dropped():
    async with serving_h2() as (server, client):
        one, two = await Reader.ask(client), await Reader.ask(client)
        (peer,) = server.peers
        one.answer.close()
        peer.transport.write(DataFrame(1, b"late").serialize())
        await server.until(lambda: peer.has(h2.events.StreamReset))
        (reset,) = peer.has(h2.events.StreamReset)
        assert (reset.stream_id, reset.error_code) == (1, ErrorCodes.CANCEL)
        peer.send(3, b"on")
        assert await two.take(2) == b"on"
        assert not one.answer.body


@in_a_loop
async def test_a_connection_that_has_as_many_answers_as_it_may_is_followed_by_another():
    async with serving_h2(MAX_CONCURRENT_STREAMS=1) as (server, client):
        for _ in range(3):
            await Reader.ask(client)
        assert [peer.requests for peer in server.peers] == [[1], [1], [1]]


@in_a_loop
async def test_a_connection_that_says_nothing_is_not_used_anew():
    async with serving_h2() as (server, client):
        reader = await Reader.ask(client)
        client._open[0].heard_s -= h2_connection.QUIET_MOST_S + 1
        await Reader.ask(client)
        assert len(server.peers) == 2
        reader.answer.close()
        await Reader.ask(client)
        await server.until(lambda: server.peers[0].has(h2.events.ConnectionTerminated))
        assert len(server.peers) == 2


@in_a_loop
async def test_once_closed_no_connection_has_a_socket():
    """A turn's event loop ends with it, and whatever waits in that is never closed."""
    async with serving_h2() as (_, client):
        await Reader.ask(client)
        transport = client._open[0]._transport
        await client.close()
        assert transport.get_extra_info("socket").fileno() == -1


@in_a_loop
async def test_who_never_answers_is_waited_for_no_longer_than_is_said():
    async with serving_h2(read_timeout_s=0.2) as (server, client):
        server.answer = lambda *_: None
        with pytest.raises(ReadTimeoutError):
            await Reader.ask(client)
        await server.until(lambda: server.peers[0].has(h2.events.StreamReset))


@in_a_loop
async def test_an_answer_that_breaks_off_before_it_has_a_head_is_no_answer():
    async with serving_h2() as (server, client):
        server.answer = lambda peer, _: peer.transport.abort()
        with pytest.raises(ConnectionClosedError):
            await Reader.ask(client)


@in_a_loop
async def test_a_port_where_nobody_is_is_told_as_that():
    async with serving_h2() as (server, client):
        port = client._endpoint.port
    del server
    with pytest.raises(EndpointConnectionError):
        await Reader.ask(H2Connections(endpoint(port), None))


@in_a_loop
async def test_an_endpoint_that_speaks_no_http_2_is_told_as_that(tmp_path):
    file = certificate(tmp_path)
    with serving(Service((200, {}))) as plain, tls_front(plain, file) as url:
        tls = trusting(str(file), "h2")
        client = H2Connections(endpoint(int(url.rpartition(":")[2]), tls=tls), tls)
        with pytest.raises(EndpointConnectionError, match=r"does not speak HTTP/2|127\.0\.0\.1"):
            await Reader.ask(client)
