"""Each checker sees what it is for: a bug put into the engine, or a planted violation."""

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from shardfleet.domain import turn as planned_turn
from shardfleet.domain.balance import by_count as assignment
from shardfleet.domain.delivery.policies import POLICIES
from shardfleet.domain.leases.changes import checkpoint, create, delete, rewind
from shardfleet.domain.leases.lease import Lease, LeaseAndWhy, LeaseField
from shardfleet.domain.reasons import MovedToEvenOut
from shardfleet.domain.stream.sequence import (
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
)
from shardfleet.engine.ownership import checkpointer
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ownership.writer import LeaseWriter
from shardfleet.engine.shard import deaggregation
from shardfleet.engine.shard.consumer import ShardConsumer
from shardfleet.engine.shard.delivery import ShardDelivery
from shardfleet.engine.worker.tasks import TurnTasks
from shardfleet.events.delivery import PositionLost, RecordSkipped
from shardfleet.events.manager import LeaseAssigned
from shardfleet.kpl.content import at_once
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import (
    CHECKERS,
    Handled,
    LeaseWrite,
    RunLedger,
    SourceRecord,
    Window,
)
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix

SEEDS = range(1, 7)


def first_violation(checker, **options):
    for seed in SEEDS:
        given = Options(seed=seed, busy_s=150.0, checkers=(checker,), **options)
        found = run_seed(given).violations
        if found:
            return found[0]
    return None


# --- bugs put into the engine


@pytest.fixture
def skipping_what_failed(monkeypatch):
    """KCL #10: an exception skips the batch."""

    async def after_failure(self, batch, lane, *, done, error):
        await lane.done(len(batch) - done, given_up=False)

    monkeypatch.setattr(ShardDelivery, "_after_failure", after_failure)


@pytest.fixture
def children_at_once(monkeypatch):
    """Nobody waits for parents."""

    async def none(self, lease):
        return ()

    monkeypatch.setattr(Checkpointer, "unfinished_parents", none)
    monkeypatch.setattr(assignment.LeaseGroups, "_unfinished_parents", lambda self, lease: [])


@pytest.mark.parametrize(
    "checker",
    [checkers.NoRecordLost, checkers.OrderWithinShard, checkers.CheckpointCoversDone],
)
def test_a_batch_skipped_after_an_exception_is_found(checker, skipping_what_failed):
    failing = dataclasses.replace(FaultMix.none(), handler_raises=0.1, kill_between=0.02)
    assert first_violation(checker, mix=failing)


def test_aggregates_taken_apart_without_a_pause_are_found(monkeypatch):
    async def at_a_stretch(_, steps):
        return at_once(steps)

    monkeypatch.setattr(deaggregation.Deaggregator, "_paced", at_a_stretch)
    monkeypatch.setattr(deaggregation, "asyncio", SimpleNamespace(sleep=no_pause))
    bombs = dataclasses.replace(FaultMix.none(), decode_bomb=0.02)
    assert first_violation(checkers.DecodingMakesWay, mix=bombs)


async def no_pause(_seconds):
    pass


@pytest.mark.parametrize("checker", [checkers.ParentsBeforeChildren, checkers.OrderWithinKey])
def test_children_that_do_not_wait_for_their_parents_are_found(checker, children_at_once):
    slow = dataclasses.replace(FaultMix.none(), handler_slow=0.9, handler_raises=0.3)
    assert first_violation(checker, mix=slow)


def test_reading_again_from_the_beginning_is_found(monkeypatch, mute_everything):
    async def from_the_beginning(self):
        return Position(self._ports.incarnation, self._held.lease_key, PointKind.TRIM_HORIZON)

    monkeypatch.setattr(ShardConsumer, "_start", from_the_beginning)

    assert first_violation(checkers.RepetitionsExplained, muted=mute_everything)


def test_records_from_before_the_instant_are_found(mute_everything):
    def from_its_oldest_record(shape):
        late = shape.from_instant(random.Random(1))
        return dataclasses.replace(
            late, config=replace(late.config, initial_position="TRIM_HORIZON")
        )

    assert first_violation(
        checkers.NothingBeforeTheInstant, muted=mute_everything, reshape=from_its_oldest_record
    )


def test_a_counter_that_leaps_is_found(monkeypatch):
    real = checkpointer.renew

    def leaping(lease, **options):
        change = real(lease, **options)
        counter = lease.lease_counter + 2
        return replace(change, sets={**change.sets, LeaseField.LEASE_COUNTER: counter})

    monkeypatch.setattr(checkpointer, "renew", leaping)

    assert first_violation(checkers.CounterByOne)


def test_taking_a_twins_write_for_its_own_is_found(monkeypatch):
    """Hazard H1 without its rule: a refused write is tried again if the row names this worker."""
    real = LeaseWriter._after_refusal

    def any_write_of_this_worker(self, held, change, *, lost):
        if lost.current.effective_owner == self.worker_id:
            held.lease = lost.current
            return None
        return real(self, held, change, lost=lost)

    monkeypatch.setattr(LeaseWriter, "_after_refusal", any_write_of_this_worker)

    twins = dataclasses.replace(FaultMix.none(), duplicate_call=0.5, connection_lost=0.3)
    assert first_violation(checkers.OneEffectiveOwner, mix=twins)


def test_a_shard_that_ends_before_its_children_have_leases_is_found(monkeypatch):
    async def create_nothing(self, lease):
        return None

    monkeypatch.setattr(Checkpointer, "create", create_nothing)

    assert first_violation(checkers.ChildrenBeforeEnd)


def test_deleting_an_unfinished_lease_is_found(monkeypatch):
    real = planned_turn.plan_lease_cleanup

    def too_early(shards, leases, **options):
        plan = real(shards, leases, **options)
        started = [le for le in leases if le.checkpoint != AT_TRIM_HORIZON]
        extra = tuple(LeaseAndWhy(lease, "too early") for lease in started[:1])
        return replace(plan, delete=(*plan.delete, *extra))

    monkeypatch.setattr(planned_turn, "plan_lease_cleanup", too_early)

    assert first_violation(checkers.DeletedOnlyFinished)


def test_a_turn_that_leaves_tasks_behind_is_found(monkeypatch):
    async def not_waiting(self, hard):
        return True

    monkeypatch.setattr(TurnTasks, "are_done", not_waiting)

    assert first_violation(checkers.TurnsEndCleanly)


# --- planted violations


class Somebody:
    name, worker_id, frozen_ms, faults = "s0001#1", "fleet-s0001", 0, ()


LEASE = Lease(lease_key="shard-0", checkpoint=AT_TRIM_HORIZON, lease_owner="fleet-s0001")


def planted(checker):
    """Return a checker over one shard, and the violations it reports."""
    ledger, found = RunLedger(), []
    ledger.open_shard("shard-0", ())
    return checker(ledger, found.append, renew_ms=3_333), found


def a_write(change, *, before, after):
    return LeaseWrite(at_ms=1, by=Somebody(), change=change, before=before, after=after)


def test_a_checkpoint_that_goes_back_is_found():
    checker, found = planted(checkers.CheckpointForward)
    number = ExtendedSequenceNumber("100")
    far = replace(LEASE, checkpoint=number)
    nearer = replace(LEASE, checkpoint=ExtendedSequenceNumber("99"), lease_counter=1)

    checker.lease_written(a_write(checkpoint(LEASE, number), before=LEASE, after=far))
    assert not found
    checker.lease_written(a_write(checkpoint(far, number), before=far, after=nearer))
    assert found


def test_an_item_that_is_no_lease_of_a_shard_is_found():
    checker, found = planted(checkers.NothingForeign)
    foreign = replace(LEASE, lease_key="slot-s0001")

    checker.lease_written(a_write(create(LEASE), before=None, after=LEASE))
    assert not found
    checker.lease_written(a_write(create(foreign), before=None, after=foreign))
    assert found
    found.clear()
    checker.over(1, keys=["shard-0", "slot-s0001"])
    assert found


def test_a_lease_that_comes_back_after_its_deletion_is_found():
    checker, found = planted(checkers.DeletedOnlyFinished)
    finished = replace(LEASE, checkpoint=ExtendedSequenceNumber("SHARD_END"))

    checker.lease_written(a_write(delete(finished), before=finished, after=None))
    checker.lease_written(a_write(create(finished), before=None, after=finished))
    assert not found
    checker.lease_written(a_write(create(LEASE), before=None, after=LEASE))
    assert found


def test_an_alarm_about_nothing_is_found():
    checker, found = planted(checkers.AlarmsAreTrue)

    checker.told(1, Somebody(), PositionLost(lease_key="shard-0", done="7", policy="stop"))
    assert found


@pytest.mark.parametrize(("was_harmed", "violations"), [(False, 1), (True, 0)])
def test_an_alarm_about_nothing_is_found_after_others_were_lost(was_harmed, violations):
    """Who was killed may have read further than it has noted, whatever a person counts (418)."""
    checker, found = planted(checkers.AlarmsAreTrue)
    reader, person = Somebody(), Somebody()
    reader.faults = [(0, "killed")] if was_harmed else []
    person.name, person.worker_id = "operator#2", ""

    checker.read_begun(1, reader, "shard-0")
    checker.read_begun(1, person, "shard-0")
    checker.ledger.open_shard("shard-0", ())
    checker.ledger.trim(2, before_ms=2)
    checker.told(3, Somebody(), PositionLost(lease_key="shard-0", done="7", policy="stop"))
    assert len(found) == violations


@pytest.mark.parametrize(("again", "violations"), [("3", 0), ("6", 0), ("9", 1)])
def test_what_an_operator_wants_again_is_lost_when_it_is_trimmed_before(again, violations):
    """Seed 1441; once the shard is as far again as it was, nothing of it is wanted."""
    checker, found = planted(checkers.AlarmsAreTrue)
    done = replace(LEASE, checkpoint=ExtendedSequenceNumber("9"))
    back, there = (replace(LEASE, checkpoint=ExtendedSequenceNumber(at)) for at in ("3", again))

    checker.read_begun(1, Somebody(), "shard-0")
    checker.lease_written(a_write(rewind(done, back.checkpoint), before=done, after=back))
    change = checkpoint(back, there.checkpoint)
    checker.lease_written(a_write(change, before=back, after=there))
    checker.ledger.open_shard("shard-0", ())
    checker.ledger.trim(2, before_ms=2)
    checker.told(3, Somebody(), PositionLost(lease_key="shard-0", done=again, policy="stop"))
    assert len(found) == violations


@pytest.mark.parametrize(("is_told", "violations"), [(False, 1), (True, 0)])
def test_records_that_were_trimmed_unread_and_told_to_nobody_are_found(is_told, violations):
    checker, found = planted(checkers.AlarmsAreTrue)
    done = replace(LEASE, checkpoint=ExtendedSequenceNumber("1"))

    checker.ledger.open_shard("shard-0", ())
    checker.ledger.put(SourceRecord("shard-0", (2, 0), "k", 2, 0, b"k/2"))
    checker.lease_written(a_write(create(done), before=None, after=done))
    checker.ledger.trim(9, before_ms=5)
    if is_told:
        checker.told(9, Somebody(), PositionLost(lease_key="shard-0", done="1", policy="stop"))
    checker.over(10, keys=["shard-0"])
    assert len(found) == violations


def test_an_innocent_record_that_is_given_up_is_found():
    checker, found = planted(checkers.OnlyTheGuiltyGivenUp)
    entry = SourceRecord("shard-0", (1, 0), "k", 1, 0, b"k/1", calls=3)

    checker.record_kept(1, Somebody(), entry, attempts=3)
    assert not found
    checker.record_kept(1, Somebody(), entry, attempts=4)
    assert len(found) == 1
    checker.record_kept(1, Somebody(), entry, attempts=1)
    assert len(found) == 2


def skipped(position, *, kept_at):
    return RecordSkipped(
        lease_key="shard-0",
        worker_id="fleet-s0001",
        position=position,
        attempts=3,
        kept_at=kept_at,
    )


@pytest.mark.parametrize(
    ("policy", "kept_at", "is_kept", "violations"),
    [
        ("sqs", "queue", True, 0),
        ("sns", "bucket", True, 0),
        ("skip", "", True, 0),
        ("sns", "bucket", False, 1),
        ("sqs", "", True, 1),
        ("skip", "queue", True, 1),
        ("stop", "", True, 1),
    ],
)
def test_what_is_passed_and_not_where_the_policy_says_is_found(
    policy, kept_at, is_kept, violations
):
    checker, found = planted(checkers.PassedIsKept)
    checker.ledger.terms = POLICIES[policy]
    checker.ledger.put(SourceRecord("shard-0", (5, 2), "k", 1, 0, b"", is_kept=is_kept))

    checker.told(1, Somebody(), skipped("5:2", kept_at=kept_at))
    assert len(found) == violations


def test_what_is_passed_and_was_never_put_is_found():
    checker, found = planted(checkers.PassedIsKept)
    checker.ledger.terms = POLICIES["skip"]

    checker.told(1, Somebody(), skipped("5", kept_at=""))
    assert len(found) == 1


@pytest.mark.parametrize(("is_kept", "violations"), [(False, 1), (True, 0)])
def test_a_record_that_was_kept_elsewhere_may_come_late_any_other_may_not(is_kept, violations):
    """Seed 20004: given up, and handled after all because a crash brought it again."""
    checker, found = planted(checkers.OrderWithinKey)
    first, second = (SourceRecord("shard-0", (n, 0), "k", n, 0, b"") for n in (1, 2))
    first.is_kept = is_kept

    checker.record_handled(Handled(at_ms=1, by=Somebody(), entry=second))
    checker.record_handled(Handled(at_ms=2, by=Somebody(), entry=first))
    assert len(found) == violations


def a_window(**fields):
    given = {"duration_ms": 3_600_000, "shards": 1, "calls": {}, "owner_changes": 0}
    return Window(**{**given, "renew_ms": 3_333, **fields})


@pytest.mark.parametrize(
    ("moved_ms", "owner_changes", "violations"),
    [((100, 100), 2, 0), ((100, 100), 3, 1), ((100, 100, 200), 3, 1), ((-1, -1), 2, 1)],
)
def test_one_exchange_in_a_quiet_fleet_is_not_found(moved_ms, owner_changes, violations):
    checker, found = planted(checkers.QuietFleetKeepsLeases)
    why = MovedToEvenOut("throughput", "a", 200, "b", 0, 50)

    for at_ms in moved_ms:
        event = LeaseAssigned(lease_key="x", worker_id="b", kind="HANDOVER", reason=why)
        checker.told(at_ms, Somebody(), event)
    checker.calm_window(3_600_000, a_window(owner_changes=owner_changes))
    assert len(found) == violations


def test_a_lease_that_moves_in_a_quiet_fleet_is_found():
    checker, found = planted(checkers.QuietFleetKeepsLeases)

    checker.calm_window(1, a_window())
    checker.calm_window(1, a_window(owner_changes=2, uneven=2))
    assert not found
    checker.calm_window(1, a_window(owner_changes=1))
    checker.calm_window(1, a_window(owner_changes=3, uneven=2))
    assert len(found) == 2


@pytest.mark.parametrize("calls", [{"lease.apply": 4_000}, {"stream.get_records": 20_000}])
def test_a_quiet_fleet_that_calls_too_often_is_found(calls):
    checker, found = planted(checkers.CallsAreBounded)

    checker.calm_window(1, a_window(calls={"lease.apply": 3_000, "stream.get_records": 3_600}))
    assert not found
    checker.calm_window(1, a_window(calls=calls))
    assert found


def test_every_checker_is_seen_to_fail_here():
    files = Path(__file__).parent.glob("test_checkers_*.py")
    text = "".join(file.read_text("utf-8") for file in files)

    assert [kind.__name__ for kind in CHECKERS if f"checkers.{kind.__name__}" not in text] == []


def test_the_page_about_the_proof_lists_every_checker():
    page = (Path(__file__).parents[2] / "docs/proof.md").read_text("utf-8")

    assert [kind.__name__ for kind in CHECKERS if f"| `{kind.__name__}` |" not in page] == []
