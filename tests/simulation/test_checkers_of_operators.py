"""What operators do in the simulation: checkers see bugs put into the code of their commands."""

import dataclasses

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.filters import RecordFilter
from shardfleet.domain.leases.changes import checkpoint, rewind
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.state.documents import DocumentKind
from shardfleet.engine.state.kinds import NOTE, PAUSE, SLOT, WINDOW
from shardfleet.errors import ProtocolError
from shardfleet.events.worker import DocumentUnreadable
from shardfleet_ops.operate import documents, redrive
from shardfleet_ops.operate.given_up import event_of
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.positions.position_import import _Import
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import CallBegun, Handled
from shardfleet_testkit.simulation import Options, importing, run_seed
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.shapes import FILTERS
from tests.simulation.test_checkers_planted import (
    FREE,
    KEY,
    ME,
    OTHER,
    Somebody,
    adopts,
    at,
    has_records,
    planted,
    stores,
    writes,
)

PERSON = Somebody("operator#7", "", (0, 0))
THERE = replace(FREE, checkpoint=at(6), lease_counter=1)


@pytest.mark.parametrize(
    ("number", "is_adopted", "is_set_back", "violations"),
    [(6, True, False, 1), (7, True, False, 0), (6, False, False, 0), (6, True, True, 0)],
)
def test_a_record_before_an_imported_position_is_found(number, is_adopted, is_set_back, violations):
    checker, found = planted(checkers.ImportedIsDone)
    has_records(checker, 5, 6, 7)

    writes(checker, checkpoint(FREE, at(6)), before=FREE, after=THERE, by=PERSON)
    if is_set_back:
        writes(checker, rewind(THERE, at(5)), before=THERE, after=FREE, by=PERSON)
    if is_adopted:
        adopts(checker, ME, THERE)
    for by in (ME, OTHER):
        checker.call_begun(CallBegun(at_ms=1, by=by, shard_id=KEY, call=1))
    entry = checker.ledger.find(KEY, str(number), 0)
    checker.record_handled(Handled(at_ms=1, by=ME, entry=entry, call=1))
    checker.record_handled(Handled(at_ms=1, by=OTHER, entry=entry, call=1))
    assert len(found) == violations


def test_a_call_that_began_before_the_import_in_force_is_not_found():
    checker, found = planted(checkers.ImportedIsDone)
    has_records(checker, 5, 6, 7)
    writes(checker, checkpoint(FREE, at(5)), before=FREE, after=THERE, by=PERSON)
    adopts(checker, ME, THERE)
    checker.call_begun(CallBegun(at_ms=1, by=ME, shard_id=KEY, call=1))
    writes(checker, checkpoint(FREE, at(7)), before=FREE, after=THERE, by=PERSON)
    entry = checker.ledger.find(KEY, "6", 0)
    checker.record_handled(Handled(at_ms=1, by=ME, entry=entry, call=1))
    assert not found


@pytest.mark.parametrize(("by", "violations"), [(ME, 1), (Somebody("java#1", "j", (0, 0)), 0)])
def test_a_record_that_the_filters_leave_out_and_that_is_handled_is_found(by, violations):
    checker, found = planted(checkers.NothingFilteredIsHandled)
    checker.ledger.passes = lambda key: key != "k"
    has_records(checker, 5)

    (entry,) = checker.ledger.shards[KEY].entries
    checker.record_handled(Handled(at_ms=1, by=by, entry=entry))
    assert len(found) == violations
    assert entry.is_done


@pytest.mark.parametrize(
    ("redriven", "is_deleted", "is_kept", "violations"),
    [(1, True, False, 0), (0, True, False, 2), (0, False, True, 0), (0, False, False, 1)],
)
def test_what_was_given_up_and_is_nowhere_is_found(redriven, is_deleted, is_kept, violations):
    checker, found = planted(checkers.GivenUpIsKept)
    checker.ledger.keeps = True
    has_records(checker, 5)
    (entry,) = checker.ledger.shards[KEY].entries
    entry.is_kept, entry.redriven = True, redriven
    if is_kept:
        checker.ledger.kept["here"] = [entry]

    if is_deleted:
        checker.kept_deleted(1, where="here", entries=[entry])
    checker.over(2, keys=[KEY])
    assert len(found) == violations


@pytest.mark.parametrize(
    ("numbers", "is_adopted", "lanes", "violations"),
    [
        ((5, 6, 5, 6, 7), False, 1, 0),
        ((5, 6, 7, 5, 7), False, 1, 1),
        ((5, 7), True, 1, 0),
        ((5, 7), False, 4, 0),
    ],
)
def test_a_repeat_that_leaves_a_record_of_its_key_out_is_found(
    numbers, is_adopted, lanes, violations
):
    checker, found = planted(checkers.RepeatsAreWhole)
    has_records(checker, 5, 6, 7)
    checker.ledger.lanes = lanes

    for number in numbers:
        if is_adopted:
            adopts(checker, ME, FREE)
        entry = checker.ledger.find(KEY, str(number), 0)
        checker.record_handled(Handled(at_ms=1, by=ME, entry=entry))
    assert len(found) == violations


@pytest.mark.parametrize(
    ("at_ms", "is_resumed", "by", "violations"),
    [(20_000, False, ME, 1), (20_000, True, ME, 0), (15_000, False, ME, 0), (20_000, 0, PERSON, 0)],
)
def test_a_slot_that_goes_on_with_what_is_paused_is_found(at_ms, is_resumed, by, violations):
    checker, found = planted(checkers.PausedIsLeft)

    checker.leases_free(1, keys={KEY})
    if is_resumed:
        stores(checker, {"fleet": None}, kind=PAUSE, name="fleet", at_ms=2)
    checker.call_begun(CallBegun(at_ms=at_ms, by=by, shard_id=KEY))
    assert len(found) == violations


@pytest.mark.parametrize(("spoilt", "violations"), [({"slot/s1"}, 0), (set(), 1)])
def test_a_document_that_nobody_spoilt_and_that_cannot_be_read_is_found(spoilt, violations):
    checker, found = planted(checkers.OnlyTheSpoiltIsUnreadable)
    checker.ledger.spoilt |= spoilt

    checker.told(1, ME, DocumentUnreadable(document="slot/s1", reason="why"))
    assert len(found) == violations


@pytest.mark.parametrize(
    ("kind", "by", "violations"), [(NOTE, PERSON, 0), (WINDOW, PERSON, 1), (NOTE, ME, 1)]
)
def test_deaths_count_anew_once_their_note_was_dropped(kind, by, violations):
    checker, found = planted(checkers.WhatKillsIsStopped)
    checker._watchful.add(ME.name)

    for life in range(5):
        if life == 4:
            checker.document_deleted(1, by, kind=kind, name=KEY)
        adopts(checker, ME, FREE)
        checker.call_killed(1, ME, KEY, call="record 7:0")
    assert len(found) == violations


@pytest.mark.parametrize(("by", "left"), [(PERSON, [7]), (ME, [5, 6, 7])])
def test_what_a_dropped_window_had_before_its_checkpoint_is_in_no_result(by, left):
    checker, found = planted(checkers.WindowsHaveAll)
    checker.ledger.has_windows = True
    has_records(checker, 5, 6, 7)
    for entry in checker.ledger.shards[KEY].entries:
        entry.times = 1

    writes(checker, checkpoint(FREE, at(6)), before=FREE, after=THERE)
    checker.document_deleted(1, by, kind=WINDOW, name=KEY)
    assert [entry.position[0] for entry in checker.ledger.without_result()] == left
    checker.over(2, keys=[KEY])
    assert len(found) == len(left)


def test_what_another_reader_has_done_is_nobodys_to_handle_and_comes_again_after_a_rewind():
    checker, _ = planted(checkers.NoRecordLost)
    ledger = checker.ledger
    has_records(checker, 5, 6, 7)

    ledger.want_again(KEY, at(4))
    ledger.done_elsewhere(KEY, at(6))
    assert [entry.position[0] for entry in ledger.unfinished()] == [7]
    assert not ledger.wanted_again
    ledger.want_again(KEY, at(5))
    assert list(ledger.wanted_again[KEY]) == [(6, 0)]


# --- bugs put into the code of the commands, and into the reader of documents

COMMANDS = {"command": 0.2}
SEEDS = (10, *range(1, 10))  # The first shows each; which do, depends on every call.
IMPORTS = {"position_import": 0.05}
SPOILS = {"malformed_document": 0.2}


def _owners_are_not_asked(monkeypatch):
    monkeypatch.setattr(_Import, "owned", lambda self, gone: [])
    monkeypatch.setattr(importing, "_WAITS_MOST_MS", 0)


def _parents_end_first(monkeypatch):
    steps = _Import.steps
    monkeypatch.setattr(_Import, "steps", lambda self: steps(self)[::-1])


def _a_mended_slot_begins_at_nothing(monkeypatch):
    def mend(name, kept, facts):
        return mended(name, kept, facts) | {"state": "ENDED", "epoch": 0, "start_epoch": 0}

    mended = documents.CARE[SLOT].mend
    care = replace(documents.CARE[SLOT], mend=mend)
    monkeypatch.setattr(documents, "CARE", {**documents.CARE, SLOT: care})


def _a_missing_epoch_is_nought(monkeypatch):
    monkeypatch.setattr(SLOT, "required", ())


def _what_is_newer_is_refused(monkeypatch):
    def read(self, body, name):
        if "of_the_next_release" in body:
            raise ProtocolError("unknown")
        return known(self, body, name)

    known = DocumentKind.read
    monkeypatch.setattr(DocumentKind, "read", read)


def _what_has_failed_is_deleted(monkeypatch):
    async def one(document, *, kept, handle, within_s):
        taken = await kept.take(document, within_s=within_s)
        await handle(event_of(taken))
        await kept.delete(taken)

    monkeypatch.setattr(redrive, "_redrive_one", one)


def _filters_are_forgotten(monkeypatch):
    monkeypatch.setattr(RecordFilter, "is_open", True)


@pytest.mark.parametrize(
    ("bug", "rates", "checker"),
    [
        (_owners_are_not_asked, IMPORTS, "RewindsOnlyUnowned"),
        (_parents_end_first, IMPORTS, "ChildrenBeforeEnd"),
        (_a_mended_slot_begins_at_nothing, SPOILS, "OneInvocationPerEpoch"),
        (_a_missing_epoch_is_nought, SPOILS, "OneInvocationPerEpoch"),
        (_what_is_newer_is_refused, SPOILS, "OnlyTheSpoiltIsUnreadable"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_put_into_an_operators_code_is_caught(bug, rates, checker, monkeypatch):
    bug(monkeypatch)
    mix = dataclasses.replace(FaultMix.none(), **rates)
    # The first shows most of them; which do, depends on every call that a fleet makes.
    seeds = (4, *range(1, 20))
    runs = (run_seed(Options(seed=seed, mix=mix, is_small=True)) for seed in seeds)
    violations = next((run.violations for run in runs if run.violations), ())
    assert {violation.checker for violation in violations} == {checker}, violations


def _workers_know_of_no_pause(monkeypatch):
    async def until_free(self, lease_keys, **options):
        return ()

    monkeypatch.setattr(Pauses, "among", lambda self, lease_keys: {})
    monkeypatch.setattr(Operator, "until_free", until_free)


@pytest.mark.parametrize(
    ("bug", "told", "rates", "checker"),
    [
        (_workers_know_of_no_pause, {}, {"command": 1.0}, "PausedIsLeft"),
        (_filters_are_forgotten, {"filters": tuple(FILTERS)[2]}, {}, "NothingFilteredIsHandled"),
        (
            _what_has_failed_is_deleted,
            {"on_exhausted": "sqs", "max_attempts": 3},
            {"command": 1.0, "handler_raises": 0.6},
            "GivenUpIsKept",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_in_what_a_fleet_is_told_to_do_is_caught(bug, told, rates, checker, monkeypatch):
    def reshaped(shape):
        config = replace(shape.config, **told)
        return dataclasses.replace(shape, config=config, has_peer=False)

    mix = dataclasses.replace(FaultMix.none(), **rates)
    runs = [Options(seed=n, mix=mix, is_small=True, busy_s=60.0, reshape=reshaped) for n in SEEDS]
    assert not run_seed(runs[0]).violations
    bug(monkeypatch)
    found = next(found for options in runs if (found := run_seed(options).violations))
    assert {violation.checker for violation in found} == {checker}


@pytest.mark.parametrize("rates", [COMMANDS, IMPORTS, SPOILS])
def test_without_a_bug_nothing_is_found(rates):
    for seed in (1, 2):
        mix = dataclasses.replace(FaultMix.none(), **rates)
        assert not run_seed(Options(seed=seed, mix=mix, is_small=True, busy_s=40.0)).violations
