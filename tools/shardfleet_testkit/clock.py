"""
A virtual clock: an event loop whose time jumps to the next timer when nothing can run.

``run_virtual(main)`` runs a coroutine in seconds of real time however long it sleeps. The engine
runs unchanged on it, because it sleeps and waits through asyncio only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# As asyncio's own loop: what is due within its clock's resolution is due, and cancelled timers are
# cleared out where they are more than half of more than so many.
_RESOLUTION_S = 1e-9
_TIMERS_KEPT = 100
# Nobody waits for less: two calls in a row never fall on the same instant for ever.
_STEP_LEAST_S = 1e-6


class Holder(Protocol):
    """
    Whoever can stop for a while what runs in its contexts.

    Attributes:
        is_frozen: nothing of it runs at present.

    """

    is_frozen: bool

    def park(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        """Take what was due while it was frozen."""


HOLDER: ContextVar[Holder | None] = ContextVar("who can stop what runs in a context", default=None)


class _Entry(asyncio.TimerHandle):
    """
    A callback that was asked for; none is less than another, so that their times decide.

    One is made for each callback: nothing of the parent's is set, which looks for slow callbacks.
    """

    __slots__ = ("args", "at_s", "callback", "context", "holder", "is_cancelled", "loop", "waiter")
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context = copy_context() if context is None else context
        self.holder = context.get(HOLDER)
        self.is_cancelled = False
        self.at_s: float
        self.loop: VirtualTimeLoop | None = None  # As long as it waits for its time.
        self.waiter: asyncio.Future[None] | None = None  # Of one who does nothing but wait.

    def __lt__(self, other: object) -> bool:
        return False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            if self.loop is not None:
                self.loop.cancelled_timers += 1

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.at_s


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """
    An event loop in virtual time; no real waiting, hence no I/O with the outside either.

    It calls in the order in which asyncio's own loop does, ties included. What belongs to a
    :data:`HOLDER` that is frozen is not called, but parked with it.

    Attributes:
        virtual_ms: the virtual time, rounded to milliseconds.
        cancelled_timers: how many timers that are still kept were cancelled.

    """

    def __init__(self) -> None:
        """Begin at virtual second 0."""
        super().__init__()
        self._virtual_s = 0.0
        self.virtual_ms = 0
        self.cancelled_timers = 0
        self._soon: deque[_Entry] = deque()
        self._timers: list[tuple[float, _Entry]] = []
        self._is_over = False

    # Asked for each future and task: bool() is False, and no frame is needed to say so.
    get_debug = bool

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback when those that are due now have run."""
        entry = _Entry(callback, args, context)
        self._soon.append(entry)
        return entry

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after so many virtual seconds."""
        return self.call_at(self._virtual_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        entry = _Entry(callback, args, context)
        entry.at_s, entry.loop = when, self
        heappush(self._timers, (when, entry))
        return entry

    def stop(self) -> None:
        """Return from ``run_forever`` when those that are due now have run."""
        self._is_over = True
        super().stop()

    async def pause(self, duration_s: float) -> None:
        """
        Sleep for a while that ends when nothing else happens, as one drawn by chance.

        Whoever sleeps runs as soon as the time has come, and not after what else is due then.
        """
        waiter: asyncio.Future[None] = self.create_future()
        entry = _Entry(_wake, (waiter,), None)
        entry.at_s, entry.loop, entry.waiter = self._virtual_s + duration_s, self, waiter
        heappush(self._timers, (entry.at_s, entry))
        try:
            await waiter
        except BaseException:
            entry.cancel()
            raise

    def _run_once(self) -> None:
        """Run until the loop is stopped: what is due, then what the clock jumps to."""
        soon, timers = self._soon, self._timers
        self._is_over = False
        while not self._is_over:
            if self.cancelled_timers and (
                len(timers) > _TIMERS_KEPT or (timers and timers[0][1].is_cancelled)
            ):
                self._drop_cancelled()
            if not soon:
                self._jump()
            if timers and timers[0][0] < self._virtual_s + _RESOLUTION_S:
                self._take_due()
            for _ in range(len(soon)):
                entry = soon.popleft()
                if entry.is_cancelled:
                    continue
                holder = entry.holder
                if holder is not None and holder.is_frozen:
                    holder.park(entry.callback, entry.args, entry.context)
                    continue
                try:
                    entry.context.run(entry.callback, *entry.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's own loop
                    told = {"message": f"exception in {entry.callback!r}", "exception": error}
                    self.call_exception_handler(told)

    def _take_due(self) -> None:
        """Let what is due run in this round; whoever only waited goes on in it."""
        soon, timers, due_s = self._soon, self._timers, self._virtual_s + _RESOLUTION_S
        while timers and timers[0][0] < due_s:
            entry = heappop(timers)[1]
            entry.loop = None
            waiter, holder = entry.waiter, entry.holder
            if waiter is None or entry.is_cancelled or (holder is not None and holder.is_frozen):
                soon.append(entry)
            else:
                _wake(waiter)

    def stall(self, seconds: float) -> None:
        """Let time pass in which nothing is called, whatever is due."""
        self._virtual_s += seconds
        self.virtual_ms = round(self._virtual_s * 1000)

    def _jump(self) -> None:
        """Move the clock forward to the next timer."""
        if not self._timers:
            message = "deadlock in virtual time: every task waits and no timer is set"
            raise RuntimeError(message)
        wait_s = self._timers[0][0] - self._virtual_s
        if wait_s > 0:
            self.stall(max(_STEP_LEAST_S, wait_s))

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > _TIMERS_KEPT and 2 * self.cancelled_timers > len(timers):
            timers[:] = [timer for timer in timers if not timer[1].is_cancelled]
            heapify(timers)
            self.cancelled_timers = 0
        while timers and timers[0][1].is_cancelled:
            heappop(timers)
            self.cancelled_timers -= 1


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class VirtualClock:
    """The ``Clock`` port on a :class:`VirtualTimeLoop`; virtual second 0 is ``start_ms``."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        """Choose the epoch milliseconds of virtual second 0."""
        self.start_ms = start_ms

    def now_ms(self) -> int:
        """Return virtual wall-clock time, epoch milliseconds."""
        return self.start_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Return virtual milliseconds since the loop began."""
        loop: Any = asyncio.get_running_loop()
        try:
            now_ms: int = loop.virtual_ms
        except AttributeError:  # asyncio's own loop, where a test waits for real I/O
            now_ms = round(loop.time() * 1000)
        return now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(duration_ms / 1000)


def run_virtual(
    main: Coroutine[Any, Any, T], *, loop_factory: Callable[[], VirtualTimeLoop] = VirtualTimeLoop
) -> T:
    """Run a coroutine to its end in virtual time."""
    results = []

    # A task's own result is written out where asyncio gives SIGINT back: whole logs of runs.
    async def keep() -> None:
        results.append(await main)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(keep())
    return results[0]
