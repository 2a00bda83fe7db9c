"""What the checkers allow to workers of the KCL, and to nobody else."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import assign, checkpoint, initiate_handover, renew, take
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet_testkit import checkers
from tests.simulation.test_checkers_planted import (
    HIS,
    MANAGER,
    ME,
    MINE,
    OTHER,
    Somebody,
    a_slot,
    at,
    begins,
    planted,
    renewed,
    stores,
    writes,
)

LEADER = Somebody("java#1", "java-1", (0, 0))


@pytest.mark.parametrize(
    ("revived_ms", "is_finished", "by", "violations"),
    [
        (30_000, False, LEADER, 0),
        (30_000, False, MANAGER, 1),
        (9_000, False, LEADER, 1),
        (9_000, True, LEADER, 0),
        (9_000, True, MANAGER, 1),
    ],
)
def test_a_leader_of_the_kcl_goes_by_its_last_look(revived_ms, is_finished, by, violations):
    """What had expired by then, or is finished, it assigns whatever the counter since (§1.6)."""
    checker, found = planted(checkers.NobodyIsRobbed)
    mine = replace(MINE, checkpoint=AT_SHARD_END) if is_finished else MINE

    writes(checker, renew(mine), before=mine, after=renewed(mine))
    again = renewed(renewed(mine))
    writes(checker, renew(renewed(mine)), before=renewed(mine), after=again, at_ms=revived_ms)
    change = assign(again, OTHER.worker_id)
    writes(checker, change, before=again, after=HIS, at_ms=revived_ms + 100, by=by)

    assert len(found) == violations


@pytest.mark.parametrize(("took_it", "violations"), [(True, 0), (False, 1)])
def test_a_kcl_2_that_takes_a_lease_in_a_handover_owns_it(took_it, violations):
    """It knows no handover, and leaves ``checkpointOwner`` as it is (§1.6)."""
    checker, found = planted(checkers.OneEffectiveOwner)
    pending = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)
    its = replace(pending, lease_owner=LEADER.worker_id)

    if took_it:
        writes(checker, take(pending, LEADER.worker_id), before=pending, after=its, by=LEADER)
    writes(checker, checkpoint(its, at(9)), before=its, after=its, by=LEADER)

    assert len(found) == violations


@pytest.mark.parametrize(("took_it", "violations"), [(True, 0), (False, 1)])
def test_who_took_a_lease_in_a_handover_need_not_be_told_when_it_is_forced(took_it, violations):
    """Seed 821: the manager ends the handover that a KCL 2 has left on a lease it took."""
    checker, found = planted(checkers.AnnouncedFirst)
    pending = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=ME.worker_id)
    its = replace(pending, lease_owner=LEADER.worker_id)

    if took_it:
        writes(checker, take(pending, LEADER.worker_id), before=pending, after=its, by=LEADER)
    forced = replace(its, checkpoint_owner=None)
    writes(checker, assign(its, LEADER.worker_id), before=its, after=forced, by=MANAGER)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("told_ms", "after_ms", "violations"),
    [(30_000, 29_000, 1), (30_000, 30_000, 0), (5_000, 4_000, 1), (5_000, 26_617, 0)],
)
def test_a_handover_may_be_forced_once_the_time_is_over_that_the_fleet_is_told(
    told_ms, after_ms, violations
):
    """Seed 21: a KCL worker took a lease in a handover, which the manager ended by G6."""
    checker, found = planted(checkers.NobodyIsRobbed)
    checker.ledger.handover_ms = told_ms
    pending = replace(MINE, lease_owner=LEADER.worker_id, checkpoint_owner=ME.worker_id)
    handed = initiate_handover(MINE, LEADER.worker_id)
    writes(checker, handed, before=MINE, after=pending, by=MANAGER)
    later = renewed(pending)
    writes(checker, renew(pending), before=pending, after=later, at_ms=after_ms - 1, by=LEADER)
    forced = replace(later, checkpoint_owner=None)
    ending = assign(later, LEADER.worker_id)
    writes(checker, ending, before=later, after=forced, at_ms=after_ms, by=MANAGER)

    assert len(found) == violations


@pytest.mark.parametrize(
    ("by", "after_ms", "violations"), [(LEADER, 29_000, 0), (ME, 29_000, 0), (ME, 37_000, 1)]
)
def test_a_worker_of_the_kcl_has_half_a_minute_to_give_a_lease_away(by, after_ms, violations):
    checker, found = planted(checkers.HandoversEnd)
    pending = replace(MINE, lease_owner=OTHER.worker_id, checkpoint_owner=by.worker_id)

    for at_ms in (0, after_ms):
        writes(checker, renew(pending), before=pending, after=pending, at_ms=at_ms, by=by)

    assert len(found) == violations


@pytest.mark.parametrize(("is_finished", "violations"), [(True, 0), (False, 1)])
def test_what_is_finished_is_no_loss(is_finished, violations):
    """Our workers renew it no more, and a leader of the KCL gives it to somebody else."""
    checker, found = planted(checkers.OnlyTheHarmedLose)
    mine = replace(MINE, checkpoint=AT_SHARD_END) if is_finished else MINE

    stores(checker, a_slot())
    begins(checker, ME, 1)
    writes(checker, renew(mine), before=mine, after=mine)
    writes(checker, assign(mine, OTHER.worker_id), before=mine, after=HIS, by=LEADER)
    begins(checker, ME, 2)

    assert len(found) == violations
