"""The checkers of sleep each see a planted violation and a bug put into the engine."""

import random

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import assign
from shardfleet.domain.reasons import RecordsCame
from shardfleet.domain.sleep.sleep import Found
from shardfleet.engine.manager.prober import Prober
from shardfleet.engine.shard.sleep import IdleShard
from shardfleet.events.manager import LeaseWoken, ManagerTurnDone
from shardfleet.events.worker import LeaseAsleep, TurnBegun
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import SourceRecord
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix
from tests.simulation.test_checkers_planted import (
    FREE,
    KEY,
    MANAGER,
    ME,
    MINE,
    Somebody,
    planted,
    writes,
)


def sleeping(seed):
    return lambda shape: shape.sleeping(random.Random(seed))


def first_violation(checker, **options):
    for seed in range(1, 5):
        given = Options(
            seed=seed, is_small=True, checkers=(checker,), reshape=sleeping(seed), **options
        )
        found = run_seed(given).violations
        if found:
            return found[0]
    return None


def an_entry(number, put_ms, **fields):
    return SourceRecord(KEY, (number, 0), "k", number, put_ms, b"", **fields)


@pytest.mark.parametrize(
    ("put_ms", "is_done", "violations"),
    [(5_000, True, 0), (5_000, False, 1), (19_500, False, 0), (16_000, True, 1)],
)
def test_a_shard_that_sleeps_over_a_record_is_found(put_ms, is_done, violations):
    checker, found = planted(checkers.OnlyIdleShardsSleep)

    checker.ledger.put(an_entry(1, put_ms, times=int(is_done)))
    checker.read_begun(20_000, ME, KEY)
    checker.told(20_100, ME, LeaseAsleep(lease_key=KEY, worker_id=ME.worker_id, idle_ms=8_000))
    assert len(found) == violations


@pytest.mark.parametrize(
    ("looks", "refused", "violations"), [(5, 0, 0), (6, 0, 1), (6, 1, 0), (7, 1, 1), (9, 9, 0)]
)
@pytest.mark.parametrize("is_end", [False, True])
def test_a_sleeper_that_is_not_woken_is_found(looks, refused, violations, is_end):
    checker, found = planted(checkers.SleepersAreWoken)
    manager = Somebody("manager#1", "", (0, 0))

    checker.told(0, ME, LeaseAsleep(lease_key=KEY, worker_id=ME.worker_id, idle_ms=1))
    checker.read_begun(1, manager, KEY)
    if is_end:
        checker.ledger.open_shard("child", (KEY,))
    else:
        checker.ledger.put(an_entry(1, 10))
    for look in range(looks):
        checker.read_begun(60_000 * (look + 1), manager, KEY)
        if look < refused:
            # It may have been to tell the fleet what it had just seen.
            manager.faults.append((60_000 * (look + 1), "throttled"))
    assert len(found) == violations


def test_a_sleeper_that_is_woken_or_taken_is_none_any_more():
    checker, found = planted(checkers.SleepersAreWoken)
    asleep = LeaseAsleep(lease_key=KEY, worker_id=ME.worker_id, idle_ms=1)
    checker.ledger.put(an_entry(1, 10))

    checker.told(0, ME, asleep)
    checker.told(1, MANAGER, LeaseWoken(lease_key=KEY, reason=RecordsCame(), slept_ms=1))
    for look in range(9):
        checker.read_begun(60_000 * (look + 1), MANAGER, KEY)
    checker.told(0, ME, asleep)
    writes(checker, assign(FREE, ME.worker_id), before=FREE, after=MINE)
    for look in range(9):
        checker.read_begun(60_000 * (look + 1), MANAGER, KEY)
    assert not found


def test_a_worker_that_takes_lag_for_rest_is_found(monkeypatch):
    real = IdleShard.after

    async def whatever_lag(self, page, cursor, *, is_busy):
        as_if = replace(page, millis_behind_latest=0, size_bytes=0)
        await real(self, as_if, cursor, is_busy=False)

    monkeypatch.setattr(IdleShard, "after", whatever_lag)
    assert first_violation(checkers.OnlyIdleShardsSleep)


def test_a_manager_that_never_sees_anything_is_found(monkeypatch):
    real = Prober._ask

    async def blind(self, nap, iterator):
        await real(self, nap, iterator)
        return Found.NOTHING, iterator

    monkeypatch.setattr(Prober, "_ask", blind)

    assert first_violation(checkers.SleepersAreWoken, mix=FaultMix.none())


@pytest.mark.parametrize(("slots_wanted", "violations"), [(1, 0), (0, 1)])
def test_a_manager_that_turns_although_everything_sleeps_is_found(slots_wanted, violations):
    checker, found = planted(checkers.SleepersCostNoTurns)
    numbers = dict.fromkeys(ManagerTurnDone.__struct_fields__, 0)
    turn = ManagerTurnDone(**numbers | {"sleeping_leases": 2, "slots_wanted": slots_wanted})

    for _ in range(4):
        checker.told(1, MANAGER, turn)

    assert len(found) == violations


def test_turns_that_workers_ask_for_are_no_waste():
    checker, found = planted(checkers.SleepersCostNoTurns)
    numbers = dict.fromkeys(ManagerTurnDone.__struct_fields__, 0)
    begun = TurnBegun(**dict.fromkeys(TurnBegun.__struct_fields__, ""))

    for _ in range(4):
        checker.told(1, ME, begun)
        checker.told(1, MANAGER, ManagerTurnDone(**numbers | {"sleeping_leases": 2}))

    assert not found
