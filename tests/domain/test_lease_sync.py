"""Lease sync as properties: over any nonsense, and over random histories of a stream."""

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.leases.unreadable import stand_ins
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange, tiles_exactly
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph
from tests.domain.generators import any_shards, lease_tables
from tests.domain.histories import Application, Stream

KINDS = st.sampled_from(["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
HISTORY_KINDS = st.sampled_from(["TRIM_HORIZON", "AT_TIMESTAMP"])
RESHARDS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=8)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sync", "crash", "finish", "foreign", "reshard", "clean", "age", "start"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(st.lists(any_shards(), max_size=8), lease_tables(), KINDS, st.booleans(), st.randoms())
def test_any_listing_and_any_table_give_a_plan_that_does_not_depend_on_their_order(
    shards, leases, kind, filtered, shuffler
):
    def plan():
        return plan_lease_sync(
            shards,
            leases,
            initial=ExtendedSequenceNumber(kind),
            listed_at_initial=list(shards) if filtered else None,
        )

    first = plan()
    shuffler.shuffle(shards)
    shuffler.shuffle(leases)

    assert plan() == first
    keys = [wanted.lease.lease_key for wanted in first.create]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & {lease.lease_key for lease in leases}
    assert not (first.create and first.problems)
    begin = [wanted.lease for wanted in first.create if not wanted.lease.is_finished]
    assert all(lease.checkpoint.sequence_number in (kind, "TRIM_HORIZON") for lease in begin)
    order = [ShardGraph(shards).shards[lease.lease_key].creation_order for lease in begin]
    assert order == sorted(order)


@given(st.lists(any_shards(), max_size=8), lease_tables(), KINDS)
def test_applied_again_and_again_it_comes_to_rest(shards, leases, kind):
    for _ in range(len(shards) + 2):
        plan = plan_lease_sync(
            shards, leases, initial=ExtendedSequenceNumber(kind), listed_at_initial=None
        )
        if not plan.create:
            return
        leases = [*leases, *(wanted.lease for wanted in plan.create)]
    pytest.fail("lease sync never comes to rest")


def reshard(stream, is_split, index):
    (stream.split if is_split else stream.merge)(index)


def step(application, action, index):
    stream = application.stream
    match action:
        case "sync":
            application.sync()
        case "crash":
            application.sync(most=index % 3)
        case "finish" | "foreign":
            if readable := application.readable():
                chosen = readable[index % len(readable)]
                parents = set(stream.shards[chosen].parent_shard_ids)
                in_scope = stream.with_descendants(application.scope_at_start)
                assert parents & in_scope <= application.finished, "a child before its parent"
                application.finish(chosen, creates_children=action == "finish")
        case "reshard":
            reshard(stream, index % 2, index)
        case "clean":
            application.clean_up()
        case "age":
            application.age()
        case "start":
            started = sorted(application.leases)
            if started:
                application.start(started[index % len(started)])


def read_everything(application):
    """Sync and read until nothing is left to do."""
    for _ in range(200):
        plan = application.sync()
        readable = application.readable()
        for shard_id in readable:
            step(application, "finish", readable.index(shard_id))
        if not plan.create and not application.readable():
            return
    pytest.fail("reading never comes to rest")


@given(st.integers(1, 4), HISTORY_KINDS, RESHARDS, STEPS, st.integers(0, 9))
def test_every_shard_is_read_once_after_its_parents_whatever_crashes(
    count, kind, before, steps, instant
):
    """Reshards before the start, then syncs, crashes, foreign workers, cleanup and ageing."""
    stream = Stream(count)
    for is_split, index in before:
        reshard(stream, is_split, index)
    begin = 10 if kind == "TRIM_HORIZON" else min(stream.now, 10 + 10 * instant)
    application = Application(stream, kind, begin)
    for action, index in steps:
        step(application, action, index)

    read_everything(application)

    held = [lease for lease in application.leases.values() if not lease.is_finished]
    in_scope = stream.with_descendants(application.scope_at_start)
    assert tiles_exactly(lease.hash_key_range for lease in held)
    assert {lease.lease_key for lease in held} == {s.shard_id for s in stream.open_shards()}
    closed = {key for key in in_scope if not stream.shards[key].is_open}
    # After a crash of the first sync at AT_TIMESTAMP older shards are visited too (Java's rule).
    assert application.finished >= closed
    assert application.finished == closed or kind == "AT_TIMESTAMP"
    assert len(set(application.created)) == len(application.created)


@given(st.integers(1, 4), RESHARDS, STEPS)
def test_at_latest_what_was_open_at_the_start_and_all_that_came_after_it_is_read(
    count, before, steps
):
    stream = Stream(count)
    for is_split, index in before:
        reshard(stream, is_split, index)
    application = Application(stream, "LATEST", stream.now)
    application.sync()
    for action, index in steps:
        step(application, action, index)

    read_everything(application)

    in_scope = stream.with_descendants(application.scope_at_start)
    held = {key for key, lease in application.leases.items() if not lease.is_finished}
    assert held == {shard.shard_id for shard in stream.open_shards()}
    assert set(application.created) == in_scope
    late = [k for k in application.created if k not in application.scope_at_start]
    assert all(
        application.leases[k].checkpoint.sequence_number != "LATEST" for k in late if k in held
    )


@given(st.integers(1, 4), HISTORY_KINDS, RESHARDS, STEPS)
def test_no_plan_creates_a_shard_together_with_its_ancestor(count, kind, before, steps):
    stream = Stream(count)
    for is_split, index in before:
        reshard(stream, is_split, index)
    application = Application(stream, kind, 10)
    for action, index in steps:
        if action in ("sync", "crash"):
            plan = application.sync(most=None if action == "sync" else index % 3)
            keys = {wanted.lease.lease_key for wanted in plan.create}
            graph = ShardGraph(stream.listing())
            assert not any(graph.ancestors(key) & keys for key in keys)
        else:
            step(application, action, index)


@given(st.integers(1, 4), RESHARDS, STEPS)
def test_once_all_is_read_and_started_only_open_shards_keep_their_leases(count, before, steps):
    stream = Stream(count)
    for is_split, index in before:
        reshard(stream, is_split, index)
    application = Application(stream, "TRIM_HORIZON", 10)
    for action, index in steps:
        step(application, action, index)
    read_everything(application)
    for key in sorted(application.leases):
        application.start(key)

    for _ in range(len(stream.shards)):
        application.clean_up()

    assert set(application.leases) == {shard.shard_id for shard in stream.open_shards()}


@given(st.integers(2, 5), RESHARDS, st.integers(0, 2**32), st.integers(1, 4))
def test_leases_deleted_by_hand_are_covered_again_from_the_trim_horizon(
    count, before, seed, deleted
):
    """At least once: whatever is deleted, every open shard gets a reader again."""
    stream = Stream(count)
    application = Application(stream, "TRIM_HORIZON", 10)
    application.sync()
    for is_split, index in before:
        reshard(stream, is_split, index)
        read_everything(application)
    chosen = random.Random(seed).sample(
        sorted(application.leases), min(deleted, len(application.leases) - 1)
    )
    for key in chosen:
        del application.leases[key]

    read_everything(application)

    held = [lease for lease in application.leases.values() if not lease.is_finished]
    assert {lease.lease_key for lease in held} == {s.shard_id for s in stream.open_shards()}


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
def test_a_shard_that_a_lease_names_as_its_parent_is_not_begun_again_by_a_stale_listing(kind):
    """It was read to its end, and its lease deleted, since the listing was made."""
    whole = HashKeyRange(0, HASH_KEY_MAX)
    child = Lease(
        lease_key="b", checkpoint=AT_TRIM_HORIZON, parent_shard_ids=("a",), lease_counter=1
    )

    plan = plan_lease_sync(
        [Shard(shard_id="a", hash_key_range=whole)],
        [child],
        initial=ExtendedSequenceNumber(kind),
        listed_at_initial=None,
    )

    assert not plan.create


def key(number):
    return f"shardId-{number:012d}"


def line_of_shards(last):
    """Return a line of shards, each made of the one before it."""
    return [
        Shard(
            shard_id=key(number),
            hash_key_range=HashKeyRange(0, HASH_KEY_MAX),
            starting_sequence_number=str(number),
            ending_sequence_number=None if number == last else str(number + 1),
            parent_shard_id=key(number - 1),
        )
        for number in range(1, last + 1)
    ]


@pytest.mark.parametrize(
    ("listed", "remembered"),
    [
        pytest.param(line_of_shards(4)[2:], [2, 3], id="one aged out"),
        pytest.param(line_of_shards(4)[3:], [3], id="two aged out"),
        pytest.param(line_of_shards(2), [1, 2, 3], id="it is behind"),
    ],
)
def test_what_is_done_with_is_not_forgotten_by_a_listing_that_the_next_may_contradict(
    listed, remembered
):
    """The only lease cannot be read, so it proves nothing: what was kept is all that is known."""
    sync = partial(
        plan_lease_sync,
        leases=stand_ins([key(4)], listed),
        initial=ExtendedSequenceNumber("TRIM_HORIZON"),
        listed_at_initial=None,
    )
    kept = sync(listed, finished=[key(1), key(2), key(3)]).finished

    assert sorted(kept) == [key(number) for number in remembered]
    again = [each for each in line_of_shards(4) if each.shard_id in {*kept, key(4)}]
    assert not sync(again, leases=stand_ins([key(4)], again), finished=kept).create
