"""Leases paused, drained and resumed at any moment, while everything else goes wrong."""

from dataclasses import replace

from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix

SEEDS = range(7)


def paused(shape):
    return replace(shape, pauses_every_s=5.0)


def test_whatever_is_paused_and_drained_meanwhile_no_invariant_is_broken():
    pauses = released = 0
    for seed in SEEDS:
        result = run_seed(Options(seed=seed, is_small=True, keeps_log=True, reshape=paused))
        assert not result.violations, f"seed {seed}"
        pauses += sum(" pauses " in line for line in result.lines)
        released += sum("event LeaseReleased" in line for line in result.lines)

    assert pauses > 30
    assert released > 10


def test_a_fleet_that_is_only_paused_and_drained_handles_nothing_twice():
    def alone(shape):
        return replace(shape, pauses_every_s=5.0, has_peer=False)

    options = Options(seed=2, is_small=True, mix=FaultMix.none(), keeps_log=True, reshape=alone)
    result = run_seed(options)

    assert not result.violations
    assert result.repetitions == 0
    assert sum("event LeaseReleased" in line for line in result.lines) > 10
