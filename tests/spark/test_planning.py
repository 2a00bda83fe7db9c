"""From one plan to the next, without Spark: seals, layout, limits, skew, convergence, tokens."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.positions.positions import position_text
from shardfleet_spark.offsets.lineage import Family
from shardfleet_spark.offsets.plan_token import (
    UnreadableCheckpoint,
    token_from_json,
    token_to_json,
)
from shardfleet_spark.offsets.seals import (
    SealOfAnotherLayout,
    UnreadableSeal,
    seal_from_bytes,
    seal_to_bytes,
)
from shardfleet_spark.plan.planning import (
    Advanced,
    BatchLimits,
    advance,
    is_converged,
    lay_out,
    next_token,
)
from tests.spark.memory_seals import seal, stand, token

NOW = 1_700_000_000_000
SEALED = {"first": "8", "last": "9", "count": 2, "last_sub": 3}


def texts(family):
    return {shard_id: position_text(each.position) for shard_id, each in family.stands.items()}


def after(*stands, seals=(), busy=()):
    family = Family({each.position.shard_id: each for each in stands}, {})
    by_shard = {each.shard_id: each for each in seal(*seals).shards}
    return Advanced(family=family, busy=frozenset(busy), seals=by_shard)


def test_a_seal_moves_its_shards_and_an_absent_seal_moves_none():
    plan = token([stand("a", 7), stand("b", 5), stand("c")], layout=[["a", "b"], ["c"]])

    found = advance(plan, {0: seal({"shard_id": "a", **SEALED}, {"shard_id": "b"})})

    assert texts(found.family) == {"a": "AFTER:9:3", "b": "AFTER:5:0", "c": "TRIM_HORIZON"}
    assert found.unread == (1,)


def test_the_end_of_a_shard_brings_its_children_into_the_waiting_room():
    plan = token([stand("a")], layout=[["a"]])
    ended = seal({"shard_id": "a", "ended": True, "children": {"c": ("a", "b")}, **SEALED})

    found = advance(plan, {0: ended})

    assert texts(found.family) == {"a": "END"}
    assert found.family.waiting == {"c": ("a", "b")}
    assert found.family.live == ()


@pytest.mark.parametrize(
    ("shard", "is_busy"),
    [
        ({"is_cut": True}, True),
        ({**SEALED, "lag_ms": 10}, True),
        ({**SEALED, "lag_ms": -1}, True),
        ({**SEALED, "lag_ms": 0}, False),
        ({"lag_ms": 10}, False),  # Empty with lag: a probe follows it (hazard H6).
        ({"lag_ms": 10, "ended": True, "is_cut": True}, False),
    ],
)
def test_a_shard_is_busy_when_more_is_certain(shard, is_busy):
    found = advance(token([stand("a")], layout=[["a"]]), {0: seal({"shard_id": "a", **shard})})

    assert found.busy == ({"a"} if is_busy else set())


def test_a_seal_of_other_shards_is_refused():
    plan = token([stand("a"), stand("b")], layout=[["a", "b"]])

    with pytest.raises(SealOfAnotherLayout, match="seal 0 names the shards b, a, the plan a, b"):
        advance(plan, {0: seal({"shard_id": "b"}, {"shard_id": "a"})})


def test_the_key_of_a_plan_depends_on_everything_that_decides_and_on_nothing_else():
    plan = token([stand("a", 7)], layout=[["a"]])
    others = [
        replace(plan, layout=(("a", "a"),)),
        replace(plan, stands={"a": stand("a", 8)}),
        replace(plan, quotas=(replace(plan.quotas[0], fetch_ms=1),)),
        replace(plan, target_ms=1),
        replace(plan, waiting={"b": ("a",)}),
    ]

    assert len({plan.key, *(other.key for other in others)}) == 6
    assert replace(plan, stats={"lag": 3}).key == plan.key
    assert plan.key.startswith("0000000001-")


def test_a_token_survives_its_json():
    plan = token(
        [stand("a", 7, arrived=5, tip=6), stand("b", "END"), stand("c")],
        layout=[["a"], ["c"]],
        waiting={"d": ("a", "b")},
        hashes={"a": (0, 2**128 - 1)},
        target_ms=9,
        sealed=(seal({"shard_id": "a", **SEALED}), seal({"shard_id": "c"})),
        stats={"lag": [1]},
    )

    assert token_from_json(json.loads(json.dumps(token_to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": 1}, "version 1; this shardfleet reads version 2"),
        ({"v": None}, "version None"),
        ({"from": {"a": ["AFTER:x:0", 0, 0]}}, "damaged.*AFTER:x:0"),
        ({"layout": None}, "damaged"),
        ({"quotas": [{"colour": 1}]}, "damaged"),
    ],
)
def test_a_checkpoint_of_another_version_or_damaged_is_refused(change, said):
    found = token_to_json(token([stand("a")])) | change

    with pytest.raises(UnreadableCheckpoint, match=said):
        token_from_json(found)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"v": 1}', b'{"v": 2, "shards": [{}]}', b"[]"])
def test_a_seal_of_another_version_or_damaged_is_refused(body):
    with pytest.raises(UnreadableSeal):
        seal_from_bytes(body)


def test_a_seal_too_large_for_dynamodb_goes_without_iterators():
    shards = [{"shard_id": f"shardId-{n:012d}", "iterator": "A" * 300} for n in range(900)]
    shards = [{**shard, **SEALED} for shard in shards]

    kept, dropped = seal_to_bytes(seal(*shards[:300])), seal_to_bytes(seal(*shards))

    assert seal_from_bytes(kept).shards[0].iterator == "A" * 300
    assert len(dropped) < 400 * 1_000
    assert seal_from_bytes(dropped).shards[0].iterator is None
    assert seal_from_bytes(dropped).shards[0].last == "9"


WEIGHTS = st.dictionaries(
    st.text("ab0", min_size=1, max_size=4), st.integers(0, 10**9), min_size=1, max_size=40
)


@given(weights=WEIGHTS, partitions=st.integers(1, 9), turn=st.integers(0, 5))
def test_every_shard_is_in_one_partition_and_none_is_empty(weights, partitions, turn):
    layout = lay_out(weights, partitions=partitions, turn=turn)

    assert sorted(shard for shards in layout for shard in shards) == sorted(weights)
    assert len(layout) == min(partitions, len(weights))
    assert all(layout)
    loads = [sum(weights[shard] for shard in shards) for shards in layout]
    heaviest = max(weights.values())
    assert max(loads) - min(loads) <= heaviest + len(weights)


def test_each_plan_begins_its_partitions_with_another_shard():
    firsts = {lay_out(dict.fromkeys("abcd", 0), partitions=1, turn=n)[0][0] for n in range(4)}

    assert firsts == set("abcd")


def test_shards_per_partition_decides_over_partitions():
    limits = BatchLimits(partitions=2, shards_per_partition=3)

    plan = next_token(token([]), after(*map(stand, "abcdefg")), limits=limits, now_ms=NOW)

    assert sorted(map(len, plan.layout)) == [2, 2, 3]


def test_fewer_records_than_shards_are_given_to_some_shards_after_the_other():
    limits, plan, seen = BatchLimits(records=2), token([]), []
    state = after(*map(stand, "abcde"))
    for _ in range(5):
        plan = next_token(plan, state, limits=limits, now_ms=NOW)
        seen += [shard for shards in plan.layout for shard in shards]
        assert sum(most for quota in plan.quotas for most in quota.records) == 2

    assert sorted(seen) == sorted("abcde" * 2)


def test_a_limit_of_bytes_is_shared_by_the_partitions():
    limits = BatchLimits(total_bytes=1_000, bytes_per_partition=800, partitions=2)

    plan = next_token(token([]), after(*map(stand, "ab")), limits=limits, now_ms=NOW)

    assert [quota.total_bytes for quota in plan.quotas] == [500, 500]


def plan_with_skew(*stands):
    return next_token(token([]), after(*stands), limits=BatchLimits(skew_ms=60), now_ms=NOW).quotas[
        0
    ]


def test_no_shard_may_be_further_ahead_of_the_slowest_than_the_skew():
    assert plan_with_skew(stand("a", 1, arrived=500), stand("b", 1, arrived=300)).until_ms == 360


@pytest.mark.parametrize(
    ("tip", "until"),
    [
        (NOW - 10, NOW + 50),
        (NOW - 1_000, NOW),  # Batches further apart than the skew: all that there is now.
        (NOW - 60_001, NOW - 60_001 + 60),  # The query stood still, and what came is unknown.
    ],
)
def test_a_shard_counts_from_its_tip_and_for_a_minute_as_now_and_a_finished_one_not_at_all(
    tip, until
):
    idle, ended = stand("b", 1, arrived=300, tip=tip), stand("c", "END", arrived=5)

    assert plan_with_skew(idle, ended).until_ms == until
    assert plan_with_skew(stand("a", 1, arrived=500), idle, ended).until_ms == 560


def test_with_a_skew_limit_an_unknown_shard_first_tells_its_age_and_nobody_reads_on():
    quota = plan_with_skew(stand("a", 1, arrived=500), stand("b"))

    assert (quota.records, quota.until_ms) == ((1, 1), 1)


@pytest.mark.parametrize(
    ("shard", "target", "converged"),
    [
        ({"tip_ms": 5}, 100, True),
        ({"arrived_ms": 101}, 100, True),
        ({"arrived_ms": 100}, 100, False),
        ({"tip_ms": 5, "ended": True}, 100, False),  # Its children come next.
        ({"tip_ms": 5}, 99, False),  # A plan of a run before this one proves nothing.
    ],
)
def test_available_now_is_over_for_a_shard_at_its_tip_or_past_the_target(shard, target, converged):
    plan = token([stand("a")], layout=[["a"]], target_ms=target)
    found = advance(plan, {0: seal({"shard_id": "a", **shard})})

    assert is_converged(plan, found, 100) == ({"a"} if converged else set())


def test_nothing_is_planned_without_shards():
    state = after(stand("a", "END"), stand("b"))

    assert (
        next_token(token([]), state, limits=BatchLimits(), now_ms=NOW, leave_out=frozenset("b"))
        is None
    )


def test_the_figures_of_a_plan_name_lag_counts_and_losses():
    plan = token([stand("a"), stand("b"), stand("c")], layout=[["a", "b"], ["c"]])
    seals = {
        0: replace(
            seal(
                {"shard_id": "a", **SEALED, "size_bytes": 10, "lag_ms": 70},
                {"shard_id": "b", "lag_ms": 5, "lost": "b: gone"},
            ),
            calls=3,
            throttles=2,
            paused_ms=900,
        ),
        1: seal({"shard_id": "c", "ended": True}),
    }

    stats = advance(plan, seals).stats

    assert stats["left_behind_ms"] == 70
    assert (stats["shards"], stats["finished_shards"]) == (2, 1)
    assert (stats["stream_records"], stats["bytes"]) == (2, 10)
    assert (stats["calls"], stats["throttles"], stats["paused_ms"]) == (3, 2, 900)
    assert stats["lost"] == ["b: gone"]
