"""Every port call as a step at which a process can die or stand still."""

import asyncio
import inspect

from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import Crash


class Steps:
    """
    Counts the steps of one process and lets something happen at one of them.

    A step is the moment before or after the effect of one port call. ``happen`` is called there
    with the step's name; when ``is_deadly``, the process never gets any further.
    """

    def __init__(self, *, act_at=None, happen=None, is_deadly=True, only=None):
        self.names = []
        self.died = asyncio.Event()
        self._act_at = act_at
        self._happen = happen or (lambda name: None)
        self._is_deadly = is_deadly
        self._only = only or (lambda name: True)

    async def pass_by(self, name):
        if not self._only(name):
            return
        self.names.append(name)
        if len(self.names) - 1 != self._act_at:
            return
        self._happen(name)
        if self._is_deadly:
            self.died.set()
            await asyncio.Event().wait()


class Stepped:
    """A port whose every call passes by the steps before and after its effect."""

    def __init__(self, port, steps, label):
        self._port = port
        self._steps = steps
        self._label = label

    def __getattr__(self, name):
        found = getattr(self._port, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments, **options):
            detail = getattr(arguments[0], "operation", "") if arguments else ""
            label = f"{self._label}.{name} {detail}".rstrip()
            await self._steps.pass_by(f"before {label}")
            result = await found(*arguments, **options)
            await self._steps.pass_by(f"after {label}")
            return result

        return call


def stepped_ports(world, steps):
    """Return replacements for the ports of a world."""
    return {
        "leases": Stepped(world.leases, steps, "leases"),
        "state": Stepped(world.state, steps, "state"),
        "stream": Stepped(world.stream, steps, "stream"),
        "handler": Stepped(world.handler, steps, "handler"),
    }


async def process(world, steps, **options):
    """Run one turn as a process of its own; None when it died, and then nothing of it runs."""
    before = asyncio.all_tasks()
    turn = asyncio.create_task(world.turn(**options, **stepped_ports(world, steps)), name="turn")
    death = asyncio.create_task(steps.died.wait(), name="death")
    await asyncio.wait([turn, death], return_when=asyncio.FIRST_COMPLETED)
    if turn.done():
        death.cancel()
        await asyncio.gather(death, return_exceptions=True)
        try:
            return turn.result()
        finally:
            await world.kill(before)
    await world.kill(before)
    world.deaths.append(Crash(steps.names[-1]))
    return None


def deaths(prepared, *, every, steps_least):
    """
    Let a worker die at its steps, and another one go on; yield each world, and where it was.

    Args:
        prepared: coroutine function that returns the world.
        every: so many steps apart.
        steps_least: a turn without a death has more.

    """

    async def once(act_at):
        world, steps = await prepared(), Steps(act_at=act_at)
        await process(world, steps, turn_ms=14_000)
        await world.turn(turn_ms=30_000)
        return world, steps

    _, steps = run_virtual(once(None))
    assert len(steps.names) > steps_least
    for act_at in range(1, len(steps.names), every):
        world, steps = run_virtual(once(act_at))
        yield world, f"step {act_at}: {steps.names[act_at]}"
