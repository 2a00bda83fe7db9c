"""Looking until something is so, or until there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from shardfleet.engine.ports import Clock


async def until(
    look: Callable[[], Any], *, clock: Clock, within_ms: int, every_ms: int = 500
) -> Any:
    """
    Return what a look answers once that is true; the last answer when time is over.

    Args:
        look: asks; in a thread, unless it is a coroutine's function.
        clock: tells the time.
        within_ms: for how long.
        every_ms: between two looks.

    """
    deadline_ms = clock.monotonic_ms() + within_ms
    while True:
        answer = await (look() if iscoroutinefunction(look) else asyncio.to_thread(look))
        if answer or clock.monotonic_ms() > deadline_ms:
            return answer
        await clock.sleep_ms(every_ms)
