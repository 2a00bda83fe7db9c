"""Looking until something is so, or until there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

from shardfleet.engine.ports import Clock

T = TypeVar("T")


async def until(
    look: Callable[[], T | Awaitable[T]], *, clock: Clock, within_ms: int, every_ms: int = 500
) -> T:
    """
    Return what a look answers once that is true; the last answer when time is over.

    Args:
        look: asks, in a thread, or with calls that are awaited.
        clock: tells the time.
        within_ms: for how long.
        every_ms: between two looks.

    """
    deadline_ms = clock.monotonic_ms() + within_ms
    while True:
        answer = await asyncio.to_thread(look)
        if isawaitable(answer):
            answer = await answer
        if answer or clock.monotonic_ms() > deadline_ms:
            return answer
        await clock.sleep_ms(every_ms)
