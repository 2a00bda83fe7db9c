"""A large fleet in small: full ownership from nothing and after a loss, and what quiet costs."""

import pytest

from shardfleet_testkit.simulation.scale import Scale, run_scale

SCALE = Scale(shards=120, slots=12, lost_part=0.25, window_s=60.0)
RENEW_MS = SCALE.config.renew_ms


@pytest.fixture(scope="module")
def result():
    return run_scale(SCALE, lambda _line: None)


def test_every_lease_finds_a_living_owner_after_each_loss(result):
    assert not result.violations
    assert [recovery.name for recovery in result.recoveries] == [
        "from nothing",
        "processes killed",
        "executions gone",
    ]
    for recovery in result.recoveries:
        assert recovery.full_s is not None
        assert recovery.full_s < 60
        assert recovery.curve[0][1] == recovery.leases_lost
        assert recovery.curve[-1][1] == 0


def test_killed_processes_cost_no_lease_its_owner(result):
    killed = result.recoveries[1]

    assert killed.leases_lost == 30
    assert killed.full_s <= 5
    assert not killed.moved


def test_leases_of_lost_executions_are_the_only_ones_that_move(result):
    gone = result.recoveries[2]

    assert gone.leases_lost == 30
    assert not gone.moved_in_vain


def test_a_quiet_lease_is_renewed_when_it_is_due_and_not_much_more_often(result):
    due_per_hour = 3_600_000 / RENEW_MS

    assert due_per_hour <= result.per_shard_hour["lease.apply"] < 1.2 * due_per_hour
    assert not result.quiet.owner_changes
