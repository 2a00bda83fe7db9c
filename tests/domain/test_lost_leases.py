"""Whichever leases are deleted, nothing is lost and nothing but theirs comes again."""

import pytest

from tests.domain.lost_leases import Play

SEEDS = 600  # the rest of 10,000: python -m tests.domain.lost_leases 10000


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_whatever_is_deleted_nothing_is_lost_and_only_the_deleted_shards_come_again(first):
    faults = {seed: found for seed in range(first, first + 100) if (found := Play(seed).play())}

    assert not faults
