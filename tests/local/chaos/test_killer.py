"""Who is struck: busy processes, each frozen one thawed again, unless Lambda has stopped it."""

import asyncio
import signal

import pytest

from shardfleet_local.aws.launcher import WorkerProcess
from shardfleet_local.chaos import killer as killing
from shardfleet_local.chaos.killer import FREEZE_MS, PAUSE_MS, Killer


class StepClock:
    def __init__(self):
        self.ms = 0

    def monotonic_ms(self):
        return self.ms

    async def sleep_ms(self, duration_ms):
        self.ms += duration_ms
        await asyncio.sleep(0)


class Fleet:
    def __init__(self, *, workers=(), managers=(), idle=()):
        self.busy, self.managing, self.idle = list(workers), list(managers), list(idle)
        self.killed = []

    def workers(self):
        busy = [WorkerProcess(pid, "worker", "1", True, False) for pid in self.busy]
        return busy + [WorkerProcess(pid, "worker", "1", False, True) for pid in self.idle]

    def managers(self):
        return [WorkerProcess(pid, "manager", "1", True, False) for pid in self.managing]

    def kill(self, pid):
        self.killed.append(pid)
        return True


@pytest.fixture
def signals(monkeypatch):
    sent = []
    monkeypatch.setattr(killing.os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def struck(fleet, strikes, seed=1):
    killer = Killer(fleet, clock=StepClock(), seed=seed)
    for _ in range(strikes):
        killer.strike()
    return killer


def test_workers_and_managers_are_killed_and_counted(signals):
    fleet = Fleet(workers=range(100, 200), managers=range(200, 300))

    killer = struck(fleet, 100)

    assert killer.kills == len(fleet.killed)
    assert killer.counts["manager"] == sum(pid >= 200 for pid in fleet.killed) > 10
    assert killer.counts["worker"] > killer.counts["manager"]
    assert killer.kills + killer.counts["freeze"] == 100


def test_the_same_seed_strikes_the_same(signals):
    fleets = [Fleet(workers=range(9), managers=[20]) for _ in range(3)]
    for fleet, seed in zip(fleets, (1, 1, 2), strict=True):
        struck(fleet, 30, seed=seed)

    assert fleets[0].killed == fleets[1].killed != fleets[2].killed


def test_an_idle_process_is_left_alone_and_no_process_is_no_strike(signals):
    fleet = Fleet(idle=[1, 2])

    assert struck(fleet, 20).counts == {}
    assert (fleet.killed, signals) == ([], [])


def frozen_one(signals):
    fleet = Fleet(workers=[7])
    killer = Killer(fleet, clock=StepClock(), seed=1)
    while not killer.counts["freeze"]:
        killer.strike()
    assert signals == [(7, signal.SIGSTOP)]
    return fleet, killer


def test_a_frozen_process_is_not_struck_again_and_is_thawed_in_time(signals):
    fleet, killer = frozen_one(signals)
    before = list(fleet.killed)
    killer.strike()
    killer.thaw_due()
    assert (fleet.killed, len(signals)) == (before, 1)

    killer._clock.ms += FREEZE_MS[1]
    killer.thaw_due()

    assert signals == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]
    killer.thaw_due(everything=True)
    assert len(signals) == 2


def test_a_process_that_lambda_has_stopped_meanwhile_is_not_thawed(signals):
    fleet, killer = frozen_one(signals)
    fleet.busy, fleet.idle = [], [7]

    killer.thaw_due(everything=True)

    assert signals == [(7, signal.SIGSTOP)]


def test_it_strikes_until_stopped_and_leaves_nothing_frozen(signals):
    fleet = Fleet(workers=range(50))
    killer = Killer(
        fleet,
        clock=StepClock(),
        seed=3,
        say=lambda _: killer.stop() if killer.counts["freeze"] == 3 else None,
    )

    asyncio.run(killer.run())

    strikes = killer.kills + killer.counts["freeze"]
    assert killer._clock.ms >= strikes * PAUSE_MS[0]
    stopped = sorted(pid for pid, number in signals if number == signal.SIGSTOP)
    assert stopped == sorted(pid for pid, number in signals if number == signal.SIGCONT)
