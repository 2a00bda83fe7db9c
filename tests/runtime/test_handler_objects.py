"""A handler that is a class: an object per shard, told by hooks, in the handler's thread."""

import asyncio
import gc
import sys
import threading
import time
import types
import weakref

import pytest

from shardfleet.adapters.system import SystemClock
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.records import ShardLife, leave_open
from shardfleet.runtime.handler_runner import ThreadHandlerRunner
from tests.runtime.test_handler_runner import STREAM_ARN, InvocationContext, a_batch


def run(found, scenario, monkeypatch, **settings):
    module = types.ModuleType("user_class_of_a_test")
    module.Found = found
    monkeypatch.setitem(sys.modules, module.__name__, module)
    runner = ThreadHandlerRunner(
        f"{module.__name__}:Found",
        contract="auto",
        context=InvocationContext(),
        stream_arn=STREAM_ARN,
        clock=SystemClock(),
        **settings,
    )

    async def main():
        await runner.load()
        result = await scenario(runner)
        assert await runner.close()
        return result

    return asyncio.run(main())


def shard(number=0, **given):
    return a_batch(shard=number, count=0, **given)


class Told:
    """Says what it is told, where, and on which object."""

    said = ()

    def __init__(self):
        self._say("made")

    def _say(self, what, *more):
        Told.said.append((what, *more, id(self), threading.current_thread().name))

    def handle(self, batch):
        self._say("handle", batch.shard_id, len(batch))

    def started(self, shard):
        self._say("started", shard.shard_id)

    def ended(self, shard):
        self._say("ended", shard.shard_id)

    def stopping(self, shard, until):
        self._say("stopping", shard.shard_id, until == shard.deadline_ms)

    def lease_lost(self, shard):
        self._say("lease_lost", shard.shard_id)


class AsyncTold(Told):
    async def handle(self, batch):
        Told.handle(self, batch)

    async def stopping(self, shard, until):
        Told.stopping(self, shard, until)


class HalfAsyncTold(Told):
    async def started(self, shard):
        await asyncio.sleep(0)
        Told.started(self, shard)


@pytest.mark.parametrize("kind", [Told, AsyncTold, HalfAsyncTold])
def test_each_shard_has_an_object_from_started_to_its_last_hook(kind, monkeypatch):
    Told.said = []

    async def scenario(runner):
        assert runner.has_hooks
        assert runner.overlaps is (kind is AsyncTold)
        for number in (0, 1):
            assert (await runner.tell(Hook.STARTED, shard(number))).error is None
        for number in (0, 1):
            assert (await runner.run(a_batch(shard=number))).done_count == 2
        for hook, number in ((Hook.STOPPING, 0), (Hook.ENDED, 1), (Hook.STARTED, 0)):
            assert (await runner.tell(hook, shard(number))).error is None
        return await runner.tell(Hook.LEASE_LOST, shard(0))

    run(kind, scenario, monkeypatch)
    zero, one = "shardId-000000000000", "shardId-000000000001"
    objects = {}
    named = [
        (*said[:-2], "abc"[objects.setdefault((said[-2], n > 7), len(objects))])
        for n, said in enumerate(Told.said)
    ]
    assert named == [
        ("made", "a"),
        ("started", zero, "a"),
        ("made", "b"),
        ("started", one, "b"),
        ("handle", zero, 2, "a"),
        ("handle", one, 2, "b"),
        ("stopping", zero, True, "a"),
        ("ended", one, "b"),
        ("made", "c"),
        ("started", zero, "c"),
        ("lease_lost", zero, "c"),
    ]
    assert {said[-1] for said in Told.said} == {"shardfleet-handler"}


@pytest.mark.parametrize("hook", [Hook.STOPPING, Hook.LEASE_LOST, Hook.ENDED])
def test_after_its_last_hook_an_object_is_let_go_of(hook, monkeypatch):
    alive = weakref.WeakSet()

    class Heavy(Told):
        def __init__(self):
            alive.add(self)

    async def scenario(runner):
        await runner.tell(Hook.STARTED, shard())
        assert len(alive) == 1
        await runner.tell(hook, shard())
        gc.collect()
        assert len(alive) == 0

    Told.said = []
    run(Heavy, scenario, monkeypatch)


def test_what_a_class_lacks_is_told_it_by_a_batch_to_flush_if_something_is_open(monkeypatch):
    seen = []

    class OnlyHandle:
        def handle(self, batch):
            seen.append(batch.must_flush)

    async def scenario(runner):
        assert (await runner.tell(Hook.STARTED, shard())).error is None
        leaving = shard()
        leave_open(leaving, ShardLife(), must_flush=True)
        assert (await runner.tell(Hook.STOPPING, leaving)).error is None
        await runner.tell(Hook.STARTED, shard())
        return await runner.tell(Hook.STOPPING, shard())

    run(OnlyHandle, scenario, monkeypatch)
    assert seen == [True]


def test_ended_with_records_open_has_failed_and_is_called_again(monkeypatch):
    class Forgetful(Told):
        def ended(self, shard):
            if self.__dict__.setdefault("again", 0):
                shard.checkpoint()
            self.again = 1

    async def scenario(runner):
        life = ShardLife()
        await runner.tell(Hook.STARTED, shard())
        batch = a_batch()
        leave_open(batch, life, must_flush=False)
        await runner.run(batch)
        results = []
        for _ in range(2):
            over = shard()
            leave_open(over, life, must_flush=True)
            results.append((await runner.tell(Hook.ENDED, over)).error)
        return results

    first, second = run(Forgetful, scenario, monkeypatch)
    assert "records are open" in first
    assert "shard.checkpoint()" in first
    assert second is None


class Raising(Told):
    def started(self, shard):
        raise SystemExit("no bucket")


class Unmakeable(Told):
    def __init__(self):
        raise OSError("no bucket")


@pytest.mark.parametrize(("kind", "named"), [(Raising, "SystemExit"), (Unmakeable, "OSError")])
def test_a_hook_or_a_class_that_raises_is_one_error_and_no_more(kind, named, monkeypatch):
    async def scenario(runner):
        return await runner.tell(Hook.STARTED, shard())

    result = run(kind, scenario, monkeypatch, tells_errors=True)
    assert result.error.startswith(f"{named}: no bucket (test_handler_objects.py")
    assert not result.timed_out


def test_an_async_hook_that_hangs_is_cancelled_and_delays_no_other_shard(monkeypatch):
    class Hanging:
        async def handle(self, batch): ...

        async def stopping(self, shard, until):
            await asyncio.sleep(60)

    async def scenario(runner):
        for number in (0, 1):
            await runner.tell(Hook.STARTED, shard(number))
        hanging = asyncio.create_task(runner.tell(Hook.STOPPING, shard(0, within_ms=300)))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        assert (await runner.run(a_batch(shard=1))).error is None
        assert time.monotonic() - began < 0.2
        return await hanging

    result = run(Hanging, scenario, monkeypatch)
    assert result.error == "cancelled: the call outlived its time-out"
    assert not result.timed_out
