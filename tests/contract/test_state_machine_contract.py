"""
Step Functions, as the worker slots need it: a JSONata loop around a Lambda, and its ends.

Expectations are as AWS documents them, unless a test's name says otherwise.
"""

import io
import json
import time
import uuid
import zipfile

import pytest

pytestmark = pytest.mark.processes

CODE = """
import os, time

class NoStock(Exception):
    pass

def handler(event, context):
    action = event.get("action", "")
    if action == "fail":
        raise NoStock("none left")
    if action == "fail once" and not event["crashes"]:
        raise NoStock("none left")
    if action == "die":
        os._exit(1)
    if action == "sleep":
        time.sleep(event["seconds"])
    loops = event.get("loops", 0) + 1
    return {"status": "CONTINUE" if loops < event.get("until", 1) else "IDLE", "loops": loops,
            "arn": context.invoked_function_arn}
"""

LOOP = {
    "QueryLanguage": "JSONata",
    "StartAt": "Init",
    "States": {
        "Init": {
            "Type": "Pass",
            "Assign": {
                "work": "{% $states.input.work %}",
                "generation": "{% $states.input.generation %}",
                "slot": "{% $states.input.slot %}",
                "loops": 0,
                "crashes": 0,
            },
            "Next": "RunWorker",
        },
        "RunWorker": {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke",
            "Arguments": {
                "FunctionName": "FUNCTION",
                "Payload": "{% $merge([$work, {'loops': $loops, 'crashes': $crashes}]) %}",
            },
            "TimeoutSeconds": 60,
            "Assign": {
                "loops": "{% $states.result.Payload.loops %}",
                "status": "{% $states.result.Payload.status %}",
                "arn": "{% $states.result.Payload.arn %}",
            },
            "Retry": [
                {
                    "ErrorEquals": ["Lambda.TooManyRequestsException"],
                    "IntervalSeconds": 1,
                    "MaxAttempts": 60,
                    "BackoffRate": 2,
                    "MaxDelaySeconds": 1,
                    "JitterStrategy": "FULL",
                }
            ],
            "Catch": [
                {
                    "ErrorEquals": ["States.ALL"],
                    "Assign": {
                        "crashes": "{% $crashes + 1 %}",
                        "error": "{% $states.errorOutput.Error %}",
                        "cause": "{% $states.errorOutput.Cause %}",
                    },
                    "Next": "Crashed",
                }
            ],
            "Next": "Again",
        },
        "Crashed": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $crashes < 3 %}", "Next": "RunWorker"}],
            "Default": "GiveUp",
        },
        "GiveUp": {"Type": "Fail", "Error": "{% $error %}", "Cause": "{% $cause %}"},
        "Again": {
            "Type": "Choice",
            "Choices": [
                {"Condition": "{% $status = 'CONTINUE' %}", "Next": "RunWorker"},
                {"Condition": "{% $generation < 2 %}", "Next": "ContinueAsNew"},
            ],
            "Default": "Done",
        },
        "ContinueAsNew": {
            "Type": "Task",
            "Resource": "arn:aws:states:::states:startExecution",
            "Arguments": {
                "StateMachineArn": "{% $states.context.StateMachine.Id %}",
                "Name": "{% $slot & '-' & $string($generation + 1) %}",
                "Input": {
                    "work": "{% $work %}",
                    "slot": "{% $slot %}",
                    "generation": "{% $generation + 1 %}",
                },
            },
            "Catch": [
                {
                    "ErrorEquals": ["StepFunctions.ExecutionAlreadyExistsException"],
                    "Assign": {"status": "somebody else continued"},
                    "Next": "Done",
                }
            ],
            "Next": "Done",
        },
        "Done": {
            "Type": "Succeed",
            "Output": {
                "loops": "{% $loops %}",
                "crashes": "{% $crashes %}",
                "status": "{% $status %}",
                "arn": "{% $arn %}",
            },
        },
    },
}


class Machines:
    """State machines with one worker function, through an alias, as the fleet has it."""

    def __init__(self, account, eventually):
        self.states = account.client("stepfunctions")
        self.functions = account.client("lambda")
        self._account = account
        self._eventually = eventually
        self._roles = {}
        self.function_name = f"shardfleet-contract-{uuid.uuid4().hex[:12]}"
        self.alias_arn = self._make_function()

    def make(self, definition):
        text = json.dumps(definition).replace("FUNCTION", self.alias_arn)
        made = self._patiently(
            self.states.create_state_machine,
            name=f"shardfleet-contract-{uuid.uuid4().hex[:12]}",
            definition=text,
            roleArn=self._role("states", ["lambda:InvokeFunction", "states:StartExecution"]),
        )
        return made["stateMachineArn"]

    def start(self, machine, name, given):
        started = self.states.start_execution(
            stateMachineArn=machine, name=name, input=json.dumps(given)
        )
        return started["executionArn"]

    def end_of(self, execution):
        """Wait until the execution has ended and describe it."""

        def ended():
            found = self.states.describe_execution(executionArn=execution)
            return found if found["status"] != "RUNNING" else None

        return self._eventually(ended)

    def run(self, machine, **work):
        name = f"slot-{uuid.uuid4().hex[:12]}"
        given = {"work": work, "slot": name, "generation": 9}
        return self.end_of(self.start(machine, name, given))

    def events(self, execution):
        pages = self.states.get_paginator("get_execution_history").paginate(executionArn=execution)
        return [event["type"] for page in pages for event in page["events"]]

    def delete(self):
        self.functions.delete_function(FunctionName=self.function_name)
        iam = self._account.client("iam")
        for name in self._roles.values():
            iam.delete_role_policy(RoleName=name, PolicyName="own")
            iam.delete_role(RoleName=name)

    def _make_function(self):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr("index.py", CODE)
        self._patiently(
            self.functions.create_function,
            FunctionName=self.function_name,
            Runtime="python3.13",
            Handler="index.handler",
            Role=self._role("lambda", ["logs:*"]),
            Code={"ZipFile": archive.getvalue()},
            Timeout=30,
        )
        self.functions.get_waiter("function_active_v2").wait(
            FunctionName=self.function_name, WaiterConfig={"Delay": 1}
        )
        version = self.functions.publish_version(FunctionName=self.function_name)["Version"]
        alias = self.functions.create_alias(
            FunctionName=self.function_name, Name="live", FunctionVersion=version
        )
        return alias["AliasArn"]

    def _role(self, service, actions):
        iam = self._account.client("iam")
        if service not in self._roles:
            name = f"shardfleet-contract-{uuid.uuid4().hex[:12]}"
            principal = {"Service": f"{service}.amazonaws.com"}
            trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
            allow = {"Effect": "Allow", "Action": actions, "Resource": "*"}
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy(trust))
            iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=_policy(allow))
            self._roles[service] = name
        return iam.get_role(RoleName=self._roles[service])["Role"]["Arn"]

    def _patiently(self, create, **request):
        """Repeat while a role that was just made is not known everywhere yet."""

        def attempt():
            try:
                return create(**request)
            except (
                self.functions.exceptions.InvalidParameterValueException,
                self.states.exceptions.ClientError,
            ) as error:
                if "role" not in str(error).lower():
                    raise
                return None

        return self._eventually(attempt)


def _policy(statement):
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.fixture(scope="session")
def machines(account, eventually):
    made = Machines(account, eventually)
    yield made
    made.delete()


@pytest.fixture(scope="session")
def loop(machines):
    machine = machines.make(LOOP)
    yield machine
    machines.states.delete_state_machine(stateMachineArn=machine)


def test_a_loop_carries_its_variables_and_ends_with_its_output(machines, loop):
    end = machines.run(loop, until=4)
    assert end["status"] == "SUCCEEDED"
    output = json.loads(end["output"])
    assert output == {"loops": 4, "crashes": 0, "status": "IDLE", "arn": machines.alias_arn}


def test_a_task_has_five_events_and_a_choice_two(machines, loop):
    short, long = (machines.events(machines.run(loop, until=n)["executionArn"]) for n in (1, 3))
    per_loop = (len(long) - len(short)) / 2
    assert "TaskStateEntered" in long
    assert per_loop <= 7, f"serverless.md §3.2 counts on 7 events per loop, not {per_loop}"


def test_an_exception_is_caught_by_its_class(machines, loop):
    end = machines.run(loop, action="fail")
    assert (end["status"], end["error"]) == ("FAILED", "NoStock")
    cause = json.loads(end["cause"])
    assert (cause["errorType"], cause["errorMessage"]) == ("NoStock", "none left")


def test_a_crash_is_caught_at_once_and_the_worker_invoked_again(machines, loop):
    end = machines.run(loop, action="fail once")
    assert end["status"] == "SUCCEEDED"
    assert json.loads(end["output"])["crashes"] == 1
    assert "WaitStateEntered" not in machines.events(end["executionArn"])


def test_a_process_that_dies_is_an_error_that_states_all_catches(machines, loop):
    end = machines.run(loop, action="die")
    assert end["status"] == "FAILED"
    assert end["error"] in ("Runtime.ExitError", "Lambda.Unknown")


def test_a_throttled_lambda_is_retried_until_it_is_let_in(machines, loop, eventually):
    machines.functions.put_function_concurrency(
        FunctionName=machines.function_name, ReservedConcurrentExecutions=0
    )
    name = f"slot-{uuid.uuid4().hex[:12]}"
    try:
        given = {"work": {}, "slot": name, "generation": 9}
        execution = machines.start(loop, name, given)
        eventually(lambda: "TaskFailed" in machines.events(execution))
    finally:
        machines.functions.delete_function_concurrency(FunctionName=machines.function_name)
    end = machines.end_of(execution)
    assert end["status"] == "SUCCEEDED"
    assert json.loads(end["output"])["crashes"] == 0, "it was a retry, not a crash"


def test_a_task_that_is_too_slow_ends_with_states_timeout(machines):
    task = {**LOOP["States"]["RunWorker"], "TimeoutSeconds": 1, "End": True}
    for name in ("Retry", "Catch", "Next", "Assign"):
        del task[name]
    task["Arguments"] = {
        "FunctionName": "FUNCTION",
        "Payload": {"action": "sleep", "seconds": 20},
    }
    machine = machines.make({"QueryLanguage": "JSONata", "StartAt": "Run", "States": {"Run": task}})
    end = machines.run(machine)
    assert (end["status"], end["error"]) == ("FAILED", "States.Timeout")
    machines.states.delete_state_machine(stateMachineArn=machine)


def test_a_machine_that_is_too_slow_is_timed_out(machines):
    wait = {"Type": "Wait", "Seconds": 10, "End": True}
    machine = machines.make({"TimeoutSeconds": 1, "StartAt": "Wait", "States": {"Wait": wait}})
    started = time.monotonic()
    end = machines.run(machine)
    assert end["status"] == "TIMED_OUT"
    assert time.monotonic() - started < 9, "at the time-out, not at the end of the Wait"
    assert machines.events(end["executionArn"])[-1] == "ExecutionTimedOut"
    machines.states.delete_state_machine(stateMachineArn=machine)


def test_a_stopped_execution_stays_aborted_when_its_task_fails_later(machines, eventually):
    task = {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Parameters": {"FunctionName": "FUNCTION", "Payload": {"action": "sleep", "seconds": 2}},
        "Next": "Fail",
    }
    states = {"Run": task, "Fail": {"Type": "Fail", "Error": "Late"}}
    machine = machines.make({"StartAt": "Run", "States": states})
    execution = machines.start(machine, f"slot-{uuid.uuid4().hex[:12]}", {})
    eventually(lambda: "TaskStateEntered" in machines.events(execution))
    machines.states.stop_execution(executionArn=execution, error="Asked")
    time.sleep(4)  # Not synchronisation: the time in which a late task could change the end.
    end = machines.states.describe_execution(executionArn=execution)
    assert end["status"] == "ABORTED"
    assert machines.events(execution)[-1] == "ExecutionAborted"
    machines.states.delete_state_machine(stateMachineArn=machine)


def test_a_machine_continues_as_new_under_the_next_name(machines, loop):
    name = f"slot-{uuid.uuid4().hex[:12]}"
    first = machines.start(loop, f"{name}-0", {"work": {}, "slot": name, "generation": 0})
    machines.end_of(first)
    for generation in (1, 2):
        execution = first.removesuffix("-0") + f"-{generation}"
        assert machines.end_of(execution)["status"] == "SUCCEEDED"
    with pytest.raises(machines.states.exceptions.ExecutionDoesNotExist):
        machines.states.describe_execution(executionArn=first.removesuffix("-0") + "-3")


def test_continuing_as_new_twice_is_an_error_that_can_be_caught(machines, loop):
    name = f"slot-{uuid.uuid4().hex[:12]}"
    other = {"work": {}, "slot": "other", "generation": 9}
    machines.end_of(machines.start(loop, f"{name}-1", other))
    first = machines.start(loop, f"{name}-0", {"work": {}, "slot": name, "generation": 0})
    end = machines.end_of(first)
    assert end["status"] == "SUCCEEDED"
    assert json.loads(end["output"])["status"] == "somebody else continued"


def test_the_same_name_and_input_is_the_same_execution_while_it_runs(machines, loop):
    name = f"slot-{uuid.uuid4().hex[:12]}"
    given = {
        "work": {"action": "sleep", "seconds": 3}, "slot": name, "generation": 9,
    }  # fmt: skip
    first = machines.start(loop, name, given)
    assert machines.start(loop, name, given) == first
    with pytest.raises(machines.states.exceptions.ExecutionAlreadyExists):
        machines.start(loop, name, {**given, "generation": 8})
    machines.end_of(first)
    with pytest.raises(machines.states.exceptions.ExecutionAlreadyExists):
        machines.start(loop, name, given)


def test_a_field_that_is_undefined_is_a_query_error(machines):
    machine = machines.make(
        {
            "QueryLanguage": "JSONata",
            "StartAt": "Look",
            "States": {"Look": {"Type": "Pass", "Output": "{% $states.input.no %}", "End": True}},
        }
    )
    end = machines.run(machine)
    assert (end["status"], end["error"]) == ("FAILED", "States.QueryEvaluationError")
    machines.states.delete_state_machine(stateMachineArn=machine)
