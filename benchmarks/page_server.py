"""
A stream in a process of its own whose pages are finished bodies: what a consumer spends is its own.

    with serving(Pages(shards=4, pages=500, records=20, record_bytes=250)) as endpoint: ...

Each shard answers with so many pages, one after the other, each as if it had just come
(`MillisBehindLatest` is 0), and then with nothing. Plain HTTP, and only what a consumer calls.
"""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

HOST = "127.0.0.1"
STARTED_S = 60
HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\n\r\n"
_TEXTS = 64  # different pages of a shard; their records differ in their numbers, too
_FIRST_NUMBER = 49_590_338_271_490_256_608_559_692_538_361_571_095


@dataclass(frozen=True, kw_only=True)
class Pages:
    """
    What a stream has.

    Attributes:
        shards: so many.
        pages: of each shard.
        records: of each page.
        record_bytes: of each record; it begins with the shard's number, two digits.

    """

    shards: int
    pages: int
    records: int
    record_bytes: int

    @property
    def count(self) -> int:
        """Return how many records there are."""
        return self.shards * self.pages * self.records

    @property
    def shard_ids(self) -> list[str]:
        """Return the ids of the shards."""
        return [f"shardId-{number:012d}" for number in range(self.shards)]


@contextmanager
def serving(pages: Pages) -> Iterator[str]:
    """Run the server; yield its endpoint."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(pages, theirs), daemon=True
    )
    process.start()
    try:
        assert ours.poll(STARTED_S), "the server did not start"
        yield f"http://{HOST}:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(pages: Pages, ready: Connection) -> None:
    asyncio.run(_serve_until_killed(_Stream(pages), ready))


async def _serve_until_killed(stream: _Stream, ready: Connection) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(stream), HOST, 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Stream:
    """The answers, ready to be sent."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._answers = {shard: _page_texts(pages, shard) for shard in pages.shard_ids}

    def answer(self, operation: str, asked: dict[str, Any]) -> bytes:
        """Return the body for a call."""
        if operation == "GetRecords":
            shard, _, page = asked["ShardIterator"].partition("|")
            return self._page(shard, int(page))
        if operation == "GetShardIterator":
            return json.dumps({"ShardIterator": f"{asked['ShardId']}|0"}).encode()
        if operation == "ListShards":
            return json.dumps(
                {"Shards": [_shard(self._pages, n) for n in range(self._pages.shards)]}
            ).encode()
        assert operation == "DescribeStreamSummary", operation
        return json.dumps({"StreamDescriptionSummary": _summary(self._pages)}).encode()

    def _page(self, shard: str, page: int) -> bytes:
        after = f'{{"MillisBehindLatest":0,"NextShardIterator":"{shard}|'
        if page >= self._pages.pages:
            return f'{after}{page}","Records":[]}}'.encode()
        texts = self._answers[shard]
        first = _FIRST_NUMBER + page * self._pages.records
        numbers = [str(first + index) for index in range(self._pages.records)]
        return (
            f'{after}{page + 1}","Records":[' + texts[page % len(texts)] % tuple(numbers) + "]}"
        ).encode()


def _page_texts(pages: Pages, shard: str) -> list[str]:
    chance = random.Random(shard)
    name = shard[-2:].encode()

    def record(index: int) -> str:
        data = name + chance.randbytes(pages.record_bytes - len(name))
        fields = {
            "ApproximateArrivalTimestamp": int(time.time()) + index / 1000,
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": f"key-{chance.randrange(1000)}",
            "SequenceNumber": "%s",
        }
        return json.dumps(fields, separators=(",", ":"))

    return [
        ",".join(map(record, range(pages.records))) for _ in range(min(_TEXTS, max(1, pages.pages)))
    ]


def _shard(pages: Pages, number: int) -> dict[str, Any]:
    width = 2**128 // pages.shards
    return {
        "ShardId": pages.shard_ids[number],
        "HashKeyRange": {
            "StartingHashKey": str(width * number),
            "EndingHashKey": str(width * (number + 1) - 1),
        },
        "SequenceNumberRange": {"StartingSequenceNumber": str(_FIRST_NUMBER - 1)},
    }


def _summary(pages: Pages) -> dict[str, Any]:
    return {
        "StreamName": "pages",
        "StreamARN": "-",
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": 1_750_000_000,
        "EnhancedMonitoring": [],
        "OpenShardCount": pages.shards,
    }


class _Connection(asyncio.Protocol):
    """HTTP/1.1, one request after the other."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            lines = self._unread[:end].decode().split("\r\n")[1:]
            fields = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            whole = end + 4 + int(fields.get("content-length", 0))
            if len(self._unread) < whole:
                return
            body, self._unread = self._unread[end + 4 : whole], self._unread[whole:]
            operation = fields["x-amz-target"].rpartition(".")[2]
            answer = self._stream.answer(operation, json.loads(body))
            self._transport.write(HEAD.format(len(answer)).encode() + answer)
