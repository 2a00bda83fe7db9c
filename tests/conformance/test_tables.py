"""
The tables of the KCL's own tests, as data written anew (kcl_tables.json): the KCL and ours.

The KCL has to answer as they say, or they are not its tables; ours too, or by a deliberate
difference of its area. The two that are commented out there, "to account for out-of-order lease
creation", ours answers rightly. ``ConsumerStatesTest`` has no table: it is about Java's classes.
"""

import base64
import json
from pathlib import Path

import pytest

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.kpl.envelope import frame
from tests.conformance import cleanup, deaggregation, shard_sync

TABLES = json.loads(Path(__file__).with_name("kcl_tables.json").read_text("utf-8"))
SYNC = TABLES["lease_sync"]
NAMES = [f"{each['graph']} {each['initial']} {' '.join(each['leases'])}" for each in SYNC]
SENTINELS = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END")
# AggregatorUtilTest: a frame around what is no message.
NO_MESSAGE = {
    "data": base64.b64encode(frame(b"test message")).decode(),
    "key": "cat",
    "range": ["0", "1"],
    "few": False,
}


def asked(kcl, area, case):
    kcl.ask(area, [case])
    return kcl.answers()[0]


def sync_case(table, *, has_begun=False):
    """Return the case as the area has it; its leases begin, or have all begun."""
    shards = TABLES["graphs"][table["graph"]]
    parents = {each[0]: [parent for parent in each[1:3] if parent] for each in shards}
    ends = {each[0]: each[5:7] for each in shards}
    first = {each[0]: each[3] for each in shards}
    listed = table.get("listed", [each[0] for each in shards])
    return {
        "shards": [each for each in shards if each[0] in listed],
        "leases": [
            [key, first[key] if has_begun else table["initial"], parents[key], [], ends[key]]
            for key in table["leases"]
        ],
        "initial": table["initial"],
    }


def answer(table):
    """Return what the table says as the driver does: in the order of the shards."""
    shards = sorted(TABLES["graphs"][table["graph"]], key=lambda each: (int(each[3]), each[0]))
    return [
        [each[0], table["initial"], 0, sorted(parent for parent in each[1:3] if parent)]
        for each in shards
        if each[0] in table["create"]
    ]


@pytest.mark.parametrize("table", SYNC, ids=NAMES)
def test_the_kcl_makes_the_leases_of_its_own_table(table, kcl):
    theirs = asked(kcl, "shard_sync", sync_case(table))

    assert (theirs == answer(table)) != table.get("commented_out", False)


@pytest.mark.parametrize("has_begun", [False, True], ids=["begins", "has begun"])
@pytest.mark.parametrize("table", SYNC, ids=NAMES)
def test_ours_makes_them_or_others_by_a_rule(table, has_begun):
    case = sync_case(table, has_begun=has_begun)
    found = list(shard_sync.differences(case, shard_sync.ours(case), answer(table)))

    for each in found:
        assert any(rule.holds(each) for rule in shard_sync.AREA.deliberate), str(each)
    assert not (table.get("commented_out") and found)


def to_the_letter(*, has_begun):
    cases = [(sync_case(each, has_begun=has_begun), answer(each)) for each in SYNC]
    return sum(shard_sync.ours(case) == told for case, told in cases)


def test_ours_answers_nearly_all_of_the_tables_to_the_letter():
    assert len(SYNC) == 40
    assert (to_the_letter(has_begun=False), to_the_letter(has_begun=True)) == (39, 33)


def cleanup_case(table):
    shards = TABLES["streams"][table["stream"]]
    children = {
        key: sorted(each[0] for each in shards if key in each[1:3])
        for key in (each[0] for each in shards)
    }
    leases = [[*lease, ["0", "1"]] for lease in table["leases"]]
    return {"shards": shards, "leases": leases, "children": children, "done": []}


CLEANUP = pytest.mark.parametrize(
    "table", TABLES["cleanup"], ids=[each["why"] for each in TABLES["cleanup"]]
)


@CLEANUP
def test_the_kcl_deletes_by_its_own_table(table, kcl):
    assert asked(kcl, "cleanup", cleanup_case(table))["0"][0] is table["deleted"]


@CLEANUP
def test_ours_deletes_by_it_or_keeps_by_a_rule(table):
    case = cleanup_case(table)
    ours = cleanup.ours(case)["0"]
    if ours[0] is not table["deleted"]:
        found = cleanup.Difference(case, "0", ours, [table["deleted"], []])
        assert any(rule.holds(found) for rule in cleanup.AREA.deliberate)


def test_a_frame_around_no_message_is_a_plain_record(kcl):
    records, _ = deaggregation.ours(NO_MESSAGE)

    assert records == [["cat", None, NO_MESSAGE["data"], 0, False]]
    assert asked(kcl, "deaggregation", NO_MESSAGE) == records


@pytest.mark.parametrize("name", SENTINELS)
@pytest.mark.parametrize("sub", [0, 42])
def test_a_sentinel_is_one_whatever_its_sub_sequence_number(name, sub):
    assert ExtendedSequenceNumber(name, sub).is_sentinel
