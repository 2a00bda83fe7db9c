"""Virtual time: callbacks run in the order in which asyncio's own loop runs them."""

import asyncio
import random
import selectors
from contextvars import copy_context

import pytest

from shardfleet_testkit.clock import HOLDER, VirtualTimeLoop, run_virtual
from tests.virtual import virtual

TICKS = 400


class SkippingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves its loop's clock."""

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout:
            self.loop.now_s += max(timeout, 1e-6)
        return ready


class AsyncioLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, told another time."""

    def __init__(self):
        selector = SkippingSelector()
        selector.loop, self.now_s = self, 0.0
        super().__init__(selector)

    def time(self):
        return self.now_s


def told_by(loop_factory, seed):
    """Return what runs when: timers at few instants, many cancelled, and tasks that wait."""
    chance, told, timers = random.Random(seed), [], []

    async def waits(name):
        for _ in range(3):
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.002)))
            told.append((name, round(asyncio.get_running_loop().time(), 9)))

    async def main():
        loop = asyncio.get_running_loop()
        tasks = []
        for tick in range(TICKS):
            at_s = loop.time() + chance.choice((0, 0.001, 0.001, 0.01, 1.0))
            timers.append(loop.call_at(at_s, told.append, ("timer", tick)))
            loop.call_soon(told.append, ("soon", tick))
            for timer in chance.sample(timers, k=min(chance.randrange(seed % 4 + 1), len(timers))):
                timer.cancel()
            if chance.random() < 0.3:
                tasks.append(asyncio.create_task(waits(tick)))
            if chance.random() < 0.1:
                chance.choice(tasks or [asyncio.create_task(waits(tick))]).cancel()
            await asyncio.sleep(chance.choice((0, 0, 0, 0.001)))
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(2)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    return told


@pytest.mark.parametrize("offset", range(20))
def test_callbacks_run_in_the_order_of_asyncios_own_loop(seed, offset):
    told = told_by(VirtualTimeLoop, seed + offset)

    assert told == told_by(AsyncioLoop, seed + offset)
    assert sum(name == "timer" for name, _ in told) > TICKS / 20


@virtual
async def test_what_is_due_while_its_holder_is_frozen_is_parked():
    class Parking:
        def __init__(self):
            self.is_frozen, self.parked = True, []

        def park(self, callback, args, context):
            self.parked.append((callback, args, context))

    holder, told, context = Parking(), [], copy_context()
    context.run(HOLDER.set, holder)
    loop = asyncio.get_running_loop()
    loop.call_soon(told.append, "soon", context=context)
    loop.call_later(1, told.append, "later", context=context)
    await asyncio.sleep(2)
    assert told == []
    assert [args for _, args, _ in holder.parked] == [("soon",), ("later",)]
    holder.is_frozen = False
    loop.call_soon(told.append, "thawed", context=context)
    await asyncio.sleep(0)
    assert told == ["thawed"]


@pytest.mark.parametrize("freezes", [False, True])
def test_a_pause_ends_at_its_time_unless_whoever_pauses_is_frozen(freezes):
    class Parking:
        is_frozen = False

        def park(self, callback, args, context):
            parked.append((callback, args, context))

    parked, told, holder = [], [], Parking()

    async def pauses():
        await asyncio.get_running_loop().pause(1.5)
        told.append(asyncio.get_running_loop().time())

    async def main():
        loop, context = asyncio.get_running_loop(), copy_context()
        context.run(HOLDER.set, holder)
        task = loop.create_task(pauses(), context=context)
        await asyncio.sleep(1)
        holder.is_frozen = freezes
        await asyncio.sleep(1)
        assert (told, len(parked)) == (([], 1) if freezes else ([1.5], 0))
        holder.is_frozen = False
        for callback, args, own in parked:
            loop.call_soon(callback, *args, context=own)
        await task

    run_virtual(main())
    assert told == [2.0 if freezes else 1.5]


def test_a_wait_that_nothing_can_end_is_an_error():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        run_virtual(main())


def test_what_a_run_returns_is_not_written_out():
    """Asyncio would, giving SIGINT back: a simulated fleet's result holds its whole log."""

    class Result:
        written = 0

        def __repr__(self):
            Result.written += 1
            return "result"

    async def main():
        return Result()

    assert isinstance(run_virtual(main()), Result)
    assert Result.written == 0
