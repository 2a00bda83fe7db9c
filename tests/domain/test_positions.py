"""Positions as text, as checkpoints and as a document; what an import of them would write."""

import json

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import apply_change
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.positions.positions import (
    Positions,
    checkpoint_of,
    option_text,
    position_at,
    position_of,
    position_text,
    positions_from_text,
    positions_to_json,
)
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import AT_LATEST, ExtendedSequenceNumber, StreamIncarnation
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.errors import ConfigurationError
from shardfleet_ops.positions.position_import import ImportAction, plan_import
from shardfleet_ops.positions.rewinds import unleased_shards

STREAM = StreamIncarnation("arn:aws:kinesis:eu-central-1:123456789012:stream/clicks", 1_000)
HALF = HASH_KEY_MAX // 2
WHOLE, LOW, HIGH = (
    HashKeyRange(0, HASH_KEY_MAX),
    HashKeyRange(0, HALF),
    HashKeyRange(HALF + 1, HASH_KEY_MAX),
)


def shard(key, covered, *parents, first=0, closed=False):
    return Shard(
        shard_id=key,
        hash_key_range=covered,
        parent_shard_id=parents[0] if parents else None,
        adjacent_parent_shard_id=parents[1] if len(parents) > 1 else None,
        starting_sequence_number=str(first),
        ending_sequence_number="999" if closed else None,
    )


# s0 was split into s1 and s2, which were merged into s3.
SHARDS = [
    shard("s0", WHOLE, closed=True),
    shard("s1", LOW, "s0", first=10, closed=True),
    shard("s2", HIGH, "s0", first=11, closed=True),
    shard("s3", WHOLE, "s1", "s2", first=20),
]
GRAPH = ShardGraph(SHARDS)


def positions(waiting=None, **texts):
    return Positions(
        incarnation=STREAM,
        shards={key: position_of(text, STREAM, key) for key, text in texts.items()},
        waiting=waiting or {},
        origin="a test",
        at_ms=5,
    )


def lease(key, at, *, owner=None, **fields):
    number, _, sub = at.partition(":")
    where = ExtendedSequenceNumber(number, int(sub or 0))
    return Lease(lease_key=key, checkpoint=where, lease_owner=owner, **fields)


def imported(plan, leases):
    """Carry a plan out, in its order; return the leases."""
    table = {each.lease_key: each for each in leases}
    for step in plan.steps:
        if step.change is not None:
            result = apply_change(step.change, table.get(step.lease_key))
            assert isinstance(result, Applied), step
            table[step.lease_key] = result.lease
            for child in result.lease.child_shard_ids if result.lease.is_finished else ():
                assert child in table, f"{step.lease_key} ended before its {child}"
    return table


def texts(table):
    return {key: str(each.checkpoint) for key, each in sorted(table.items())}


@pytest.mark.parametrize(
    ("text", "checkpoint"),
    [
        ("TRIM_HORIZON", "TRIM_HORIZON"),
        ("AFTER:77:3", "77:3"),
        ("AFTER:77:0", "77"),
        ("END", "SHARD_END"),
    ],
)
def test_a_position_is_the_same_in_text_and_in_a_lease(text, checkpoint):
    position = position_of(text, STREAM, "s0")

    assert position_text(position) == text
    assert str(checkpoint_of(position)) == checkpoint
    assert position_at(checkpoint_of(position), STREAM, "s0") == position


def test_an_instant_is_kept_in_the_row_and_latest_says_no_position():
    position = position_of("AT:1700000000123", STREAM, "s0")

    assert checkpoint_of(position) == ExtendedSequenceNumber("AT_TIMESTAMP", 1_700_000_000_123)
    assert position_at(checkpoint_of(position), STREAM, "s0") == position
    assert position_at(ExtendedSequenceNumber("AT_TIMESTAMP"), STREAM, "s0") is None
    assert position_at(AT_LATEST, STREAM, "s0") is None


def test_the_document_comes_back_as_it_was():
    document = positions({"s3": ("s1", "s2")}, s0="END", s1="AFTER:15:2", s2="TRIM_HORIZON")

    assert positions_from_text(json.dumps(positions_to_json(document))) == document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "format and version are"),
        ({"format": "other"}, "format and version are"),
        ({"shards": {"s0": "SOON"}}, "position 'SOON' of s0: allowed are"),
        ({"shards": {"s0": "AFTER:x"}}, "position 'AFTER:x' of s0"),
        ({"shards": {"s0": "AFTER:007"}}, "position 'AFTER:007' of s0"),
        ({"shards": {"s0": "AFTER:5:" + "9" * 5_000}}, "position 'AFTER:5:9"),
        ({"shards": {"s0": "AT:253402300800000"}}, "position 'AT:253402300800000' of s0"),
        ({"shards": {"s0": "AT:" + "9" * 5_000}}, "position 'AT:9"),
        ({"shards": {"s0": "AT:\u0661"}}, "position 'AT:\u0661' of s0"),
        ({"shards": {"s0": 5}}, r"shards\.s0: 5 found, a text expected"),
        ({"shards": ["s0"]}, r'shards: \["s0"\] found, an object by shard id expected'),
        ({"waiting": None}, "waiting: null found, an object"),
        ({"waiting": {"s1": "bcd"}}, r'waiting\.s1: "bcd" found, a list of shard ids expected'),
        ({"waiting": {"s1": [None]}}, r"waiting\.s1\.parent: null found, a text expected"),
        ({"created_ms": "long ago"}, 'created_ms: "long ago" found, a number of milliseconds'),
        ({"created_ms": True}, "created_ms: true found"),
        ({"created_ms": -1}, "created_ms: -1 found"),
        ({"at_ms": 10**400}, "at_ms: 1000000"),
        ({"at_ms": 1.5}, r"at_ms: 1\.5 found"),
        ({"stream": {}}, "stream: {} found, a text expected"),
        ({"origin": 7}, "origin: 7 found, a text expected"),
    ],
)
def test_another_document_is_refused_by_field(change, said):
    document = positions_to_json(positions(s0="END")) | change

    with pytest.raises(ConfigurationError, match=said) as found:
        positions_from_text(json.dumps(document))
    assert len(str(found.value)) < 400


@pytest.mark.parametrize(
    "lacking", ["stream", "created_ms", "shards", "waiting", "origin", "at_ms"]
)
def test_a_document_that_lacks_a_member_is_refused_by_its_name(lacking):
    document = positions_to_json(positions(s0="END"))
    del document[lacking]
    with pytest.raises(ConfigurationError, match=f"positions: {lacking}: nothing found"):
        positions_from_text(json.dumps(document))


def test_the_option_of_a_query_names_every_shard():
    found = json.loads(option_text(positions(s1="AFTER:15:2", s0="END")))

    assert found == {"s0": "END", "s1": "AFTER:15:2", "default": "TRIM_HORIZON"}


def test_an_import_leases_children_before_their_parents_end():
    leases = [lease("s0", "5", hash_key_range=WHOLE)]

    plan = plan_import(positions(s0="END", s1="AFTER:15:2", s2="TRIM_HORIZON"), leases, GRAPH)

    assert plan.obstacles == ()
    assert [(step.action, step.lease_key) for step in plan.steps] == [
        (ImportAction.CREATE, "s1"),
        (ImportAction.CREATE, "s2"),
        (ImportAction.END, "s0"),
    ]
    table = imported(plan, leases)
    assert texts(table) == {"s0": "SHARD_END", "s1": "15:2", "s2": "TRIM_HORIZON"}
    assert table["s0"].child_shard_ids == ("s1", "s2")
    assert table["s1"].parent_shard_ids == ("s0",)
    assert table["s1"].hash_key_range == LOW


def test_what_lies_between_a_lease_and_its_descendants_is_ended_and_never_begun_again():
    leases = [lease("s0", "5", hash_key_range=WHOLE)]
    done = positions(s0="END", s1="END", s2="END", s3="AFTER:25:0")

    table = imported(plan_import(done, leases, GRAPH), leases)

    ended = dict.fromkeys(("s0", "s1", "s2"), "SHARD_END")
    assert texts(table) == {**ended, "s3": "25"}
    sync = plan_lease_sync(
        SHARDS,
        list(table.values()),
        initial=ExtendedSequenceNumber("TRIM_HORIZON"),
        listed_at_initial=None,
    )
    assert sync.create == ()
    # Done twice, it is done.
    again = plan_import(done, list(table.values()), GRAPH)
    assert {step.action for step in again.steps} == {ImportAction.SAME}
    assert again.obstacles == ()


def test_an_import_that_was_cut_off_anywhere_is_completed_by_the_next():
    leases = [lease("s0", "5", hash_key_range=WHOLE)]
    done = positions(s0="END", s1="END", s2="AFTER:18:0", waiting={"s3": ("s1", "s2")})
    whole = imported(plan_import(done, leases, GRAPH), leases)
    steps = plan_import(done, leases, GRAPH).steps

    for count in range(len(steps)):
        cut = replace(plan_import(done, leases, GRAPH), steps=steps[:count])
        half = list(imported(cut, leases).values())
        assert texts(imported(plan_import(done, half, GRAPH), half)) == texts(whole)
    assert texts(whole) == {"s0": "SHARD_END", "s1": "SHARD_END", "s2": "18", "s3": "TRIM_HORIZON"}


# a goes on into f, which is merged of it and e; b was split into c and d, which were merged into e.
DEEP = [
    shard("a", LOW, first=1, closed=True),
    shard("b", HIGH, first=2, closed=True),
    shard("c", LOW, "b", first=10, closed=True),
    shard("d", HIGH, "b", first=11, closed=True),
    shard("e", HIGH, "c", "d", first=20, closed=True),
    shard("f", WHOLE, "a", "e", first=30),
]
ALL_THAT_WAIT = {"c": ("b",), "d": ("b",), "e": ("c", "d"), "f": ("a", "e")}


def begins_before_a_parent(table, graph):
    """Return the leases that nothing was read of, and that find no lease of a listed parent."""
    unread = {key for key, each in table.items() if str(each.checkpoint) == "TRIM_HORIZON"}
    return [key for key in sorted(unread) if not table.keys() >= set(graph.parents(key))]


@pytest.mark.parametrize("waiting", [ALL_THAT_WAIT, {"f": ("a", "e")}], ids=["all", "the child"])
def test_the_child_of_a_merge_finds_a_lease_of_the_parent_that_nobody_has_begun(waiting):
    leases = [lease("a", "5"), lease("b", "6")]
    done = positions(waiting, a="END", b="AFTER:8:0")

    plan = plan_import(done, leases, ShardGraph(DEEP))

    assert plan.obstacles == ()
    table = imported(plan, leases)
    unread = dict.fromkeys("cdef", "TRIM_HORIZON")
    assert texts(table) == {"a": "SHARD_END", "b": "8", **unread}
    assert table["e"].parent_shard_ids == ("c", "d")
    for count in range(len(plan.steps)):
        half = imported(replace(plan, steps=plan.steps[:count]), leases)
        assert begins_before_a_parent(half, ShardGraph(DEEP)) == []
        again = plan_import(done, list(half.values()), ShardGraph(DEEP))
        assert texts(imported(again, list(half.values()))) == texts(table)


def test_of_a_parent_without_position_lease_and_living_ancestor_nothing_is_believed():
    leases, done = [lease("s1", "5")], positions({"s3": ("s1", "s2")}, s1="END")

    plan = plan_import(done, leases, GRAPH)

    # Done and deleted, or lost: in doubt nothing is written, for s3 would not wait for s2.
    assert [text.split(":")[0] for text in plan.obstacles] == ["s2"]
    assert "so s3 would not wait for it" in plan.obstacles[0]
    for known in (lease("s2", "7"), lease("s2", "SHARD_END")):
        assert plan_import(done, [*leases, known], GRAPH).obstacles == ()
    aged_out = ShardGraph([each for each in SHARDS if each.shard_id != "s2"])
    assert plan_import(done, leases, aged_out).obstacles == ()
    leased_already = [*leases, lease("s3", "TRIM_HORIZON")]
    assert plan_import(done, leased_already, GRAPH).obstacles == ()


def test_two_children_of_one_import_count_for_each_other():
    # f waits for e, of whose parents one is done and the other has left the stream.
    listed = [each for each in DEEP if each.shard_id not in "bd"]
    done = positions({"f": ("a", "e"), "e": ("c", "d")}, a="END", c="END")

    plan = plan_import(done, [lease("a", "5"), lease("c", "12")], ShardGraph(listed))

    assert plan.obstacles == ()
    assert [step.lease_key for step in plan.steps] == ["e", "f", "a", "c"]


def test_an_import_never_goes_backwards():
    leases = [lease("s1", "100:2"), lease("s2", "SHARD_END"), lease("s3", "LATEST")]
    told = positions(s1="AFTER:99:7", s2="AFTER:20:0", s3="TRIM_HORIZON")

    plan = plan_import(told, leases, GRAPH)

    assert [text.split(":")[0] for text in plan.obstacles] == ["s1", "s2"]
    # Text would say that 99 comes after 100.
    assert "at 100:2 already, past the position to import, 99:7" in plan.obstacles[0]


def test_leases_that_somebody_holds_are_not_written_unless_their_owner_is_gone():
    leases = [lease("s1", "15", owner="worker-1"), lease("s2", "SHARD_END", owner="worker-2")]
    told = positions(s1="AFTER:16:0", s2="END")

    plan = plan_import(told, leases, GRAPH)
    gone = plan_import(told, leases, GRAPH, gone=frozenset({"s1"}))

    assert [text[:17] for text in plan.obstacles] == ["worker-1 holds s1"]
    assert gone.obstacles == ()
    assert texts(imported(gone, leases)) == {"s1": "16", "s2": "SHARD_END"}


def test_what_the_stream_has_lost_and_what_nobody_would_read_is_said():
    gone = plan_import(positions(s9="AFTER:5:0", s8="END"), [], GRAPH)
    unread = plan_import(positions(), [], ShardGraph([shard("s7", WHOLE)]))
    java = plan_import(positions(s3="AT:1700000000123"), [], GRAPH)

    assert [text.split(":")[0] for text in gone.obstacles] == ["s9"]
    assert unread.notes[0].startswith("s7: an open shard")
    assert "Java" in java.notes[0]
    assert java.steps[0].after == "AT_TIMESTAMP:1700000000123"


@pytest.mark.parametrize(
    ("leased", "found"), [("s3", ("s0", "s1", "s2")), ("s3 s1", ("s0", "s2")), ("s0 s1 s2 s3", ())]
)
def test_of_chosen_shards_all_ancestors_without_a_lease_are_found(leased, found):
    leases = [lease(key, "5") for key in leased.split()]
    assert unleased_shards(SHARDS, leases, ["s3"]) == found
