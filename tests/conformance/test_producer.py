"""A sample of what the KPL's own daemon makes, and that its judge finds what is wrong."""

import pytest

from shardfleet.kpl.envelope import body_of, frame
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from tests.conformance.daemon import why_not
from tests.conformance.producer import Found, judge, run

RECORDS = 2000
# The hash of "a" is in the lower half.
LOWER = {
    "ShardId": "s0",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)},
}
UPPER = {
    "ShardId": "s1",
    "HashKeyRange": {"StartingHashKey": str(2**127), "EndingHashKey": str(2**128 - 1)},
}
SENT = {b"one": ("a", None), b"two": ("a", "7"), b"alone": ("a", None), b"cut": ("b\0c", "9")}


def stored(data, key="a", shard=LOWER):
    return shard, {"Data": data, "PartitionKey": key}


TWO = aggregate([OutgoingRecord("a", b"one"), OutgoingRecord("a", b"two", "7")])
ALONE = stored(b"alone"), stored(b"cut", key="b")
GOOD = stored(TWO), *ALONE


def test_what_the_kpl_s_daemon_puts_together_ours_takes_apart_and_puts_together_alike():
    if reason := why_not():
        pytest.skip(reason)
    found = run(RECORDS, 7)

    assert found.faults == []
    # With the pairs that go before, until it knows the shards.
    assert found.in_aggregates + found.plain == found.sent >= RECORDS
    assert found.aggregates > 0


def test_what_came_as_it_was_sent_is_good():
    assert judge(SENT, GOOD) == Found(
        sent=4, plain=2, aggregates=1, in_aggregates=2, largest=len(TWO)
    )


# The same records, the second one's fields in another order.
OTHERWISE = frame(body_of(TWO).replace(b"\x08\x00\x10\x00", b"\x10\x00\x08\x00"))


@pytest.mark.parametrize(
    ("came", "faults"),
    [
        (ALONE, ["lost: b'one'", "lost: b'two'"]),
        ((*GOOD, ALONE[0]), ["came twice: b'alone'"]),
        ((*GOOD, stored(b"more")), ["sent as None"]),
        ((GOOD[0], stored(b"alone", key="b"), ALONE[1]), ["sent as ('a', None)"]),
        ((stored(TWO, shard=UPPER), *ALONE), ["misrouted in s1", "lost: b'one'", "lost: b'two'"]),
        ((stored(OTHERWISE), *ALONE), ["put together otherwise"] * 2),
    ],
    ids=["lost", "twice", "never sent", "another key", "another shard's", "other bytes"],
)
def test_what_is_wrong_is_found(came, faults):
    found = judge(SENT, came).faults

    assert [each[: len(fault)] for each, fault in zip(found, faults, strict=True)] == faults
