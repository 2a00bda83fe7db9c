"""Idle shards that sleep: under every fault nothing is lost, and an hour of sleep costs little."""

import random
from dataclasses import replace

import pytest

from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.cost.usage import price_of
from shardfleet_ops.cost.model import METRICS_ASLEEP
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.sleeping import Idle, run_idle


def sleeping(seed):
    return lambda shape: shape.sleeping(random.Random(seed))


def told(result, event):
    return sum(f"event {event}" in line for line in result.lines)


def test_whatever_goes_wrong_around_sleeping_shards_no_invariant_is_broken():
    asleep = woken = switched = 0
    for seed in range(1, 9):
        options = Options(seed=seed, is_small=True, keeps_log=True, reshape=sleeping(seed))
        result = run_seed(options)
        assert not result.violations, f"seed {seed}"
        asleep += told(result, "LeaseAsleep")
        woken += told(result, "LeaseWoken")
        switched += told(result, "SleepSwitched")

    assert asleep > 40
    assert woken > 30
    assert switched


def test_a_fleet_that_only_sleeps_and_wakes_handles_nothing_twice():
    asleep = 0
    for seed in (4, 5):
        chance = random.Random(seed)
        options = Options(
            seed=seed,
            is_small=True,
            mix=FaultMix.none(),
            keeps_log=True,
            reshape=lambda shape, chance=chance: replace(shape.sleeping(chance), has_peer=False),
        )
        result = run_seed(options)

        assert not result.violations, f"seed {seed}"
        assert result.repetitions == 0, f"seed {seed}"
        asleep += told(result, "LeaseAsleep")

    assert asleep > 10


@pytest.fixture(scope="module")
def slept():
    """An idle fleet of 100 shards, an hour of it asleep, then a reshard, then records."""
    return run_idle(Idle())


def test_a_quiet_fleet_of_100_shards_runs_no_worker_for_an_hour(slept):
    assert slept.hour.worker_turns == 0
    assert slept.hour.manager_runs == 60
    assert "lease.apply" not in slept.hour.calls
    assert not slept.violations


def test_each_sleeping_shard_is_read_twice_a_minute_and_no_more(slept):
    assert slept.hour.calls["stream.get_records"] == 2 * 60 * 100


def test_an_hour_of_sleep_costs_less_than_a_hundredth_of_the_stream(slept):
    stream = 100 * PRICES.shard_hour
    costs = price_of(slept.hour.used, metric_days=METRICS_ASLEEP / 24)

    assert costs.total < 0.01 * stream
    # The figure that the pages tell; metrics cost the same whether a fleet sleeps or not.
    assert costs.total - costs.by_item["metrics"] < 0.0025 * stream


def test_shards_that_are_split_and_merged_in_their_sleep_are_ended_and_their_children_read(slept):
    assert slept.children == 2 * 3 + 2
    assert slept.reshard_s < 180


def test_when_records_come_back_none_is_lost_or_late_or_repeated(slept):
    assert slept.records == 100 + 101
    assert len(slept.wakes_ms) == 101
    assert (slept.lost, slept.repetitions) == (0, 0)
    assert slept.wakes_ms[-1] <= 60_000
