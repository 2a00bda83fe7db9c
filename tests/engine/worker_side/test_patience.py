"""Waiting that can be called off, and tasks that are always waited for."""

import asyncio
import weakref

import pytest

from shardfleet.engine.retry import Halt, Halted, Patience, Signal, all_of, each_of
from shardfleet.engine.worker.tasks import TurnTasks
from shardfleet.errors import OutcomeUnknown, StreamGone, Throttled
from shardfleet.runtime.bootstrap import WRITE_THREADS_MOST
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import SeededEntropy
from tests.virtual import virtual


def patience(clock):
    return Patience(clock=clock, entropy=SeededEntropy(1), first_ms=200, most_ms=5_000)


@virtual
async def test_nothing_is_left_running_by_the_failure_of_one_call():
    """H10: asyncio.gather would return at once and leave the others running."""
    clock = VirtualClock()
    ended = []

    async def slow():
        await clock.sleep_ms(500)
        ended.append("slow")

    async def fails(error):
        raise error

    with pytest.raises(Throttled, match="first"):
        await all_of(fails(Throttled("first")), slow(), fails(ValueError("second")))
    assert ended == ["slow"]
    assert await all_of() == []


@virtual
async def test_a_refused_call_is_repeated_until_it_is_answered_or_called_off():
    clock = VirtualClock()
    left = [Throttled("a"), OutcomeUnknown("b"), Throttled("c")]

    async def call():
        if left:
            raise left.pop()
        return 7

    assert await patience(clock).persist(call, Halt()) == 7
    assert 100 + 200 + 400 <= clock.monotonic_ms() <= 200 + 400 + 800

    halt = Halt()
    left.extend([Throttled("for ever")] * 100)
    asyncio.get_running_loop().call_later(3, halt.set)
    began_ms = clock.monotonic_ms()
    with pytest.raises(Halted):
        await patience(clock).persist(call, halt)
    assert clock.monotonic_ms() - began_ms == 3_000


@virtual
async def test_a_stream_is_gone_when_it_was_denied_so_often_in_a_row_and_not_in_all():
    gone, throttled = StreamGone("not found"), Throttled("refused")
    answers = [*[gone, gone, gone, throttled] * 5, 7]

    async def call():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await patience(VirtualClock()).persist(call, Halt()) == 7
    answers.extend([throttled, gone, gone, gone, gone, 7])
    with pytest.raises(StreamGone):
        await patience(VirtualClock()).persist(call, Halt())
    assert answers == [7]


@virtual
async def test_an_error_that_is_no_refusal_is_not_repeated():
    calls = []

    async def call():
        calls.append(1)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await patience(VirtualClock()).persist(call, Halt())
    assert len(calls) == 1


@virtual
async def test_an_event_that_came_before_the_halt_counts():
    event, halt = Signal(), Halt()
    event.set()
    halt.set()
    await halt.unless(event)
    with pytest.raises(Halted):
        await halt.unless(Signal())
    with pytest.raises(Halted):
        halt.check()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_what_is_waited_for_beside_a_halt_is_there_in_the_next_round_of_the_loop():
    signal, halt = Signal(), Halt()
    waiting = [asyncio.create_task(halt.unless(signal)) for _ in range(2)]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task(), *waiting}
    signal.set()
    await asyncio.sleep(0)
    assert [task.done() and task.exception() for task in waiting] == [None, None]
    signal.clear()
    late = asyncio.create_task(halt.unless(signal))
    await asyncio.sleep(0)
    halt.set()
    await asyncio.sleep(0)
    assert late.done()
    assert isinstance(late.exception(), Halted)
    assert signal.waiters == []


@virtual
async def test_the_failure_of_a_task_is_told_when_it_happens_and_the_others_are_waited_for():
    clock = VirtualClock()
    told, ended = [], []

    async def work(after_ms, error=None):
        await clock.sleep_ms(after_ms)
        if error:
            raise error

    tasks = TurnTasks(lambda error: told.append((clock.monotonic_ms(), str(error))))
    tasks.start(work(100, ValueError("early")), name="a", ended=lambda: ended.append("a"))
    tasks.start(work(900), name="b", ended=lambda: ended.append("b"))
    assert tasks.names == ["a", "b"]
    hard = Halt()
    asyncio.get_running_loop().call_later(0.5, hard.set)
    assert not await tasks.are_done(hard)
    assert tasks.names == ["b"]
    assert await tasks.are_done(Halt())
    assert (told, ended) == ([(100, "early")], ["a", "b"])


@virtual
async def test_a_wait_that_is_over_leaves_nothing_behind():
    """A turn's halt is waited for before each read of each shard."""
    loop, made = asyncio.get_running_loop(), []
    create = loop.create_future

    def noted():
        future = create()
        made.append(weakref.ref(future))
        return future

    loop.create_future = noted
    halt = Halt()
    for _ in range(10):
        assert not await halt.wait(10)
    assert len(made) >= 10
    # The last one's timer may be there still.
    assert sum(each() is not None for each in made) <= 1


@virtual
async def test_of_many_calls_as_many_are_made_at_once_as_there_are_threads_for_them():
    running, most = 0, 0

    async def call(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    await each_of(range(40), call)
    assert most == WRITE_THREADS_MOST
