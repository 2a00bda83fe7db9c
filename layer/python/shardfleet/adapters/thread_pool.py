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
from contextlib import suppress
from functools import partial, wraps
from operator import attrgetter
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")

_Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class ThreadPool:
    """
    At most ``threads`` blocking calls at once; further calls wait their turn.

    Not reusable: a turn makes its pools and closes them, in one loop. The standard library's
    executor and its futures would cost each call several times as much as the way to a thread and
    back does, which each page of records goes.

    Attributes:
        running: how many calls have not ended yet, cancelled ones included.

    """

    def __init__(self, name: str, *, threads: int) -> None:
        """Start no thread yet; ``name`` is what a stack dump shows."""
        self.name = name
        self.threads_most = threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self.running = 0
        self._is_closed = False
        # Whoever waits for the last call to end.
        self._ended: list[asyncio.Future[None]] = []

    async def run(self, call: Callable[[], T]) -> T:
        """
        Run a call in a thread and return its result or raise its exception.

        Cancelling the awaiting task does not stop a call that has begun.

        Raises:
            RuntimeError: the pool is closed.

        """
        if self._is_closed:
            message = f"thread pool {self.name}: closed, takes no call"
            raise RuntimeError(message)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.running += 1
        self._jobs.put((call, outcome))
        if len(self._threads) < min(self.running, self.threads_most):
            name = f"shardfleet-{self.name}_{len(self._threads)}"
            # A daemon: whoever leaves without closing is not to wait for a hung call.
            thread = Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return await outcome

    async def close(self, *, within_ms: float) -> bool:
        """
        Take no further calls, drop those not begun, and wait for those that run.

        Returns:
            True when no thread of this pool is left; False when a call outlived ``within_ms``:
            then the process must end (hazard H10).

        """
        if not self._is_closed:
            self._is_closed = True
            with suppress(Empty):
                while (job := self._jobs.get_nowait()) is not None:
                    job[1].cancel()
                    self.running -= 1
            for _ in self._threads:
                self._jobs.put(None)
        if self.running:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ended.append(ended)
            await asyncio.wait([ended], timeout=within_ms / 1000)
            if self.running:
                return False
        for thread in self._threads:
            thread.join()
        return True

    def _work(self) -> None:
        """Make the calls, in a thread, until there are no more."""
        while (job := self._jobs.get()) is not None:
            call, outcome = job
            result, error = None, None
            try:
                # Read without a lock: a call that is cancelled in this moment has begun.
                if not outcome.cancelled():
                    result = call()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits
                error = raised
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                outcome.get_loop().call_soon_threadsafe(self._settle, outcome, result, error)
            # While the thread waits it keeps nothing alive.
            del job, call, outcome, result, error

    def _settle(
        self, outcome: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        self.running -= 1
        if not outcome.done():
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)
        if not self.running:
            for ended in self._ended:
                if not ended.done():
                    ended.set_result(None)


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
