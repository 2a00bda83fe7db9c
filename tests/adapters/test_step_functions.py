"""Slots are started once by name: hazard H3, against the embedded AWS."""

import asyncio
import json
import time
import uuid

import pytest

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.step_functions import StepFunctionsLauncher, execution_arn
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import ExecutionStatus
from shardfleet.errors import ConfigurationError, OutcomeUnknown, Throttled
from tests.adapters.loopback import HANG_UP, Service, error, serving
from tests.adapters.tables import LIMITS

run = asyncio.run
MACHINE = "arn:aws:states:eu-central-1:111122223333:stateMachine:orders-worker"
WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}}
ENDING = {"StartAt": "Done", "States": {"Done": {"Type": "Succeed"}}}


def launcher(clients, machine):
    pool = ThreadPool("streams", threads=2)
    return StepFunctionsLauncher(machine, client=clients.step_functions, pool=pool)


@pytest.fixture
def make_launcher(embedded_clients):
    made = []

    def make(definition):
        answer = embedded_clients.step_functions.create_state_machine(
            name=f"worker-{uuid.uuid4().hex[:8]}",
            definition=json.dumps(definition),
            roleArn="arn:aws:iam::111122223333:role/any",
        )
        made.append(answer["stateMachineArn"])
        return launcher(embedded_clients, answer["stateMachineArn"])

    yield make
    for machine in made:
        states = embedded_clients.step_functions
        running = states.list_executions(stateMachineArn=machine, statusFilter="RUNNING")
        for execution in running["executions"]:
            states.stop_execution(executionArn=execution["executionArn"])
        embedded_clients.step_functions.delete_state_machine(stateMachineArn=machine)


@pytest.mark.processes
def test_a_start_repeated_with_the_same_input_while_it_runs_is_the_same_execution(make_launcher):
    slots = make_launcher(WAITING)
    assert run(slots.start("fleet-s0001-1-0", '{"version":1}')) is True
    assert run(slots.start("fleet-s0001-1-0", '{"version":1}')) is True
    assert run(slots.status("fleet-s0001-1-0")) is ExecutionStatus.RUNNING


@pytest.mark.processes
def test_a_start_with_another_input_is_refused_while_it_runs(make_launcher):
    slots = make_launcher(WAITING)
    run(slots.start("fleet-s0001-1-0", '{"version":1}'))
    assert run(slots.start("fleet-s0001-1-0", '{"version":2}')) is False
    assert run(slots.status("fleet-s0001-1-0")) is ExecutionStatus.RUNNING


@pytest.mark.processes
def test_a_name_is_taken_by_an_execution_that_has_closed(make_launcher):
    slots = make_launcher(ENDING)
    run(slots.start("fleet-s0001-1-0", '{"version":1}'))

    deadline = time.monotonic() + 60
    while run(slots.status("fleet-s0001-1-0")) is not ExecutionStatus.CLOSED:
        assert time.monotonic() < deadline
    assert run(slots.start("fleet-s0001-1-0", '{"version":1}')) is False


@pytest.mark.processes
def test_a_name_that_was_never_started_is_absent(make_launcher):
    slots = make_launcher(WAITING)
    run(slots.start("fleet-s0001-1-0", "{}"))
    assert run(slots.status("fleet-s0001-2-0")) is ExecutionStatus.ABSENT


@pytest.mark.processes
def test_a_missing_machine_is_a_matter_of_configuration(embedded_clients):
    with pytest.raises(ConfigurationError, match="orders-worker"):
        run(launcher(embedded_clients, MACHINE).start("fleet-s0001-1-0", "{}"))


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (HANG_UP, OutcomeUnknown),
        (error("InternalServerError", 500), OutcomeUnknown),
        (error("ThrottlingException"), Throttled),
        (error("ExecutionLimitExceeded"), Throttled),
    ],
    ids=["hang up", "500", "throttled", "too many executions"],
)
def test_a_start_without_an_answer_is_unknown_and_a_refused_one_is_not(monkeypatch, answer, raised):
    with serving(Service(answer)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(raised):
            run(launcher(AwsClients(LIMITS), MACHINE).start("fleet-s0001-1-0", "{}"))


@pytest.mark.parametrize("machine", [MACHINE, f"{MACHINE}:live", f"{MACHINE}:7"])
def test_an_execution_arn_comes_from_the_machine_whatever_its_qualifier(machine):
    assert execution_arn(machine, "fleet-s0001-1-0") == (
        "arn:aws:states:eu-central-1:111122223333:execution:orders-worker:fleet-s0001-1-0"
    )


@pytest.mark.parametrize("machine", ["", "orders-worker", "arn:aws:lambda:eu:1:function:x"])
def test_an_arn_of_something_else_is_refused_by_name(machine):
    with pytest.raises(ConfigurationError, match="state_machine_arn"):
        execution_arn(machine, "x")
