"""Whatever is done to a stream: ranges tile, numbers grow, nothing is lost, parents come first."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HASH_KEYS = 1 << 128

verbs = st.one_of(
    st.tuples(st.just("put"), st.integers(0, HASH_KEYS - 1)),
    st.tuples(st.just("split"), st.integers(0, 99)),
    st.tuples(st.just("merge"), st.integers(0, 99)),
    st.tuples(st.just("scale"), st.integers(1, 9)),
    st.tuples(st.just("wait"), st.integers(0, 1000)),
)
history = given(shards=st.integers(1, 5), plan=st.lists(verbs, max_size=40))
# The fixtures only make engines; each example makes its own.
fresh = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def carry_out(kinesis_with, clock):
    """Return a function that makes an engine, carries steps out, and returns what was put."""

    def step(kinesis, verb, argument):
        numbers = open_shards(kinesis)
        if verb == "split":
            kinesis.split(numbers[argument % len(numbers)])
        elif verb == "merge" and len(numbers) > 1:
            at = argument % (len(numbers) - 1)
            kinesis.merge(numbers[at], numbers[at + 1])
        elif verb == "scale":
            kinesis.UpdateShardCount(
                StreamName="s", TargetShardCount=argument, ScalingType="UNIFORM_SCALING"
            )
        elif verb == "wait":
            clock.advance(argument / 1000)

    def run(shards, plan):
        kinesis, answers = kinesis_with().create(shards), []
        for verb, argument in plan:
            if verb == "put":
                request = {"StreamName": "s", "PartitionKey": "k", "Data": ""}
                answers.append(kinesis.PutRecord(**request, ExplicitHashKey=str(argument)))
            else:
                step(kinesis, verb, argument)
        return kinesis, answers

    return run


def open_shards(kinesis):
    numbers = kinesis.shards(ShardFilter={"Type": "AT_LATEST"})
    return sorted(numbers, key=lambda number: kinesis.shard(number)["first"])


@fresh
@history
def test_open_shards_tile_all_hash_keys(carry_out, shards, plan):
    kinesis, _ = carry_out(shards, plan)
    ranges = [kinesis.shard(number) for number in open_shards(kinesis)]
    assert (ranges[0]["first"], ranges[-1]["last"]) == (0, HASH_KEYS - 1)
    assert all(left["last"] + 1 == right["first"] for left, right in pairwise(ranges))


@fresh
@history
def test_every_record_is_read_once_in_order_from_the_shard_it_was_put_in(carry_out, shards, plan):
    kinesis, answers = carry_out(shards, plan)
    read = [
        {"ShardId": f"shardId-{number:012d}", "SequenceNumber": record["SequenceNumber"]}
        for number in kinesis.shards()
        for record in kinesis.get(number)["Records"]
    ]
    assert sorted(answers, key=lambda each: (each["ShardId"], each["SequenceNumber"])) == read


@fresh
@history
def test_numbers_grow_over_the_whole_stream(carry_out, shards, plan):
    _, answers = carry_out(shards, plan)
    numbers = [int(answer["SequenceNumber"]) for answer in answers]
    assert numbers == sorted(set(numbers))


@fresh
@history
def test_a_child_covers_what_its_parents_gave_up_and_starts_after_they_ended(
    carry_out, shards, plan
):
    kinesis, _ = carry_out(shards, plan)
    for number in kinesis.shards():
        child = kinesis.shard(number)
        for parent in map(kinesis.shard, child["parents"]):
            assert int(parent["end"]) < int(child["start"])
            assert parent["first"] <= child["last"]
            assert child["first"] <= parent["last"]


@fresh
@history
def test_a_closed_shard_ends_with_exactly_the_shards_that_name_it_as_parent(
    carry_out, shards, plan
):
    kinesis, _ = carry_out(shards, plan)
    described = {number: kinesis.shard(number) for number in kinesis.shards()}
    for number, shard in described.items():
        answer = kinesis.get(number)
        children = [int(each["ShardId"][-12:]) for each in answer.get("ChildShards", [])]
        named = [each for each, other in described.items() if number in other["parents"]]
        assert sorted(children) == named
        assert ("NextShardIterator" in answer) == (shard["end"] is None)
