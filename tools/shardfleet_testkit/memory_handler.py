"""
A handler in memory: the ``HandlerRunner`` port in the engine's own loop, scripted by a test.

What a call does is a coroutine function of the batch; what was handed over, when, and how far it
got is kept for the test to look at. No thread, so virtual time works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.ports import Clock, HandlerResult
from shardfleet.errors import HandlerNotLoaded
from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_call import result_of_reply

Script = Callable[[Batch], Awaitable[object]]
HookScript = Callable[[Hook, Batch], Awaitable[object]]


@dataclass(slots=True)
class HandlerCall:
    """
    One call.

    Attributes:
        batch: what was handed over.
        began_ms: monotonic milliseconds.
        ended_ms: None while it runs.
        result: None while it runs.

    """

    batch: Batch
    began_ms: int
    ended_ms: int | None = None
    result: HandlerResult | None = None


class MemoryHandler:
    """
    A scripted handler.

    Attributes:
        calls: every call, in the order of their beginnings.
        loads: monotonic milliseconds at which each loading ended.
        overlaps: whether calls of different shards may overlap.
        running_most: the most calls that ever ran at once.
        hooks: runs for each hook, as a class's; None: a function. An exception is a failure.

    """

    def __init__(
        self,
        clock: Clock,
        script: Script | None = None,
        *,
        overlaps: bool = False,
        load_ms: int = 0,
        load_error: str = "",
    ) -> None:
        """
        Write the script.

        Args:
            clock: for the times and the time-out.
            script: runs for each batch; an exception is a failed batch, what it returns is a
                handler's reply, or the result itself; None handles everything.
            overlaps: behave like an ``async def`` handler.
            load_ms: how long importing takes.
            load_error: importing fails with this message.

        """
        self.calls: list[HandlerCall] = []
        self.loads: list[int] = []
        self.overlaps = overlaps
        self.running_most = 0
        self.hooks: HookScript | None = None
        self._clock = clock
        self._script = script
        self._load_ms = load_ms
        self._load_error = load_error
        self._running = 0
        self._is_stuck = False

    @property
    def handled(self) -> list[Record]:
        """Return the records that calls have finished with, in order, repetitions included."""
        return [
            record
            for call in self.calls
            if call.result is not None
            for record in call.batch[: call.result.done_count]
        ]

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads of :attr:`handled`."""
        return [record.data for record in self.handled]

    async def load(self) -> None:
        """Import: takes its time."""
        await self._clock.sleep_ms(self._load_ms)
        if self._load_error:
            raise HandlerNotLoaded(self._load_error, kind="IMPORT")
        self.loads.append(self._clock.monotonic_ms())

    async def run(self, batch: Batch) -> HandlerResult:
        """Run the script to its end or to the time-out."""
        call = HandlerCall(batch, self._clock.monotonic_ms())
        self.calls.append(call)
        self._running += 1
        self.running_most = max(self.running_most, self._running)
        try:
            call.result = await self._result(batch)
        finally:
            self._running -= 1
            call.ended_ms = self._clock.monotonic_ms()
        return call.result

    @property
    def has_hooks(self) -> bool:
        """Return whether it is like a class."""
        return self.hooks is not None

    async def tell(self, hook: Hook, shard: Batch) -> HandlerResult:
        """Run the script of the hooks to its end or to the time-out."""
        return await self._within(shard, self._told(hook, shard))

    async def _told(self, hook: Hook, shard: Batch) -> HandlerResult:
        assert self.hooks is not None
        result = await self.hooks(hook, shard)
        if isinstance(result, HandlerResult):
            return result
        error = "records are open" if hook is Hook.ENDED and shard.has_open else None
        return HandlerResult(done_count=0, error=error)

    async def close(self) -> bool:
        """Stop; a call that outlived its time-out still runs."""
        return not self._is_stuck

    async def _result(self, batch: Batch) -> HandlerResult:
        return await self._within(batch, self._replied(batch))

    async def _replied(self, batch: Batch) -> HandlerResult:
        reply = None if self._script is None else await self._script(batch)
        if isinstance(reply, HandlerResult):
            return reply
        return result_of_reply(reply, batch, in_window=batch.window is not None)

    async def _within(self, batch: Batch, call: Awaitable[HandlerResult]) -> HandlerResult:
        left_ms = batch.deadline_ms - self._clock.now_ms()
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await call
        except TimeoutError:
            self._is_stuck = True
            return HandlerResult(done_count=batch.done_count, error="timed out", timed_out=True)
        except Exception as error:  # noqa: BLE001 - the script stands for a user's code
            text = f"{type(error).__name__}: {error}"
            return HandlerResult(done_count=batch.done_count, error=text)
