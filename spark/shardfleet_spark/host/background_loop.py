"""
An event loop that goes on between the calls of somebody who waits for each.

Spark calls a source method by method. With a loop for each call, nothing could be under way
between two of them, and connections would belong to a loop that has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """A loop in a thread of its own, which ends with the process."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._loop.run_forever, name="shardfleet-source", daemon=True
        ).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to its end, however long that takes, and return or raise what comes of it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
