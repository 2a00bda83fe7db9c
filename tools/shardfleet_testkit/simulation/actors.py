"""
Actors: invocations that can be killed or frozen at any await, on one virtual-time loop.

A task belongs to the actor in whose context it was created. A frozen actor's callbacks are parked
until it thaws: nothing of it runs, timers included. A killed actor's tasks are cancelled, which
runs their ``finally`` blocks, but every port of a dead actor refuses (:meth:`Actor.check`), so that
nothing of it has any effect from the moment of its death on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from shardfleet_testkit.clock import HOLDER, VirtualTimeLoop


class KilledError(BaseException):
    """The invocation is dead: no port call of it has an effect, and nothing may catch this."""


class Actor:
    """
    One invocation, of a worker or of the manager, or a part of a process.

    All parts of a process live, freeze and die together.

    Attributes:
        name: unique in the run, e.g. ``s0001#12``.
        worker_id: the owner's name it works under; "" for a manager.
        is_frozen: nothing of it runs at present.
        is_dead: killed, or its process has ended.
        ended: resolved at its return or death, whichever is first.
        tasks: those that run, in the order of their creation.
        frozen_ms: how long it has been frozen so far, milliseconds; computing is no freeze.
        thawed_ms: when it last thawed; None: it never froze.
        clock_off_ms: by how much its wall clock has jumped, beside what all have.
        to_compute_s: for how long its processor has work still, beyond what is under way.
        faults: what was done to it, in order: milliseconds and what.
        execution: start epoch and generation of the execution that invoked it.
        fellows: the parts of its process, the main one first; in Lambda itself alone.
        cut_off_until_ms: until when its process reaches no table, told of the main part.
        wall_ms: tells the time by its wall clock, epoch milliseconds; the simulation's own time
            until it has one.

    """

    def __init__(self, name: str, worker_id: str = "", *, now_ms: Callable[[], int]) -> None:
        """Begin alive; ``now_ms`` tells the simulation's time."""
        self.name = name
        self.worker_id = worker_id
        self.is_frozen = False
        self.is_dead = False
        self.ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.frozen_ms = 0
        self.thawed_ms: int | None = None
        self.clock_off_ms = 0
        self.to_compute_s = 0.0
        self.faults: list[tuple[int, str]] = []
        self.execution = (0, 0)
        self.fellows = [self]
        self.cut_off_until_ms = 0
        self.wall_ms = now_ms
        self._now_ms = now_ms
        self._frozen_since_ms = 0
        self._is_computing = False
        self._parked: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []

    @property
    def main(self) -> Actor:
        """Return the main part of its process."""
        return self.fellows[0]

    def join(self, main: Actor) -> None:
        """Become a part of a process; its clock is that of the whole."""
        self.fellows = main.fellows
        self.fellows.append(self)
        self.wall_ms = main.wall_ms

    def part(self) -> None:
        """Be no part of its process any more: it has returned, and the process goes on."""
        self.fellows.remove(self)
        self.fellows = [self]

    def suffered(self, what: str) -> None:
        """Remember a fault, so that checkers know what it explains."""
        self.faults.append((self._now_ms(), what))

    def all_suffered(self, what: str) -> None:
        """Remember a fault of the whole process: the others die of something not their own."""
        for each in self.fellows:
            each.suffered(what if each is self or what == "frozen" else "killed")

    def start(self, main: Coroutine[Any, Any, object]) -> None:
        """Run its main coroutine; :attr:`ended` gets the result, or None if it dies."""
        context = copy_context()
        context.run(HOLDER.set, self)
        task = asyncio.get_running_loop().create_task(main, name=self.name, context=context)
        task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[object]) -> None:
        if self.ended.done():
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.is_dead:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None if self.is_dead or task.cancelled() else task.result())

    def check(self) -> None:
        """
        Let a living actor go on.

        Raises:
            KilledError: it is dead.

        """
        if self.is_dead:
            raise KilledError

    def kill(self) -> None:
        """Let its process die now: from here on none of its port calls has an effect."""
        for each in self.fellows:
            each.die()

    def die(self) -> None:
        """Let it alone die, of its process."""
        if self.is_dead:
            return
        self.is_dead = True
        if not self.ended.done():
            self.ended.set_result(None)
        self._thaw()
        for task in list(self.tasks):
            task.cancel()

    def freeze(self) -> None:
        """Let nothing of its process run until :meth:`thaw`."""
        for each in self.fellows:
            if not each.is_frozen and not each.is_dead:
                each.is_frozen, each._frozen_since_ms = True, each._now_ms()  # noqa: SLF001

    def compute(self, duration_s: float) -> bool:
        """
        Let it do nothing else for so long from its next wait on: its processor is at work.

        Returns:
            Whether it begins with that: :meth:`thaw` is to be called when nothing is left to do.

        """
        self.to_compute_s += duration_s
        begins = not self.is_frozen and not self.is_dead
        if begins:
            self.is_frozen = self._is_computing = True
        return begins

    def thaw(self) -> None:
        """Let its process run again: all that was due meanwhile, in order."""
        for each in self.fellows:
            each._thaw()  # noqa: SLF001 - of its own kind

    def _thaw(self) -> None:
        if not self.is_frozen:
            return
        if not self._is_computing:
            self.thawed_ms = self._now_ms()
            self.frozen_ms += self.thawed_ms - self._frozen_since_ms
        self._is_computing = False
        self.is_frozen = False
        parked, self._parked = self._parked, []
        loop = asyncio.get_running_loop()
        for callback, arguments, context in parked:
            loop.call_soon(callback, *arguments, context=context)

    def park(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context
    ) -> None:
        """Keep a callback that was due while nothing of it runs."""
        self._parked.append((callback, arguments, context))


class SimulationLoop(VirtualTimeLoop):
    """A virtual-time loop whose tasks know their actor."""

    def __init__(self) -> None:
        """Begin at virtual second 0."""
        super().__init__()
        self.set_task_factory(_create_task)
        self.set_exception_handler(lambda _loop, _context: None)


def _create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    actor = HOLDER.get() if context is None else context.get(HOLDER)
    if isinstance(actor, Actor):
        actor.tasks[task] = None
        task.add_done_callback(actor.tasks.pop)
    return task


def outside_actors() -> Context:
    """Return a context that belongs to no actor: for what the world does by itself."""
    context = copy_context()
    context.run(HOLDER.set, None)
    return context
