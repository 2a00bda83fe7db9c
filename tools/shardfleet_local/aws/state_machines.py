"""
Step Functions in the embedded AWS: where ministack's executions differ from the service's.

The state machine's time-out, starts that may be repeated, the delays of retries, the names of
errors from Lambda and from nested starts, and the output of a Succeed state.
"""

import contextvars
import json
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ministack.services import stepfunctions

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings


def _enforce_time_outs(_: ServerSettings) -> None:
    """End an execution as TIMED_OUT when its machine's TimeoutSeconds have passed."""
    stock = stepfunctions._run_execution

    def run(execution_arn: str) -> None:
        timer = _timer_for(execution_arn)
        if timer is None:
            stock(execution_arn)
            return
        timer.start()
        try:
            stock(execution_arn)
        finally:
            timer.cancel()

    stepfunctions._run_execution = run


def _timer_for(execution_arn: str) -> threading.Timer | None:
    execution = stepfunctions._executions.get(execution_arn) or {}
    machine = stepfunctions._state_machines.get(execution.get("stateMachineArn"))
    try:
        seconds = json.loads(machine["definition"])["TimeoutSeconds"]
    except (KeyError, TypeError, ValueError):
        return None
    scope = contextvars.copy_context()
    timer = threading.Timer(float(seconds), scope.run, (time_out, execution, seconds))
    timer.daemon = True
    return timer


def time_out(execution: dict[str, Any], seconds: float) -> None:
    """Mark an execution as TIMED_OUT, unless it has already ended."""
    if execution["status"] != "RUNNING":
        return
    execution["status"] = "TIMED_OUT"
    execution["error"] = "States.Timeout"
    execution["cause"] = f"The execution ran longer than its TimeoutSeconds, {seconds}"
    execution["stopDate"] = stepfunctions.now_iso()
    details = {"error": execution["error"], "cause": execution["cause"]}
    stepfunctions._add_event(
        execution, "ExecutionTimedOut", {"executionTimedOutEventDetails": details}
    )
    stepfunctions._emit_execution_status_event(execution)


def _leave_ended_executions_alone(_: ServerSettings) -> None:
    """A task that ends after its execution was stopped or timed out changes nothing any more."""
    stock_fail = stepfunctions._fail_execution
    stock_add = stepfunctions._add_event

    def fail(execution: dict[str, Any], error: str, cause: str) -> None:
        if execution["status"] == "RUNNING":
            stock_fail(execution, error, cause)

    def add(execution: dict[str, Any], event_type: str, details: Any = None) -> None:
        if execution["status"] == "RUNNING" or event_type.startswith("Execution"):
            stock_add(execution, event_type, details)

    stepfunctions._fail_execution = fail
    stepfunctions._add_event = add


def _make_starts_repeatable(_: ServerSettings) -> None:
    """Answer a start with the name and input of a running execution as the first one was (AWS)."""
    stock = stepfunctions._start_execution
    one_at_a_time = threading.Lock()

    def start(data: Mapping[str, Any]) -> Any:
        with one_at_a_time:
            running = _running_twin(data)
            if running is None:
                return stock(data)
        return stepfunctions.json_response(
            {"executionArn": running["executionArn"], "startDate": running["startDate"]}
        )

    stepfunctions._start_execution = start


def _running_twin(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    machine_arn = str(data.get("stateMachineArn", ""))
    name = data.get("name")
    if not name:
        return None
    execution_arn = f"{machine_arn.replace(':stateMachine:', ':execution:')}:{name}"
    twin: Mapping[str, Any] | None = stepfunctions._executions.get(execution_arn)
    if twin and twin["status"] == "RUNNING" and twin["input"] == data.get("input", "{}"):
        return twin
    return None


def _wait_as_told_between_retries(_: ServerSettings) -> None:
    """Honour MaxDelaySeconds and JitterStrategy of a Retry."""
    stock = stepfunctions._find_matching_retrier
    jitter = random.Random()

    def find(
        retriers: Sequence[Mapping[str, Any]], error: str, retry_counts: Mapping[int, int]
    ) -> tuple[Mapping[str, Any] | None, int]:
        retrier, index = stock(retriers, error, retry_counts)
        if retrier is None:
            return None, index
        delay = retry_delay_s(retrier, retry_counts.get(index, 0), jitter=jitter)
        return {**retrier, "IntervalSeconds": delay, "BackoffRate": 1.0}, index

    stepfunctions._find_matching_retrier = find


def retry_delay_s(retrier: Mapping[str, Any], retries: int, *, jitter: random.Random) -> float:
    """Return the seconds before the next attempt after so many retries (States Language: Retry)."""
    interval = float(retrier.get("IntervalSeconds", 1))
    delay = interval * float(retrier.get("BackoffRate", 2.0)) ** retries
    if "MaxDelaySeconds" in retrier:
        delay = min(delay, float(retrier["MaxDelaySeconds"]))
    if retrier.get("JitterStrategy") == "FULL":
        delay = jitter.uniform(0.0, delay)
    return delay


def _name_lambda_throttles(_: ServerSettings) -> None:
    stock = stepfunctions._call_lambda
    failed = stepfunctions._ExecutionError

    def call(function: str, event: Any) -> Any:
        try:
            return stock(function, event)
        except failed as error:
            if '"TooManyRequestsException"' in str(error.cause):
                raise failed(
                    "Lambda.TooManyRequestsException", error.cause
                ) from error  # fact L21, S22
            raise

    stepfunctions._call_lambda = call


def _name_errors_of_nested_starts(_: ServerSettings) -> None:
    stock = stepfunctions._invoke_nested_start_execution
    failed = stepfunctions._ExecutionError

    def invoke(resource: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return stock(resource, arguments)
        except failed as error:
            if error.error.startswith("States."):
                raise
            name = f"StepFunctions.{error.error.removesuffix('Exception')}Exception"
            raise failed(name, error.cause) from error  # fact S22

    stepfunctions._invoke_nested_start_execution = invoke


def _apply_output_of_succeed(_: ServerSettings) -> None:
    stock = stepfunctions._apply_output_path

    def apply(state: Mapping[str, Any], data: Any, ctx: Any = None) -> Any:
        language = stepfunctions._state_query_language(state, ctx)
        if state.get("Type") == "Succeed" and language == "JSONata":
            return stepfunctions._apply_jsonata_output(state, data, ctx, default=data)
        return stock(state, data, ctx)

    stepfunctions._apply_output_path = apply


_SERVICE = "ministack.services.stepfunctions:"

PATCHES = (
    Patch(
        gap="A state machine's TimeoutSeconds is ignored",
        touches=(
            *(
                _SERVICE + name
                for name in (
                    "_run_execution", "_executions", "_state_machines", "now_iso",
                    "_emit_execution_status_event",
                )
            ),
        ),
        apply=_enforce_time_outs,
    ),
    Patch(
        gap="A task that fails after StopExecution turns ABORTED into FAILED",
        touches=(_SERVICE + "_fail_execution", _SERVICE + "_add_event"),
        apply=_leave_ended_executions_alone,
    ),
    Patch(
        gap="StartExecution with the name and input of a running execution is refused",
        touches=(_SERVICE + "_start_execution", _SERVICE + "json_response"),
        apply=_make_starts_repeatable,
    ),
    Patch(
        gap="MaxDelaySeconds and JitterStrategy are ignored",
        touches=(_SERVICE + "_find_matching_retrier",),
        apply=_wait_as_told_between_retries,
    ),
    Patch(
        gap="A throttled Lambda is reported as Lambda.Unknown",
        touches=(_SERVICE + "_call_lambda", _SERVICE + "_ExecutionError"),
        apply=_name_lambda_throttles,
    ),
    Patch(
        gap="Errors of states:startExecution lack StepFunctions. before and Exception after",
        touches=(_SERVICE + "_invoke_nested_start_execution",),
        apply=_name_errors_of_nested_starts,
    ),
    Patch(
        gap="The JSONata Output of a Succeed state is ignored",
        touches=(
            _SERVICE + "_apply_output_path",
            _SERVICE + "_apply_jsonata_output",
            _SERVICE + "_state_query_language",
        ),
        apply=_apply_output_of_succeed,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
