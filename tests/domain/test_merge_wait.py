"""Leases that can only wait for another parent of their merge take no place."""

import random

from shardfleet.domain.balance.merge_wait import waiting_for_a_merge
from tests.domain.builders import a_lease, a_shard

MERGE = [
    a_shard("0 0-50 closed start 1"),
    a_shard("1 50-100 closed start 1"),
    a_shard("2 50-75 closed from 1 start 10"),
    a_shard("3 75-100 open from 1 start 10"),
    a_shard("4 0-75 open from 0+2 start 20"),
]


def waiting(*leases, shards=MERGE):
    return sorted(waiting_for_a_merge(shards, [a_lease(text) for text in leases]))


def test_a_closed_shard_waits_while_the_other_parent_of_its_merge_has_no_lease():
    assert waiting("0 at 5", "1 at TRIM_HORIZON") == ["0"]


def test_it_no_longer_waits_when_the_other_parent_has_a_lease():
    assert waiting("0 at 5", "1 at SHARD_END", "2 at TRIM_HORIZON", "3 at TRIM_HORIZON") == []


def test_it_no_longer_waits_when_the_child_has_a_lease():
    assert waiting("0 at 5", "1 at SHARD_END", "3 at 15", "4 at TRIM_HORIZON") == []


def test_another_parent_that_has_left_the_stream_is_not_waited_for():
    left = [shard for shard in MERGE if shard.shard_id != "2"]
    assert waiting("0 at 5", "1 at SHARD_END", "3 at 15", shards=left) == []


def test_open_split_and_finished_shards_never_wait():
    assert waiting("0 at SHARD_END", "1 at 5", "3 at 15") == []


def test_some_lease_of_a_table_that_began_with_the_first_shards_is_always_at_work():
    for seed in range(300):
        chance = random.Random(seed)
        shards, leases = _reshaped(chance), []
        for shard in shards:
            parents = {lease.lease_key: lease for lease in leases}
            known = [parents[p] for p in shard.parent_shard_ids if p in parents]
            # As the engine creates them: a child when one of its parents ends; a finished
            # parent's children all exist.
            if not shard.parent_shard_ids or any(lease.is_finished for lease in known):
                may_end = all(lease.is_finished for lease in known) and not shard.is_open
                at = "SHARD_END" if may_end and chance.random() < 0.6 else "TRIM_HORIZON"
                parents_text = "+".join(shard.parent_shard_ids)
                text = f"{shard.shard_id} at {at}"
                leases.append(a_lease(text + (f" from {parents_text}" if parents_text else "")))
        unfinished = {lease.lease_key for lease in leases if not lease.is_finished}
        idle = waiting_for_a_merge(shards, leases)
        assert unfinished, f"seed {seed}"
        assert idle < unfinished, f"seed {seed}: all wait: {sorted(idle)}"


def _reshaped(chance):
    """Split and merge a line of shards, ``(id, low, high)`` in per cent."""
    row = [("00", 0, 25), ("01", 25, 50), ("02", 50, 75), ("03", 75, 100)]
    shards = {i: [low, high, "", True] for i, low, high in row}
    for turn in range(20):
        at = chance.randrange(len(row))
        shard_id, low, high = row[at]
        names = f"{4 + 2 * turn:02}", f"{5 + 2 * turn:02}"
        if chance.random() < 0.5 and high - low > 1:
            middle = (low + high) // 2
            row[at : at + 1] = [(names[0], low, middle), (names[1], middle, high)]
            parents = shard_id
        elif at + 1 < len(row):
            other = row[at + 1]
            row[at : at + 2] = [(names[0], low, other[2])]
            parents = f"{shard_id}+{other[0]}"
        else:
            continue
        for parent in parents.split("+"):
            shards[parent][3] = False
        for child in row:
            shards.setdefault(child[0], [child[1], child[2], parents, True])
    return [
        a_shard(
            f"{i} {low}-{high} {'open' if is_open else 'closed'}"
            + (f" from {parents}" if parents else "")
            + f" start {int(i) + 1}"
        )
        for i, (low, high, parents, is_open) in sorted(shards.items())
    ]
