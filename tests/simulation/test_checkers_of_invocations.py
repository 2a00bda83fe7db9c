"""The checkers of single invocations each see a planted violation, and nothing else."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import (
    assign,
    checkpoint,
    create,
    evict,
    initiate_handover,
    renew,
)
from shardfleet.domain.leases.lease import ChangeKind, LeaseChange
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.engine.state.kinds import LOCK, SLOT
from shardfleet.events.delivery import ConsumerFailed, PageRead
from shardfleet.events.worker import LeaseLost, LeaseReleased, LeaseUnreadable, ShardEnded
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import CallBegun
from tests.simulation.test_checkers_planted import (
    FREE,
    HIS,
    KEY,
    MANAGER,
    ME,
    MINE,
    OTHER,
    Somebody,
    a_slot,
    adopts,
    begins,
    planted,
    renewed,
    stores,
    writes,
)

CHILD = replace(FREE, lease_key="child", parent_shard_ids=(KEY,))
BEAT = {"epoch": 1, "turn_open": True, "drain": False, "lags_ms": {}}


def called(checker, shard_id, at_ms, by=ME):
    checker.call_begun(CallBegun(at_ms=at_ms, by=by, shard_id=shard_id))


def read(checker, shard_id, *, loses_it=False):
    checker.read_begun(0, ME, shard_id)
    if loses_it:
        checker.told(0, ME, LeaseLost(lease_key=shard_id, reason=""))
    page = PageRead(
        lease_key=shard_id, stream_records=1, brings=True, size_bytes=1, millis_behind_latest=0
    )
    checker.told(0, ME, page)


@pytest.mark.parametrize(("claimed_first", "violations"), [(False, 0), (True, 1)])
def test_an_adoption_after_the_slot_was_claimed_anew_is_found(claimed_first, violations):
    checker, found = planted(checkers.NobodyOutdatedAdopts)

    begins(checker, ME, 1)
    if claimed_first:
        stores(checker, a_slot(epoch=2), before=a_slot(epoch=1))
    writes(checker, renew(MINE), before=MINE, after=renewed(MINE))
    stores(checker, a_slot(epoch=3), before=a_slot(epoch=2))
    adopts(checker, ME, renewed(MINE))

    assert len(found) == violations


@pytest.mark.parametrize(("epoch", "at_ms", "violations"), [(1, 900, 0), (2, 0, 0), (2, 900, 1)])
def test_a_write_of_somebody_who_knows_that_it_is_overtaken_is_found(epoch, at_ms, violations):
    checker, found = planted(checkers.WhoIsOvertakenStops)

    begins(checker, ME, 1)
    checker.document_read(0, ME, kind=SLOT, body=a_slot(epoch=epoch))
    checker.lease_sent(at_ms, ME, renew(MINE))

    assert len(found) == violations


@pytest.mark.parametrize(("lags_ms", "violations"), [({KEY: 0}, 0), ({}, 1)])
def test_a_second_heartbeat_that_leaves_out_a_lease_is_found(lags_ms, violations):
    checker, found = planted(checkers.BeatsTellEveryLease)

    def beats(lags_ms, heartbeat_ms):
        after = a_slot(**{**BEAT, "lags_ms": lags_ms}, heartbeat_ms=heartbeat_ms)
        stores(checker, after, before=a_slot(**BEAT, heartbeat_ms=1), by=ME)

    adopts(checker, ME, MINE)
    beats({}, 2)
    beats({}, 1)  # No beat: a failure that is told.
    assert not found
    beats(lags_ms, 3)
    assert len(found) == violations
    checker.told(1, ME, LeaseReleased(lease_key=KEY, checkpoint="", next_owner=None))
    beats({}, 4)
    assert len(found) == violations


@pytest.mark.parametrize(("every_ms", "violations"), [(3_000, 0), (1_000, 1)])
def test_renewals_that_are_not_due_are_found(every_ms, violations):
    checker, found = planted(checkers.RenewalsAreDue)

    for number in range(4):
        checker.lease_sent(number * every_ms, ME, renew(MINE))
        at_ms = number * every_ms + 10
        writes(checker, renew(MINE), before=MINE, after=renewed(MINE), at_ms=at_ms)

    assert len(found) == violations


@pytest.mark.parametrize(("takes_back", "violations"), [(True, 0), (False, 1)])
def test_a_gift_to_a_slot_that_has_ended_is_found(takes_back, violations):
    checker, found = planted(checkers.TakenBackAtOnce)
    given = replace(FREE, lease_owner=ME.worker_id, lease_counter=1)
    lock = {"holder": "a", "until_ms": 1}

    stores(checker, a_slot(state="ENDED"))
    writes(checker, assign(FREE, ME.worker_id), before=FREE, after=given, by=MANAGER)
    if takes_back:
        writes(checker, evict(given), before=given, after=FREE, by=MANAGER)
    stores(checker, lock, before=lock, kind=LOCK, by=MANAGER)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("owner", "garbled_ms", "violations"),
    [("", -70_000, 1), ("w", -70_000, 0), ("", -30_000, 0), ("", 1_000, 0)],
)
def test_children_that_are_left_to_others_are_found(owner, garbled_ms, violations):
    checker, found = planted(checkers.ChildrenAreTaken)
    ended = replace(MINE, checkpoint=AT_SHARD_END)

    def is_garbled():
        garble = LeaseChange(
            operation="garble", lease_key="child", kind=ChangeKind.UPDATE, conditions=()
        )
        writes(checker, garble, before=CHILD, after=CHILD, by=OTHER, at_ms=garbled_ms)

    writes(checker, create(CHILD), before=None, after=CHILD)
    if garbled_ms < 0:
        is_garbled()
    writes(checker, checkpoint(MINE, AT_SHARD_END), before=MINE, after=ended)
    checker.told(0, ME, ShardEnded(lease_key=KEY, children=("child",)))
    if garbled_ms > 0:
        is_garbled()
    stores(checker, a_slot(**BEAT), by=ME, at_ms=5_000)
    assert not found
    if owner:
        taken = replace(CHILD, lease_owner=owner)
        writes(checker, assign(CHILD, owner), before=CHILD, after=taken, by=OTHER)
    stores(checker, a_slot(**BEAT), by=ME, at_ms=20_000)
    assert len(found) == violations


@pytest.mark.parametrize(("other", "violations"), [(KEY, 1), ("shard-1", 0)])
def test_a_shard_that_waits_while_another_is_called_again_and_again_is_found(other, violations):
    checker, found = planted(checkers.CallsTakeTurns)

    read(checker, other)
    for number in range(9):
        called(checker, "shard-1", 2_000 * number)

    assert len(found[:1]) == violations


def test_a_page_that_comes_after_its_lease_was_lost_does_not_wait():
    checker, found = planted(checkers.CallsTakeTurns)

    read(checker, KEY, loses_it=True)
    for number in range(9):
        called(checker, "shard-1", 2_000 * number)
    assert not found

    adopts(checker, ME, MINE)
    read(checker, KEY)
    for number in range(9):
        called(checker, "shard-1", 2_000 * number)
    assert found


@pytest.mark.parametrize(("created_ms", "violations"), [(None, 0), (90_000, 0), (1_000, 1)])
def test_a_stream_that_was_created_again_and_is_read_on_is_found(created_ms, violations):
    checker, found = planted(checkers.ReplacedStreamIsLeft)

    if created_ms is not None:
        checker.ledger.give_up(created_ms)
    checker.read_begun(150_000, ME, KEY)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("is_given_up", "is_overtaken", "violations"),
    [(True, False, 0), (False, False, 1), (False, True, 0)],
)
def test_a_handover_that_is_left_pending_by_whoever_ended_the_shard_is_found(
    is_given_up, is_overtaken, violations
):
    checker, found = planted(checkers.HandoversEnd)
    stores(checker, a_slot(epoch=1), by=ME)
    moving = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)
    ended = replace(moving, checkpoint=AT_SHARD_END)

    writes(checker, checkpoint(moving, AT_SHARD_END), before=moving, after=ended)
    if is_given_up:
        writes(checker, assign(ended, OTHER.worker_id), before=ended, after=HIS)
    if is_overtaken:
        stores(checker, a_slot(epoch=2), by=Somebody("s0001#2"))
    checker.turn_over(1, ME, left=(), error="")

    assert len(found) == violations


@pytest.mark.parametrize(("by", "violations"), [(MANAGER, 1), (Somebody("java", "j", (0, 0)), 0)])
def test_a_handover_of_a_finished_lease_is_found(by, violations):
    checker, found = planted(checkers.NobodyIsRobbed)
    ended = replace(MINE, checkpoint=AT_SHARD_END)
    begun = replace(ended, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)

    change = initiate_handover(MINE, OTHER.worker_id)
    writes(checker, change, before=ended, after=begun, by=by)

    assert len(found) == violations


@pytest.mark.parametrize(("ends_it", "violations"), [(True, 0), (False, 1)])
def test_a_handover_that_a_restarted_owner_leaves_to_others_is_found(ends_it, violations):
    checker, found = planted(checkers.RestartedOwnersHandOver)
    moving = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)

    stores(checker, a_slot(lags_ms={KEY: 0}))
    writes(checker, initiate_handover(MINE, OTHER.worker_id), before=MINE, after=moving)
    begins(checker, ME, 2, at_ms=1_000)
    by = ME if ends_it else MANAGER
    change = assign(moving, OTHER.worker_id)
    writes(checker, change, before=moving, after=HIS, at_ms=15_000, by=by)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("by", "key", "violations"), [(ME, KEY, 0), (ME, "another", 1), (OTHER, KEY, 1)]
)
def test_a_restarted_owner_that_could_not_read_the_lease_is_not_blamed(by, key, violations):
    checker, found = planted(checkers.RestartedOwnersHandOver)
    moving = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)

    stores(checker, a_slot(lags_ms={KEY: 0}))
    writes(checker, initiate_handover(MINE, OTHER.worker_id), before=MINE, after=moving)
    begins(checker, ME, 2, at_ms=1_000)
    unreadable = LeaseUnreadable(lease_key=key, worker_id=by.worker_id, reason="its counter is 'x'")
    checker.told(1_050, by, unreadable)
    change = assign(moving, OTHER.worker_id)
    writes(checker, change, before=moving, after=HIS, at_ms=90_000, by=MANAGER)

    assert len(found) == violations


def fails(checker, shard_id, at_ms):
    failed = ConsumerFailed(lease_key=shard_id, error="TypeError", attempts=1, back_off_ms=1_000)
    checker.told(at_ms, ME, failed)


@pytest.mark.parametrize(("goes_on_ms", "violations"), [(10_900, 0), (11_000, 1)])
def test_a_shard_that_waits_because_a_neighbour_failed_is_found(goes_on_ms, violations):
    checker, found = planted(checkers.NeighboursGoOn)

    checker.read_begun(0, ME, KEY)
    fails(checker, "neighbour", 1_000)
    checker.read_begun(goes_on_ms, ME, KEY)

    assert len(found) == violations


def test_a_shard_that_never_goes_on_after_a_neighbour_failed_is_found_once():
    checker, found = planted(checkers.NeighboursGoOn)

    checker.read_begun(0, ME, KEY)
    fails(checker, "neighbour", 1_000)
    for at_ms in (11_500, 15_000):
        writes(checker, renew(MINE), before=MINE, after=renewed(MINE), at_ms=at_ms)

    assert len(found) == 1


@pytest.mark.parametrize(
    "why", ["in a call", "lost", "failed itself", "frozen", "not read", "read to its end"]
)
def test_a_shard_that_waits_for_something_else_is_not_found(why):
    checker, found = planted(checkers.NeighboursGoOn)
    by = Somebody()

    if why == "read to its end":
        checker.ledger.open_shard("child", (KEY,))
    checker.read_begun(-2_000 if why == "not read" else 0, by, KEY)
    if why == "in a call":
        called(checker, KEY, 500, by)
    fails(checker, "neighbour", 1_000)
    if why == "lost":
        checker.told(1_100, by, LeaseLost(lease_key=KEY, reason=""))
    elif why == "failed itself":
        fails(checker, KEY, 1_100)
    elif why == "frozen":
        by.faults.append((1_100, "frozen"))
    checker.read_begun(19_000, by, KEY)

    assert not found
