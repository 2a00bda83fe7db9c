"""
One request or reply of HTTP/1.1, read from a socket and kept byte for byte.

As much of RFC 9112 as the SDK and our server use: a length, chunks, or (replies) the connection's
end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

HEAD_BYTES_MOST = 64 * 1024
"""Longest request line and headers; asyncio's default limit of a stream."""

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Message:
    """
    One message.

    Attributes:
        head: the first line and the headers, with the empty line that ends them.
        body: as on the wire, the frames of chunks included.

    """

    head: bytes
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return names, in lower case, and values."""
        lines = self.head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")[1:]
        parts = [line.partition(":") for line in lines]
        return [(name.strip().lower(), value.strip()) for name, _, value in parts]

    def header(self, name: str) -> str:
        """Return a header's value, `""` when there is none; its name in lower case."""
        return next((value for found, value in self.headers if found == name), "")

    def sent_to(self, host: str) -> bytes:
        """Return its bytes, for another host."""
        lines = self.head.split(b"\r\n")
        other = [b"Host: " + host.encode() if _is_host(each) else each for each in lines]
        return b"\r\n".join(other) + self.body

    @property
    def operation(self) -> tuple[str, str]:
        """Return the service's and the operation's name of an AWS JSON request."""
        service, _, operation = self.header("x-amz-target").partition(".")
        return service.partition("_")[0], operation


def _is_host(line: bytes) -> bool:
    return line.partition(b":")[0].strip().lower() == b"host"


async def read_head(reader: asyncio.StreamReader) -> Message | None:
    """
    Read a message up to its body; None when the connection ends instead of beginning one.

    Raises:
        IncompleteReadError: the connection ended in the middle.

    """
    try:
        head = await reader.readuntil(_HEAD_END)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    return Message(head, b"")


async def read_body(
    reader: asyncio.StreamReader, message: Message, *, is_reply: bool = False
) -> Message:
    """
    Read the rest of a message whose head was read.

    Raises:
        IncompleteReadError: the connection ended in the middle.

    """
    if message.header("transfer-encoding").lower() == "chunked":
        return Message(message.head, await _chunks(reader))
    length = message.header("content-length")
    if not length and is_reply:
        return Message(message.head, await reader.read())
    return Message(message.head, await reader.readexactly(int(length or 0)))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        parts += [line, await reader.readexactly(size + 2)]
        if size == 0:
            return b"".join(parts)


def error_reply(
    status: int, code: str, message: str = "This failure was injected (chaos)."
) -> bytes:
    """Return an error as AWS's JSON protocols write it."""
    headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}
    return reply_of(status, headers, json.dumps({"__type": code, "message": message}).encode())


def reply_of(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a reply as it is sent."""
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
