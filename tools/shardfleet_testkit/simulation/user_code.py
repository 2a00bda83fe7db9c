"""
The user's own handler in the simulation, called as the worker's handler thread calls it.

A synchronous handler runs in a thread of its own, in lockstep with the simulation: either the
thread runs or the loop, never both, so a seed gives one run. At each call of the sink the thread
waits, and there the handler can be killed, frozen, or out of time, as it would be in its own I/O.
An ``async def`` handler runs on the simulation's loop, in virtual time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.engine.ports import Clock, HandlerResult
from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_call import EventSource, HandlerCaller
from shardfleet.runtime.handler_loading import LoadedHandler
from shardfleet_testkit.checkers import Violation
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import Actor, KilledError
from shardfleet_testkit.simulation.sink import PASSAGE, SinkError
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_handler import UserHandler
from shardfleet_testkit.simulation.wire import CALL_TIMEOUT_MS

T = TypeVar("T")

FUNCTION_ARN = "arn:aws:lambda:eu-central-1:123456789012:function:simulated"
# Real time that a handler may take between two calls of the sink.
_STUCK_S = 60.0
_FASTEST_S, _SLOWEST_S = 0.001, 0.05
# Calls that a handler still gets through between its time-out and the end of its process.
_LATE_CALLS_MOST = 4
# A freeze during which the lease expires and somebody else goes on.
_FREEZE_S = (12.0, 45.0)
# A handler that catches its own death is told again; not for ever.
_CALLS_MOST = 100_000


class HandlerFailed(Exception):
    """The user's handler raised, or returned what is no reply."""


class SimulatedContext:
    """Lambda's context object, as far as a simulated invocation has one."""

    function_name = "simulated"
    function_version = "$LATEST"
    memory_limit_in_mb = "512"
    log_group_name = "/aws/lambda/simulated"
    invoked_function_arn = FUNCTION_ARN

    def __init__(self, name: str) -> None:
        """Name the invocation."""
        self.aws_request_id = name
        self.log_stream_name = name

    def get_remaining_time_in_millis(self) -> int:
        """Return the worker's time; a handler is given its batch's instead."""
        return 0


class PlayedHandler(UserHandler):
    """The ``HandlerRunner`` port of one invocation, over the user's own handler."""

    def __init__(
        self,
        actor: Actor,
        around: Surroundings,
        clock: Clock,
        *,
        handler: Callable[[], LoadedHandler],
        overlaps: bool,
    ) -> None:
        """
        Prepare.

        Args:
            actor: the invocation.
            around: faults, the log, time.
            clock: of the invocation.
            handler: imports the user's code.
            overlaps: the handler is a coroutine function.

        """
        super().__init__(actor, around, clock, overlaps=overlaps)
        self._memory.hooks = None
        self._load_handler = handler
        self._caller: HandlerCaller | None = None

    async def load(self) -> None:
        """Import the user's code."""
        await super().load()
        clock, loop = self._around.clock, asyncio.get_running_loop()
        begin_ms = clock.now_ms() - round(loop.time() * 1000)
        self._caller = HandlerCaller(
            self._load_handler(),
            context=SimulatedContext(self._actor.name),
            source=EventSource.of(MEMORY_STREAM_ARN, function_arn=FUNCTION_ARN),
            # The handler's thread has no running loop to ask for the time.
            now_ms=lambda: begin_ms + round(loop.time() * 1000),
        )
        self._memory.hooks = self._hook if self._caller.has_hooks else None

    async def _script(self, batch: Batch) -> HandlerResult:
        try:
            result = await self._call(batch, None)
        except HandlerFailed:
            self._done(batch, batch.done_count)
            raise
        self._done(batch, result.done_count)
        return result

    async def _hook(self, hook: Hook, shard: Batch) -> HandlerResult:
        result = await self._call(shard, hook)
        self._actor.check()
        return result

    async def _call(self, batch: Batch, hook: Hook | None) -> HandlerResult:
        assert self._caller is not None
        faults = self._around.faults
        if faults.strike("handler_slow"):
            await asyncio.sleep(faults.between("handler_slow", 0.1, 3.0))
        way = _Way(self._actor, self._around, batch)
        try:
            if self.overlaps:
                return await _call_on_loop(self._caller, batch, way, hook=hook)
            return await _Lockstep(self._caller, batch, way, hook=hook).run()
        except Exception as error:
            # A TimeoutError of the handler's own is a failure like any other.
            message = f"{type(error).__name__}: {error}"
            raise HandlerFailed(message) from error

    def _done(self, batch: Batch, count: int) -> None:
        self._actor.check()
        for record in batch[:count]:
            self._take_effect(batch, record)


class _Way:
    """The ``Passage`` of one handler call."""

    def __init__(self, actor: Actor, around: Surroundings, batch: Batch) -> None:
        self.actor = actor
        self.shard_id = batch.shard_id
        nothing = (0, 0)  # Without records the handler writes what it has.
        ends = (_position(batch[0]), _position(batch[-1])) if batch else (nothing, nothing)
        self.records = ends
        self._around = around
        around.calls["user.handler"] += 1
        self.call = around.calls["user.handler"]
        self._landed: tuple[Any] | None = None
        self._chance = around.chance(f"sink/{actor.name}/{around.now_ms}")
        self._late_calls = self._chance.randint(0, _LATE_CALLS_MOST)

    @property
    def by(self) -> str:
        """Return the name of the invocation."""
        return self.actor.name

    @property
    def now_ms(self) -> int:
        """Return the milliseconds of the simulation."""
        return self._around.now_ms

    def carry(self, what: str, effect: Callable[[], T]) -> T:
        """Carry a call from a coroutine: no time passes."""
        self._set_out(what)
        result = self._arrive(what, effect)
        if self._around.faults.strike("sink_no_answer"):
            self._lose_answer(what)
        return result

    async def carry_in_time(self, what: str, effect: Callable[[], T]) -> T:
        """Carry a call from a handler's thread: it takes its time both ways."""
        self._landed = None
        await self.pause()
        self._set_out(what)
        result = self._arrive(what, effect)
        self._landed = (result,)
        if self._around.faults.strike("sink_no_answer"):
            await asyncio.sleep(CALL_TIMEOUT_MS / 1000)
            self.actor.check()
            self._lose_answer(what)
        await self.pause()
        return result

    def carry_late(self, what: str, effect: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """
        Carry a call from a thread whose call is over: the answer, and what to raise.

        The dead do nothing more. But a thread that was out of time goes on until its process ends,
        and what it does until then happens (hazard H10).
        """
        if self.actor.is_dead or self._late_calls == 0:
            return None, KilledError()
        self._late_calls -= 1
        if self._landed is not None:
            (result,), self._landed = self._landed, None
            return result, None
        try:
            return self._arrive(what, effect), None
        except BaseException as error:  # noqa: BLE001 - the handler's own, or its death
            return None, error

    async def pause(self) -> None:
        """Let some milliseconds pass."""
        self.actor.check()
        await asyncio.sleep(self._chance.uniform(_FASTEST_S, _SLOWEST_S))
        self.actor.check()

    def is_stuck(self, how: str) -> None:
        """End the run: the handler would go on for ever."""
        text = f"{self.by}: the handler {how}"
        self._around.violated(Violation(self.now_ms, "HandlerComesBack", self.shard_id, text))

    def _set_out(self, what: str) -> None:
        self.actor.check()
        self._around.calls["sink"] += 1
        if self._around.faults.strike("sink_refuses"):
            self._around.log(self.by, what, self.shard_id, "refused")
            message = f"{what}: refused, nothing happened"
            raise SinkError(message)

    def _arrive(self, what: str, effect: Callable[[], T]) -> T:
        # The loop's thread carries effects of another thread: it says whose they are.
        before = PASSAGE.set(self)
        try:
            result = effect()
        finally:
            PASSAGE.reset(before)
        self._around.log(self.by, what, self.shard_id, "->", result)
        if self._around.faults.strike("kill_at_sink"):
            self.actor.all_suffered("killed")
            self._around.log(self.by, "killed after", what)
            self.actor.kill()
            self.actor.check()
        if self._around.faults.strike("freeze_at_sink"):
            duration_s = self._around.faults.between("freeze_at_sink", *_FREEZE_S)
            self.actor.all_suffered("frozen")
            self._around.log(self.by, "frozen after", what, "for", round(duration_s * 1000), "ms")
            self._around.freeze(self.actor, duration_s)
        return result

    def _lose_answer(self, what: str) -> None:
        self._around.log(self.by, what, self.shard_id, "no answer")
        message = f"{what}: no answer, it may have happened or not"
        raise SinkError(message)


def _position(record: Record) -> tuple[int, int]:
    return int(record.sequence_number), record.sub_sequence_number


async def _call_on_loop(
    caller: HandlerCaller, batch: Batch, way: _Way, *, hook: Hook | None
) -> HandlerResult:
    before = PASSAGE.set(way)
    try:
        return await caller.call_async(batch, hook)
    finally:
        PASSAGE.reset(before)


class _Lockstep:
    """One call of a synchronous handler, in its thread."""

    def __init__(
        self, caller: HandlerCaller, batch: Batch, way: _Way, *, hook: Hook | None
    ) -> None:
        self._caller = caller
        self._hook = hook
        self._batch = batch
        self._way = way
        # To the loop: a call of the sink, or (None, the end of the call).
        self._asked: queue.SimpleQueue[tuple[str | None, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # The thread's own view of `way` is this object.
        self.by, self.shard_id = way.by, way.shard_id
        self.records, self.call = way.records, way.call

    async def run(self) -> HandlerResult:
        """Run the handler to its end; whatever it raises is raised."""
        context = copy_context()
        context.run(PASSAGE.set, self)
        thread = threading.Thread(target=context.run, args=(self._main,), daemon=True)
        thread.start()
        death: BaseException | None = None
        for _ in range(_CALLS_MOST):
            what, effect = self._next()
            if what is None:
                thread.join()
                return self._ended(*effect, death=death)
            if death is not None:
                self._answers.put(self._way.carry_late(what, effect))
                continue
            try:
                self._answers.put((await self._way.carry_in_time(what, effect), None))
            except Exception as failure:  # noqa: BLE001 - whatever the effect raises is the handler's
                self._answers.put((None, failure))
            except BaseException as end:  # noqa: BLE001 - killed or out of time
                death = end
                self._answers.put(self._way.carry_late(what, effect))
        self._way.is_stuck(f"has called the sink {_CALLS_MOST} times for one batch")
        raise KilledError

    @staticmethod
    def _ended(
        result: HandlerResult | None, error: BaseException | None, *, death: BaseException | None
    ) -> HandlerResult:
        if death is not None:
            raise death
        if error is not None:
            # SystemExit and the like fail a batch, as in the worker's handler thread.
            raise error if isinstance(error, Exception) else HandlerFailed(repr(error)) from error
        assert result is not None
        return result

    def _next(self) -> tuple[str | None, Any]:
        try:
            return self._asked.get(timeout=_STUCK_S)
        except queue.Empty:
            self._way.is_stuck(
                f"has not come back within {_STUCK_S:.0f} real seconds: it waits for something "
                "outside of the simulation; give it a fake, or the sink"
            )
            raise KilledError from None

    # --- in the handler's thread

    @property
    def now_ms(self) -> int:
        """Return the milliseconds of the simulation: effects are carried by the loop."""
        return self._way.now_ms

    def carry(self, what: str, effect: Callable[[], T]) -> T:
        """Hand a call to the loop, and wait for its answer."""
        self._asked.put((what, effect))
        value, error = self._answers.get()
        if error is not None:
            raise error
        result: T = value
        return result

    async def pause(self) -> None:
        """Let time pass, in a coroutine that the handler runs by itself."""
        self.carry("sink.pause", lambda: None)

    def _main(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            self._asked.put((None, (self._caller.call(self._batch, self._hook), None)))
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            self._asked.put((None, (None, error)))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
