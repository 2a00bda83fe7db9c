"""Unevenly loaded shards in small: the production engine evens them out, and then leaves them."""

from dataclasses import replace

from shardfleet_testkit.simulation.balancing import Uneven, run_uneven

SMALL = Uneven(shards=16, slots=4, exponent=0.5, total_kbps=400.0, runs=4, watched_runs=4)
MOST = 1.1
TOGETHER = 1.4  # what the heaviest four shards on one slot come to, at least


def test_by_throughput_a_fleet_is_even_within_four_runs_and_then_comes_to_rest():
    result = run_uneven(SMALL)

    assert result.at_first > TOGETHER
    assert result.balancing_runs == len(result.ratios) == SMALL.runs + SMALL.watched_runs
    assert max(result.ratios[SMALL.runs - 1 :]) <= MOST
    assert result.moves_watched == 0
    assert (result.lost, result.repetitions, result.forced, result.violations) == (0, 0, 0, ())


def test_by_how_busy_slots_are_a_fleet_is_even_and_at_rest_as_well():
    result = run_uneven(replace(SMALL, busy_percent=30))

    assert max(result.ratios[SMALL.runs - 1 :]) <= MOST
    assert result.moves_watched == 0
    assert (result.lost, result.repetitions, result.forced, result.violations) == (0, 0, 0, ())


def test_by_count_the_same_fleet_stays_as_it_is():
    result = run_uneven(replace(SMALL, assignment="count", runs=3, watched_runs=0))

    assert result.ratios == (result.at_first,) * 3
    assert result.moves == (0, 0, 0)


def test_loads_may_be_dealt_by_chance():
    result = run_uneven(replace(SMALL, starts_together=False, runs=0, watched_runs=0))

    assert 1 < result.at_first < TOGETHER
