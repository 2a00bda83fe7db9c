"""
Waiting that can be called off, and trying again what was refused.

Nothing here cancels a task: a cancelled port call would have an unknown outcome (hazard H10).
Whoever waits is woken by a :class:`Halt` and leaves through :class:`Halted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import TypeVar, cast

from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import back_off_ms
from shardfleet.domain.refusals import Doubt
from shardfleet.engine.ports import Clock, Entropy
from shardfleet.errors import OutcomeUnknown, ShardfleetError, StreamGone, Throttled, settled

T = TypeVar("T")
U = TypeVar("U")


# As many calls as a large fleet's manager makes at once; one after the other, a manager of 1,000
# slots would need minutes for what must be done within a turn. As many as the adapters' threads.
CALLS_AT_ONCE = 16
# How often what is refused, or denied to be there, is asked before that is believed.
ATTEMPTS_MOST = 4


class BoxSpent(Exception):
    """
    The time for a step is over; what was begun has ended.

    Attributes:
        left: how many calls were not made.

    """

    def __init__(self, left: int) -> None:
        """Hold how many calls are left."""
        super().__init__(f"its time was over, {left} calls were left")
        self.left = left


class Box(Struct, frozen=True):
    """
    How long a step may take.

    Attributes:
        clock: which is gone by.
        until_ms: on its monotonic clock.

    """

    clock: Clock
    until_ms: int

    @property
    def is_spent(self) -> bool:
        """Return whether nothing more is to be begun."""
        return self.clock.monotonic_ms() >= self.until_ms


async def each_of(
    items: Iterable[U], call: Callable[[U], Awaitable[T]], *, box: Box | None = None
) -> list[T]:
    """
    Make a call per item, some of them at once.

    What one item's call is answered keeps no other from being made (H22), unless all that were
    made at once failed: then nobody answers.

    Raises:
        BoxSpent: there is a box, and its time was over.
        Exception: the first one, in the order of the items, after all that were begun have ended.

    """
    waiting = iter(items)
    results: list[T] = []
    refusal: ShardfleetError | None = None
    while batch := list(islice(waiting, CALLS_AT_ONCE)):
        if box and box.is_spent:
            raise BoxSpent(len(batch) + sum(1 for _ in waiting))
        answers = await all_of(*(_answered(call, item) for item in batch))
        refusals = [each for each in answers if isinstance(each, _Refused)]
        refusal = refusal or (refusals[0].error if refusals else None)
        if refusal is not None and len(refusals) == len(batch):
            raise refusal
        results += [each for each in answers if not isinstance(each, _Refused)]
    if refusal is not None:
        raise refusal
    return results


class _Refused(Struct, frozen=True):
    """What came of a call instead of its result."""

    error: ShardfleetError


async def _answered(call: Callable[[U], Awaitable[T]], item: U) -> T | _Refused:
    # Called here: a task that is cancelled before it begins leaves no call without an awaiter.
    try:
        return await call(item)
    except ShardfleetError as error:
        return _Refused(error)


async def all_of(*calls: Awaitable[T]) -> list[T]:
    """
    Await everything at once; unlike ``asyncio.gather``, nothing is left running by a failure.

    Raises:
        Exception: the first one, in the order of the arguments, after all have ended.

    """
    if not calls:
        return []
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Halted(Exception):
    """Whoever waited was asked to stop; nothing is wrong."""


class Halt:
    """A request to stop, made once and never taken back."""

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        """Begin without a request; ``is_set`` tells whether it was made."""
        self.is_set = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Make the request."""
        self.is_set = True
        for waiter in self._waiters:
            _wake(waiter)

    def check(self) -> None:
        """
        Go on only if nobody asked to stop.

        Raises:
            Halted: somebody did.

        """
        if self.is_set:
            raise Halted

    async def wait(self, duration_ms: float | None = None) -> bool:
        """Wait for the request, at most so long if told; return whether it was made."""
        if not self.is_set:
            # What asyncio.timeout around an event would do, several times as quick: each read and
            # each renewal of each shard waits here.
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            timer: asyncio.Handle | None = None
            if duration_ms is not None and duration_ms > 0:
                timer = loop.call_later(duration_ms / 1000, _wake, waiter)
            elif duration_ms is not None:
                timer = loop.call_soon(_wake, waiter)
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
                if timer is not None:
                    timer.cancel()
        return self.is_set

    async def unless(self, signal: Signal, *, within_ms: float | None = None) -> bool:
        """
        Wait for something else, unless the request is made first; return whether it came in time.

        Raises:
            Halted: it was.

        """
        if not signal.is_set and not self.is_set:
            # One future for both: a task that waits for an event takes two more rounds of the loop.
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(within_ms / 1000, _wake, waiter) if within_ms else None
            self._waiters.append(waiter)
            signal.waiters.append(waiter)
            try:
                await waiter
            finally:
                signal.waiters.remove(waiter)
                self._waiters.remove(waiter)
                if timer is not None:
                    timer.cancel()
        if self.is_set and not signal.is_set:
            raise Halted
        return signal.is_set


class Signal:
    """Something that may come, and is waited for by :meth:`Halt.unless`."""

    __slots__ = ("is_set", "waiters")

    def __init__(self) -> None:
        """Begin before it comes; ``is_set`` tells whether it came."""
        self.is_set = False
        self.waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake everybody who waits."""
        self.is_set = True
        for waiter in self.waiters:
            _wake(waiter)

    def clear(self) -> None:
        """Wait for it anew."""
        self.is_set = False


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Patience(Struct, frozen=True, kw_only=True):
    """
    How long to wait before trying again: exponential with jitter, never past a halt.

    Attributes:
        clock: for the time spent.
        entropy: for the jitter.
        first_ms: back-off after the first failure.
        most_ms: longest back-off.

    """

    clock: Clock
    entropy: Entropy
    first_ms: int
    most_ms: int

    @classmethod
    def of(cls, config: FleetConfig, *, clock: Clock, entropy: Entropy) -> Patience:
        """Take the back-offs from the configuration."""
        return cls(
            clock=clock,
            entropy=entropy,
            first_ms=config.retry_first_ms,
            most_ms=config.max_retry_ms,
        )

    def back_off_ms(self, failures: int) -> int:
        """Return how long to wait after that many failures in a row."""
        jitter = self.entropy.uniform(0.0, 1.0)
        return back_off_ms(failures, first_ms=self.first_ms, most_ms=self.most_ms, jitter=jitter)

    async def pause(self, duration_ms: float, halt: Halt) -> None:
        """
        Sleep.

        Raises:
            Halted: asked to stop before or meanwhile.

        """
        if await halt.wait(duration_ms):
            raise Halted

    async def persist(self, call: Callable[[], Awaitable[T]], halt: Halt) -> T:
        """
        Call until there is an answer; the call must be safe to repeat.

        Raises:
            Halted: asked to stop while it was refused.
            StreamGone: said so many times in a row: once may be a lie, and a worker's end.
            ShardfleetError: the verdict of what was refused for as long as it is doubted.

        """
        failures, denials, doubt = 0, 0, Doubt()
        while True:
            try:
                return await call()
            except (Throttled, OutcomeUnknown) as error:
                if doubt.believes(error, self.clock.monotonic_ms()):
                    raise settled(error) from error
                failures, denials = failures + 1, 0
            except StreamGone:
                failures, denials = failures + 1, denials + 1
                if denials == ATTEMPTS_MOST:
                    raise
            await self.pause(self.back_off_ms(failures), halt)


class _Insisting:
    """A port like another, whose refused calls are made again, and what knows no stream."""

    def __init__(self, port: object, patience: Patience) -> None:
        self._port = port
        self._patience = patience

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def insist(*arguments: object, **options: object) -> object:
            call = getattr(self._port, name)
            for failures in range(1, ATTEMPTS_MOST):
                with suppress(Throttled, StreamGone):
                    return await call(*arguments, **options)
                await self._patience.clock.sleep_ms(self._patience.back_off_ms(failures))
            return await call(*arguments, **options)

        setattr(self, name, insist)
        return insist


def insisting(port: T, patience: Patience) -> T:
    """
    Return a port whose calls are made again when refused, so many times; then they raise what came.

    Only what is refused for certain is repeated: of an unknown outcome the caller must read.

    Args:
        port: every attribute is a coroutine function.
        patience: how long to wait in between.

    """
    return cast("T", _Insisting(port, patience))
