"""Why a worker does not work: what is kept of it, for how long, and who says it (H9)."""

import json

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.failure import (
    MESSAGE_BYTES_MOST,
    WELL_AFTER_MS,
    WHERE_BYTES_MOST,
    Failure,
    FailureKind,
    failure_of,
    failure_of_fault,
)
from shardfleet.domain.slots.slot import (
    Slot,
    claim,
    close_turn,
    end,
    end_of_dead,
    fail_turn,
    intend_start,
    worked,
)
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet.engine.state.kinds import SLOT
from shardfleet.errors import HandlerNotLoaded, HandlerTimedOut, KeyDenied

BROKEN = Failure(FailureKind.IMPORT, "KeyError: x", "/var/task/orders.py, line 3")
# Lambda's words, Step Functions' name before them (tests/facts/lambda.toml, L20).
KILLED = (
    'Runtime.ExitError: {"errorType":"Runtime.ExitError","errorMessage":"RequestId: 1 Error: '
    'Runtime exited with error: signal: killed"}'
)


def read_slot(body):
    return SLOT.read(body, body["slot_id"])


def begun(slot=None, *, fault="", now_ms=2_000):
    """Return a slot that an invocation has claimed."""
    if slot is None:
        slot = intend_start(
            None, slot_id="s0001", worker_id="fleet-s0001", name_prefix="fleet", now_ms=1_000
        )
    claimed = claim(slot, replace(slot.slot_input(), fault=fault), now_ms=now_ms)
    assert isinstance(claimed, Slot)
    return claimed


def test_failures_in_a_row_are_counted_since_the_first():
    first = fail_turn(begun(), BROKEN, now_ms=5_000)
    second = fail_turn(begun(first), BROKEN, now_ms=9_000).failure

    assert (first.failure.times, first.failure.first_ms) == (1, 5_000)
    assert (second.times, second.first_ms, second.last_ms) == (2, 5_000, 9_000)
    assert second.where == "/var/task/orders.py, line 3"


def test_what_the_state_machine_saw_is_noted_by_the_next_claim():
    slot = begun(begun(), fault=KILLED, now_ms=7_000)
    found = slot.failure

    assert (found.kind, found.times, found.last_ms) == (FailureKind.MEMORY, 1, 7_000)
    assert begun(slot, fault=KILLED).failure.times == 2


def test_what_the_invocation_said_itself_is_not_said_again_by_its_end():
    failed = fail_turn(begun(), BROKEN, now_ms=5_000)

    assert begun(failed, fault=KILLED).failure == failed.failure


def test_a_fault_of_an_invocation_that_has_ended_in_order_is_no_failure():
    closed = close_turn(begun(), now_ms=5_000, lags_ms={})

    assert begun(closed, fault=KILLED).failure is None


def test_the_failure_is_taken_off_when_the_worker_works_again():
    failed = fail_turn(begun(), BROKEN, now_ms=5_000)
    cut_off = begun(begun(), fault=KILLED)

    assert begun(failed).failure == failed.failure
    assert worked(failed, loaded_for_ms=-60_000).failure is None
    assert worked(cut_off, loaded_for_ms=WELL_AFTER_MS - 1).failure == cut_off.failure
    assert worked(cut_off, loaded_for_ms=WELL_AFTER_MS).failure is None
    assert close_turn(cut_off, now_ms=1, lags_ms={}).failure is None
    assert end(cut_off, served_seq=0, now_ms=1).failure is None


def test_a_slot_that_is_ended_for_dead_keeps_why():
    failed = fail_turn(begun(), BROKEN, now_ms=5_000)

    assert end_of_dead(failed).failure == failed.failure


def test_it_outlives_the_table_and_a_kind_of_a_later_version_is_read():
    failed = fail_turn(begun(), BROKEN, now_ms=5_000)
    body = json.loads(json.dumps(slot_body(failed)))

    assert read_slot(body) == failed
    body["failure"] |= {"kind": "SOLAR", "later": 1}
    assert read_slot(body).failure.kind is FailureKind.TURN
    assert read_slot({k: v for k, v in body.items() if k != "failure"}).failure is None


def test_however_much_an_import_says_the_record_stays_small():
    words = Failure(FailureKind.IMPORT, "ü" * 5_000, "x" * 5_000)
    failure = fail_turn(begun(), words, now_ms=1).failure

    assert len(failure.message.encode()) <= MESSAGE_BYTES_MOST
    assert failure.message.endswith("ü…")
    assert len(failure.where.encode()) == WHERE_BYTES_MOST


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HandlerNotLoaded("no", kind="SIGNATURE"), FailureKind.SIGNATURE),
        (HandlerTimedOut("10 s"), FailureKind.TIME_OUT),
        (KeyDenied("no key"), FailureKind.RIGHT),
        (ValueError("of a record: secret"), FailureKind.TURN),
    ],
)
def test_an_error_of_the_turn_has_a_kind_and_quotes_nobody(error, kind):
    failure = failure_of(error)

    assert failure.kind is kind
    assert "secret" not in failure.message


def test_a_handler_that_is_not_loaded_says_what_it_said_and_where():
    error = HandlerNotLoaded("KeyError: x", kind="IMPORT", where="/var/task/orders.py, line 3")

    assert failure_of(error) == BROKEN


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (KILLED, FailureKind.MEMORY, "memory"),
        (
            "Runtime.OutOfMemory: RequestId: 1 Error: Runtime exited with error: signal: killed",
            FailureKind.MEMORY,
            "memory",
        ),
        (
            "Sandbox.Timedout: RequestId: 1 Error: Task timed out after 60.00 seconds",
            FailureKind.TIME_OUT,
            "60.00 s",
        ),
        (
            'Lambda.Unknown: Payload: {"errorMessage":"Task timed out after 3.00 seconds"}',
            FailureKind.TIME_OUT,
            "3.00 s",
        ),
        (
            "Runtime.ExitError: RequestId: 1 Error: Runtime exited with error: exit status 3",
            FailureKind.EXIT,
            "exit status 3",
        ),
        (
            "Runtime.ExitError: RequestId: 1 Error: Runtime exited without providing a reason",
            FailureKind.EXIT,
            "without a reason",
        ),
        ("ValueError: secret", FailureKind.TURN, "ValueError"),
    ],
)
def test_lambdas_words_become_a_kind_and_only_what_is_recognized_is_repeated(fault, kind, words):
    failure = failure_of_fault(fault)

    assert failure.kind is kind
    assert words in failure.message
    assert "secret" not in failure.message
