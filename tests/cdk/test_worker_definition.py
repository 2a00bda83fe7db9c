"""The worker slot's state machine, executed with scripted replies."""

import json

import pytest

from shardfleet.domain.slots.failure import FailureKind, failure_of_fault
from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from tests.cdk.machine import Machine, TaskFailed

SLOT = SlotInput(slot_id="s0003", name="clicks-s0003-7", start_epoch=7, generation=2)
# What Lambda answers of a process that it has killed (fact L20).
CAUSE = (
    '{"errorType":"Runtime.ExitError","errorMessage":"RequestId: 1 Error: Runtime exited with '
    'error: signal: killed"}'
)
CRASH = TaskFailed("Runtime.ExitError", cause=CAUSE)
THROTTLE = TaskFailed("Lambda.TooManyRequestsException")
HISTORY_EVENTS_MOST = 25_000


@pytest.fixture(scope="module")
def defined():
    """Return the module, imported here: that starts Node, which collecting the tests shall not."""
    from shardfleet_cdk import worker_definition  # noqa: PLC0415

    return worker_definition


def a_definition(*, max_loops=1000):
    from shardfleet_cdk.worker_definition import worker_definition  # noqa: PLC0415 - starts Node

    return worker_definition(
        function_arn="arn:alias", function_timeout_s=900, max_loops=max_loops, partition="aws"
    )


class Script:
    """Answers the worker's invocations in turn: an outcome, a whole reply, or an error."""

    def __init__(self, *answers, started=None):
        self.answers = list(answers)
        self.started = list(started or [])
        self.payloads = []
        self.crashes = []
        self.starts = []

    def invoke(self, arguments):
        assert arguments["FunctionName"] == "arn:alias"
        self.payloads.append(arguments["Payload"])
        self.crashes.append(self.machine.variables["crashes"])
        answer = self.answers.pop(0)
        if isinstance(answer, TaskFailed):
            raise answer
        return {"Payload": answer if isinstance(answer, dict) else reply(answer)}

    def start(self, arguments):
        self.starts.append(arguments)
        answer = self.started.pop(0) if self.started else None
        if answer:
            raise answer
        return {"ExecutionArn": "arn:execution"}

    def run(self, **options):
        machine = self.machine = Machine(
            a_definition(**options), invoke=self.invoke, start=self.start
        )
        machine.run(json.loads(SLOT.execution_text()))
        assert not self.answers, f"never asked for: {self.answers}"
        return machine


def reply(outcome):
    return {"version": 1, "outcome": outcome}


def test_a_slot_goes_on_as_long_as_the_worker_says_continue():
    script = Script("CONTINUE", "CONTINUE", "CONTINUE", "IDLE")

    machine = script.run()

    assert len(script.payloads) == 4
    assert (machine.waits, machine.visited[-1]) == ([], "Done")


@pytest.mark.parametrize("outcome", [TurnOutcome.IDLE, TurnOutcome.DRAINED])
def test_a_slot_ends_when_the_worker_is_idle_or_drained(outcome):
    script = Script(outcome.value)

    assert script.run().visited == ["Begin", "RunWorker", "Outcome", "Done"]
    assert script.starts == []


def test_the_worker_is_given_the_executions_own_input_and_the_fault_of_the_one_before():
    script = Script(CRASH, "FAILED", "CONTINUE", "IDLE")

    script.run()

    read = [SlotInput.from_payload(payload) for payload in script.payloads]
    assert [r.fault for r in read] == ["", f"Runtime.ExitError: {CAUSE}", "", ""]
    assert failure_of_fault(read[1].fault).kind is FailureKind.MEMORY
    assert {(r.slot_id, r.name, r.start_epoch, r.generation) for r in read} == {
        ("s0003", "clicks-s0003-7", 7, 2)
    }


def test_a_cause_is_handed_on_in_part_and_a_missing_one_is_none(defined):
    script = Script(TaskFailed("X", cause="c" * 300_000), TaskFailed("Lambda.Unknown"), "IDLE")

    script.run()

    assert [p["fault"] for p in script.payloads] == [
        "",
        f"X: {'c' * (defined.FAULT_CHARACTERS_MOST - 3)}",
        "Lambda.Unknown: ",
    ]


def test_after_a_first_crash_the_worker_is_invoked_again_at_once():
    assert Script(CRASH, "IDLE").run().waits == []


def test_a_reply_that_is_too_large_is_a_crash_like_any_other():
    """Fact S01: States.ALL does not catch it, and the slot's execution would end."""
    script = Script(TaskFailed("States.DataLimitExceeded"), "IDLE")

    assert script.run().visited[-1] == "Done"
    assert script.crashes == [0, 1]


def test_after_further_crashes_the_delay_grows_to_five_minutes(defined):
    crashes = len(defined.BACK_OFF_SECONDS) + 4

    machine = Script(*[CRASH] * crashes, "IDLE").run()

    assert machine.waits == [*defined.BACK_OFF_SECONDS, 300, 300, 300]
    assert all(isinstance(seconds, int) for seconds in machine.waits)


def test_a_reply_of_failed_counts_as_a_crash():
    script = Script("FAILED", "FAILED", "FAILED", "IDLE")

    assert script.run().waits == [1, 2]
    assert script.crashes == [0, 1, 2, 3]


@pytest.mark.parametrize("answer", [{}, {"version": 1}, {"version": 1, "outcome": "SHARD_END"}])
def test_a_reply_that_says_nothing_known_counts_as_a_crash(answer):
    script = Script(answer, "IDLE")

    script.run()

    assert script.crashes[1] == 1


def test_a_crash_after_a_minute_of_running_well_is_a_first_crash_again(defined):
    late, early = TaskFailed("Runtime.ExitError", after_s=70), TaskFailed("x", after_s=50)

    machine = Script(CRASH, CRASH, CRASH, late, early, late, "IDLE").run()

    assert machine.waits == [*defined.BACK_OFF_SECONDS[:2], defined.BACK_OFF_SECONDS[0]]


def test_a_turn_in_good_order_forgets_the_crashes():
    script = Script(CRASH, CRASH, "CONTINUE", CRASH, "IDLE")

    assert script.run().waits == [1]
    assert script.crashes == [0, 1, 2, 0, 1]


def test_a_throttled_invocation_is_retried_and_does_not_count_as_a_crash(defined):
    script = Script(*[THROTTLE] * defined.RETRIES, "IDLE")

    assert script.run().waits == []
    assert set(script.crashes) == {0}
    assert "Lambda.TooManyRequestsException" in defined.RETRIED_ERRORS


def test_a_lasting_throttle_counts_as_a_crash(defined):
    script = Script(*[THROTTLE] * (defined.RETRIES + 1), "IDLE")

    script.run()

    assert script.crashes[-1] == 1


def test_a_time_out_of_the_task_is_a_crash():
    script = Script(TaskFailed("States.Timeout"), "IDLE")

    script.run()

    assert script.crashes[-1] == 1


def test_the_execution_continues_as_new_after_its_loops():
    script = Script("CONTINUE", "CONTINUE", "CONTINUE")

    machine = script.run(max_loops=3)

    assert machine.visited[-2:] == ["ContinueAsNew", "Done"]
    assert len(script.starts) == 1


def test_the_successor_has_the_name_and_input_that_the_manager_expects():
    script = Script("CONTINUE")

    script.run(max_loops=1)

    successor = SlotInput(slot_id="s0003", name="clicks-s0003-7", start_epoch=7, generation=3)
    start = script.starts[0]
    assert start["StateMachineArn"] == "arn:machine"
    assert start["Name"] == successor.execution_name()
    assert json.dumps(start["Input"], separators=(",", ":")) == successor.execution_text()


def test_crashes_count_as_loops():
    script = Script(CRASH, "FAILED", CRASH)

    script.run(max_loops=3)

    assert len(script.starts) == 1


def test_a_successor_that_somebody_else_started_is_as_good(defined):
    script = Script("CONTINUE", started=[TaskFailed(defined.ALREADY_EXISTS)])

    machine = script.run(max_loops=1)

    assert (len(script.starts), machine.visited[-1]) == (1, "Done")


def test_starting_the_successor_is_retried():
    throttled = TaskFailed("StepFunctions.ThrottlingException")
    script = Script("CONTINUE", started=[throttled, throttled])

    script.run(max_loops=1)

    assert len(script.starts) == 3


def test_ending_in_good_order_starts_no_successor():
    script = Script("CONTINUE", "IDLE")

    script.run(max_loops=2)

    assert script.starts == []


def test_the_task_has_half_a_minute_more_than_the_function():
    assert a_definition()["States"]["RunWorker"]["TimeoutSeconds"] == 930


def test_the_dearest_loops_that_are_allowed_fit_the_history(defined):
    """Task 5 events, a retry 3 more, choice 2, wait 2 (serverless.md 3.2, counted)."""
    from shardfleet_cdk.options import LOOPS_MOST  # noqa: PLC0415 - it starts Node

    dearest = (5 + 3 * defined.RETRIES) + 2 + 2
    begin_and_end = 20 + 3 * 8

    assert dearest * LOOPS_MOST + begin_and_end <= HISTORY_EVENTS_MOST


def test_every_state_is_reached_and_leads_somewhere():
    states = a_definition()["States"]
    named = {"Begin"}
    for state in states.values():
        rules = [state, *state.get("Choices", []), *state.get("Catch", [])]
        named |= {rule[key] for rule in rules for key in ("Next", "Default") if key in rule}

    assert named == set(states)
