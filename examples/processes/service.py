"""A web server and a worker of a stream in one program: `python service.py STREAM APPLICATION`."""

import asyncio
import sys
from collections import Counter

from shardfleet import Batch, Worker

views: Counter[str] = Counter()


def handle(batch: Batch) -> None:
    """Count views; called in a thread of its own, so it may block."""
    views.update(record.partition_key for record in batch)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer any request with the number of views so far."""
    await reader.readline()
    writer.write(f"HTTP/1.0 200 OK\r\n\r\n{views.total()}".encode())
    await writer.drain()
    writer.close()


async def main(stream: str, application: str) -> None:
    """Serve until the worker ends, or Ctrl-C; the worker then hands its shards over."""
    server = await asyncio.start_server(answer, "127.0.0.1", 8080)
    async with server, Worker(stream=stream, application=application, handler=handle) as worker:
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
