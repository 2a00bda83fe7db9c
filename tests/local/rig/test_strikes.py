"""Who is struck: busy processes, each frozen one thawed again, unless Lambda has stopped it."""

import asyncio
import signal
from collections import Counter

import pytest

from shardfleet_local.aws.launcher import WorkerProcess
from shardfleet_local.rig import incidents
from shardfleet_local.rig.incidents import FREEZE_MS, STRIKE, Incident, Troublemaker


class StepClock:
    def __init__(self):
        self.ms = 0

    def monotonic_ms(self):
        return self.ms

    now_ms = monotonic_ms

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
    monkeypatch.setattr(incidents.os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def struck(fleet, strikes, seed=1):
    maker = Troublemaker(fleet, clock=StepClock(), seed=seed)
    for _ in range(strikes):
        maker._strike()
    return maker


def kinds(maker):
    return Counter(each.kind for each in maker.happenings)


def test_workers_and_managers_are_killed_and_counted(signals):
    fleet = Fleet(workers=range(100, 200), managers=range(200, 300))

    count = kinds(struck(fleet, 100))

    assert count["kill worker"] + count["kill manager"] == len(fleet.killed)
    assert count["kill manager"] == sum(pid >= 200 for pid in fleet.killed) > 10
    assert count["kill worker"] > count["kill manager"]
    assert count.total() == 100


def test_the_same_seed_strikes_the_same(signals):
    fleets = [Fleet(workers=range(9), managers=[20]) for _ in range(3)]
    for fleet, seed in zip(fleets, (1, 1, 2), strict=True):
        struck(fleet, 30, seed=seed)

    assert fleets[0].killed == fleets[1].killed != fleets[2].killed


def test_an_idle_process_is_left_alone_and_no_process_is_no_strike(signals):
    fleet = Fleet(idle=[1, 2])

    assert struck(fleet, 20).happenings == []
    assert (fleet.killed, signals) == ([], [])


def frozen_one(signals):
    fleet = Fleet(workers=[7])
    maker = Troublemaker(fleet, clock=StepClock(), seed=1)
    while not kinds(maker)["freeze"]:
        maker._strike()
    assert signals == [(7, signal.SIGSTOP)]
    return fleet, maker


def test_a_frozen_process_is_not_struck_again_and_is_thawed_in_time(signals):
    fleet, maker = frozen_one(signals)
    before = list(fleet.killed)
    maker._strike()
    maker._thaw()
    assert (fleet.killed, len(signals)) == (before, 1)

    maker._clock.ms += FREEZE_MS[1]
    maker._thaw()

    assert signals == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]
    maker._thaw(everything=True)
    assert len(signals) == 2


def test_a_process_that_lambda_has_stopped_meanwhile_is_not_thawed(signals):
    fleet, maker = frozen_one(signals)
    fleet.busy, fleet.idle = [], [7]

    maker._thaw(everything=True)

    assert signals == [(7, signal.SIGSTOP)]


def test_a_scenario_of_strikes_passes_over_what_is_not_there_and_leaves_nothing_frozen(signals):
    maker = Troublemaker(Fleet(workers=range(50)), clock=StepClock(), seed=3)
    strikes = [Incident(at=n / 60, kind=STRIKE, once=True) for n in range(60)]

    asyncio.run(maker.run(strikes, duration_ms=1_000))
    asyncio.run(Troublemaker(Fleet(), clock=StepClock(), seed=3).run(strikes, duration_ms=1))

    stopped = sorted(pid for pid, number in signals if number == signal.SIGSTOP)
    assert len(stopped) == kinds(maker)["freeze"] > 2
    assert stopped == sorted(pid for pid, number in signals if number == signal.SIGCONT)
