"""Which leases are not ours: by their key, by their mode, and by what the stream ever listed."""

import pytest

from shardfleet.domain.leases.foreign_leases import (
    ForeignKind,
    foreign_lease,
    refuse_to_begin,
    set_apart,
)
from shardfleet.domain.leases.lease import ForeignLease, Survey, named_foreign
from shardfleet.domain.reasons import MayHaveRecords, NeverListed
from shardfleet.domain.stream.gone_shards import GoneNote, judge_gone
from shardfleet.domain.stream.shards import ShardGraph, shard_number
from shardfleet.errors import ConfigurationError
from tests.domain.builders import a_lease, a_shard

ORDERS = "111122223333:orders:1700000000"


def key(number):
    return f"shardId-{number:012d}"


@pytest.mark.parametrize(
    ("lease_key", "stream", "kind"),
    [
        (key(0), None, None),
        (key(999_999_999_999), None, None),
        (f"{ORDERS}:{key(0)}", ORDERS, ForeignKind.MULTI_STREAM),
        (f"{ORDERS}:{key(0)}", None, ForeignKind.MULTI_STREAM),
        (key(0), ORDERS, ForeignKind.MULTI_STREAM),
        (key(0), "", ForeignKind.MULTI_STREAM),
        (":", None, ForeignKind.MULTI_STREAM),
        ("shardId-00000001414576573621-f55eea83", None, ForeignKind.NO_SHARD_ID),
        ("shardId-00000000000", None, ForeignKind.NO_SHARD_ID),
        ("shardId-0000000000000", None, ForeignKind.NO_SHARD_ID),
        ("shardId-00000000000\u0661", None, ForeignKind.NO_SHARD_ID),
        ("ShardId-000000000000", None, ForeignKind.NO_SHARD_ID),
        (" shardId-000000000000", None, ForeignKind.NO_SHARD_ID),
        ("shardId-000000000000\n", None, ForeignKind.NO_SHARD_ID),
        ("partition-7", None, ForeignKind.NO_SHARD_ID),
        ("0", None, ForeignKind.NO_SHARD_ID),
    ],
)
def test_a_lease_is_ours_only_with_a_shard_id_of_kinesis_and_no_stream(lease_key, stream, kind):
    """The API reference of Kinesis (CreateStream): shardId- and twelve digits."""
    foreign = foreign_lease(lease_key, stream=stream, owner="java-1")
    assert (None if foreign is None else foreign.kind) == kind
    assert foreign is None or (foreign.lease_key, foreign.owner) == (lease_key, "java-1")


def test_whose_a_multi_stream_lease_is_is_told_by_the_row_or_else_by_its_key():
    assert foreign_lease(f"{ORDERS}:{key(0)}").stream == ORDERS
    assert foreign_lease(key(0), stream=ORDERS).stream == ORDERS


@pytest.mark.parametrize("text", ["shardId-00000000000", "x", ""])
def test_what_is_no_shard_id_has_no_number(text):
    assert shard_number(text) is None


# --- of this form, but never of this stream

HALVES = [f"{key(2)} 0-50 open", f"{key(3)} 50-100 open"]
"""The newest shard that the stream lists is 3; 0 and 1 have left it."""


def apart(leases, shards=HALVES, **known):
    survey = Survey(leases=tuple(a_lease(line) for line in leases))
    return set_apart(survey, ShardGraph(a_shard(line) for line in shards), **known)


def strange(*given, **options):
    return [each.lease_key for each in apart(*given, **options).foreign_leases]


@pytest.mark.parametrize(
    ("why", "lines", "shards", "foreign"),
    [
        ("listed", [f"{key(3)} at 5"], HALVES, []),
        ("has left the stream", [f"{key(1)} at 5"], HALVES, []),
        ("newer than all", [f"{key(4)} at 5"], HALVES, [key(4)]),
        ("newer than all, finished", [f"{key(4)} at SHARD_END"], HALVES, [key(4)]),
        ("a child that is not listed yet", [f"{key(4)} from {key(2)}"], HALVES, []),
        ("its child", [f"{key(4)} from {key(2)}", f"{key(5)} from {key(4)}"], HALVES, []),
        (
            "a child of a shard whose children are others",
            [f"{key(6)} from {key(2)}"],
            [
                f"{key(2)} 0-50 closed",
                f"{key(3)} 50-100 open",
                f"{key(4)} 0-25 open from {key(2)}",
                f"{key(5)} 25-50 open from {key(2)}",
            ],
            [key(6)],
        ),
        (
            "a child of one that is foreign",
            [f"{key(8)} at 5", f"{key(9)} from {key(8)}"],
            HALVES,
            [key(8), key(9)],
        ),
        ("nothing is listed", [f"{key(4)} at 5"], [], []),
    ],
)
def test_a_lease_of_a_shard_that_the_stream_never_had_is_foreign(why, lines, shards, foreign):
    assert strange(lines, shards) == foreign, why


def test_a_listing_with_holes_makes_nobody_foreign_who_passed_for_ours_before():
    half = [f"{key(2)} 0-50 open"]
    assert strange([f"{key(3)} at 5"], half, known=[key(3)]) == []
    assert strange([f"{key(3)} at 5"], half) == [key(3)]
    assert strange([f"{key(4)} at 5"], HALVES, known=[key(4)]) == [key(4)]


def test_what_a_worker_gave_back_as_never_listed_is_foreign_until_it_is_listed():
    note = GoneNote(lease_key=key(4), first_ms=1, unlisted_ms=1, reason=NeverListed())
    child = [f"{key(4)} from {key(2)}"]
    assert strange(child, missed=[note]) == [key(4)]
    other = GoneNote(lease_key=key(4), first_ms=1, unlisted_ms=1, reason=MayHaveRecords())
    assert strange(child, missed=[other]) == []
    grown = [*HALVES, f"{key(4)} 0-25 open from {key(2)}"]
    assert strange(child, grown, missed=[note]) == []


def test_a_missed_shard_that_the_stream_never_had_does_not_end_whoever_decides_it():
    shards = [a_shard(line) for line in HALVES]

    def verdict(now_ms, **note):
        given = {"lease_key": key(4), "first_ms": 1_000, "unlisted_ms": 1_000, **note}
        return judge_gone(
            GoneNote(**given), shards, shard_id=given["lease_key"], retention_ms=1,
            failover_ms=10_000, listed_ms=(now_ms, now_ms),
        )  # fmt: skip

    assert not verdict(10_999).is_foreign
    for note in ({}, {"ended_by": "ann"}, {"known_ms": 1}):
        found = verdict(11_000, **note)
        assert (found.is_over, found.is_foreign, found.note.reason) == (False, True, NeverListed())
    assert verdict(11_000, lease_key=key(1)).is_over


# --- what a person is told


def test_what_is_refused_is_named_with_the_table_the_leases_and_what_to_do():
    many = [ForeignLease(f"{ORDERS}:{key(n)}", ForeignKind.MULTI_STREAM, ORDERS) for n in range(7)]
    with pytest.raises(ConfigurationError) as refused:
        refuse_to_begin("clicks-app", "arn:of:clicks", many)
    said = str(refused.value)
    for part in ("clicks-app", "7 leases", many[4].lease_key, ORDERS, "and 2 more", "arn:of:clicks",
                 "lease_table", "delete them"):  # fmt: skip
        assert part in said
    assert many[5].lease_key not in said
    refuse_to_begin("clicks-app", "arn:of:clicks", [])
    assert named_foreign(many[:1]).startswith("1 lease is not this fleet's: ")


def test_a_table_of_foreign_leases_alone_is_not_an_empty_one_to_who_wants_the_whole():
    foreign = (ForeignLease(f"{ORDERS}:{key(0)}", ForeignKind.MULTI_STREAM, ORDERS),)
    with pytest.raises(ConfigurationError, match="orders"):
        Survey(leases=(), foreign_leases=foreign).whole()
    ours = (a_lease(f"{key(0)} at 5"),)
    assert Survey(leases=ours, foreign_leases=foreign).whole() == ours
