"""What lease items that cannot be read hold up, and what they do not."""

import pytest

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.leases.unreadable import Unreadable
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import MalformedLease
from tests.domain.builders import a_lease, a_shard

# 0 was split into 1 and 2, and 1 and 2 were merged into 3; 4 is beside them.
SHARDS = [
    a_shard(line)
    for line in (
        "0 0-50 closed",
        "1 0-25 closed from 0 start 10 end 19",
        "2 25-50 closed from 0 start 10 end 19",
        "3 0-50 open from 1+2 start 20",
        "4 50-100 open",
    )
]


def found(unreadable, *leases, foreign=()):
    """Return what a survey of these leases could not read, and the survey's leases."""
    known = tuple(a_lease(line) for line in leases)
    reasons = dict.fromkeys(unreadable, "broken")
    survey = Survey(leases=known, unreadable=reasons, foreign=foreign)
    return Unreadable.among(survey, SHARDS), known


def planned(unreadable, known, kind="TRIM_HORIZON"):
    """Return the keys that lease sync would create."""
    plan = plan_lease_sync(
        SHARDS,
        [*known, *unreadable.stand_ins],
        initial=ExtendedSequenceNumber(kind),
        listed_at_initial=None,
    )
    return [wanted.lease.lease_key for wanted in unreadable.spared(plan).create]


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
@pytest.mark.parametrize(
    ("unreadable", "leases", "held_up"),
    [
        ("0", ("4 at 5",), ["1", "2", "3"]),
        # Both parents of a merge count: the other one is finished.
        ("1", ("0 at SHARD_END", "2 at SHARD_END from 0", "4 at 5"), ["3"]),
        ("3", ("1 at SHARD_END", "2 at SHARD_END", "4 at 5"), []),
        # A finished child has seen its parents finished: nothing behind it waits.
        ("0", ("1 at SHARD_END from 0", "2 at SHARD_END from 0", "3 at 5", "4 at 5"), []),
        # A child that the listing does not show (any more) is known by its lease.
        ("9", ("8 at 5 from 9", "0 at 5", "4 at 5"), ["8"]),
    ],
)
def test_descendants_wait_and_neither_they_nor_itself_are_created(
    kind, unreadable, leases, held_up
):
    seen, known = found(unreadable, *leases)
    assert sorted(seen.held_up) == held_up
    assert not {unreadable, *held_up} & set(planned(seen, known, kind))


def test_what_is_not_behind_it_is_created_as_ever():
    seen, known = found("0")
    assert planned(seen, known) == ["4"]


def test_neither_its_parents_nor_its_children_are_cleaned_up_on_its_account():
    seen, known = found("1", "0 at SHARD_END children 1+2", "2 at 15 from 0", "4 at 5")
    assert not plan_lease_cleanup(SHARDS, [*known, *seen.stand_ins]).delete
    seen, known = found("1", "3 at SHARD_END from 1+2", "4 at 5")
    assert not plan_lease_cleanup(SHARDS[3:], [*known, *seen.stand_ins]).delete


def test_an_item_that_is_no_lease_stands_in_the_way_only_under_a_shards_name():
    seen, known = found((), "4 at 5", foreign=("0", "leader"))
    assert list(seen.reasons) == ["0"]
    assert "is no lease" in seen.reasons["0"]
    assert not planned(seen, known)


def test_who_needs_the_whole_table_is_told_every_item_that_cannot_be_read():
    survey = Survey(leases=(), unreadable={"1": "lease 1: x", "2": "lease 2: y"})
    with pytest.raises(MalformedLease, match="lease 1: x; lease 2: y"):
        survey.whole()
