"""An event loop that waits for answers itself: the same answers and errors as a thread's."""

import asyncio
import gc
import random
import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import botocore.session
import pytest
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError

from shardfleet.adapters.http.answers import SHORT_BYTES
from shardfleet.adapters.http.connections import Endpoint, HttpConnections
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.kinesis.wire import open_wire
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.reading.pages import StartingPosition, StartKind
from shardfleet.errors import IteratorExpired, Throttled
from tests.adapters.kinesis_server import REGION
from tests.adapters.loopback import Service, error, serving
from tests.adapters.test_http_answers import CHUNKED, Peer, body_in_chunks, http, pieces, reader
from tests.adapters.tls import certificate, tls_front
from tests.virtual import in_a_loop

ARN = f"arn:aws:kinesis:{REGION}:000000000000:stream/orders"
SHARD = "shardId-000000000000"
HORIZON = StartingPosition(StartKind.TRIM_HORIZON)
EMPTY = {"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0}
BODY = b'{"Records":[],"NextShardIterator":"x"}'
ANSWERS = [
    http(BODY, f"Content-Length: {len(BODY)}"),
    http(BODY, f"Content-Length: {len(BODY)}", "Connection: close"),
    http(BODY, f"Content-Length: {len(BODY) + 1}"),
    http(BODY, f"Content-Length: {len(BODY) - 1}"),
    http(BODY, f"Content-Length: {len(BODY)}", "Content-Length: 1"),
    http(BODY, f"Content-Length: {len(BODY)}", status="400 Bad Request"),
    http(BODY, f"Content-Length: {len(BODY)}", status="20 OK"),
    http(b"", status="100 Continue") + http(BODY, f"Content-Length: {len(BODY)}"),
    http(BODY, "Connection: close"),
    http(b"7\r\n0123456\r\n5;x=y\r\n" + b"abcde\r\n0\r\n\r\n", CHUNKED),
    http(b"7\r\n012345\r\n0\r\n\r\n", CHUNKED),
    http(b"7\r\n0123456\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", CHUNKED),
    http(body_in_chunks(5_000, 300_000), CHUNKED),
    http(bytes(300_000), "Content-Length: 300000"),
    http(bytes(SHORT_BYTES), f"Content-Length: {SHORT_BYTES}"),
    http(bytes(300_000), "Content-Length: 300001"),
    b"HTTP/1.1 200 OK\r\n" + b"x" * 200_000,
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"",
]


def connections(**given):
    limits = {"connect_timeout_s": 20, "read_timeout_s": 20, "connections": 1, "tls": None}
    return HttpConnections(Endpoint(**({"host": "127.0.0.1", "port": 9} | limits | given)))


@contextmanager
def connected(**given):
    """Yield connections of which one is kept, and its other end."""
    found = connections(**given)
    ours, theirs = socket.socketpair()
    with theirs:
        found.give_back(ours, keep=True)
        yield found, theirs
        found.close()


def outcome_of(ask, connections):
    """Return what a caller learns: an answer, or the kind of an error; and what is kept."""
    try:
        answer = ask()
    except (HTTPClientError, OSError) as raised:
        return type(raised), len(connections._idle)
    return answer.status, bytes(answer.head), bytes(answer.body), len(connections._idle)


def cut(data, chance):
    """Return the data in up to a dozen pieces."""
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def damaged(data, chance):
    """Return the data, one in two times with a byte changed or what is behind a place cut off."""
    if not data or chance.random() < 0.5:
        return data
    place = chance.randrange(min(len(data), 200))
    if chance.random() < 0.3:
        return data[:place]
    return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]


def by_thread(parts):
    found = reader(Peer(piece for part in parts for piece in pieces(part)))
    return outcome_of(lambda: found.post({"x": "y"}, b"{}"), found)


async def in_loop(parts):
    loop = asyncio.get_running_loop()
    with connected() as (found, theirs):
        theirs.setblocking(False)

        async def serve():
            with suppress(OSError):  # The client may have closed: what it learned is the matter.
                await loop.sock_recv(theirs, 1 << 16)
                for part in parts:
                    await loop.sock_sendall(theirs, part)
                    await asyncio.sleep(0)
                theirs.shutdown(socket.SHUT_WR)

        serving_it = asyncio.create_task(serve())
        sent = found.send({"x": "y"}, b"{}")
        if await sent.arrive():
            outcome = outcome_of(sent.answer, found)
            assert outcome[0] == 200, "only good news is taken in the loop"
        else:
            outcome = await asyncio.to_thread(outcome_of, sent.answer, found)
        found.close()
        await serving_it
    return outcome


@pytest.mark.parametrize("number", range(15))
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ascii(answer[:50]))
def test_the_loop_learns_what_a_thread_learns(answer, number, seed):
    chance = random.Random(f"{seed}-{number}")
    data = damaged(answer, chance) if number else answer
    parts = cut(data, chance)
    # What came too much is only found out if it came together with the answer.
    assert asyncio.run(in_loop(parts)) in (by_thread(parts), by_thread([data]))


@pytest.mark.parametrize("size", [10, SHORT_BYTES - 1_000])
@in_a_loop
async def test_a_short_answer_needs_no_thread(size):
    with connected() as (found, theirs):
        sent = found.send({}, b"")
        theirs.sendall(http(bytes(size), f"Content-Length: {size}"))
        assert await sent.arrive()
        assert not asyncio.get_running_loop().remove_reader(sent._open()), "nobody looks at it"
        assert len(sent.answer().body) == size
        assert found.send({}, b"") is not None, "the connection is kept"


def test_without_a_kept_connection_nothing_is_sent():
    assert connections().send({}, b"") is None


@in_a_loop
async def test_a_long_answer_is_left_to_a_thread_with_what_came():
    size = 1 << 20
    body = random.Random(1).randbytes(size)
    with connected() as (found, theirs):
        sent = found.send({}, b"")
        writer = threading.Thread(
            target=theirs.sendall, args=(http(body, f"Content-Length: {size}"),)
        )
        writer.start()
        assert not await sent.arrive()
        assert (await asyncio.to_thread(sent.answer)).body == body
        writer.join()


def test_a_long_request_is_sent_to_its_end_by_a_thread():
    body = random.Random(1).randbytes(8 << 20)
    came = bytearray()

    def serve(theirs):
        while len(came) < len(body):
            came.extend(theirs.recv(1 << 16))
        theirs.sendall(http(b"x", "Content-Length: 1"))

    async def main():
        with connected() as (found, theirs):
            sent = found.send({}, body)
            assert not await sent.arrive(), "there is no room for so much without waiting"
            thread = threading.Thread(target=serve, args=(theirs,))
            thread.start()
            assert (await asyncio.to_thread(sent.answer)).body == b"x"
            thread.join()

    asyncio.run(main())
    assert came.endswith(body[-1_000:])


@in_a_loop
async def test_silence_is_given_up_after_the_read_timeout_while_the_loop_goes_on():
    with connected(read_timeout_s=0.05) as (found, _):
        sent = found.send({}, b"")
        assert not await sent.arrive()
        sent._connection.close()  # To wait once is enough: nobody reads again.
        with pytest.raises(ReadTimeoutError):
            sent.answer()
        assert not found._idle


class TlsServer:
    """The other end of a connection with TLS, whose bytes go out when the test says so."""

    def __init__(self, pem, end):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.incoming, self.outgoing, self.end = ssl.MemoryBIO(), ssl.MemoryBIO(), end
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def greet(self):
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.end.sendall(self.outgoing.read())
                self.incoming.write(self.end.recv(1 << 16))
            else:
                return self.end.sendall(self.outgoing.read())

    def encrypted(self, data):
        self.tls.write(data)
        return self.outgoing.read()


@in_a_loop
async def test_half_a_record_of_tls_is_waited_for_in_the_loop(tmp_path):
    pem = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=pem)
    found = connections()
    ours, theirs = socket.socketpair()
    with theirs:
        server = TlsServer(pem, theirs)
        greeting = threading.Thread(target=server.greet)
        greeting.start()
        found.give_back(trusting.wrap_socket(ours, server_hostname="127.0.0.1"), keep=True)
        greeting.join()
        # What TLS sends of itself behind its greeting would make the connection look closed.
        found._idle[0][0].settimeout(0)
        with suppress(ssl.SSLWantReadError):
            found._idle[0][0].recv(1)
        sent = found.send({}, b"")
        answer = server.encrypted(http(bytes(10_000), "Content-Length: 10000"))
        waiting = asyncio.create_task(sent.arrive())
        for piece in (answer[:1_000], answer[1_000:5_000]):
            theirs.sendall(piece)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
        theirs.sendall(answer[5_000:])
        assert await waiting
        assert len(sent.answer().body) == 10_000
        found.close()


@in_a_loop
async def test_what_is_cancelled_leaves_no_connection_and_no_reader():
    with connected() as (found, theirs):
        sent = found.send({}, b"")
        waiting = asyncio.create_task(sent.arrive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        theirs.recv(1 << 16)
        assert theirs.recv(1) == b"", "closed"
        assert not found._idle
        with pytest.raises(RuntimeError, match="given up"):
            sent.answer()


def test_an_answer_that_nobody_takes_closes_its_connection():
    with connected() as (found, theirs):
        sent = found.send({}, b"")
        del sent
        gc.collect()
        theirs.recv(1 << 16)
        assert theirs.recv(1) == b""


@in_a_loop
async def test_what_follows_an_answer_is_never_taken_for_the_next():
    with connected() as (found, theirs):
        sent = found.send({}, b"")
        theirs.sendall(http(b"x", "Content-Length: 1") + http(b"y", "Content-Length: 1"))
        assert not await sent.arrive()
        with pytest.raises(ConnectionClosedError):
            sent.answer()
        assert not found._idle


# --- a stream


class CountedPool(ThreadPool):
    """Counts the calls it makes."""

    calls = 0

    async def run(self, call):
        self.calls += 1
        return await super().run(call)


@contextmanager
def polling(endpoint):
    session = botocore.session.get_session()
    config = Config(
        connect_timeout=20,
        read_timeout=20,
        max_pool_connections=2,
        retries={"total_max_attempts": 1},
    )
    client = session.create_client(
        "kinesis", endpoint_url=endpoint, region_name=REGION, config=config
    )
    wire = open_wire(ARN, client=client, session=session)
    yield KinesisPolling(
        ARN,
        records=client,
        control=client,
        pool=CountedPool("streams", threads=2),
        wire=lambda: wire,
    )
    wire.close()


async def pages(reader, count, shard=SHARD):
    return [await reader.page(shard, HORIZON, resume_token="token", limit=10) for _ in range(count)]


def test_a_shard_with_little_is_read_by_threads_once_to_connect():
    with serving(Service((200, EMPTY))) as endpoint, polling(endpoint) as reader:
        first, *others = asyncio.run(pages(reader, 5))
        assert reader._pool.calls == 1
        assert others == [first] * 4


def test_tls_is_read_in_the_loop_too(tmp_path, monkeypatch):
    pem = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    record = {
        "SequenceNumber": "1",
        "ApproximateArrivalTimestamp": 1.0,
        "PartitionKey": "k",
        "Data": "A" * 40_000,  # More than a record of TLS (16 KiB) holds.
    }
    with (
        serving(Service((200, {**EMPTY, "Records": [record]}))) as plain,
        tls_front(plain, pem) as endpoint,
        polling(endpoint) as reader,
    ):
        found = asyncio.run(pages(reader, 5))
        ((connection, _),) = reader._source._wire.service._connections._idle
        assert isinstance(connection, ssl.SSLSocket)
        assert [len(page.records[0].data) for page in found] == [30_000] * 5
        assert reader._pool.calls == 1


def test_a_shard_with_much_goes_to_a_thread_until_it_has_little_again():
    record = {
        "SequenceNumber": "1",
        "ApproximateArrivalTimestamp": 1.0,
        "PartitionKey": "k",
        "Data": "A" * 400_000,
    }
    much, little = (200, {**EMPTY, "Records": [record]}), (200, EMPTY)
    service = Service(little, little, much, much, little, little, little)
    with serving(service) as endpoint, polling(endpoint) as reader:

        async def calls_by_page():
            calls = []
            for _ in range(7):
                before = reader._pool.calls
                await pages(reader, 1)
                calls.append(reader._pool.calls - before)
            return calls

        # Connect; in the loop; begun there, but long; known to be long, twice; in the loop again.
        assert asyncio.run(calls_by_page()) == [1, 0, 1, 1, 1, 0, 0]


def test_many_shards_at_once_do_not_connect_anew_each_time():
    """As many connections as there may be readers are made once; more shards wait their turn."""

    async def main(reader):
        for _ in range(6):
            await asyncio.gather(*(pages(reader, 1, shard=f"shard-{n}") for n in range(10)))

    with serving(Service((200, EMPTY))) as endpoint, polling(endpoint) as reader:
        asyncio.run(pages(reader, 1))
        found = reader._source._wire.service._connections
        connect, made = found._connect, []
        found._connect = lambda: made.append(1) or connect()
        asyncio.run(main(reader))
        assert len(made) <= 3, "with two threads: two connections for them, two for the loop"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error("ExpiredIteratorException"), IteratorExpired),
        (error("ProvisionedThroughputExceededException"), Throttled),
        ((503, {}), Throttled),
        ((200, b"no page"), Throttled),
    ],
)
def test_refusals_are_understood_as_in_a_thread(answer, kind):
    service = Service((200, EMPTY), answer, answer)
    with serving(service) as endpoint, polling(endpoint) as reader:

        async def main():
            await pages(reader, 1)
            texts = []
            for _ in range(2):  # In the loop; then, nothing being kept if that broke, by a thread.
                with pytest.raises(kind) as caught:
                    await pages(reader, 1)
                texts.append(str(caught.value))
                reader._source._wire.close()
            assert texts[0] == texts[1]

        asyncio.run(main())


def test_credentials_that_are_to_be_renewed_are_renewed_in_a_thread():
    with serving(Service((200, EMPTY))) as endpoint, polling(endpoint) as reader:
        asyncio.run(pages(reader, 1))
        service = reader._source._wire.service
        service._must_renew = lambda: True
        asyncio.run(pages(reader, 2))
        assert reader._pool.calls == 3


def test_botocores_credentials_say_when_they_are_to_be_renewed():
    """The name that is asked for is botocore's."""
    assert callable(RefreshableCredentials.refresh_needed)
    assert not hasattr(Credentials("key", "secret"), "refresh_needed")
