"""Whole fleets from seeds: the time-boxed slice of `make sim`."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from shardfleet.engine.ownership.writer import LeaseWriter
from shardfleet.engine.shard.consumer import ShardConsumer
from shardfleet.engine.shard.faults import ShardFaults
from shardfleet_testkit.checkers import CHECKERS, NeighboursGoOn
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.shapes import Shape
from tests.simulation.mutants.arenas import ARENAS

BUSY_S = 120.0
SEEDS = (1, 3, 5, 11)


def run_without_violation(seed):
    result = run_seed(Options(seed=seed, busy_s=BUSY_S))
    assert not result.violations, f"shardfleet simulate --seed {seed} (busy for {BUSY_S} s)"
    return result


def test_fleets_of_fixed_seeds_break_no_invariant_under_many_faults():
    results = [run_without_violation(seed) for seed in SEEDS]

    assert sum(result.reshards for result in results) > 10
    assert sum(sum(result.faults.values()) for result in results) > 500
    assert sum(result.ended_hard for result in results) > 20
    assert min(result.records for result in results) > 50


class NeighboursGoOnAtOnce(NeighboursGoOn):
    """As it is where nothing else goes wrong."""

    waits_most_ms = 2_000


def consumers_that_raise(seed, **options):
    mix = replace(FaultMix.none(), consumer_raises=0.02)
    return run_seed(Options(seed=seed, busy_s=BUSY_S, mix=mix, **options))


def test_what_one_consumer_raises_stops_no_other_shard():
    """Before consumers were supervised alone, the first error ended a turn (TurnsEndCleanly)."""
    for seed in (1, 2):
        result = consumers_that_raise(seed, checkers=(*CHECKERS, NeighboursGoOnAtOnce))
        assert not result.violations, f"seed {seed}"
        assert result.faults["consumer_raises"] > 10


def test_a_worker_whose_shards_wait_for_one_that_failed_is_found(monkeypatch):
    failing = []
    withstand, next_page = ShardFaults.withstand, ShardConsumer._next_page

    async def for_all(self, held, error):
        failing.append(held)
        try:
            await withstand(self, held, error)
            await self._patience.pause(2_000, held.halt)
        finally:
            failing.remove(held)

    async def after_all(self, reader):
        while failing:
            await self._patience.pause(100, self._held.halt)
        return await next_page(self, reader)

    monkeypatch.setattr(ShardFaults, "withstand", for_all)
    monkeypatch.setattr(ShardConsumer, "_next_page", after_all)
    found = consumers_that_raise(1, checkers=(NeighboursGoOnAtOnce,)).violations

    assert found
    assert "since a neighbour failed" in str(found[0])


def test_aggregates_that_take_long_to_be_taken_apart_cost_no_lease():
    results = [
        run_seed(Options(seed=seed, busy_s=BUSY_S, mix=replace(FaultMix.none(), decode_bomb=0.03)))
        for seed in (2, 6)
    ]

    assert [str(violation) for result in results for violation in result.violations] == []
    assert min(result.faults["decode_bomb"] for result in results) > 1


def left_alone():
    """Run fleets that nobody invokes for longer than records are kept."""
    given = [Options(seed=seed, is_small=True, reshape=Shape.left) for seed in (1, 3, 10)]
    return [run_seed(replace(options, keeps_log=True)) for options in given]


def test_what_is_trimmed_while_nothing_is_invoked_is_told_and_nothing_else():
    results = left_alone()

    assert [str(violation) for result in results for violation in result.violations] == []
    told = [line for result in results for line in result.lines if "event PositionLost" in line]
    assert len(told) > 3


def test_a_loss_that_is_told_to_nobody_is_found(monkeypatch):
    async def say_nothing(self, error):
        del self, error

    monkeypatch.setattr(ShardConsumer, "_judge_gap", say_nothing)

    assert all(result.violations for result in left_alone())


def small_fleets(**rates):
    mix = replace(FaultMix.none(), **rates)
    given = [Options(seed=seed, busy_s=BUSY_S, mix=mix, is_small=True) for seed in (1, 3, 5)]
    return [run_seed(options) for options in given]


@pytest.mark.parametrize("rates", [{"clock_jumps": 0.03}, {"clocks_jump": 0.02}])
def test_wall_clocks_that_jump_an_hour_break_no_invariant(rates):
    results = small_fleets(**rates)

    assert [str(violation) for result in results for violation in result.violations] == []
    assert sum(sum(result.faults.values()) for result in results) >= 3


def test_an_age_by_the_wall_clock_alone_is_found_where_it_jumps_and_nowhere_else(monkeypatch):
    """Hazard H15 without its rule."""

    def by_the_wall(self, held):
        return self.instant().wall_ms - held.confirmed.wall_ms

    monkeypatch.setattr(LeaseWriter, "age_ms", by_the_wall)

    assert not any(result.violations for result in small_fleets())
    assert all(result.violations for result in small_fleets(clock_jumps=0.03))


def test_a_fleet_that_shares_its_stream_with_a_kcl_like_worker_breaks_no_invariant():
    wanted = {
        r" java#\d+ +handled ",
        r" java#\d+ +lease.apply initiate_handover .*Applied",
        r" s\d+#\d+ +event HandoverNoticed",
    }
    for seed in range(1, 20):
        result = run_seed(replace(ARENAS["handovers"](seed), keeps_log=True))
        assert not result.violations, f"seed {seed} of the arena 'handovers'"
        wanted -= {w for w in wanted if any(re.search(w, line) for line in result.lines)}
        if not wanted:
            break

    assert not wanted


def test_shards_that_are_not_found_beside_old_listings_end_no_sooner_than_they_should():
    """Each of these seeds ended a shard with unread records, or without its children, before."""
    results = [run_seed(ARENAS["false and old news"](seed)) for seed in (2, 4, 5)]

    assert [str(violation) for result in results for violation in result.violations] == []
    assert min(result.faults["false_gone"] for result in results) > 5
    assert min(result.faults["stale_listing"] for result in results) > 5


def test_a_fleet_of_a_fresh_seed_breaks_no_invariant(seed):
    run_without_violation(seed)


def test_without_faults_nothing_is_handled_twice_but_around_a_steal(mute_everything):
    result = run_seed(Options(seed=2, muted=mute_everything, busy_s=BUSY_S))

    assert not result.violations
    assert not result.faults
    assert result.reshards


def test_a_seed_gives_one_event_log_whatever_the_order_of_hashes():
    """Each process has another PYTHONHASHSEED, hence another order of sets of strings."""
    program = (
        "import sys; from shardfleet_testkit.simulation import Options, run_seed; "
        "lines = run_seed(Options(seed=3, keeps_log=True, busy_s=60.0)).lines; "
        "sys.stdout.write('\\n'.join(lines))"
    )
    logs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "20261121")
    ]

    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") > 1_000
