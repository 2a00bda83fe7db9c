"""
The limits of Step Functions executions in the embedded AWS, and what is seen of them late.

Payloads, histories and names have their service's limits; two errors are not caught by States.ALL;
a machine that is deleted lives on, in DELETING, until its executions come to a transition; and
descriptions of executions may be behind.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ministack.services import stepfunctions
from ministack.services.cloudformation import provisioners, stacks

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

PAYLOAD_BYTES_MOST = 262_144  # fact S02
"""Input and output of a state, a task and an execution (fact S02: quotas of Step Functions)."""

EVENTS_MOST = 25_000  # fact S03
"""Events of one execution's history (fact S03: quotas of Step Functions)."""

TERMINAL_ERRORS = frozenset({"States.DataLimitExceeded", "States.Runtime"})
"""What States.ALL and States.TaskFailed do not match (fact S01: "Handling errors")."""

NAME = re.compile(r"[^\s<>{}\[\]?*\"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]{1,80}")
"""Execution names (botocore: stepfunctions StartExecution.name)."""

MACHINE = "AWS::StepFunctions::StateMachine"

DELETION_LOOK_S = 0.2
"""How often CloudFormation looks whether a machine in DELETING is gone."""


def _limit_payloads(_: ServerSettings) -> None:
    def limited(stock: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found = stock(*arguments, **options)
            if len(json.dumps(found).encode()) > PAYLOAD_BYTES_MOST:
                raise stepfunctions._ExecutionError(  # fact S01, S02
                    "States.DataLimitExceeded",
                    "The state/task returned a result with a size exceeding the maximum number of "
                    "bytes service limit.",
                )
            return found

        return call

    for name in ("_invoke_resource", "_apply_jsonata_arguments", "_apply_jsonata_output"):
        setattr(stepfunctions, name, limited(getattr(stepfunctions, name)))


def _let_two_errors_through(_: ServerSettings) -> None:
    stock = stepfunctions._error_matches

    def matches(equals: list[str], error: str) -> bool:
        if error == "States.Runtime":
            return False  # It cannot be caught at all.
        if error in TERMINAL_ERRORS:
            return error in equals
        return bool(stock(equals, error))

    stepfunctions._error_matches = matches


def _limit_histories(_: ServerSettings) -> None:
    stock = stepfunctions._add_event

    def add(execution: dict[str, Any], event_type: str, details: Any = None) -> Any:
        # The last event is the one that says that the execution has failed.
        full = len(execution["events"]) >= EVENTS_MOST - 1
        if full and execution["status"] == "RUNNING":
            raise stepfunctions._ExecutionError(  # fact S03
                "States.Runtime",
                f"The execution reached the maximum number of history events ({EVENTS_MOST}).",
            )
        return stock(execution, event_type, details)

    stepfunctions._add_event = add


def _refuse_starts(_: ServerSettings) -> None:
    stock = stepfunctions._start_execution

    def start(data: Mapping[str, Any]) -> Any:
        name, given = data.get("name"), str(data.get("input", "{}"))
        machine = stepfunctions._state_machines.get(data.get("stateMachineArn"))
        if name and not NAME.fullmatch(name):
            return stepfunctions.error_response_json("InvalidName", f"Invalid Name: '{name}'", 400)
        if len(given.encode()) > PAYLOAD_BYTES_MOST:
            return stepfunctions.error_response_json(
                "ValidationException",
                "1 validation error detected: Value at 'input' failed to satisfy constraint: "
                f"Member must have length less than or equal to {PAYLOAD_BYTES_MOST}",
                400,
            )
        if machine and machine.get("status") == "DELETING":
            return stepfunctions.error_response_json(
                "StateMachineDeleting", f"State machine is deleting: '{machine['name']}'", 400
            )
        return stock(data)

    stepfunctions._start_execution = start


def _is_deleting(execution: Mapping[str, Any]) -> bool:
    machine = stepfunctions._state_machines.get(execution["stateMachineArn"]) or {}
    return bool(machine.get("status") == "DELETING")


def _runs(machine_arn: str) -> bool:
    return any(
        each["stateMachineArn"] == machine_arn and each["status"] == "RUNNING"
        for each in stepfunctions._executions.values()
    )


def _delete_at_the_next_transition(_: ServerSettings) -> None:
    """A deleted machine stays, in DELETING, until its executions change state (fact S09)."""
    stock_run, stock_add = stepfunctions._run_execution, stepfunctions._add_event
    machines = stepfunctions._state_machines

    def delete(data: Mapping[str, Any]) -> Any:
        arn = str(data.get("stateMachineArn", ""))
        if _runs(arn):
            machines[arn]["status"] = "DELETING"
        else:
            _forget(arn)
        return stepfunctions.json_response({})  # Of a machine that is gone, too: idempotent.

    def add(execution: dict[str, Any], event_type: str, details: Any = None) -> Any:
        if event_type.endswith("StateEntered") and _is_deleting(execution):
            stepfunctions._stop_execution({"executionArn": execution["executionArn"]})
            raise stepfunctions._ExecutionError(  # fact S09
                "States.Runtime", "The state machine is deleting"
            )
        return stock_add(execution, event_type, details)

    def run(execution_arn: str) -> None:
        execution = stepfunctions._executions.get(execution_arn) or {}
        stock_run(execution_arn)
        if execution and _is_deleting(execution) and not _runs(execution["stateMachineArn"]):
            _forget(execution["stateMachineArn"])

    stepfunctions._delete_state_machine = delete
    stepfunctions._add_event = add
    stepfunctions._run_execution = run


def _delete_with_the_stack(_: ServerSettings) -> None:
    """CloudFormation waits until a machine is gone, for as long as its executions run (A11)."""
    stock = provisioners._RESOURCE_HANDLERS[MACHINE]
    stock_threads = stacks._runs_on_worker_thread

    def delete(arn: str, _: Any) -> None:
        stepfunctions._delete_state_machine({"stateMachineArn": arn})
        while _runs(arn):
            time.sleep(DELETION_LOOK_S)
        _forget(arn)

    provisioners._RESOURCE_HANDLERS[MACHINE] = {**stock, "delete": delete}
    stacks._runs_on_worker_thread = lambda kind: kind == MACHINE or stock_threads(kind)


def _forget(arn: str) -> None:
    stepfunctions._state_machines.pop(arn, None)
    stepfunctions._tags.pop(arn, None)
    for each in [*stepfunctions._executions.values()]:
        if each["stateMachineArn"] == arn:
            stepfunctions._executions.pop(each["executionArn"], None)


def _describe_late(settings: ServerSettings) -> None:
    """Show executions as they were a while ago: descriptions are behind (fact S06)."""
    behind_ms = settings.behaviour.executions_behind_s * 1000
    if not behind_ms:
        return
    stock_describe, stock_list = stepfunctions._describe_execution, stepfunctions._list_executions
    clear = {"status": "RUNNING", "stopDate": None}

    def as_seen(found: Mapping[str, Any]) -> dict[str, Any] | None:
        seen_ms = time.time() * 1000 - behind_ms
        if stepfunctions._iso_to_epoch_ms(found["startDate"]) > seen_ms:
            return None
        stopped_ms = stepfunctions._iso_to_epoch_ms(found.get("stopDate"))
        if stopped_ms is None or stopped_ms <= seen_ms:
            return dict(found)
        kept = {name: found[name] for name in found if name not in ("output", "error", "cause")}
        return {**kept, **clear}

    def describe(data: Mapping[str, Any]) -> Any:
        status, headers, body = stock_describe(data)
        if status != HTTPStatus.OK:
            return status, headers, body
        seen = as_seen(json.loads(body))
        if seen is None:
            message = f"Execution Does Not Exist: '{data['executionArn']}'"
            return stepfunctions.error_response_json("ExecutionDoesNotExist", message, 400)
        return stepfunctions.json_response(seen)

    def listed(data: Mapping[str, Any]) -> Any:
        wanted = data.get("statusFilter")
        every = {name: value for name, value in data.items() if name != "statusFilter"}
        status, headers, body = stock_list(every)
        if status != HTTPStatus.OK:
            return status, headers, body
        answer = json.loads(body)
        seen = [as_seen(each) for each in answer["executions"]]
        shown = [each for each in seen if each and wanted in (None, each["status"])]
        return stepfunctions.json_response({**answer, "executions": shown})

    stepfunctions._describe_execution = describe
    stepfunctions._list_executions = listed


_SERVICE = "ministack.services.stepfunctions:"

PATCHES = (
    Patch(
        gap="Payloads of any size pass from state to state",
        touches=(
            _SERVICE + "_invoke_resource",
            _SERVICE + "_apply_jsonata_arguments",
            _SERVICE + "_apply_jsonata_output",
            _SERVICE + "_ExecutionError",
        ),
        apply=_limit_payloads,
    ),
    Patch(
        gap="States.ALL catches States.DataLimitExceeded and States.Runtime",
        touches=(_SERVICE + "_error_matches",),
        apply=_let_two_errors_through,
    ),
    Patch(
        gap="A history has no end",
        touches=(_SERVICE + "_add_event",),
        apply=_limit_histories,
    ),
    Patch(
        gap="An execution may have any name and any input",
        touches=(
            _SERVICE + "_start_execution",
            _SERVICE + "_state_machines",
            _SERVICE + "error_response_json",
        ),
        apply=_refuse_starts,
    ),
    Patch(
        gap="A deleted state machine is gone at once, its executions forgotten while they run on",
        touches=(
            *(
                _SERVICE + name
                for name in (
                    "_run_execution", "_add_event", "_executions", "_tags", "_stop_execution",
                    "_delete_state_machine", "json_response",
                )
            ),
        ),
        apply=_delete_at_the_next_transition,
    ),
    Patch(
        gap="A stack's deletion does not wait for the executions of its state machines",
        touches=(
            "ministack.services.cloudformation.provisioners:_RESOURCE_HANDLERS",
            "ministack.services.cloudformation.stacks:_runs_on_worker_thread",
        ),
        apply=_delete_with_the_stack,
    ),
    Patch(
        gap="Executions are described as they are, not as they were a moment ago",
        touches=(
            _SERVICE + "_describe_execution",
            _SERVICE + "_list_executions",
            _SERVICE + "_iso_to_epoch_ms",
        ),
        apply=_describe_late,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
