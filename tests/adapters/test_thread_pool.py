"""Threads that can be joined: hazards H10 and H17."""

import asyncio
import functools
import threading
import weakref

import pytest

from shardfleet.adapters.thread_pool import ThreadPool
from tests.virtual import in_a_loop

LONG_MS = 60_000  # generous: reached only when something is broken


class Gate:
    """A blocking call that a test holds up and lets go."""

    def __init__(self):
        self.begun = threading.Event()
        self.open = threading.Event()
        self.passed = threading.Event()

    def pass_through(self):
        self.begun.set()
        assert self.open.wait(LONG_MS / 1000)
        self.passed.set()
        return "through"

    async def has_begun(self):
        assert await asyncio.to_thread(self.begun.wait, LONG_MS / 1000)


@in_a_loop
async def test_a_call_returns_its_result_and_raises_its_exception():
    pool = ThreadPool("x", threads=1)
    assert await pool.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert await pool.close(within_ms=LONG_MS)


@in_a_loop
async def test_close_waits_for_a_call_whose_awaiting_task_was_cancelled():
    pool, gate = ThreadPool("x", threads=1), Gate()
    task = asyncio.create_task(pool.run(gate.pass_through))
    await gate.has_begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.running == 1  # cancelled, and still running
    closing = asyncio.create_task(pool.close(within_ms=LONG_MS))
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    assert await closing
    assert gate.passed.is_set()
    assert pool.running == 0


@in_a_loop
async def test_close_says_so_when_a_call_outlives_it():
    pool, gate = ThreadPool("x", threads=1), Gate()
    task = asyncio.create_task(pool.run(gate.pass_through))
    await gate.has_begun()
    assert not await pool.close(within_ms=10)
    gate.open.set()
    assert await task == "through"


def test_no_thread_is_left_after_close():
    async def main():
        pool = ThreadPool("left-over", threads=4)
        await asyncio.gather(*(pool.run(lambda: None) for _ in range(20)))
        assert await pool.close(within_ms=LONG_MS)

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if "left-over" in t.name]


@in_a_loop
async def test_a_closed_pool_takes_no_call_and_drops_those_not_begun():
    pool, gate = ThreadPool("x", threads=1), Gate()
    begun = asyncio.create_task(pool.run(gate.pass_through))
    await gate.has_begun()
    never = []
    waiting = asyncio.create_task(pool.run(lambda: never.append(1)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close(within_ms=LONG_MS))
    await asyncio.sleep(0)
    gate.open.set()
    assert await closing
    assert await begun == "through"
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert never == []
    with pytest.raises(RuntimeError):
        await pool.run(lambda: None)


def test_closing_does_not_wait_for_a_call_that_was_dropped_before_it_began():
    gate, closed = Gate(), []

    async def main():
        pool = ThreadPool("x", threads=1)
        running = asyncio.create_task(pool.run(gate.pass_through))
        await gate.has_begun()
        never = asyncio.create_task(pool.run(gate.pass_through))
        await asyncio.sleep(0)
        closing = asyncio.create_task(pool.close(within_ms=LONG_MS))
        await asyncio.sleep(0)
        gate.open.set()
        closed.append(await closing)
        await running
        assert (await asyncio.gather(never, return_exceptions=True))[0] is not None

    closer = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    closer.start()
    closer.join(timeout=10)
    assert closed == [True]


@in_a_loop
async def test_calls_that_hang_in_one_pool_do_not_delay_those_of_another():
    """Hung GetRecords calls must not hold up a renewal (hazard H17)."""
    reads, writes = ThreadPool("reads", threads=2), ThreadPool("writes", threads=1)
    gate = Gate()
    hung = [asyncio.create_task(reads.run(gate.pass_through)) for _ in range(8)]
    await gate.has_begun()
    assert await asyncio.wait_for(writes.run(lambda: "renewed"), LONG_MS / 1000) == "renewed"
    gate.open.set()
    assert await asyncio.gather(*hung) == ["through"] * 8
    assert await reads.close(within_ms=LONG_MS)
    assert await writes.close(within_ms=LONG_MS)


@in_a_loop
async def test_a_call_whose_awaiting_task_was_cancelled_before_it_began_is_not_made():
    pool, gate, made = ThreadPool("x", threads=1), Gate(), []
    running = asyncio.create_task(pool.run(gate.pass_through))
    await gate.has_begun()
    waiting = asyncio.create_task(pool.run(lambda: made.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.open.set()
    await running
    await pool.run(lambda: None)  # The one thread has come past it.
    assert made == []
    assert await pool.close(within_ms=LONG_MS)
    assert pool.running == 0


@in_a_loop
async def test_no_more_threads_are_started_than_calls_were_under_way_at_once():
    pool = ThreadPool("few", threads=8)
    for _ in range(20):
        await pool.run(lambda: None)
    assert len([t for t in threading.enumerate() if "few" in t.name]) == 1
    assert await pool.close(within_ms=LONG_MS)


@in_a_loop
async def test_a_call_keeps_nothing_alive_once_it_has_ended():
    class Page:
        pass

    pool = ThreadPool("x", threads=1)
    page, gone = Page(), threading.Event()
    weakref.finalize(page, gone.set)
    call = functools.partial(lambda page: page, page)
    assert await pool.run(call) is page
    del page, call
    # The thread may just be about to let go.
    assert await asyncio.to_thread(gone.wait, 10)
    assert await pool.close(within_ms=LONG_MS)
