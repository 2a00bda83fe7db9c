"""
An aggregate whose tables are used by many records costs what its own size allows, not its product.

Work is counted, not timed: characters that methods of text and bytes walk through, and digests. Of
a sound aggregate that is a few times its size.
"""

import pytest

from shardfleet.kpl.deaggregate import Verdict
from tests.kpl.bombs import (
    BEYOND,
    LOOKS_MOST,
    SHAPES,
    WITHIN,
    Work,
    bomb,
    read_in_worker,
)

every_shape = pytest.mark.parametrize("shape", SHAPES)
both_policies = pytest.mark.parametrize("policy", ["deliver", "in-range", "kpl"])


@every_shape
@both_policies
def test_a_bomb_is_known_from_its_lengths(shape, policy):
    data = bomb(shape, BEYOND)
    with Work() as work:
        found = read_in_worker(data, policy)
    assert found.verdict is Verdict.TOO_MANY_BYTES
    assert work.characters <= LOOKS_MOST * len(data)


@every_shape
@both_policies
def test_within_the_limit_each_table_entry_is_looked_at_once(shape, policy):
    data = bomb(shape, WITHIN)
    with Work() as work:
        found = read_in_worker(data, policy)
    assert len(found.records) == WITHIN
    assert work.characters <= LOOKS_MOST * len(data)
    assert work.digests <= 1 + len(SHAPES[shape][0])  # The frame's own, and one for each key.
