"""
What a probe asks: whether the engine's loop goes on. It tells nothing of tables or of the stream.

A process that cannot reach its tables is not mended by a new start, so a probe ends none for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from shardfleet.errors import ConfigurationError

_TOUCHED_EACH_S = 1.0
_ASKING_MOST_S = 5.0
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


@asynccontextmanager
async def shown_health(where: str) -> AsyncIterator[None]:
    """
    Show that this loop goes on.

    Args:
        where: ``HOST:PORT``, where any HTTP request is answered with 200; or a file, which is
            touched each second, and is gone at the end; empty: nowhere.

    Raises:
        ConfigurationError: the address cannot be listened at, or the file not be made.

    """
    host, _, port = where.rpartition(":")
    if not where:
        yield
        return
    async with AsyncExitStack() as opened:
        try:
            if host and port.isdigit():
                server = await asyncio.start_server(_answer, host, int(port))
                await opened.enter_async_context(server)
            else:
                await opened.enter_async_context(_touched(Path(where)))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"health: {where}: {error}") from error
        yield


@asynccontextmanager
async def _touched(file: Path) -> AsyncIterator[None]:
    async def touch() -> None:
        while True:
            await asyncio.sleep(_TOUCHED_EACH_S)
            with suppress(OSError):  # A disk that is full ends no process.
                await asyncio.to_thread(file.touch)

    await asyncio.to_thread(file.touch)
    task = asyncio.create_task(touch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.to_thread(file.unlink, missing_ok=True)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_ASKING_MOST_S):
            await reader.readline()
            writer.write(_ANSWER)
            await writer.drain()
    writer.close()
