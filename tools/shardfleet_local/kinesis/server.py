"""
A stand-alone HTTP/1.1 server on asyncio, for benchmarks, contract tests and boto3.

    python -P -m shardfleet_local.kinesis --port 4567

It prints one line of JSON when it is ready, its endpoint and the environment in which an SDK finds
the key that was drawn for it, and stops on SIGTERM or SIGINT. A bare protocol on purpose: a
PutRecords body of half a megabyte is received straight into the buffer that the JSON parser reads.
Requests need a Content-Length, as every AWS SDK sends. HTTP/2, which the Java SDK wants, is the
launcher's business (ministack's front end).
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final, cast

from shardfleet_local.access import AccessKey, Door
from shardfleet_local.kinesis.account import AccountSettings, Phases
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.service import KinesisService, Response
from shardfleet_local.kinesis.subscriptions import SubscriptionReset
from shardfleet_local.refusals import REFUSED, refusal_of

_HEAD_BYTES: Final = 64 * 1024  # ours
_BODY_BYTES: Final = 64 * 1024 * 1024  # ours
_REASONS: Final = {  # ours: HTTP
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    411: "Length Required",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}
_END_OF_HEAD: Final = b"\r\n\r\n"


class Connection(asyncio.BufferedProtocol):
    """One client's connection: one request at a time, answered in order."""

    def __init__(self, service: KinesisService, door: Door) -> None:
        self._service = service
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(_HEAD_BYTES)
        self._received = 0
        self._headers: dict[str, str] | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._is_streaming = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop whatever is being sent."""
        del exc
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Hold event frames back while the client does not read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Go on sending."""
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the head, then the body, each in its own buffer."""
        del sizehint
        target = self._head if self._headers is None else self._body
        return memoryview(target)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of received bytes; serve the request when it is complete."""
        self._received += nbytes
        if not self._is_streaming:
            self._advance()
        elif self._transport is not None:
            # A second request on top of a subscription: no SDK does that on HTTP/1.1.
            self._transport.close()

    # Receiving

    def _advance(self) -> None:
        if self._headers is None and not self._read_head():
            return
        if self._received < len(self._body) or self._headers is None or self._transport is None:
            return
        headers, body = self._headers, self._body
        # Nothing more is read before the answer is out; so one request is in memory at a time.
        self._transport.pause_reading()
        self._task = asyncio.ensure_future(self._serve(headers, body))

    def _read_head(self) -> bool:
        end = self._head.find(_END_OF_HEAD, 0, self._received)
        if end < 0:
            if self._received >= _HEAD_BYTES:
                self._refuse(431, f"The head of a request may have {_HEAD_BYTES} bytes.")
            return False
        found = _parsed(bytes(self._head[:end]))
        headers = dict(found)
        if reason := self._door.refusal(found):
            self._answer_at_once(REFUSED, *refusal_of(headers, reason))
            return False
        length = headers.get("content-length", "0" if "transfer-encoding" not in headers else "")
        if not length.isdigit() or int(length) > _BODY_BYTES:
            text = f"Content-Length must be a number up to {_BODY_BYTES}; it is {length!r}."
            self._refuse(411, text)
            return False
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        begun = end + len(_END_OF_HEAD)
        if self._received - begun > int(length):
            self._refuse(400, "One request at a time: the next may come after the answer.")
            return False
        self._headers = headers
        self._body = bytearray(int(length))
        extra = self._received - begun
        self._body[:extra] = self._head[begun : self._received]
        self._received = extra
        return True

    def _refuse(self, status: int, message: str) -> None:
        self._answer_at_once(status, {}, message.encode())

    def _answer_at_once(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if self._transport is not None:
            headers = {**headers, "Connection": "close"}
            self._transport.write(_head(status, headers, length=len(body)))
            self._transport.write(body)
            self._transport.close()

    # Sending

    async def _serve(self, headers: dict[str, str], body: bytearray) -> None:
        response = await self._service.handle(headers, body)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if isinstance(response.body, bytes):
            transport.write(_head(response.status, response.headers, length=len(response.body)))
            transport.write(response.body)
        else:
            await self._send_frames(response, response.body, transport=transport)
        self._headers = None
        self._received = 0
        if headers.get("connection", "").lower() == "close":
            transport.close()
        elif not transport.is_reading():
            transport.resume_reading()

    async def _send_frames(
        self, response: Response, frames: AsyncIterator[bytes], *, transport: asyncio.Transport
    ) -> None:
        transport.write(_head(response.status, response.headers, length=None))
        # Reading again is how a client that hangs up is noticed.
        self._is_streaming, self._headers, self._received = True, None, 0
        transport.resume_reading()
        try:
            async with aclosing(frames) as each_frame:  # type: ignore[type-var]
                async for frame in each_frame:
                    transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                    await self._may_write.wait()
        except SubscriptionReset:
            transport.abort()
            return
        transport.write(b"0\r\n\r\n")
        self._is_streaming = False


def _parsed(head: bytes) -> list[tuple[str, str]]:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return [(name.strip().lower(), value.strip()) for name, _, value in lines]


def _head(status: int, headers: dict[str, str], *, length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}", size]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def serve(service: KinesisService, *, port: int) -> None:
    """Serve on loopback until SIGTERM or SIGINT; print the endpoint once it can be called."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listening = socket.create_server(("127.0.0.1", port), backlog=1024)  # ours
    port, key = listening.getsockname()[1], AccessKey()
    door = Door(port, key)
    server = await loop.create_server(lambda: Connection(service, door), sock=listening)
    told = {"endpoint": f"http://127.0.0.1:{port}", "environment": key.environment()}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    await stop.wait()
    server.close()


def main(arguments: list[str] | None = None) -> None:
    """Run the server from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m shardfleet_local.kinesis",
        description="Kinesis Data Streams in memory, with the real limits, for boto3 and tests.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes any free port")
    parser.add_argument(
        "--no-quotas", action="store_true", help="no shard limits and no call rates"
    )
    parser.add_argument(
        "--unkind", type=int, metavar="SEED", help="what AWS leaves open happens, drawn from SEED"
    )
    for phase in ("creating", "updating", "deleting", "consumer"):
        parser.add_argument(
            f"--{phase}-ms", type=int, default=0, help=f"how long the {phase} phase takes"
        )
    options = parser.parse_args(arguments)
    phases = Phases(
        creating_ms=options.creating_ms,
        updating_ms=options.updating_ms,
        deleting_ms=options.deleting_ms,
        consumer_ms=options.consumer_ms,
    )

    def make_engine(account_id: str, region: str) -> KinesisEngine:
        settings = AccountSettings(
            account_id=account_id,
            region=region,
            quotas=not options.no_quotas,
            phases=phases,
            unkind=options.unkind,
        )
        return KinesisEngine(settings, clock=time.time)

    _run(KinesisService(make_engine), port=options.port)


def _run(service: KinesisService, *, port: int) -> None:
    try:
        import uvloop  # noqa: PLC0415 - optional: half the cost per request where it exists
    except ImportError:
        asyncio.run(serve(service, port=port))
    else:
        uvloop.run(serve(service, port=port))
