"""
Bugs that others had, put back into our engine: the simulation finds each within a few seeds.

The sources are the bug classes of docs/protocol.md and the trackers named beside each.
"""

from dataclasses import replace

import pytest

from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber, PointKind, Position
from shardfleet.engine.ports import IteratorKind, IteratorStart
from shardfleet.engine.shard import consumer as shard_consumer
from shardfleet.engine.shard import reader
from shardfleet.engine.shard.crash_notes import CrashNotes
from shardfleet.engine.shard.delivery import ShardDelivery
from shardfleet.engine.shard.end import ShardEnding
from shardfleet.engine.shard.reader import ShardReader
from shardfleet.testing.simulation import Options, run_seed
from shardfleet.testing.simulation.faults import FaultMix
from tests.simulation.mutants.arenas import ARENAS

PERFECT = FaultMix.none()
KILLS = replace(PERFECT, kill_between=0.03, handler_slow=0.3)
SEEDS = range(1, 6)


def found_by(mix, seeds=SEEDS):
    for seed in seeds:
        violations = run_seed(Options(seed=seed, busy_s=120.0, mix=mix)).violations
        if violations:
            return violations[0].checker
    return None


def test_a_false_shard_end_that_is_believed(monkeypatch):
    """KCL 2.2.5, #624: no next iterator, but no children either."""
    monkeypatch.setattr(reader, "contradiction_of", lambda page, shard_id: "")

    assert found_by(replace(PERFECT, false_end=0.05))


def test_an_aggregate_whose_rest_is_passed_over_after_a_restart(monkeypatch):
    """Hazard H4: reading on *after* the record of a checkpoint in the middle of it."""
    real = ShardReader._where

    def after(self):
        start = real(self)
        if start.kind is IteratorKind.AT_SEQUENCE_NUMBER:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, start.sequence_number)
        return start

    monkeypatch.setattr(ShardReader, "_where", after)
    monkeypatch.setattr(ShardReader, "_check_gap", lambda self, page: None)

    assert found_by(replace(KILLS, handler_partial=0.5))


def test_sequence_numbers_compared_as_text(monkeypatch):
    """The asyncio seed, kinesis-python: "99" is greater than "100"."""

    def as_text(self):
        if self.is_shard_end:
            return (1, "", self.sub_sequence_number)
        return (0, "" if self.is_sentinel else self.sequence_number, self.sub_sequence_number)

    monkeypatch.setattr(ExtendedSequenceNumber, "sort_key", property(as_text))

    assert found_by(KILLS)


def test_progress_told_before_the_handler_is_done(monkeypatch):
    """fs2-aws #436, KCL #1403: stored before in-flight records are handled."""
    real = ShardDelivery._try

    async def too_soon(self, batch):
        self._held.note_progress(position_of(batch[-1]))
        return await real(self, batch)

    monkeypatch.setattr(ShardDelivery, "_try", too_soon)

    assert found_by(KILLS) == "CheckpointCoversDone"


def test_a_merge_that_does_not_wait_for_its_other_parents_lease(monkeypatch):
    """
    KCL 2.4.8, #1080.

    The other parent has no lease while its own parent is still being read: so one shard must lag
    behind while its children split and merge.
    """

    async def at_once(self, held, child):
        return None

    monkeypatch.setattr(ShardEnding, "_wait_for_other_parents", at_once)
    found = [run_seed(ARENAS["merges of the unread"](seed)).violations for seed in SEEDS]

    # The last: a child that was read, finished and deleted is created by its other parent's end.
    assert {violations[0].checker for violations in found if violations} <= {
        "ParentsBeforeChildren",
        "OrderWithinKey",
        "DeletedOnlyFinished",
    }
    assert any(found)


def test_the_tip_that_is_another_now_each_time(monkeypatch):
    """Protocol §8 row 8b: a restart before the first checkpoint skips what came meanwhile."""

    async def moving(lease, done, *, incarnation, config, state, clock):
        if done.is_sentinel:
            now_ms = clock.now_ms()
            return Position(incarnation, lease.lease_key, PointKind.INSTANT, instant_ms=now_ms)
        return Position(incarnation, lease.lease_key, PointKind.SEQUENCE, done=done)

    monkeypatch.setattr(shard_consumer, "start_position", moving)

    assert found_by(KILLS)


def test_a_record_that_kills_is_never_given_up(monkeypatch):
    """Hazard H9: out of memory on one record, for ever, at full price."""

    async def forgetful(self, lease_key):
        return None

    monkeypatch.setattr(CrashNotes, "charge", forgetful)

    assert found_by(replace(PERFECT, poison=0.01)) == "NoRecordLost"


@pytest.mark.parametrize("mix", [KILLS, replace(PERFECT, false_end=0.05, request_lost=0.1)])
def test_without_a_bug_the_same_faults_break_nothing(mix):
    assert found_by(mix, seeds=(1, 2)) is None
