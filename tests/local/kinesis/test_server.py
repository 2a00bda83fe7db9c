"""The stand-alone server, as a process of its own and at the level of bytes."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest

from shardfleet_local.access import AccessKey, Door
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.server import Connection
from shardfleet_local.kinesis.service import KinesisService

PATIENCE_S = 60
TARGET = "X-Amz-Target: Kinesis_20131202"
KEY, PORT = AccessKey(), 4567
OPENING = (f"Host: 127.0.0.1:{PORT}", f"Authorization: {KEY.authorization()}")


@pytest.fixture
def exchange():
    """Return a function: pieces of bytes in (one write each), everything the server said out."""

    def talk(*pieces, until):
        return asyncio.run(asyncio.wait_for(_talk(pieces, until), PATIENCE_S))

    return talk


async def _talk(pieces, until):
    service = KinesisService(
        lambda *_: KinesisEngine(AccountSettings(quotas=False), clock=time.time)
    )
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(service, Door(PORT, KEY)), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        said = b""
        while not until(said):
            received = await reader.read(65_536)
            if not received:
                break
            said += received
        writer.close()
        return said


def head(*headers):
    return ("\r\n".join(["POST / HTTP/1.1", *OPENING, *headers]) + "\r\n\r\n").encode()


def request(operation, body, *headers):
    encoded = json.dumps(body).encode()
    return head(f"{TARGET}.{operation}", *headers, f"Content-Length: {len(encoded)}") + encoded


CREATE = request("CreateStream", {"StreamName": "s", "ShardCount": 1})


def test_a_request_may_come_in_any_pieces(exchange):
    pieces = [CREATE[at : at + 7] for at in range(0, len(CREATE), 7)]
    said = exchange(*pieces, until=lambda said: b"\r\n\r\n" in said)
    assert said.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")


def test_a_body_longer_than_the_head_buffer_arrives_whole(exchange):
    large = request("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": "A" * 500_000})
    said = exchange(large, until=lambda said: b"ResourceNotFound" in said)
    assert b"Stream s under account" in said


def test_expect_100_continue_is_answered_before_the_body(exchange):
    head, _, body = request("ListStreams", {}, "Expect: 100-continue").partition(b"\r\n\r\n")
    said = exchange(head + b"\r\n\r\n", body, until=lambda said: b"StreamNames" in said)
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("Transfer-Encoding: chunked"), b"411 Length Required"),
        (head("Content-Length: many"), b"411 Length Required"),
        (head("Content-Length: 999999999999"), b"411 Length Required"),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"403 Forbidden"),
        (b"POST / HTTP/1.1\r\nX: ".ljust(65_536, b"y"), b"431 Request Header Fields Too Large"),
        (CREATE + CREATE, b"400 Bad Request"),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_connection_closed(exchange, sent, status):
    assert exchange(sent, until=lambda _: False).startswith(b"HTTP/1.1 " + status + b"\r\n")


def test_connection_close_is_honoured(exchange):
    closing = request("ListStreams", {}, "Connection: close")
    said = exchange(closing, until=lambda _: False)
    assert b"StreamNames" in said


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_says_where_it_listens_and_stops_when_told(number):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "shardfleet_local.kinesis", "--creating-ms", "5"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        endpoint = json.loads(process.stdout.readline())["endpoint"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert endpoint.startswith("http://127.0.0.1:")
