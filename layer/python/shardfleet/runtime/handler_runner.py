"""
The user's handler in a thread of its own, away from the engine's loop (hazard H17).

A synchronous handler runs in that thread with no loop running around it, so that it may use
``asyncio.run`` as it would in Lambda, and its calls never overlap; with ``handler_threads`` or
``parallelism`` there are up to so many threads, and as many calls at once. Coroutine functions run
on a loop of the one thread, and their calls overlap. A call that outlives its deadline is
cancelled if it is a coroutine; what does not end then, the process must end (hazard H10).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.ports import Clock, HandlerResult
from shardfleet.records import Batch
from shardfleet.runtime.handler_call import EventSource, HandlerCaller, LambdaContext
from shardfleet.runtime.handler_errors import HandlerErrors
from shardfleet.runtime.handler_loading import LoadedHandler, load_handler
from shardfleet.runtime.handler_remarks import handler_remarks

# How long a cancelled coroutine, and a thread that was asked to stop, may take to comply.
GRACE_MS = 1_000


class _Call:
    """A function that another thread runs; futures of both kinds would cost several times more."""

    __slots__ = ("_ended", "_error", "_has_ended", "_result", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_ended = False
        self._result: Any = None
        self._error: BaseException | None = None

    async def wait(self, most_ms: int | None = None) -> None:
        """Wait, once, until the function has ended, at most so long if told."""
        if most_ms is None:
            await self._ended
            return
        late = self._ended.get_loop().call_later(most_ms / 1000, _wake, self._ended)
        try:
            await self._ended
        finally:
            late.cancel()

    def make(self) -> None:
        """Run the function: in the thread."""
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error
        self._has_ended = True
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._ended.get_loop().call_soon_threadsafe(_wake, self._ended)

    def done(self) -> bool:
        """Return whether the function has returned, or raised."""
        return self._has_ended

    def result(self) -> Any:
        """Return what it returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _HandlerThread:
    """A thread that runs jobs one after another, or a loop."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = concurrent.futures.Future[None]()
        self._unfinished: list[_Call] = []
        self._thread = threading.Thread(target=self._main, name="shardfleet-handler", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return how many functions run in it, or wait to."""
        self._unfinished = [call for call in self._unfinished if not call.done()]
        return len(self._unfinished)

    def submit(self, work: Callable[[], Any]) -> _Call:
        """Run a function after those before it."""
        call = _Call(work)
        self._unfinished.append(call)
        self._jobs.put(call.make)
        return call

    def run_loop(self) -> asyncio.AbstractEventLoop:
        """Give the thread to a loop until it is stopped; return the loop."""
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._jobs.put(lambda: _run_loop(loop))
        return self._loop

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return what the thread is in, inmost first."""
        inmost = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - its only name
        return list(traceback.walk_stack(inmost)) if inmost else []

    async def stop(self) -> bool:
        """Ask the thread to end; return whether it did."""
        self._jobs.put(None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=GRACE_MS / 1000)
        if self._ended.done():
            self._thread.join(GRACE_MS / 1000)
        return not self._thread.is_alive()

    def _main(self) -> None:
        # Not running: a synchronous handler may run it, or use asyncio.run.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            while (job := self._jobs.get()) is not None:
                job()
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            self._ended.set_result(None)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    # At its end it cancels what user code left behind, which must not outlive the turn.
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


class ThreadHandlerRunner:
    """
    The ``HandlerRunner`` port.

    Attributes:
        loader: makes the handler of its name and contract.
        threads_most: for calls of a synchronous handler.

    """

    def __init__(
        self,
        name: str,
        *,
        contract: str,
        context: LambdaContext,
        stream_arn: str,
        clock: Clock,
        tells_errors: bool = False,
    ) -> None:
        """
        Prepare; nothing of the user is imported yet (hazard H16).

        Args:
            name: ``package.module:function``.
            contract: ``native``, ``event`` or ``auto``.
            context: of the worker's invocation.
            stream_arn: for the event contract.
            clock: for deadlines.
            tells_errors: whether a failure holds what the handler's error said, which may be record
                data; else its kind and the place in the code.

        """
        self._name = name
        self.loader: Callable[..., LoadedHandler] = load_handler
        self.threads_most = 1
        self._errors = HandlerErrors(name.partition(":")[0], tells_words=tells_errors)
        self._contract = contract
        self._context = context
        self._source = EventSource.of(stream_arn, function_arn=context.invoked_function_arn)
        self._clock = clock
        self._caller: HandlerCaller | None = None
        self._threads: list[_HandlerThread] = []

    @property
    def overlaps(self) -> bool:
        """Tell, once loaded, whether any number of calls may overlap."""
        return self._caller is not None and self._caller.is_async

    @property
    def has_hooks(self) -> bool:
        """Tell, once loaded, whether each shard has an object of its own."""
        return self._caller is not None and self._caller.has_hooks

    async def load(self) -> None:
        """
        Import the user's code in the handler's thread.

        Raises:
            HandlerNotLoaded: there is no such code, or it cannot be imported or called.

        """
        self._threads = self._threads or [_HandlerThread()]
        thread = self._threads[0]
        load = thread.submit(lambda: self.loader(self._name, contract=self._contract))
        await load.wait()
        handler: LoadedHandler = load.result()
        self._caller = HandlerCaller(
            handler, context=self._context, source=self._source, now_ms=self._clock.now_ms
        )
        self._errors.know(handler.function)
        handler_remarks()  # From now on.
        if handler.is_async:
            thread.run_loop()

    async def run(self, batch: Batch) -> HandlerResult:
        """Run one batch to its end or to its deadline."""
        return await self._run(batch, None)

    async def tell(self, hook: Hook, shard: Batch) -> HandlerResult:
        """Run a hook of the shard's object to its end or to its deadline."""
        return await self._run(shard, hook)

    async def _run(self, batch: Batch, hook: Hook | None) -> HandlerResult:
        caller = self._caller
        if not self._threads or caller is None:
            message = "run before load"
            raise RuntimeError(message)
        left_ms = batch.deadline_ms - self._clock.now_ms()
        thread = self._threads[0]
        call: _Call | concurrent.futures.Future[HandlerResult]
        if caller.is_async:
            loop = thread.run_loop()
            call = asyncio.run_coroutine_threadsafe(self._call_async(caller, batch, hook), loop)
            left_ms += GRACE_MS
            await asyncio.wait([asyncio.wrap_future(call)], timeout=max(0, left_ms) / 1000)
        else:
            thread = self._idlest_thread()
            call = thread.submit(lambda: _call(caller, batch, hook, errors=self._errors))
            await call.wait(max(0, left_ms))
        if call.done():
            result: HandlerResult = call.result()
            found = handler_remarks().found()
            return replace(result, remarks=found) if found else result
        error = f"it stood still{self._errors.late(batch, thread.frames())}"
        return HandlerResult(done_count=batch.done_count, error=error, timed_out=True)

    def _idlest_thread(self) -> _HandlerThread:
        """Return a thread without a call, or the one with the fewest."""
        thread = min(self._threads, key=lambda thread: thread.waiting)
        if thread.waiting and len(self._threads) < self.threads_most:
            thread = _HandlerThread()
            self._threads.append(thread)
        return thread

    async def close(self) -> bool:
        """Stop the threads; False if user code still runs in one."""
        threads, self._threads = self._threads, []
        return all(await asyncio.gather(*(thread.stop() for thread in threads)))

    async def _call_async(
        self, caller: HandlerCaller, batch: Batch, hook: Hook | None
    ) -> HandlerResult:
        deadline = asyncio.timeout((batch.deadline_ms - self._clock.now_ms()) / 1000)
        try:
            async with deadline:
                return await caller.call_async(batch, hook)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too
            if isinstance(error, TimeoutError) and deadline.expired():
                cut_off = (error.__cause__ or error).__traceback__
                at = self._errors.late(batch, list(traceback.walk_tb(cut_off))[::-1])
                cancelled = f"cancelled: the call outlived its time-out{at}"
                return HandlerResult(done_count=batch.done_count, error=cancelled)
            return self._errors.failure(batch, error)


def _call(
    caller: HandlerCaller, batch: Batch, hook: Hook | None, *, errors: HandlerErrors
) -> HandlerResult:
    try:
        return caller.call(batch, hook)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too
        return errors.failure(batch, error)
