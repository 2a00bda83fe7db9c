"""
Whatever any port raises for one shard, its neighbours' next record waits less than two seconds.

Architecture.md, rule 17. The calls are those of the ports themselves, so a new one is tried, too,
and so is what nobody foresaw: a TypeError.
"""

import asyncio
import typing
from functools import partial

import pytest

from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.state.kinds import WINDOW
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.errors import ShardGone, Throttled
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import MemoryWindowStates, World, key

ILL, WELL = 1, (0, 2)
SECONDS, ENDS = 30, 20
SETTINGS = {"max_attempts": 2, "on_exhausted": "sqs", "failed_queue_url": "q"}
WAITS_MOST_MS = 2_000
LARGE = {"pad": "x" * 400_000}
# What is asked for the turn as a whole, whichever shard's work asks; nothing of one shard is left
# to try, or, for the end of the process, nothing that could go on.
OF_NO_SHARD = {"handler.load", "handler.close", "process.end"}
# What no shard's consumer asks: the turn does, the manager, an operator.
OF_OTHERS = {
    "clock.sleep_ms",
    "cpu.used_ms",
    "entropy.token",  # Of a state of a window that is too large for an item alone.
    "leases.keys_owned_by",
    "leases.scan",
    "leases.survey",
    "manager.call",
    "source.ways",
    "state.delete",
    "state.list",
    "state.page",
}


def port_calls():
    """Return every call of every port of a worker turn, as ``port.method``."""
    for port, kind in typing.get_type_hints(WorkerPorts).items():
        for protocol in (kind, *typing.get_args(kind)):
            if getattr(protocol, "_is_protocol", False) or protocol is FailurePolicy:
                for name, member in vars(protocol).items():
                    if not name.startswith("_") and (
                        callable(member) or isinstance(member, property)
                    ):
                        yield f"{port}.{name}"


CALLS = sorted(set(port_calls()) - OF_NO_SHARD)


class Cpu:
    """What a process uses of its CPU: nothing."""

    def used_ms(self):
        return 0


class Ill:
    """A port that raises in one call, for one shard: in its own task, or in whatever names it."""

    def __init__(self, port, name, raised):
        self.__dict__.update(_port=port, _name=name, _raised=raised)

    def __setattr__(self, name, value):
        setattr(self._port, name, value)

    def __getattr__(self, name):
        member = getattr(self._port, name)
        if name != self._name:
            return member
        if not callable(member):
            self._check(())
            return member

        def call(*arguments, **named):
            self._check((*arguments, *named.values()))
            return member(*arguments, **named)

        return call

    def _check(self, arguments):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        of_task = task is not None and task.get_name() == f"shard {key(ILL)}"
        named = any(key(ILL) in (each, getattr(each, "lease_key", None)) for each in arguments)
        if of_task or named:
            self._raised.append(self._name)
            raise TypeError("nobody foresaw this")


def test_all_ports_of_a_worker_are_looked_at():
    ports = {call.partition(".")[0] for call in CALLS}
    assert ports == set(WorkerPorts.__struct_fields__) - {"process", "progress"}
    assert len(CALLS) > 20


def windows_for(call):
    """Return the settings without which a call would not be made."""
    windows = {"tumbling_window_ms": 1_000, "checkpoint_ms": 1_000}
    return windows if call.startswith("window_states.") else {}


class Life:
    """Three shards, one of them ill: a record a second each, a throttle, an absence, its end."""

    def __init__(self, call, *, overlaps, world=None):
        self.port, _, name = call.partition(".")
        self.world = world or World(shards=3, **SETTINGS, **windows_for(call))
        self.world.handler.overlaps = overlaps
        self.world.handler._script = self.handled
        if call == "handler.tell":
            self.world.handler.hooks = self.told
        self.world.stream.fault = self.fault
        self.raised, self.waits, self.second = [], {}, 0
        self.states = MemoryWindowStates() if windows_for(call) else None
        real = self.states or getattr(self.world.ports(), self.port) or Cpu()
        self.ports = {self.port: Ill(real, name, self.raised)}

    async def begin(self):
        """Let each shard have a window whose state is kept elsewhere, if there are windows."""
        for place in (key(number) for number in (*WELL, ILL) if self.states):
            self.states.kept[place] = "{}"
            body = {"since": "TRIM_HORIZON:0", "through": "TRIM_HORIZON:0", "start_ms": 0}
            body |= {"state": "", "kept_at": place}
            await self.world.state.write(WINDOW, place, body, expected_version=None)

    async def told(self, hook, shard):
        """Do nothing, as a class without hooks."""

    async def handled(self, batch):
        if batch.shard_id == key(ILL) and self.port == "policy":
            raise ValueError("given up, and kept")
        for record in batch:
            self.waits[int(record.data)] += self.world.clock.now_ms()
        return {"state": LARGE} if batch.window else None

    def fault(self, read):
        """Refuse the ill shard once, then know nothing of it for two seconds."""
        if read.shard_id == key(ILL) and read.operation == "get_records":
            if self.second == 3:
                raise Throttled("once")
            if self.second in (6, 7):
                raise ShardGone("for a while")

    async def feed(self):
        for self.second in range(SECONDS):
            await self.world.clock.sleep_ms(1_000)
            if self.second == ENDS:
                self.world.stream.split(key(ILL))
            for number in (*WELL, ILL)[: 3 if self.second < ENDS else 2]:
                at = 100 * self.second + number
                self.waits[at] = -self.world.clock.now_ms()
                self.world.put(at, number=number)
        await self.world.clock.sleep_ms(WAITS_MOST_MS)

    def late(self):
        """Return the records of the others that waited too long, or still do."""
        waits = ((at, wait) for at, wait in self.waits.items() if at % 100 in WELL)
        return {at: wait for at, wait in waits if not 0 <= wait < WAITS_MOST_MS}


async def delays_no_other(life_of, call):
    life = life_of(call)
    await life.begin()
    turn = asyncio.create_task(life.world.turn(**life.ports))
    await life.feed()
    assert not life.late(), f"{len(life.raised)} raised"
    assert await turn is TurnOutcome.CONTINUE
    assert bool(life.raised) == (call not in OF_OTHERS)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_port_that_raises_for_one_shard_delays_no_other_by_two_seconds(call, overlaps):
    run_virtual(delays_no_other(partial(Life, overlaps=overlaps), call))
