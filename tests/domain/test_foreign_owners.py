"""How many leases slots are needed for, in a table that others share (Z1); `a` and `b` are ours."""

import pytest

from shardfleet.domain.balance.by_count import count_to_read
from tests.domain.builders import a_lease


def counted(*leases, steals=False, expired=(), resting=()):
    return count_to_read(
        [a_lease(text) for text in leases],
        ours={"a", "b"},
        expired=expired,
        resting=resting,
        steals=steals,
    )


@pytest.mark.parametrize("steals", [False, True])
@pytest.mark.parametrize(
    ("lease", "count"),
    [
        pytest.param("1", 1, id="nobody has it"),
        pytest.param("1 by a", 1, id="ours"),
        pytest.param("1 by java", 0, id="theirs"),
        pytest.param("1 by a renewed-by java", 1, id="on its way to us"),
        pytest.param("1 by java renewed-by a", 1, id="on its way to them, and read by us so far"),
        pytest.param("1 by java renewed-by rust", 0, id="among themselves"),
        pytest.param("1 by a at SHARD_END", 0, id="finished"),
    ],
)
def test_a_lease_counts_that_we_have_or_can_get(lease, count, steals):
    assert counted(lease, steals=steals) == count


@pytest.mark.parametrize("owner", ["a", "java"])
def test_a_lease_whose_owner_is_lost_counts_whoever_that_was(owner):
    assert counted(f"1 by {owner}", expired={"1"}) == 1


@pytest.mark.parametrize("lease", ["1", "1 by a"])
def test_what_is_paused_or_asleep_does_not_count(lease):
    assert counted(lease, resting={"1"}) == 0


@pytest.mark.parametrize(
    ("child", "count"), [("2 from 1", 0), ("2 from 1 by a", 1), ("2 from 1 by java", 0)]
)
def test_a_lease_that_waits_for_a_parent_counts_only_if_we_have_it(child, count):
    assert counted("1 by java", child) == count


def test_what_waits_counts_when_its_parent_is_read():
    assert counted("1 by java at SHARD_END", "2 from 1") == 1


def test_one_who_steals_leaves_each_owner_one():
    java = [f"{n} by java" for n in range(5)]
    assert counted(*java, "8 by rust", "9 by a", steals=True) == 4 + 0 + 1
    assert counted(*java, "8 by rust", "9 by a", steals=False) == 1


def test_one_who_steals_takes_nothing_that_cannot_move():
    held = ["1 by java", "2 by java renewed-by rust", "3 by java from 1", "4 by java", "5 by java"]
    assert counted(*held, steals=True, resting={"4"}) == 2
