"""
The checkers of ownership, progress and slots each see a planted violation, and nothing else.

Long, and one idea: a planted violation for each checker.
"""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import (
    assign,
    checkpoint,
    create,
    delete,
    evict,
    initiate_handover,
    renew,
    rewind,
)
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.state.kinds import LANES, LOCK, NOTE, OFFER, SLOT
from shardfleet.events.delivery import ConsumerFailed, CrashCharged
from shardfleet.events.worker import (
    LeaseAdopted,
    LeaseLost,
    TurnBegun,
    TurnEnded,
    TurnEnding,
    TurnFailed,
)
from shardfleet_ops.positions.rewinds import RewindRow, RewindState
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import (
    CallBegun,
    DocumentWrite,
    Handled,
    LeaseWrite,
    RunLedger,
    SourceRecord,
)

KEY, SLOT_ID, RENEW_MS = "shard-0", "s0001", 3_333


class Somebody:
    """An invocation."""

    def __init__(self, name="s0001#1", worker_id="fleet-s0001", execution=(1, 0)):
        self.name, self.worker_id, self.execution = name, worker_id, execution
        self.frozen_ms, self.thawed_ms, self.faults = 0, None, []
        self.clock_ms = 0

    def wall_ms(self):
        """Tell the time."""
        return self.clock_ms


ME, MANAGER = Somebody(), Somebody("manager#1", "", (0, 0))
OTHER = Somebody("s0002#2", "fleet-s0002")
FREE = Lease(lease_key=KEY, checkpoint=AT_TRIM_HORIZON)
MINE = replace(FREE, lease_owner=ME.worker_id, lease_counter=5)
HIS = replace(FREE, lease_owner=OTHER.worker_id, lease_counter=6)


def planted(kind):
    ledger, found = RunLedger(), []
    ledger.open_shard(KEY, ())
    return kind(ledger, found.append, renew_ms=RENEW_MS), found


def has_records(checker, *numbers):
    for n in numbers:
        checker.ledger.put(SourceRecord(KEY, (n, 0), "k", n, 0, b""))


def writes(checker, change, *, before, after, at_ms=0, by=ME):
    checker.lease_written(LeaseWrite(at_ms=at_ms, by=by, change=change, before=before, after=after))


def stores(checker, after, *, before=None, kind=SLOT, name=SLOT_ID, at_ms=0, by=MANAGER):
    checker.document_written(
        DocumentWrite(at_ms=at_ms, by=by, kind=kind, name=name, before=before, after=after)
    )


def a_slot(**fields):
    body = {"worker_id": ME.worker_id, "state": "RUNNING", "assigned": []}
    return {**body, "assign_seq": 0, "served_seq": 0, **fields}


def begins(checker, by, epoch, at_ms=0):
    begun = TurnBegun(slot_id=SLOT_ID, worker_id=by.worker_id, epoch=epoch, suspicious=False)
    checker.told(at_ms, by, begun)


def adopts(checker, by, lease):
    said = LeaseAdopted(
        lease_key=KEY,
        worker_id=by.worker_id,
        counter=lease.lease_counter,
        checkpoint=str(lease.checkpoint),
    )
    checker.told(0, by, said)


def renewed(lease):
    return replace(lease, lease_counter=lease.lease_counter + 1)


def at(number):
    return ExtendedSequenceNumber(str(number))


@pytest.mark.parametrize(("at_ms", "violations"), [(20_000, 0), (5_000, 1)])
def test_an_assignment_of_a_lease_that_is_renewed_is_found(at_ms, violations):
    checker, found = planted(checkers.NobodyIsRobbed)

    writes(checker, renew(MINE), before=MINE, after=renewed(MINE))
    change = assign(renewed(MINE), OTHER.worker_id)
    writes(checker, change, before=renewed(MINE), after=HIS, at_ms=at_ms, by=MANAGER)
    assert len(found) == violations


def test_a_lease_of_a_slot_that_has_ended_may_be_assigned_at_once():
    checker, found = planted(checkers.NobodyIsRobbed)

    writes(checker, renew(MINE), before=MINE, after=renewed(MINE))
    stores(checker, a_slot(state="ENDED"), at_ms=1)
    change = assign(renewed(MINE), OTHER.worker_id)
    writes(checker, change, before=renewed(MINE), after=HIS, at_ms=2, by=MANAGER)
    assert not found


@pytest.mark.parametrize(
    ("silent_ms", "ended_ms", "violations"),
    [(14_589, 15_313, 0), (14_589, 19_000, 1), (8_000, 8_724, 1), (14_589, 13_000, 0)],
)
def test_who_wakes_when_its_slot_was_ended_may_renew_until_it_looks(
    silent_ms, ended_ms, violations
):
    """Seed 281: a process froze for 14 s, and its slot was ended 0.7 s after it woke."""
    checker, found = planted(checkers.NobodyIsRobbed)
    lease = MINE
    for at_ms in sorted([0, silent_ms, ended_ms, ended_ms + 2_322]):
        if at_ms == ended_ms:
            stores(checker, a_slot(state="ENDED"), at_ms=at_ms, by=MANAGER)
        else:
            writes(checker, renew(lease), before=lease, after=renewed(lease), at_ms=at_ms)
            lease = renewed(lease)
    change = assign(lease, OTHER.worker_id)
    writes(checker, change, before=lease, after=HIS, at_ms=ended_ms + 4_000, by=MANAGER)
    assert len(found) == violations


def test_a_handover_from_somebody_who_is_not_the_owner_is_found():
    checker, found = planted(checkers.NobodyIsRobbed)
    begun = replace(HIS, lease_owner="java-1", checkpoint_owner=ME.worker_id)

    writes(checker, initiate_handover(MINE, "java-1"), before=HIS, after=begun, by=OTHER)
    assert found


@pytest.mark.parametrize(("last", "violations"), [(OTHER, 0), (ME, 1)])
def test_a_lease_lost_to_an_own_write_is_found(last, violations):
    checker, found = planted(checkers.NobodyLosesToItself)

    writes(checker, renew(MINE), before=MINE, after=renewed(MINE), by=last)
    checker.told(1, ME, LeaseLost(lease_key=KEY, worker_id=ME.worker_id, reason="counter 6"))
    assert len(found) == violations


@pytest.mark.parametrize(
    ("fault", "late_fault", "hosts", "violations"),
    [
        ("killed", None, ("a",), 0),
        (None, "frozen before it began", ("a",), 0),
        (None, None, ("a",), 1),
        (None, None, ("a", ""), 0),
        (None, None, ("a", "", "b"), 1),
    ],
)
def test_a_lease_that_expires_under_somebody_unharmed_is_found(
    fault, late_fault, hosts, violations
):
    checker, found = planted(checkers.OnlyTheHarmedLose)
    before, after = Somebody(), Somebody("s0001#3")
    before.faults += [(0, fault)] if fault else []
    after.faults += [(0, late_fault)] if late_fault else []

    begins(checker, before, 1)
    stores(checker, a_slot())
    for host in hosts:
        stores(checker, {"host": host}, before={}, kind=OFFER, name=f"{ME.worker_id}-1-0")
    writes(checker, renew(MINE), before=MINE, after=MINE)
    writes(checker, assign(MINE, OTHER.worker_id), before=MINE, after=HIS, by=MANAGER)
    begins(checker, after, 2)
    assert len(found) == violations


def test_a_handover_that_its_old_owner_leaves_pending_is_found():
    checker, found = planted(checkers.HandoversEnd)
    begun = replace(MINE, lease_owner="java-1", checkpoint_owner=ME.worker_id)

    writes(checker, renew(begun), before=begun, after=renewed(begun), at_ms=1_000)
    writes(checker, renew(begun), before=begun, after=renewed(begun), at_ms=10_000)
    assert not found
    writes(checker, renew(begun), before=begun, after=renewed(begun), at_ms=38_000)
    assert found


@pytest.mark.parametrize(("before", "violations"), [(FREE, 0), (MINE, 1)])
def test_a_rewind_under_an_owner_is_found(before, violations):
    checker, found = planted(checkers.RewindsOnlyUnowned)

    writes(checker, rewind(FREE, AT_TRIM_HORIZON), before=before, after=renewed(before))
    assert len(found) == violations


def rewound(checker, *, records, beyond=0):
    """Set a shard with two records, both done, and more, back to before the second one."""
    has_records(checker, *range(1, 3 + beyond))
    first, second, *more = checker.ledger.shards[KEY].entries
    for each in (first, second, *more):
        each.times = 1
    before = replace(FREE, checkpoint=second.place)
    after = replace(before, checkpoint=first.place)
    writes(checker, rewind(before, first.place), before=before, after=after)
    checker.ledger.want_again(KEY, after.checkpoint)
    row = RewindRow(lease_key=KEY, state=RewindState.SET_BACK, records=records)
    checker.rewind_told(1, ME, row)
    return second


@pytest.mark.parametrize(
    ("records", "comes", "violations"), [(1, True, 0), (1, False, 1), (2, True, 1)]
)
def test_what_was_set_back_and_never_comes_again_or_was_counted_wrongly_is_found(
    records, comes, violations
):
    checker, found = planted(checkers.RewoundComesAgain)

    second = rewound(checker, records=records)
    if comes:
        checker.ledger.came_again(second)
    checker.over(2, keys=())

    assert len(found) == violations


@pytest.mark.parametrize(("has_windows", "violations"), [(True, 0), (False, 1)])
def test_what_an_open_window_has_beyond_the_checkpoint_may_be_in_the_count(has_windows, violations):
    checker, found = planted(checkers.RewoundComesAgain)
    checker.ledger.has_windows = has_windows

    rewound(checker, records=2, beyond=1)

    assert len(found) == violations


@pytest.mark.parametrize("is_told", [True, False])
def test_what_was_set_back_and_has_expired_is_found_unless_it_is_told(is_told):
    checker, found = planted(checkers.RewoundComesAgain)

    second = rewound(checker, records=1)
    checker.ledger.trim(3, before_ms=second.put_ms + 1)
    if is_told:
        checker.ledger.told_lost(second.shard_id)
    checker.over(4, keys=())

    assert bool(found) is not is_told


def test_an_update_of_a_lease_that_is_not_there_is_found():
    checker, found = planted(checkers.UpdatesNeverCreate)

    checker.update_created(LeaseWrite(at_ms=0, by=ME, change=evict(FREE), before=None, after=None))
    assert found


@pytest.mark.parametrize(("stored", "violations"), [(7, 0), (6, 1)])
def test_progress_that_a_turn_leaves_unstored_is_found(stored, violations):
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 7)
    after = replace(MINE, checkpoint=at(stored))

    checker.batch_done(0, ME, KEY, done=[at(7)])
    writes(checker, checkpoint(MINE, at(stored)), before=MINE, after=after)
    ended = TurnEnded(
        slot_id=SLOT_ID,
        worker_id=ME.worker_id,
        outcome="CONTINUE",
        reason=TurnEnding.TIME,
        held_leases=1,
        duration_ms=1,
    )
    checker.told(1, ME, ended)
    assert len(found) == violations


@pytest.mark.parametrize(("since", "lane_at", "violations"), [(6, 6, 1), (6, 7, 0), (5, 7, 1)])
def test_progress_that_is_noted_of_lanes_is_stored(since, lane_at, violations):
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 7)
    before = replace(MINE, checkpoint=at(6))

    checker.batch_done(0, ME, KEY, done=[at(7)])
    ahead = {"1": {"0": f"{lane_at}:0"}}
    note = {"since": f"{since}:0", "through": f"{since}:0", "between": [], "ahead": ahead}
    stores(checker, note, kind=LANES, name=KEY, by=ME)
    writes(checker, renew(before), before=before, after=before)
    writes(checker, evict(before), before=before, after=replace(before, lease_owner=None))
    assert len(found) == violations


@pytest.mark.parametrize(
    ("frozen_ms", "ends_ms", "violations"), [(0, 19_000, 0), (0, 20_427, 1), (18_702, 20_427, 0)]
)
def test_a_window_that_the_table_refused_to_the_end_is_not_stored(frozen_ms, ends_ms, violations):
    """Seed 286: between the last refusal and the turn's end the worker was frozen."""
    checker, found = planted(checkers.ProgressIsStored)
    checker.ledger.has_windows = True
    has_records(checker, 7)
    by, before = Somebody(), replace(MINE, checkpoint=at(6))
    by.faults, by.frozen_ms = [(1, "throttled")], frozen_ms

    checker.batch_done(0, by, KEY, done=[at(7)])
    writes(checker, renew(before), before=before, after=before, by=by)
    free = replace(before, lease_owner=None)
    writes(checker, evict(before), before=before, after=free, at_ms=1 + ends_ms, by=by)
    assert len(found) == violations


@pytest.mark.parametrize(("lost_first", "violations"), [(False, 1), (True, 0)])
def test_what_a_call_did_for_a_lease_that_was_lost_meanwhile_is_not_this_ones(
    lost_first, violations
):
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 7)

    if lost_first:
        checker.call_begun(checkers.CallBegun(at_ms=0, by=ME, shard_id=KEY))
    checker.told(1, ME, LeaseLost(lease_key=KEY, reason=""))
    adopts(checker, ME, MINE)
    if not lost_first:
        checker.call_begun(checkers.CallBegun(at_ms=2, by=ME, shard_id=KEY))
    checker.batch_done(3, ME, KEY, done=[at(7)])
    writes(checker, renew(MINE), before=MINE, after=MINE)
    writes(checker, evict(MINE), before=MINE, after=replace(FREE, lease_counter=6))
    assert len(found) == violations


@pytest.mark.parametrize(("is_set_back", "violations"), [(False, 1), (True, 0)])
def test_what_was_done_before_a_lease_was_set_back_is_not_left_unstored(is_set_back, violations):
    """It was given back with all that was done, set back, and given to the same invocation."""
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 7)
    stored, back = replace(MINE, checkpoint=at(7)), replace(MINE, checkpoint=at(6))
    free, set_back = (replace(lease, lease_owner=None) for lease in (stored, back))

    checker.batch_done(0, ME, KEY, done=[at(7)])
    writes(checker, checkpoint(MINE, at(7)), before=MINE, after=stored)
    writes(checker, evict(stored), before=stored, after=free)
    if is_set_back:
        writes(checker, rewind(free, at(6)), before=free, after=set_back, by=MANAGER)
    writes(checker, renew(back), before=back, after=back)
    writes(checker, evict(back), before=back, after=set_back)
    assert len(found) == violations


def test_a_lease_given_back_without_its_progress_is_found():
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 7)

    checker.batch_done(0, ME, KEY, done=[at(7)])
    writes(checker, renew(MINE), before=MINE, after=MINE)
    writes(checker, evict(MINE), before=MINE, after=replace(FREE, lease_counter=6))
    assert found


@pytest.mark.parametrize(("at_ms", "violations"), [(3_000, 0), (9_000, 1)])
def test_a_call_on_a_lease_that_was_not_confirmed_in_time_is_found(at_ms, violations):
    checker, found = planted(checkers.DeliveredWhileFresh)

    writes(checker, renew(MINE), before=MINE, after=renewed(MINE))
    checker.call_begun(checkers.CallBegun(at_ms=at_ms, by=ME, shard_id=KEY))
    assert len(found) == violations


def test_more_repetitions_than_restarts_explain_are_found():
    checker, found = planted(checkers.RepetitionsBounded)
    entries = [SourceRecord(KEY, (n, 0), "k", n, 0, b"", times=1) for n in (1, 2, 3)]
    for entry in entries:
        checker.ledger.put(entry)

    begins(checker, ME, 1)
    adopts(checker, ME, replace(MINE, checkpoint=at(2)))
    checker.record_handled(Handled(at_ms=1, by=ME, entry=entries[2]))
    checker._call_adoptions[ME.name, KEY, 0] = 1
    assert not found, "what was done beyond the checkpoint may come once more"
    for entry in entries[:2]:
        checker.record_handled(Handled(at_ms=2, by=ME, entry=entry))
    assert len(found) == 1


def test_what_a_failed_call_had_done_may_come_again():
    checker, found = planted(checkers.RepetitionsBounded)
    entry = SourceRecord(KEY, (1, 0), "k", 1, 0, b"")
    checker.ledger.put(entry)

    begins(checker, ME, 1)
    adopts(checker, ME, MINE)
    for _ in range(2):
        checker.call_begun(checkers.CallBegun(at_ms=1, by=ME, shard_id=KEY))
        checker.record_handled(Handled(at_ms=1, by=ME, entry=entry))
        entry.times += 1
        checker.batch_failed(1, ME, KEY)
    assert not found


@pytest.mark.parametrize(
    ("has_windows", "stored", "violations"), [(True, 1, 0), (True, 2, 1), (False, 1, 2)]
)
def test_with_windows_a_consumer_that_failed_may_repeat_what_is_not_stored(
    has_windows, stored, violations
):
    checker, found = planted(checkers.RepetitionsBounded)
    entries = [SourceRecord(KEY, (n, 0), "k", n, 0, b"", times=1) for n in (1, 2, 3)]
    for entry in entries:
        checker.ledger.put(entry)
    checker.ledger.has_windows = has_windows
    mine = replace(MINE, checkpoint=at(3))

    begins(checker, ME, 1)
    adopts(checker, ME, mine)
    writes(checker, renew(mine), before=mine, after=renewed(replace(mine, checkpoint=at(stored))))
    failed = ConsumerFailed(
        lease_key=KEY, worker_id=ME.worker_id, error="", attempts=1, back_off_ms=0
    )
    checker.told(1, ME, failed)
    for entry in entries[1:]:
        checker.call_begun(checkers.CallBegun(at_ms=2, by=ME, shard_id=KEY))
        checker.record_handled(Handled(at_ms=2, by=ME, entry=entry))

    assert len(found) == violations


@pytest.mark.parametrize(("epoch", "violations"), [(2, 0), (1, 1)])
def test_two_invocations_with_one_epoch_are_found(epoch, violations):
    checker, found = planted(checkers.OneInvocationPerEpoch)

    begins(checker, ME, 1)
    begins(checker, Somebody("s0001#2"), epoch)
    assert len(found) == violations


def test_an_outdated_execution_that_begins_a_turn_is_found():
    checker, found = planted(checkers.OneInvocationPerEpoch)

    begins(checker, Somebody("s0001#2", execution=(2, 0)), 1)
    begins(checker, Somebody("s0001#3", execution=(1, 4)), 2)
    assert found


@pytest.mark.parametrize(("at_ms", "violations"), [(12_000, 0), (2_000, 1)])
def test_a_slot_that_ends_on_a_fresh_announcement_is_found(at_ms, violations):
    checker, found = planted(checkers.SlotsEndServed)
    told = a_slot(assign_seq=1, assigned=[KEY])

    stores(checker, told, before=a_slot())
    stores(checker, a_slot(state="ENDED", assign_seq=1), before=told, at_ms=at_ms, by=ME)
    assert len(found) == violations


def test_a_slot_that_ends_with_what_it_has_held_is_not_found():
    """Its record need not say yet that it was served."""
    checker, found = planted(checkers.SlotsEndServed)
    told = a_slot(assign_seq=1, assigned=[KEY])

    stores(checker, told, before=a_slot())
    checker.told(1, ME, LeaseAdopted(lease_key=KEY, worker_id="w", counter=1, checkpoint="1"))
    stores(checker, a_slot(state="ENDED", assign_seq=1), before=told, at_ms=2_000, by=ME)
    assert not found


@pytest.mark.parametrize(("assigned", "violations"), [([KEY], 0), ([], 1)])
def test_a_lease_given_to_a_slot_that_was_not_told_is_found(assigned, violations):
    checker, found = planted(checkers.AnnouncedFirst)

    stores(checker, a_slot(assigned=assigned))
    writes(checker, assign(FREE, ME.worker_id), before=FREE, after=MINE, by=MANAGER)
    assert len(found) == violations


@pytest.mark.parametrize(("began", "violations"), [(OTHER, 0), (MANAGER, 1)])
def test_only_whom_another_leader_handed_over_to_is_not_told_by_the_manager(began, violations):
    checker, found = planted(checkers.AnnouncedFirst)

    handover = replace(HIS, lease_owner="java-1", checkpoint_owner=OTHER.worker_id)
    writes(checker, initiate_handover(HIS, "java-1"), before=HIS, after=handover, by=began)
    forced = replace(handover, checkpoint_owner=None)
    writes(checker, assign(handover, "java-1"), before=handover, after=forced, by=MANAGER)
    assert len(found) == violations


@pytest.mark.parametrize(
    ("reads_ms", "every_ms", "violations"), [(27_000, 3_000, 0), (0, 3_000, 1), (0, 25_000, 0)]
)
def test_a_lease_that_is_renewed_and_not_read_is_found(reads_ms, every_ms, violations):
    """While the table confirms nothing, nothing is to be read."""
    checker, found = planted(checkers.WhoRenewsReads)

    for at_ms in range(0, 109_000, every_ms):
        if at_ms in (0, reads_ms):
            checker.read_begun(at_ms, ME, KEY)
        checker.document_read(at_ms, OTHER, kind=SLOT, body={})
        writes(checker, renew(MINE), before=MINE, after=renewed(MINE), at_ms=at_ms)
    assert len(found) == violations


@pytest.mark.parametrize(("answers", "violations"), [(True, True), (False, False)])
def test_nothing_has_to_be_handled_while_the_state_table_answers_nobody(answers, violations):
    checker, found = planted(checkers.WhoRenewsReads)

    checker.read_begun(0, ME, KEY)
    for at_ms in range(0, 109_000, 1_000):
        if answers or at_ms in (3_000, 9_000, 108_000):
            checker.document_read(at_ms, OTHER, kind=SLOT, body={})
        writes(checker, renew(MINE), before=MINE, after=renewed(MINE), at_ms=at_ms)
    assert bool(found) == violations


@pytest.mark.parametrize(("at_ms", "violations"), [(30_000, 0), (90_000, 1)])
def test_a_lease_that_nobody_takes_while_nothing_goes_wrong_is_found(at_ms, violations):
    checker, found = planted(checkers.OwnedSoon)

    writes(checker, create(FREE), before=None, after=FREE)
    writes(checker, assign(FREE, ME.worker_id), before=FREE, after=MINE, at_ms=at_ms)
    assert len(found) == violations


@pytest.mark.parametrize(
    ("faults", "violations"),
    [([(5_000, "killed")], 0), ([(5_000, "killed"), (30_000, "killed")], 0), ([], 1)],
    ids=["its leader died", "so did the next one", "none of them is harmed"],
)
@pytest.mark.parametrize("worker_id", ["java-1", ""], ids=["java", "manager"])
def test_a_lease_waits_for_a_leader_of_javas_that_died_as_long_as_it_takes_to_replace_it(
    worker_id, faults, violations
):
    checker, found = planted(checkers.OwnedSoon)
    java = Somebody("java#1", worker_id, (0, 0))
    java.faults = faults

    checker.row_written(0, java)
    writes(checker, create(FREE), before=None, after=FREE, at_ms=10_000)
    writes(checker, assign(FREE, "java-2"), before=FREE, after=HIS, at_ms=240_000)

    assert len(found) == (violations if worker_id else 1)


def test_a_lease_that_waits_longer_than_it_takes_to_replace_a_leader_is_found():
    checker, found = planted(checkers.OwnedSoon)
    java = Somebody("java#1", "java-1", (0, 0))
    java.faults = [(5_000, "killed")]

    checker.row_written(0, java)
    writes(checker, create(FREE), before=None, after=FREE, at_ms=10_000)
    writes(checker, assign(FREE, "java-2"), before=FREE, after=HIS, at_ms=255_000)

    assert len(found) == 1


@pytest.mark.parametrize(("clock_ms", "violations"), [(30_000, 0), (20_000, 0), (19_999, 1)])
def test_a_turn_lock_taken_before_its_time_is_over_is_found(clock_ms, violations):
    """By the clock of who takes it, whatever it says later."""
    checker, found = planted(checkers.OneManagerAtATime)
    taker = Somebody("manager#2", "", (0, 0))
    mine, his = ({"holder": holder, "until_ms": 20_000} for holder in ("a", "b"))

    for taker.clock_ms in (clock_ms, 10_000):
        checker.document_read(0, taker, kind=LOCK, body=mine)
    stores(checker, his, before=mine, kind=LOCK, by=taker)
    assert len(found) == violations


def test_a_turn_lock_taken_without_a_look_is_found():
    checker, found = planted(checkers.OneManagerAtATime)

    stores(
        checker, {"holder": "b", "until_ms": 9}, before={"holder": "a", "until_ms": 9}, kind=LOCK
    )
    assert len(found) == 1


@pytest.mark.parametrize(("by", "violations"), [(MANAGER, 0), (ME, 1)])
def test_a_worker_that_deletes_a_lease_is_found(by, violations):
    checker, found = planted(checkers.WithinRights)

    writes(checker, delete(MINE), before=MINE, after=None, by=by)
    assert len(found) == violations


@pytest.mark.parametrize(("every_ms", "violations"), [(200, False), (20, True)])
def test_reads_that_are_not_paced_are_found(every_ms, violations):
    checker, found = planted(checkers.ReadsArePaced)

    for number in range(20):
        checker.get_records_begun(number * every_ms, ME, KEY)
    assert bool(found) is violations


def test_what_is_pushed_is_as_fast_as_it_comes():
    checker, found = planted(checkers.ReadsArePaced)

    for number in range(20):
        checker.read_begun(number * 20, ME, KEY)
    assert not found


@pytest.mark.parametrize(("began", "violations"), [(OTHER, 1), (ME, 0)])
def test_a_leader_that_hands_over_to_itself_may_take_the_counter_for_its_own(began, violations):
    """The KCL does: a failed renewal counts if the item shows its name and one more."""
    checker, found = planted(checkers.OneEffectiveOwner)
    handover = replace(HIS, lease_owner=ME.worker_id, checkpoint_owner=OTHER.worker_id)
    to_me = initiate_handover(HIS, ME.worker_id)

    writes(checker, to_me, before=HIS, after=handover, by=began)
    change = checkpoint(handover, ExtendedSequenceNumber("9"))
    writes(checker, change, before=handover, after=handover)

    assert len(found) == violations


def test_who_gets_a_lease_again_has_not_been_idle_with_it_meanwhile():
    checker, found = planted(checkers.WhoRenewsReads)
    theirs = replace(MINE, lease_owner=OTHER.worker_id)

    writes(checker, renew(MINE), before=MINE, after=MINE)
    writes(checker, assign(MINE, OTHER.worker_id), before=MINE, after=theirs)
    writes(checker, assign(theirs, ME.worker_id), before=theirs, after=MINE, by=MANAGER)
    writes(checker, renew(MINE), before=MINE, after=MINE, at_ms=10**6)
    assert not found

    for at_ms in range(10**6, 10**6 + 120_000, 3_000):
        checker.document_read(at_ms, OTHER, kind=SLOT, body={})
        writes(checker, renew(MINE), before=MINE, after=MINE, at_ms=at_ms)
    assert found


NOTED = {"first": "7:0", "last": "7:2", "count": 3, "crashes": 1, "is_open": True}


def notes(checker, by, **fields):
    body = {**NOTED, **fields}
    given = {"before": None, "after": body, "at_ms": 0, "kind": NOTE, "name": KEY}
    checker.document_written(DocumentWrite(by=by, **given))


@pytest.mark.parametrize(
    ("fault", "violations"), [("killed", 0), ("late twin", 0), ("process ended", 1), (None, 1)]
)
def test_a_death_between_the_note_of_a_call_and_the_call_counts_if_nobody_could_know(
    fault, violations
):
    """A worker that ends its own process knows what it has noted and never called."""
    checker, found = planted(checkers.OnlyTheGuiltyGivenUp)
    entry = SourceRecord(KEY, (7, 1), "k", 1, 0, b"", calls=2)

    for number in range(2):
        by = Somebody(f"s0001#{number}")
        by.faults = [(1, fault)] if fault else []
        notes(checker, by)
        if number:
            checker.call_begun(CallBegun(at_ms=0, by=by, shard_id=KEY))
    checker.record_kept(1, ME, entry, attempts=3)

    assert len(found) == violations


@pytest.mark.parametrize("fault", ["killed", "process ended"])
@pytest.mark.parametrize(
    ("begins", "is_over", "is_innocent"),
    [(False, False, True), (True, False, False), (True, True, True)],
)
def test_a_death_is_charged_only_to_a_call_that_did_not_return(begins, is_over, is_innocent, fault):
    checker, found = planted(checkers.OnlyTheGuiltyGivenUp)
    by = Somebody("s0001#1")
    by.faults = [(1, fault)]

    notes(checker, by)
    if begins:
        checker.call_begun(CallBegun(at_ms=0, by=by, shard_id=KEY, call=1))
    if is_over:
        checker.call_over(1, by, KEY, call=1)
    charge = {"call": "records", "first": "7:0", "count": 3, "crashes": 1}
    checker.told(2, ME, CrashCharged(lease_key=KEY, **charge))

    assert len(found) == (is_innocent and fault == "process ended")


@pytest.mark.parametrize(("every_ms", "violations"), [(5_000, 0), (8_000, 1)])
def test_a_call_that_came_back_is_charged_if_the_table_would_not_hear_of_it(every_ms, violations):
    checker, found = planted(checkers.OnlyTheGuiltyGivenUp)
    by = Somebody("s0001#1")

    notes(checker, by)
    checker.call_begun(CallBegun(at_ms=0, by=by, shard_id=KEY, call=1))
    checker.call_over(1_000, by, KEY, call=1)
    by.faults = [(at_ms, "throttled") for at_ms in range(1_000 + every_ms, 30_000, every_ms)]
    by.faults.append((31_000, "process ended"))
    charge = {"call": "records", "first": "7:0", "count": 3, "crashes": 1}
    checker.told(40_000, ME, CrashCharged(lease_key=KEY, **charge))

    assert len(found) == violations


@pytest.mark.parametrize(
    ("frozen_ms", "begun_ms", "violations"), [(0, 10_000, 1), (40_000, 10_000, 0), (0, 35_000, 0)]
)
def test_an_import_that_did_not_end_is_found_unless_its_worker_was_late(
    frozen_ms, begun_ms, violations
):
    checker, found = planted(checkers.TurnsEndCleanly)
    by = Somebody()
    by.frozen_ms = frozen_ms

    begins(checker, by, 1, at_ms=begun_ms)
    error = "its import had not ended when the turn had to"
    checker.told(84_000, by, TurnFailed(slot_id="s0001", worker_id=by.worker_id, error=error))

    assert len(found) == violations


def test_a_call_that_is_noted_when_it_outlives_its_time_out_is_charged_rightly():
    checker, found = planted(checkers.OnlyTheGuiltyGivenUp)

    checker.call_begun(CallBegun(at_ms=0, by=ME, shard_id=KEY, call=1))
    notes(checker, ME)
    charge = {"call": "records", "first": "7:0", "count": 3, "crashes": 1}
    checker.told(2, OTHER, CrashCharged(lease_key=KEY, **charge))

    assert not found


@pytest.mark.parametrize(
    ("keys", "lanes", "is_over", "violations"),
    [("ab", 2, False, 0), ("aa", 2, False, 1), ("ab", 1, False, 1), ("aa", 2, True, 0)],
)
def test_two_calls_at_once_of_one_key_or_beyond_the_lanes_are_found(
    keys, lanes, is_over, violations
):
    checker, found = planted(checkers.KeysNeverOverlap)
    checker.ledger.lanes = lanes

    for number, name in enumerate(keys):
        call = CallBegun(at_ms=number, by=ME, shard_id=KEY, call=number, keys=frozenset(name))
        checker.call_begun(call)
        if is_over:
            checker.call_over(number, ME, KEY, call=number)
    assert len(found) == violations


@pytest.mark.parametrize(("lanes", "violations"), [(1, 1), (2, 0)])
def test_a_record_before_another_of_its_shard_is_found_unless_lanes_allow_it(lanes, violations):
    checker, found = planted(checkers.OrderWithinShard)
    checker.ledger.lanes = lanes
    entries = [SourceRecord(KEY, (n, 0), name, 1, 0, b"") for n, name in enumerate("aab")]
    checker.ledger.shards[KEY].entries += entries

    checker.record_handled(Handled(at_ms=1, by=ME, entry=entries[2]))
    assert len(found) == violations
    checker.record_handled(Handled(at_ms=1, by=ME, entry=entries[1]))
    assert len(found) == violations + 1


@pytest.mark.parametrize(("stored", "violations"), [(5, 0), (4, 1)])
def test_what_is_done_behind_a_gap_need_not_be_stored(stored, violations):
    checker, found = planted(checkers.ProgressIsStored)
    has_records(checker, 5, 6, 7)
    after = replace(MINE, checkpoint=at(stored))

    checker.batch_done(0, ME, KEY, done=[at(5), at(7)])
    writes(checker, renew(MINE), before=MINE, after=after)
    writes(checker, evict(MINE), before=after, after=replace(FREE, lease_counter=6))
    assert len(found) == violations
