"""The verdict of the kill suite sees each thing that can go wrong, planted."""

import pytest

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.spark.kills.verdict import Row, judge, misplaced

LINEAGE = {"a": [], "b": [], "c": ["a", "b"]}
SENT = {"x": [0, 2], "y": [1, 3]}
ROWS = [Row(0, "a", "x", 0), Row(0, "b", "y", 1), Row(1, "c", "x", 2), Row(1, "c", "y", 3)]
COUNTS = {0: {"a": 1, "b": 1}, 1: {"a": 1, "b": 1, "c": 2}}


def test_a_run_that_is_right_is_called_right():
    assert judge(SENT, LINEAGE, rows=ROWS, counts=COUNTS).is_right


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (ROWS[:3], "missing"),
        ([*ROWS, ROWS[3]], "duplicates"),
        ([*ROWS, Row(2, "c", "y", 4)], "foreign"),
        ([Row(0, "a", "x", 2), ROWS[1], Row(1, "c", "x", 0), ROWS[3]], "out_of_order"),
        ([*ROWS[:2], Row(0, "c", "x", 2), Row(0, "c", "y", 3)], "children_early"),
    ],
)
def test_what_is_wrong_with_the_rows_is_told(rows, complaint):
    found = judge(SENT, LINEAGE, rows=rows, counts=COUNTS)

    assert getattr(found, complaint) > 0
    assert not found.is_right


def test_a_child_counted_before_its_parent_stood_still_is_told():
    counts = {0: {"a": 1, "c": 1}, 1: {"a": 1, "b": 1, "c": 2}}

    assert judge(SENT, LINEAGE, rows=ROWS, counts=counts).children_early == 1


@pytest.mark.parametrize("last", [{"a": 1, "b": 1, "c": 3}, {"a": 1, "b": 1}, {}])
def test_a_count_that_is_not_the_number_of_rows_is_told(last):
    found = judge(SENT, LINEAGE, rows=ROWS, counts={0: COUNTS[0], 1: last})

    assert found.miscounted > 0


def lease(shard_id, at):
    return Lease(lease_key=shard_id, checkpoint=ExtendedSequenceNumber(at))


RIGHT = [lease("a", "SHARD_END"), lease("b", "SHARD_END"), lease("c", "12")]


@pytest.mark.parametrize(
    ("leases", "wrong"),
    [
        (RIGHT, set()),
        (RIGHT[2:], set()),  # Those of finished shards are deleted in time.
        (RIGHT[:2], {"c"}),
        ([*RIGHT[:2], lease("c", "11")], {"c"}),
        ([lease("a", "9"), *RIGHT[1:]], {"a"}),
    ],
)
def test_a_lease_that_does_not_say_where_the_query_stands_is_told(leases, wrong):
    rows = [Row(0, "a", "x", 0, "9"), Row(1, "c", "x", 2, "12"), Row(1, "c", "y", 3, "11")]

    assert misplaced({each.lease_key: each for each in leases}, LINEAGE, rows=rows).keys() == wrong


def test_a_batch_that_was_counted_differently_the_second_time_is_told():
    assert not judge(SENT, LINEAGE, rows=ROWS, counts=COUNTS, replays_differ=1).is_right
