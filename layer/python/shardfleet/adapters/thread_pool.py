"""
Blocking calls behind asynchronous ports: a bounded pool of threads that can be joined.

A Python thread cannot be cancelled, so a cancelled call may still be running and its outcome is
unknown until its thread is joined (hazard H10): :meth:`ThreadPool.close` waits for exactly that.
Lease writes, table reads and stream reads have a pool each, so that hung reads never delay a
renewal (hazard H17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


class ThreadPool:
    """
    At most ``threads`` blocking calls at once; further calls wait their turn.

    Not reusable: a turn makes its pools and closes them.
    """

    def __init__(self, name: str, *, threads: int) -> None:
        """Start no thread yet; ``name`` is what a stack dump shows."""
        self.name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"shardfleet-{name}")
        self._running: set[Future[Any]] = set()

    async def run(self, call: Callable[[], T]) -> T:
        """
        Run a call in a thread and return its result or raise its exception.

        Cancelling the awaiting task does not stop a call that has begun.

        Raises:
            RuntimeError: the pool is closed.

        """
        future = self._executor.submit(call)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(future)

    @property
    def running(self) -> int:
        """Return how many calls have not ended yet, cancelled ones included."""
        return len(self._running)

    async def close(self, *, within_ms: float) -> bool:
        """
        Take no further calls, drop those not begun, and wait for those that run.

        Returns:
            True when no thread of this pool is left; False when a call outlived ``within_ms``:
            then the process must end (hazard H10).

        """
        self._executor.shutdown(wait=False, cancel_futures=True)
        pending = [asyncio.wrap_future(f) for f in tuple(self._running) if not f.cancelled()]
        if pending:
            _, late = await asyncio.wait(pending, timeout=within_ms / 1000)
            if late:
                return False
            await asyncio.gather(*pending, return_exceptions=True)
        # A call dropped before it began counts as cancelled, but never as done: waiting for it
        # would have no end.
        wait([future for future in tuple(self._running) if not future.cancelled()])
        self._executor.shutdown(wait=True)
        return True


def in_threads_of(
    pool: str,
) -> Callable[
    [Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """
    Make a blocking method one to be awaited: its calls run in a pool of the object.

    Args:
        pool: the attribute that is the :class:`ThreadPool`, e.g. ``"_pool"``.

    """
    pool_of: Callable[[S], ThreadPool] = attrgetter(pool)

    def awaited(
        method: Callable[Concatenate[S, P], T],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def run(instance: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await pool_of(instance).run(partial(method, instance, *args, **kwargs))

        return run

    return awaited
