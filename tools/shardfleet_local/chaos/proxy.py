"""
A loopback proxy between the fleet's processes and the embedded AWS, in which calls go wrong.

The fleet runs unchanged: boto3 reads the endpoint of a service from `AWS_ENDPOINT_URL_<SERVICE>`.
The proxy serves from a thread of its own. Each request goes upstream over a fresh connection, so
that what is lost is lost by a fault and never by the proxy's own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from shardfleet_local.access import AccessKey, Door
from shardfleet_local.chaos.faults import CallFault, FaultDice, Misfortune
from shardfleet_local.chaos.http_messages import (
    HEAD_BYTES_MOST,
    Message,
    error_reply,
    read_body,
    read_head,
    reply_of,
)
from shardfleet_local.refusals import REFUSED, refusal_of

SERVICES = ("DYNAMODB", "KINESIS", "SFN")
"""Whose calls go through the proxy, as boto3 spells them in `AWS_ENDPOINT_URL_…`."""

START_LIMIT_S = 30.0
_BROKEN = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)


class FaultyProxy:
    """
    The proxy, as a context manager.

    Args:
        upstream: URL of the embedded AWS.
        dice: decides about each call.
        key: of the embedded AWS, which the proxy asks for as well.

    """

    def __init__(self, upstream: str, dice: FaultDice, *, key: AccessKey) -> None:
        self._upstream = urlsplit(upstream)
        self._dice = dice
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listening.getsockname()[1]
        self._door = Door(self._port, key)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Serve on a free port of the loopback interface."""
        self._thread.start()
        if not self._ready.wait(START_LIMIT_S):
            message = f"the proxy did not listen within {START_LIMIT_S:.0f} s"
            raise TimeoutError(message)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop every connection and end the thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """Return the endpoint to give to clients."""
        return f"http://127.0.0.1:{self._port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that lead a process's calls through the proxy."""
        return {f"AWS_ENDPOINT_URL_{service}": self.url for service in SERVICES}

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        serving: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            serving.add(task)
            try:
                await self._serve(reader, writer)
            except asyncio.CancelledError:
                pass  # The proxy ends; asyncio's streams would print the cancellation (3.11).
            finally:
                serving.discard(task)

        server = await asyncio.start_server(serve, sock=self._listening, limit=HEAD_BYTES_MOST)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client's requests until it leaves or a fault breaks the connection."""
        try:
            while (head := await read_head(reader)) is not None:
                if reason := self._door.refusal(head.headers):
                    writer.write(reply_of(REFUSED, *refusal_of(dict(head.headers), reason)))
                    break
                request = await read_body(reader, head)
                fault = self._dice.roll(*request.operation)
                reply = await self._answer(request, fault)
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()
        except _BROKEN:
            pass  # The client has left, or the embedded AWS has: either is seen elsewhere.
        finally:
            await _close(writer)

    async def _answer(self, request: Message, fault: Misfortune | None) -> bytes | None:
        """Return what to send back; None breaks the connection."""
        if fault is None:
            return await self._forward(request)
        if fault.code:
            return error_reply(400, fault.code)
        if fault.kind is CallFault.FAILED:
            return error_reply(500, "InternalFailure")
        if fault.kind is CallFault.CUT:
            return None
        if fault.delay_ms:
            await asyncio.sleep(fault.delay_ms / 1000)
        reply = await self._forward(request)
        if fault.kind is CallFault.REPLY_LOST:
            return None
        if fault.kind is CallFault.FAILED_AFTER:
            return error_reply(500, "InternalFailure")
        return reply

    async def _forward(self, request: Message) -> bytes | None:
        reader, writer = await asyncio.open_connection(
            self._upstream.hostname, self._upstream.port, limit=HEAD_BYTES_MOST
        )
        try:
            writer.write(request.sent_to(self._upstream.netloc))
            await writer.drain()
            if (head := await read_head(reader)) is None:
                return None
            reply = await read_body(reader, head, is_reply=True)
        finally:
            await _close(writer)
        return reply.head + reply.body


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(*_BROKEN):
        await writer.wait_closed()
