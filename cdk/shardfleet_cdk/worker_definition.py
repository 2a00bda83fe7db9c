"""
The worker slot's state machine, as plain data (Amazon States Language, JSONata).

One execution is one slot with a stable worker id. It invokes the worker function again and again;
the reply's outcome decides: CONTINUE invokes it again, IDLE and DRAINED end
the slot, FAILED and every crash invoke it again at once the first time, then with a growing
delay (hazard H9); a crash after an invocation that ran for a minute is a first one again. After
`max_loops` invocations, crashes included, the execution starts its successor with the next
generation (hazard H3), because a history is limited to 25,000 events.

What a loop costs in events: a task 5, and 3 more per retry; a choice 2; a wait 2. An invocation
that is throttled 3 times over and then counts as a crash makes 18.
"""

from __future__ import annotations

from typing import Any

# "At once the first time, then 1 s up to 5 min" (hazard H9). Written out, because the delay must
# be an integer and a power is a float in some JSONata implementations.
BACK_OFF_SECONDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)

# An invocation that ran so long was well: what ended it has nothing to do with earlier crashes.
WELL_AFTER_SECONDS = 60

# The task waits longer than the function may run, so that a time-out is the function's own (H19).
TASK_GRACE_SECONDS = 30

# What is retried without counting as a crash: the function did not run, or Lambda's own front
# end failed. The CDK's usual list lacks TooManyRequestsException.
RETRIED_ERRORS = (
    "Lambda.TooManyRequestsException",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.ClientExecutionTimeoutException",
)
RETRIES = 3

# A reply over 256 KiB; States.ALL, which stands alone, does not catch it (Step Functions guide,
# "Handling errors in Step Functions workflows").
NOT_AMONG_ALL = ["States.DataLimitExceeded"]

# Named so by the optimized integration; somebody did it, which is as good as having done it.
ALREADY_EXISTS = "StepFunctions.ExecutionAlreadyExistsException"


def worker_definition(
    *, function_arn: str, function_timeout_s: int, max_loops: int, partition: str
) -> dict[str, Any]:
    """
    Return the definition.

    Args:
        function_arn: of the worker function's alias.
        function_timeout_s: the worker function's time-out.
        max_loops: invocations before the execution continues as new.
        partition: the AWS partition, e.g. ``"aws"``.

    """
    return {
        "Comment": "One execution is one worker slot of a shardfleet",
        "QueryLanguage": "JSONata",
        "StartAt": "Begin",
        "States": {
            "Begin": {
                "Type": "Pass",
                "Assign": {"slot": "{% $states.input %}", "loops": 0, "crashes": 0, "fault": ""},
                "Next": "RunWorker",
            },
            "RunWorker": _run_worker(function_arn, function_timeout_s, partition),
            "Outcome": _outcome(max_loops),
            "Failure": _failure(max_loops),
            "BackOff": {
                "Type": "Wait",
                "Seconds": _expression(
                    f"{list(BACK_OFF_SECONDS)}[$min([$crashes - 2, {len(BACK_OFF_SECONDS) - 1}])]"
                ),
                "Next": "RunWorker",
            },
            "ContinueAsNew": _continue_as_new(partition),
            "Done": {"Type": "Succeed"},
        },
    }


_RAN_MS = "$millis() - $toMillis($states.context.State.EnteredTime)"
_CRASHES = f"({_RAN_MS}) > {WELL_AFTER_SECONDS * 1000} ? 1 : $crashes + 1"

# What the invocation could not say itself, for the next one to write down (domain/slots/failure).
FAULT_CHARACTERS_MOST = 500
_FAULT = (
    "$substring($states.errorOutput.Error & ': ' & $states.errorOutput.Cause, 0, "
    f"{FAULT_CHARACTERS_MOST})"
)


def _expression(text: str) -> str:
    return "{% " + text + " %}"


def _run_worker(function_arn: str, function_timeout_s: int, partition: str) -> dict[str, Any]:
    counted = {"loops": _expression("$loops + 1")}
    reply = "$states.result.Payload.outcome"
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::lambda:invoke",
        "Arguments": {
            "FunctionName": function_arn,
            "Payload": _expression("$merge([$slot, {'fault': $fault}])"),
        },
        "TimeoutSeconds": function_timeout_s + TASK_GRACE_SECONDS,
        "Assign": {
            **counted,
            "fault": "",
            # A reply without an outcome would otherwise fail the execution.
            "outcome": _expression(f"$exists({reply}) ? {reply} : 'FAILED'"),
        },
        "Output": {},
        "Retry": [
            {
                "ErrorEquals": list(RETRIED_ERRORS),
                "IntervalSeconds": 1,
                "BackoffRate": 2,
                "MaxAttempts": RETRIES,
                "MaxDelaySeconds": 20,
                "JitterStrategy": "FULL",
            }
        ],
        "Catch": [
            {
                "ErrorEquals": errors,
                "Assign": {
                    **counted,
                    "crashes": _expression(_CRASHES),
                    "fault": _expression(_FAULT),
                },
                "Next": "Failure",
            }
            for errors in (NOT_AMONG_ALL, ["States.ALL"])
        ],
        "Next": "Outcome",
    }


def _outcome(max_loops: int) -> dict[str, Any]:
    return {
        "Type": "Choice",
        "Choices": [
            {
                "Condition": _expression(f"$outcome = 'CONTINUE' and $loops < {max_loops}"),
                "Assign": {"crashes": 0},
                "Next": "RunWorker",
            },
            {"Condition": _expression("$outcome = 'CONTINUE'"), "Next": "ContinueAsNew"},
            {"Condition": _expression("$outcome in ['IDLE', 'DRAINED']"), "Next": "Done"},
        ],
        "Default": "Failure",
        "Assign": {"crashes": _expression("$crashes + 1")},
    }


def _failure(max_loops: int) -> dict[str, Any]:
    return {
        "Type": "Choice",
        "Choices": [
            {"Condition": _expression(f"$loops >= {max_loops}"), "Next": "ContinueAsNew"},
            {"Condition": _expression("$crashes <= 1"), "Next": "RunWorker"},
        ],
        "Default": "BackOff",
    }


def _continue_as_new(partition: str) -> dict[str, Any]:
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::states:startExecution",
        "Arguments": {
            "StateMachineArn": _expression("$states.context.StateMachine.Id"),
            "Name": _expression("$slot.name & '-' & $string($slot.generation + 1)"),
            "Input": _expression("$merge([$slot, {'generation': $slot.generation + 1}])"),
        },
        "Output": {},
        "Retry": [
            {"ErrorEquals": [ALREADY_EXISTS], "MaxAttempts": 0},
            {
                "ErrorEquals": ["States.ALL"],
                "IntervalSeconds": 1,
                "BackoffRate": 2,
                "MaxAttempts": 8,
                "MaxDelaySeconds": 60,
                "JitterStrategy": "FULL",
            },
        ],
        "Catch": [{"ErrorEquals": [ALREADY_EXISTS], "Next": "Done"}],
        "Next": "Done",
    }
