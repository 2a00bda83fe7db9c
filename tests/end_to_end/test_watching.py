"""The judges of the end-to-end tests see what they are there to see."""

import base64
import json
from collections import defaultdict

import pytest

from tests.end_to_end.watching import Call, out_of_order, read_calls, returned, step_problems


def a_call(at, request, *numbers, shard="shard-0"):
    return Call(
        at=at, pid=1, request=request, shard=shard, records=tuple(("ada", n) for n in numbers)
    )


def a_lease(counter, checkpoint="7", sub=0, **attributes):
    return {
        "leaseCounter": counter,
        "checkpoint": checkpoint,
        "checkpointSubSequenceNumber": sub,
        **attributes,
    }


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (a_lease(2), a_lease(1), "the counter went back"),
        (
            a_lease(2, leaseOwner="a"),
            a_lease(2, leaseOwner="b"),
            "another owner with the same counter",
        ),
        (a_lease(2), a_lease(2, "8"), "another checkpoint with the same counter"),
        (a_lease(2, "10"), a_lease(3, "9"), "the checkpoint went back"),
        (a_lease(2, sub=4), a_lease(3, sub=3), "the checkpoint went back"),
        (a_lease(2, "SHARD_END"), a_lease(3, "99"), "the checkpoint went back"),
        (
            a_lease(2, leaseOwner="a"),
            a_lease(2, leaseOwner="c", checkpointOwner="b"),
            "another owner with the same counter",
        ),
        (
            a_lease(2, leaseOwner="a"),
            a_lease(2, leaseOwner="a", checkpointOwner="a"),
            "a handover to its own owner",
        ),
    ],
)
def test_a_step_that_no_correct_write_makes_is_seen(before, after, problem):
    assert list(step_problems(before, after)) == [problem]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (a_lease(0, "TRIM_HORIZON"), a_lease(1, "TRIM_HORIZON", leaseOwner="a")),
        (a_lease(2, "9"), a_lease(5, "10")),
        (a_lease(2, "9"), a_lease(3, "SHARD_END")),
        (a_lease(2, childShardIds={"x"}), a_lease(2)),
        (a_lease(2, leaseOwner="a"), a_lease(2, leaseOwner="b", checkpointOwner="a")),
        (a_lease(2, leaseOwner="b", checkpointOwner="a"), a_lease(3, leaseOwner="b")),
    ],
)
def test_a_correct_step_is_left_alone(before, after):
    assert list(step_problems(before, after)) == []


def test_a_first_delivery_before_an_earlier_record_is_seen_and_a_repeat_is_not():
    wrong = [a_call(1, "a", 0, 2), a_call(2, "a", 1)]
    repeat = [a_call(1, "a", 0, 1), a_call(2, "b", 0, 1, 2)]

    assert [(key, number) for key, number, _ in out_of_order(wrong)] == [("ada", 1)]
    assert out_of_order(repeat) == []


def test_an_invocation_that_comes_back_to_a_shard_is_seen_unless_the_lease_moved_twice():
    calls = [a_call(1, "a", 0), a_call(2, "b", 1), a_call(3, "a", 2)]

    assert len(returned(calls, defaultdict(list))) == 1
    assert returned(calls[:2], defaultdict(list)) == []
    assert returned(calls, defaultdict(list, {"shard-0": [1.5, 2.5]})) == []


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    data = base64.b64encode(json.dumps(["ada", 3]).encode()).decode()
    line = {"at": 1.0, "pid": 1, "request": "r", "shard": "s", "records": [data]}
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])

    assert [call.records for call in read_calls(ledger)] == [(("ada", 3),)]
